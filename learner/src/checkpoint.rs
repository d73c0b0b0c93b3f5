//! Checkpoints: all that resuming needs, on disk, complete or absent.
//!
//! `checkpoints/step_N/` holds `hf/` (a Hugging Face folder), `trainer.safetensors` (f32 weights
//! and AdamW moments) and `state.json` (the position in the run, the SHA-256 of every other file,
//! and its own). A checkpoint is written under another name, synced and renamed. Then `LATEST` is
//! set to it. If a checkpoint is written again, its old copy is `.step_N.old` until then. A
//! checkpoint whose files do not match their hashes, or whose folder has the name of another step,
//! is skipped, and the one before it is read.
//!
//! Checkpoints of earlier versions have no hash of `state.json`. They are read, with a warning.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use policy::{Model, durable, regular_file};
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
/// The most bytes that a state may have. It names a dozen files.
const MOST_STATE_BYTES: u64 = 1 << 20;
const REMEDY: &str = "remove this checkpoint, and the one before it is used";

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
    /// SHA-256 of the fields above, as compact JSON; empty in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
}

impl CheckpointState {
    /// Returns what `sha256` must be.
    fn digest(&self) -> String {
        let fields = Self {
            sha256: String::new(),
            ..self.clone()
        };
        let json = serde_json::to_vec(&fields);
        let json = json.expect("a plain record serialises: this is a bug");
        hex::encode(Sha256::digest(json))
    }

    /// Checks that the state is whole and belongs to the folder `path`.
    fn check(&self, path: &Path) -> Result<()> {
        let file = path.join(STATE_FILE);
        if self.sha256.is_empty() {
            tracing::warn!(
                file = %file.display(),
                "an earlier version wrote this checkpoint without the SHA-256 of its state, so a \
                 change of it would not be noticed; the next checkpoint has it"
            );
        } else if self.sha256 != self.digest() {
            let reason = format!("changed since it was written (SHA-256 differs); {REMEDY}");
            return Err(LearnerError::broken(&file, reason));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if step_of(&name) != Some(self.step) {
            let reason = format!(
                "is the state after step {}, but the folder is named {name}; rename the folder \
                 back, or {REMEDY}",
                self.step
            );
            return Err(LearnerError::broken(&file, reason));
        }
        let is_inside = |name: &String| {
            let mut parts = Path::new(name).components();
            parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if !self.files.contains_key(TENSORS) || !self.files.keys().all(is_inside) {
            let reason = format!("does not list the files of a checkpoint; {REMEDY}");
            return Err(LearnerError::broken(&file, reason));
        }
        Ok(())
    }
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
    remove_partial(folder)?;
    fs::create_dir_all(&temporary).at("create", &temporary)?;
    model.save(&temporary.join(MODEL))?;
    let tensors = temporary.join(TENSORS);
    fs::write(&tensors, network.state().to_bytes()?).at("write", &tensors)?;
    state.files = hashes(&temporary)?;
    state.sha256 = state.digest();
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

/// Makes the folder of checkpoints if it is missing, and tries to write in it, so that a training
/// does not find out after hours.
///
/// # Errors
/// It cannot be made or written.
pub fn check_writable(folder: &Path) -> Result<()> {
    let trial = folder.join(".step_0.partial");
    fs::create_dir_all(&trial).at("create", &trial)?;
    durable::remove_folder(&trial).at("remove", &trial)
}

/// Removes what writing a checkpoint left behind when it was killed or the disk was full.
fn remove_partial(folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).at("read", folder)? {
        let entry = entry.at("read", folder)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".step_") && name.ends_with(".partial") {
            durable::remove_folder(&entry.path()).at("remove", &entry.path())?;
        }
    }
    Ok(())
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
    let json = regular_file::read(&state, MOST_STATE_BYTES).at("read", &state)?;
    let state: CheckpointState = serde_json::from_slice(&json).map_err(|fault| {
        LearnerError::broken(
            &state,
            format!("not a checkpoint's state: {fault}; {REMEDY}"),
        )
    })?;
    state.check(path)?;
    let mut tensors = Vec::new();
    for (name, expected) in &state.files {
        let file = path.join(name);
        let bytes = regular_file::read(&file, u64::MAX).at("read", &file)?;
        if hex::encode(Sha256::digest(&bytes)) != *expected {
            let reason = format!("changed since it was written (SHA-256 differs); {REMEDY}");
            return Err(LearnerError::broken(&file, reason));
        }
        if name == TENSORS {
            tensors = bytes;
        }
    }
    Ok(Checkpoint {
        state,
        path: path.to_owned(),
        tensors,
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
        if let Some(step) = step_of(&entry.file_name().to_string_lossy()) {
            found.push((step, entry.path()));
        }
    }
    // In descending order `step_N` comes before `.step_N.old`.
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Returns the step of a checkpoint's folder, or of its old copy.
fn step_of(name: &str) -> Option<u64> {
    let aside = name.strip_prefix('.').and_then(|n| n.strip_suffix(".old"));
    aside.unwrap_or(name).strip_prefix("step_")?.parse().ok()
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

#[cfg(test)]
mod tests;
