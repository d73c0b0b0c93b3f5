//! The width of the pages on a phone: tables scroll, the page does not.

use std::fs;

use report::{ActorStatus, LiveStatus, RunSettings, live_page, render};

use crate::{browser, fixture};

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
    let address = format!("file://{}", path.display());
    let arguments = ["--hide-scrollbars", "--virtual-time-budget=5000"];
    let (dom, _) = browser::open(&address, &arguments);
    let title = dom.split("<title>").nth(1).unwrap();
    title.split('<').next().unwrap().parse().unwrap()
}

#[test]
fn pages_are_as_wide_as_a_phone() {
    if !browser::is_wanted("pages were not opened in a phone's width") {
        return;
    }
    let records = fixture();
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
