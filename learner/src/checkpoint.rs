//! Checkpoints: all that resuming needs, on disk, complete or absent.
//!
//! `checkpoints/step_N/` holds `hf/` (a Hugging Face folder), `trainer.safetensors` (f32 weights
//! and AdamW moments) and `state.json` (the position in the run, and the SHA-256 of every other
//! file). A checkpoint is written under another name, synced and renamed. Then `LATEST` is set to
//! it. If a checkpoint is written again, its old copy is `.step_N.old` until then. A checkpoint
//! whose files do not match their hashes is skipped, and the one before it is read.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use policy::{Model, durable};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    error::{AtPath as _, LearnerError, Result},
    network::Network,
};

const STATE_FILE: &str = "state.json";
const TENSORS: &str = "trainer.safetensors";
const MODEL: &str = "hf";
/// The file that names the newest checkpoint.
pub(crate) const LATEST: &str = "LATEST";

/// The position of a run after a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointState {
    /// Learner steps made, which is the policy version.
    pub step: u64,
    /// The first group that the next step looks at.
    pub next_group_index: u64,
    /// No record of the journal before this byte is needed.
    pub journal_offset: u64,
    /// Optimizer updates made.
    pub updates: u64,
    /// Tokens trained on so far.
    pub tokens_seen: u64,
    /// Identifies settings, questions and base model; a run resumes only under the same.
    pub fingerprint: String,
    /// SHA-256 of the checkpoint's other files by relative path.
    pub files: BTreeMap<String, String>,
}

/// A checkpoint read back.
#[derive(Debug)]
pub struct Checkpoint {
    /// The position of the run.
    pub state: CheckpointState,
    /// The folder.
    pub path: PathBuf,
    tensors: Vec<u8>,
}

impl Checkpoint {
    /// Restores weights and optimizer state in `network`.
    ///
    /// # Errors
    /// The checkpoint is of another model.
    pub fn restore(&self, network: &mut Network) -> Result<()> {
        network.restore(&self.tensors, self.state.updates)
    }
}

/// Writes `folder/step_N` and sets `LATEST` to it, then removes the checkpoints of higher steps
/// (from before the run fell back to an earlier one) and all but the newest `keep_last` of the
/// others. Returns the new checkpoint's path.
///
/// `check` says whether the run still belongs to this learner. It runs when the files are on disk,
/// right before they become a checkpoint.
///
/// # Errors
/// The disk is full or fails, or `check` fails; the checkpoints before it are then complete.
pub fn save(
    folder: &Path,
    mut state: CheckpointState,
    model: &Model,
    network: &Network,
    keep_last: usize,
    check: impl FnOnce() -> Result<()>,
) -> Result<PathBuf> {
    let name = format!("step_{}", state.step);
    let path = folder.join(&name);
    let temporary = folder.join(format!(".{name}.partial"));
    durable::remove_folder(&temporary).at("remove", &temporary)?;
    fs::create_dir_all(&temporary).at("create", &temporary)?;
    model.save(&temporary.join(MODEL))?;
    let tensors = temporary.join(TENSORS);
    fs::write(&tensors, network.state().to_bytes()?).at("write", &tensors)?;
    state.files = hashes(&temporary)?;
    let json = serde_json::to_vec_pretty(&state).expect("a plain record serialises: this is a bug");
    fs::write(temporary.join(STATE_FILE), json).at("write", &temporary.join(STATE_FILE))?;
    durable::sync_tree(&temporary).at("sync", &temporary)?;
    let aside = folder.join(format!(".{name}.old"));
    check()?;
    durable::replace_folder(&path, &temporary, &aside).at("put in place", &path)?;
    let latest = folder.join(LATEST);
    durable::replace_file(&latest, name.as_bytes()).at("write", &latest)?;
    prune(folder, state.step, keep_last)?;
    Ok(path)
}

/// Reads the newest complete checkpoint in `folder`: the one that `LATEST` names, or else the
/// highest step that is complete.
///
/// # Errors
/// There are checkpoints, but none is complete; or the folder cannot be read.
pub fn load_latest(folder: &Path) -> Result<Option<Checkpoint>> {
    let mut candidates = steps(folder)?;
    let latest = fs::read_to_string(folder.join(LATEST)).unwrap_or_default();
    let named = candidates
        .iter()
        .position(|(_, path)| path.ends_with(latest.trim()));
    // `LATEST` has priority over a higher step, which is from before the run fell back.
    if let Some(named) = named.filter(|_| !latest.trim().is_empty()) {
        candidates[..=named].rotate_right(1);
    }
    let mut newest_fault = None;
    for (_, path) in candidates {
        match load(&path) {
            Ok(checkpoint) => return Ok(Some(checkpoint)),
            Err(fault) => {
                tracing::warn!(%fault, "checkpoint skipped");
                newest_fault.get_or_insert(fault);
            }
        }
    }
    newest_fault.map_or(Ok(None), Err)
}

/// Reads one checkpoint and checks every file.
///
/// # Errors
/// [`LearnerError::Broken`] names the file that is missing or changed.
pub fn load(path: &Path) -> Result<Checkpoint> {
    let state = path.join(STATE_FILE);
    let json = fs::read(&state).at("read", &state)?;
    let state: CheckpointState = serde_json::from_slice(&json).map_err(|fault| {
        LearnerError::broken(&state, format!("not a checkpoint's state: {fault}"))
    })?;
    for (name, expected) in &state.files {
        let file = path.join(name);
        let bytes = fs::read(&file).at("read", &file)?;
        if hex::encode(Sha256::digest(&bytes)) != *expected {
            let reason = "changed since it was written (SHA-256 differs); remove this checkpoint";
            return Err(LearnerError::broken(&file, reason));
        }
    }
    let tensors = path.join(TENSORS);
    Ok(Checkpoint {
        state,
        path: path.to_owned(),
        tensors: fs::read(&tensors).at("read", &tensors)?,
    })
}

/// Returns all `step_N` folders, highest step first, and each before its old copy.
fn steps(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).at("read", folder)? {
        let entry = entry.at("read", folder)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let aside = name.strip_prefix('.').and_then(|n| n.strip_suffix(".old"));
        let step = aside.unwrap_or(&name).strip_prefix("step_");
        if let Some(step) = step.and_then(|step| step.parse().ok()) {
            found.push((step, entry.path()));
        }
    }
    // In descending order `step_N` comes before `.step_N.old`.
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

fn prune(folder: &Path, newest: u64, keep_last: usize) -> Result<()> {
    let (superseded, mut run): (Vec<_>, Vec<_>) = steps(folder)?
        .into_iter()
        .partition(|(step, _)| *step > newest);
    let excess = run.split_off(keep_last.max(1).min(run.len()));
    superseded
        .iter()
        .chain(&excess)
        .try_for_each(|(_, path)| durable::remove_folder(path).at("remove", path))
}

/// Returns the SHA-256 of all files under `folder`, by relative path with `/`.
fn hashes(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(&inner).at("read", &inner)? {
            let path = entry.at("read", &inner)?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path).at("read", &path)?;
            let parts = path.strip_prefix(folder).unwrap_or(&path).components();
            let name: Vec<_> = parts
                .map(|part| part.as_os_str().to_string_lossy())
                .collect();
            out.insert(name.join("/"), hex::encode(Sha256::digest(&bytes)));
        }
    }
    Ok(out)
}
