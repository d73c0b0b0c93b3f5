//! Tests the page `/web`: its routes over a real port, and the page itself in a headless Chromium.

#![allow(clippy::unwrap_used, reason = "tests")]

mod api;
mod browser;
#[path = "../common/mod.rs"]
mod common;
mod docs;
mod garage;
mod page;
mod replay;
mod runs;
mod shared;
mod texts;
