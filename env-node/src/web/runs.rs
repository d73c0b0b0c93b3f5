//! The runs whose episodes the page replays: folders with a `transcripts.jsonl` in `runs_dir`.
//!
//! Invariant: a request's name is only compared with the names in `runs_dir`, so no request can
//! name another path. Links are not followed. The list and each file have a limit, and a file is
//! sent in pieces.

use std::{
    fs::{self, DirEntry},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{self, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use crate::{node::EnvNode, rejection::Rejection};

const TRANSCRIPTS: &str = "transcripts.jsonl";
/// Entries of the folder that are looked at.
const MAX_ENTRIES: usize = 10_000;
/// Runs in the list.
const MAX_RUNS: usize = 500;
/// A browser reads a file as a whole. The default run writes 1 MB.
const MAX_TRANSCRIPT_BYTES: u64 = 64 << 20;

/// A run with transcripts.
#[derive(Serialize)]
struct Run {
    name: String,
    size_bytes: u64,
    modified_unix_seconds: u64,
}

/// Serves the list of runs and their transcripts. Without a folder the list is empty.
pub(super) fn router(node: &EnvNode) -> Router {
    let folder: Option<Arc<Path>> = node.settings().web.runs_dir.as_deref().map(Arc::from);
    Router::new()
        .route("/web/api/runs", get(list))
        .route("/web/api/runs/{name}", get(transcripts))
        .with_state(folder)
}

type Folder = State<Option<Arc<Path>>>;

async fn list(State(folder): Folder) -> Result<Json<Value>, Rejection> {
    let runs = match folder {
        Some(folder) => read(move || runs(&folder)).await?,
        None => Vec::new(),
    };
    Ok(Json(json!({"runs": runs})))
}

async fn transcripts(
    State(folder): Folder,
    name: Result<extract::Path<String>, PathRejection>,
) -> Result<Response, Rejection> {
    let extract::Path(name) = name?;
    let wanted = name.clone();
    let found = match folder {
        Some(folder) => read(move || find(&folder, &wanted)).await?,
        None => None,
    };
    let Some((run, path)) = found else {
        let detail = format!("no run {name:?} with transcripts; /web/api/runs lists the runs");
        return Err(Rejection::new(StatusCode::NOT_FOUND, &detail));
    };
    if run.size_bytes > MAX_TRANSCRIPT_BYTES {
        let detail = format!(
            "{TRANSCRIPTS} of run {name:?} has {} bytes, over {MAX_TRANSCRIPT_BYTES}; choose a \
             part of it as a file",
            run.size_bytes
        );
        return Err(Rejection::new(StatusCode::FORBIDDEN, &detail));
    }
    let file = tokio::fs::File::open(path)
        .await
        .map_err(|error| unreadable(&error))?;
    // A run that goes on may add to its file.
    let body = Body::from_stream(ReaderStream::new(file.take(MAX_TRANSCRIPT_BYTES)));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Reads a folder on a thread that may block.
async fn read<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Rejection> {
    let result = tokio::task::spawn_blocking(work).await;
    result
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|error| unreadable(&error))
}

fn unreadable(error: &io::Error) -> Rejection {
    let detail = format!("the folder of runs cannot be read: {error}");
    Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, &detail)
}

/// Returns the runs with transcripts, the newest first.
fn runs(folder: &Path) -> io::Result<Vec<Run>> {
    let entries = fs::read_dir(folder)?.take(MAX_ENTRIES).flatten();
    let mut runs: Vec<Run> = entries
        .filter_map(|entry| Some(run_of(&entry)?.0))
        .collect();
    runs.sort_by(|a, b| {
        let key = |run: &Run| (run.modified_unix_seconds, run.name.clone());
        key(b).cmp(&key(a))
    });
    runs.truncate(MAX_RUNS);
    Ok(runs)
}

fn find(folder: &Path, name: &str) -> io::Result<Option<(Run, PathBuf)>> {
    let entries = fs::read_dir(folder)?.take(MAX_ENTRIES).flatten();
    let mut named = entries.filter(|entry| entry.file_name() == name);
    Ok(named.find_map(|entry| run_of(&entry)))
}

/// Returns the run in a folder and the path of its transcripts. Neither may be a link.
fn run_of(entry: &DirEntry) -> Option<(Run, PathBuf)> {
    let name = entry.file_name().into_string().ok()?;
    let is_folder = entry.file_type().ok()?.is_dir();
    let path = entry.path().join(TRANSCRIPTS);
    let file = fs::symlink_metadata(&path).ok()?;
    if !is_folder || !file.is_file() {
        return None;
    }
    let modified = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let run = Run {
        name,
        size_bytes: file.len(),
        modified_unix_seconds: modified.as_secs(),
    };
    Some((run, path))
}
