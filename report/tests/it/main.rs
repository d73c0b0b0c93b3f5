//! Tests of the report as its users see it, in one binary.
//!
//! `tests/fixtures/run` is made up: plausible numbers from a script, results of no run.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

mod browser;
mod live;
mod page;
mod phone;
mod tensorboard;

use std::path::{Path, PathBuf};

use report::{RunFolder, RunRecords};

fn fixture_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run")
}

fn fixture() -> RunRecords {
    RunFolder::new(fixture_path()).read().unwrap()
}
