//! Checkpoints: all that resuming needs, on disk, complete or absent.
//!
//! `checkpoints/step_N/` holds `hf/` (a Hugging Face folder), `trainer.safetensors` (f32 weights
//! and AdamW moments) and `state.json` (the position in the run, the SHA-256 of every other file,
//! and its own). A checkpoint is written under another name, synced and renamed. Then `LATEST` is
//! set to it. If a checkpoint is written again, its old copy is `.step_N.old` until then. A
//! checkpoint whose files do not match their hashes, or whose folder has the name of another step,
//! is skipped, and the one before it is read.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use policy::{Model, durable, regular_file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    error::{AtPath as _, LearnerError, Result},
    network::Network,
    questions::QuestionsState,
};

/// The folder of the checkpoints in a run folder.
pub const CHECKPOINTS: &str = "checkpoints";
const STATE_FILE: &str = "state.json";
pub(crate) const TENSORS: &str = "trainer.safetensors";
/// The model folder in a checkpoint.
pub const MODEL: &str = "hf";
/// The file that names the newest checkpoint.
pub(crate) const LATEST: &str = "LATEST";
/// The most bytes that a state may have. It names a dozen files, and the questions that come back.
const MAX_STATE_BYTES: u64 = 1 << 25;
/// Bytes that are hashed at a time. A model may be larger than the memory that is left.
const HASHED_BYTES: u64 = 1 << 20;
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
    /// What the next step's questions follow from.
    pub questions: QuestionsState,
    /// Identifies settings, questions and base model; a run resumes only under the same.
    pub fingerprint: String,
    /// SHA-256 of the checkpoint's other files by relative path.
    pub files: BTreeMap<String, String>,
    /// SHA-256 of the fields above, as compact JSON.
    #[serde(skip_serializing_if = "String::is_empty")]
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
        check_hash(&file, &self.digest(), &self.sha256)?;
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

    /// Reads a file of the checkpoint in `path`, by its name in [`Self::files`]; none if the
    /// checkpoint has no such file.
    ///
    /// # Errors
    /// The file is missing or changed.
    pub fn read(&self, path: &Path, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(expected) = self.files.get(name) else {
            return Ok(None);
        };
        let file = path.join(name);
        let bytes = regular_file::read(&file, u64::MAX).at("read", &file)?;
        check_hash(&file, &hex::encode(Sha256::digest(&bytes)), expected)?;
        Ok(Some(bytes))
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
/// `check` says whether the run still belongs to this learner. It runs before anything is removed,
/// and again when the files are on disk, right before they become a checkpoint and the newest one.
///
/// # Errors
/// The disk is full or fails, or `check` fails; the checkpoints before it are then complete. What
/// was written is removed before it has its place, unless another learner has the run.
pub fn save(
    folder: &Path,
    state: CheckpointState,
    model: &Model,
    network: &Network,
    keep_last: usize,
    check: impl Fn() -> Result<()>,
) -> Result<PathBuf> {
    let step = state.step;
    let name = format!("step_{step}");
    let path = folder.join(&name);
    let temporary = folder.join(format!(".{name}.partial"));
    check()?;
    remove_partial(folder)?;
    let aside = folder.join(format!(".{name}.old"));
    let placed = write_files(&temporary, state, model, network)
        .and_then(|()| check())
        .and_then(|()| {
            durable::replace_folder(&path, &temporary, &aside).at("put in place", &path)
        });
    placed.map_err(|fault| abandon(&temporary, fault, &check))?;
    check()?;
    let latest = folder.join(LATEST);
    durable::replace_file(&latest, name.as_bytes()).at("write", &latest)?;
    prune(folder, step, keep_last)?;
    Ok(path)
}

/// Writes the files of a checkpoint and waits until they are on the disk.
fn write_files(
    folder: &Path,
    mut state: CheckpointState,
    model: &Model,
    network: &Network,
) -> Result<()> {
    fs::create_dir_all(folder).at("create", folder)?;
    model.save(&folder.join(MODEL))?;
    state.files = hashes(folder)?;
    let tensors = network.state().to_bytes()?;
    let hash = write_hashed(&folder.join(TENSORS), &tensors)?;
    state.files.insert(TENSORS.to_owned(), hash);
    drop(tensors);
    write_state(folder, state)?;
    durable::sync_tree(folder).at("sync", folder)
}

/// Removes a checkpoint that could not be written, so that a disk which it filled has room to open
/// the run again. Returns why it was not written.
fn abandon(temporary: &Path, fault: LearnerError, check: impl Fn() -> Result<()>) -> LearnerError {
    match check() {
        Ok(()) => {
            let _ = durable::remove_folder(temporary);
            fault
        }
        // The learner that has the run may have removed the folder, or be writing one of that name.
        Err(replaced @ LearnerError::Replaced { .. }) => replaced,
        Err(_) => fault,
    }
}

/// Writes a state with its hash.
pub(crate) fn write_state(folder: &Path, mut state: CheckpointState) -> Result<()> {
    state.sha256 = state.digest();
    let json = serde_json::to_vec_pretty(&state).expect("a plain record serialises: this is a bug");
    let file = folder.join(STATE_FILE);
    fs::write(&file, json).at("write", &file)
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
pub(crate) fn remove_partial(folder: &Path) -> Result<()> {
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
    newest(folder, load_files)
}

/// Returns what `read` makes of the state and the folder of the newest checkpoint in `folder` for
/// which it succeeds, in the order of [`load_latest`]. Reads no other file itself.
///
/// # Errors
/// There are checkpoints, but none is as it should be; or the folder cannot be read.
pub fn newest<T>(
    folder: &Path,
    read: impl Fn(CheckpointState, &Path) -> Result<T>,
) -> Result<Option<T>> {
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
        match read_state(&path).and_then(|state| read(state, &path)) {
            Ok(found) => return Ok(Some(found)),
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
    load_files(read_state(path)?, path)
}

/// Checks every file of one checkpoint.
///
/// # Errors
/// As [`load`].
pub(crate) fn check(path: &Path) -> Result<()> {
    check_files(&read_state(path)?, path, |_| true)
}

fn check_files(
    state: &CheckpointState,
    path: &Path,
    is_checked: impl Fn(&str) -> bool,
) -> Result<()> {
    for (name, expected) in state.files.iter().filter(|(name, _)| is_checked(name)) {
        let file = path.join(name);
        check_hash(&file, &hash(&file)?, expected)?;
    }
    Ok(())
}

fn load_files(state: CheckpointState, path: &Path) -> Result<Checkpoint> {
    check_files(&state, path, |name| name != TENSORS)?;
    // A state that was checked names them.
    let tensors = state.read(path, TENSORS)?.unwrap_or_default();
    Ok(Checkpoint {
        state,
        path: path.to_owned(),
        tensors,
    })
}

/// Reads and checks the state of one checkpoint.
fn read_state(path: &Path) -> Result<CheckpointState> {
    let file = path.join(STATE_FILE);
    let json = regular_file::read(&file, MAX_STATE_BYTES).at("read", &file)?;
    let state: CheckpointState = serde_json::from_slice(&json).map_err(|fault| {
        let reason = format!("not a checkpoint's state: {fault}; {REMEDY}");
        LearnerError::broken(&file, reason)
    })?;
    state.check(path)?;
    Ok(state)
}

fn check_hash(file: &Path, found: &str, expected: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let reason = format!("changed since it was written (SHA-256 differs); {REMEDY}");
    Err(LearnerError::broken(file, reason))
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

/// Returns the SHA-256 of all files below `folder`, by relative path with `/`.
fn hashes(folder: &Path) -> Result<BTreeMap<String, String>> {
    let named = |path: PathBuf| -> Result<(String, String)> {
        let parts = path.strip_prefix(folder).unwrap_or(&path).components();
        let name: Vec<_> = parts
            .map(|part| part.as_os_str().to_string_lossy())
            .collect();
        Ok((name.join("/"), hash(&path)?))
    };
    let files = files_below(folder, |_| true)?;
    files.into_iter().map(named).collect()
}

/// Writes a file, and returns the SHA-256 of its content. A file of gigabytes is hashed while the
/// disk works, not read again.
pub(crate) fn write_hashed(path: &Path, content: &[u8]) -> Result<String> {
    std::thread::scope(|scope| {
        let hash = scope.spawn(|| hex::encode(Sha256::digest(content)));
        durable::write(path, content).at("write", path)?;
        Ok(hash.join().expect("hashing does not panic: this is a bug"))
    })
}

/// Returns the SHA-256 of a file, in hexadecimal.
fn hash(path: &Path) -> Result<String> {
    let (mut file, _) = regular_file::open(path).at("read", path)?;
    let (mut hash, mut block) = (Sha256::new(), Vec::new());
    loop {
        block.clear();
        let mut next = file.by_ref().take(HASHED_BYTES);
        next.read_to_end(&mut block).at("read", path)?;
        if block.is_empty() {
            return Ok(hex::encode(hash.finalize()));
        }
        hash.update(&block);
    }
}

/// Returns the files below a folder, without what lies in entries directly in it that `is_wanted`
/// refuses.
pub(crate) fn files_below(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(&inner).at("read", &inner)? {
            let entry = entry.at("read", &inner)?;
            let (path, name) = (entry.path(), entry.file_name());
            if inner == folder && !is_wanted(&name.to_string_lossy()) {
                continue;
            }
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
