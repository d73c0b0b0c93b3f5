//! The width of the pages on a phone: tables scroll, the page does not.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

use std::{
    fs,
    io::{Write as _, stderr},
    path::Path,
    process::Command,
};

use report::{ActorStatus, LiveStatus, RunFolder, RunSettings, live_page, render};

const PHONE_WIDTH: u32 = 390;

/// Returns the width of a page's content in a frame of a phone's width.
fn content_width(page: &str) -> u32 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frame.html");
    let page = page.replace('&', "&amp;").replace('"', "&quot;");
    let frame = format!(
        "<!doctype html><iframe id=\"frame\" width=\"{PHONE_WIDTH}\" height=\"844\" \
         style=\"border: 0\" srcdoc=\"{page}\"></iframe><script>onload = () => {{ \
         document.title = frame.contentDocument.documentElement.scrollWidth; }}</script>"
    );
    fs::write(&path, frame).unwrap();
    let run = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args([
            "--hide-scrollbars",
            "--disable-background-networking",
            "--dump-dom",
        ])
        .arg("--virtual-time-budget=5000")
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("file://{}", path.display()))
        .output()
        .expect("Chromium runs: install it, or unset SQLENV_BROWSER_TESTS");
    let dom = String::from_utf8_lossy(&run.stdout);
    let title = dom.split("<title>").nth(1).unwrap();
    title.split('<').next().unwrap().parse().unwrap()
}

/// Opt-in, as it needs Chromium: `SQLENV_BROWSER_TESTS=1 cargo test`.
#[test]
#[expect(clippy::disallowed_methods, reason = "opt-in by environment variable")]
fn pages_are_as_wide_as_a_phone() {
    if std::env::var("SQLENV_BROWSER_TESTS").as_deref() != Ok("1") {
        let line = "SKIPPED: pages were not opened in a phone's width; SQLENV_BROWSER_TESTS=1 does, with Chromium\n";
        let _ = stderr().write_all(line.as_bytes());
        return;
    }
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run");
    let records = RunFolder::new(fixture).read().unwrap();
    let mut status = LiveStatus::of_records(&records, "run", RunSettings::default());
    status.actors.push(ActorStatus {
        id: "an-actor-with-a-long-name-0123456789-0123456789-0123456789".to_owned(),
        ..ActorStatus::default()
    });
    for (name, page) in [
        ("the report", render(&records)),
        ("the live page", live_page(Some(&status))),
    ] {
        assert_eq!(content_width(&page), PHONE_WIDTH, "{name}");
    }
    let wide = "<!doctype html><p style=\"width: 500px\">wide</p>";
    assert!(content_width(wide) > 500, "the measure works");
}
