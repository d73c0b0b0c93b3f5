//! Tests what watches a run: the metrics of all roles, their table in `docs/watching.md`, the
//! dashboard and the alerts.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

mod described;
mod documents;
mod expressions;
mod http;
mod live;
mod names;
#[path = "../process/program.rs"]
mod program;
mod prometheus;
mod promtool;
mod queries;

use std::{fs, path::Path};

/// Returns the content of a file of the repository.
fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
