//! Chromium, in which some tests open pages. They are opt-in: `SQLENV_BROWSER_TESTS=1 cargo test`.

use std::{
    io::{Write as _, stderr},
    process::Command,
};

/// Returns whether tests open pages in Chromium. If not, it says on stderr what is left out.
#[expect(clippy::disallowed_methods, reason = "opt-in by environment variable")]
pub(crate) fn is_wanted(left_out: &str) -> bool {
    let is_wanted = std::env::var("SQLENV_BROWSER_TESTS").as_deref() == Ok("1");
    if !is_wanted {
        // Past the test harness, which keeps what a passing test prints.
        let line = format!("SKIPPED: {left_out}; SQLENV_BROWSER_TESTS=1 does, with Chromium\n");
        let _ = stderr().write_all(line.as_bytes());
    }
    is_wanted
}

/// Opens an address and returns the document that it becomes, and Chromium's log.
pub(crate) fn open(address: &str, arguments: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let run = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--enable-logging=stderr",
            "--v=0",
            "--dump-dom",
        ])
        .args(arguments)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(address)
        .output()
        .expect("Chromium runs: install it, or unset SQLENV_BROWSER_TESTS");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&run.stdout), text(&run.stderr))
}
