//! The log of a run in an object store: what the learner did, one object for each entry.
//!
//! Invariant: entry N is put only if no object has its name. So all learners that ever open the run
//! agree on one order of entries, and a learner that finds its next name taken has been replaced:
//! it stops, before it acknowledges or publishes anything. A learner that opens the run reads all
//! entries and then puts one itself, which ends those before it.
//!
//! An entry is a line of JSON, and for groups their records in the journal behind it.

use std::{io::Write as _, path::Path, time::Duration};

use ::object_store::{Error as StoreError, ObjectStoreExt as _, PutMode, PutOptions};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use policy::durable;
use serde::{Deserialize, Serialize};
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{ObjectStorage, transfer};
use crate::{
    checkpoint::{self, CHECKPOINTS, LATEST},
    error::{AtPath as _, LearnerError, Result},
    journal::open_copies,
};

/// The least and the greatest number of entries that are read at once. A long run has hundreds of
/// thousands of small ones, and each costs the time until the store answers.
const READ_AHEAD: [u64; 2] = [16, 128];
/// The bytes of entries that are read at once, unless the least number of them has more.
const READ_AHEAD_BYTES: u64 = 1 << 28;
/// How often an entry is put again, and the pause before.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_secs(2);

/// One entry without its records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
enum Entry {
    /// A learner opened the run.
    Opened,
    /// Groups were accepted; their records follow.
    Groups,
    /// A policy version was published.
    Version { version: u64 },
    /// A checkpoint is complete.
    Checkpoint(CommittedCheckpoint),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CommittedCheckpoint {
    step: u64,
    /// Its folder below the run's address.
    folder: String,
    /// The number of the next entry when its upload began.
    begun_at: u64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    /// Identifies the process that put the entry, so that no two entries have the same bytes.
    writer: String,
    #[serde(flatten)]
    entry: Entry,
}

impl Line {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a plain record serialises: this is a bug");
        bytes.push(b'\n');
        bytes
    }
}

/// The log of a run, read up to an entry. The methods that append block.
#[derive(Debug)]
pub struct ObjectLog {
    storage: ObjectStorage,
    /// The number of the next entry.
    next: u64,
    writer: String,
    /// The newest checkpoints, oldest first.
    checkpoints: Vec<CommittedCheckpoint>,
    /// Carries out requests for the threads that append.
    runtime: Handle,
}

impl ObjectLog {
    /// Names a log of which nothing was read. Must be called inside a runtime.
    pub(super) fn new(storage: ObjectStorage) -> Self {
        Self {
            storage,
            next: 0,
            writer: uuid::Uuid::new_v4().to_string(),
            checkpoints: Vec::new(),
            runtime: Handle::current(),
        }
    }

    /// Copies the entries that were not copied yet: their groups into the journal in `run_dir`, and
    /// the newest whole checkpoint into `run_dir/checkpoints`.
    ///
    /// # Errors
    /// The store does not answer or refuses, an entry is not one of this program, or the disk is
    /// full.
    pub(crate) async fn copy_new(&mut self, run_dir: &Path) -> Result<()> {
        let mut known = self.checkpoints.last().cloned();
        let mut entries = self.listed().await?;
        while !entries.is_empty() {
            self.copy_entries(entries, run_dir).await?;
            let copied = self.copy_checkpoint(known.as_ref(), run_dir).await;
            entries = self.listed().await?;
            match copied {
                Ok(()) => known = self.checkpoints.last().cloned(),
                // A learner that runs may have removed the checkpoint meanwhile, and then the log
                // names a newer one.
                Err(fault) if entries.is_empty() => self.copy_earlier(fault, run_dir).await?,
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Downloads the newest checkpoint, unless it is the known one.
    async fn copy_checkpoint(
        &self,
        known: Option<&CommittedCheckpoint>,
        run_dir: &Path,
    ) -> Result<()> {
        match self.checkpoints.last() {
            Some(newest) if Some(newest) != known => self.download(newest, run_dir).await,
            _ => Ok(()),
        }
    }

    /// Downloads the newest of the earlier checkpoints that is whole, after the last one is not.
    ///
    /// # Errors
    /// `fault`, if it is another one or no checkpoint is whole; or the store fails.
    async fn copy_earlier(&mut self, fault: LearnerError, run_dir: &Path) -> Result<()> {
        let is_not_whole = |fault: &LearnerError| matches!(fault, LearnerError::Broken { .. });
        if !is_not_whole(&fault) {
            return Err(fault);
        }
        tracing::warn!(%fault, "checkpoint skipped");
        while self.checkpoints.pop().is_some() {
            let Some(earlier) = self.checkpoints.last() else {
                break;
            };
            match self.download(earlier, run_dir).await {
                Err(fault) if is_not_whole(&fault) => {}
                copied => return copied,
            }
        }
        Err(fault)
    }

    /// Downloads a checkpoint and names it the newest.
    ///
    /// # Errors
    /// [`LearnerError::Broken`] if a file is missing or changed; or the store fails, or the disk.
    async fn download(&self, checkpoint: &CommittedCheckpoint, run_dir: &Path) -> Result<()> {
        let (checkpoints, name) = (
            run_dir.join(CHECKPOINTS),
            format!("step_{}", checkpoint.step),
        );
        let folder = checkpoints.join(&name);
        let copied = async {
            transfer::download(&self.storage, &checkpoint.folder, &folder).await?;
            let copy = folder.clone();
            let checked = spawn_blocking(move || checkpoint::check(&copy)).await;
            let checked = checked.unwrap_or(Err(LearnerError::Thread("checkpoint")));
            checked.map_err(|fault| self.not_whole(checkpoint, fault))
        };
        if let Err(fault) = copied.await {
            let _ = durable::remove_folder(&folder);
            return Err(fault);
        }
        let latest = checkpoints.join(LATEST);
        durable::replace_file(&latest, name.as_bytes()).at("write", &latest)
    }

    /// Names the checkpoint in the store rather than its copy, which is gone.
    fn not_whole(&self, checkpoint: &CommittedCheckpoint, fault: LearnerError) -> LearnerError {
        let folder = format!("{}/{}", self.storage.address, checkpoint.folder);
        let folder = Path::new(&folder);
        match fault {
            LearnerError::Broken { path, reason } => {
                LearnerError::broken(&folder.join(path.file_name().unwrap_or_default()), reason)
            }
            fault => LearnerError::broken(folder, format!("is not whole, restore it: {fault}")),
        }
    }

    /// Returns whether no entry was found.
    pub fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Ends the learners that opened the run before: puts an entry after theirs. Copies what they
    /// had put meanwhile into `run_dir`, with the files of the run.
    ///
    /// # Errors
    /// As [`Self::copy_new`].
    pub(crate) fn begin(&mut self, run_dir: &Path) -> Result<()> {
        loop {
            match self.put(&Entry::Opened, &[]) {
                Err(LearnerError::Replaced { .. }) => {
                    let runtime = self.runtime.clone();
                    runtime.block_on(self.copy_new(run_dir))?;
                    // They are as of the newest checkpoint, too.
                    runtime.block_on(transfer::download_files(&self.storage, run_dir))?;
                }
                opened => return opened.and_then(|()| self.check_conditions()),
            }
        }
    }

    /// Checks that the store keeps the entry that was put last when another one is put in its
    /// place. A store that ignores conditions would let two learners continue the run.
    ///
    /// # Errors
    /// The store has replaced the entry, or does not answer or refuses.
    fn check_conditions(&self) -> Result<()> {
        let second = Line {
            writer: uuid::Uuid::new_v4().to_string(),
            entry: Entry::Opened,
        };
        let name = name(self.next - 1);
        let put = put_if_absent(&self.storage, &name, second.to_bytes().into());
        match self.runtime.block_on(put) {
            Err(LearnerError::Replaced { .. }) => Ok(()),
            Err(fault) => Err(fault),
            Ok(()) => Err(LearnerError::ObjectAddress {
                address: self.storage.address.clone(),
                problem: "the store replaces objects that must be put only if absent \
                          (If-None-Match), so two learners could continue the run at once; use \
                          a store with conditional writes, or a folder"
                    .to_owned(),
            }),
        }
    }

    /// Appends the records of accepted groups.
    ///
    /// # Errors
    /// [`LearnerError::Replaced`] if another learner has opened the run; or the store does not
    /// answer or refuses. This holds for all methods that append.
    pub(crate) fn append_groups(&mut self, records: &[u8]) -> Result<()> {
        self.put(&Entry::Groups, records)
    }

    /// Appends that a version is published.
    pub(crate) fn append_version(&mut self, version: u64) -> Result<()> {
        self.put(&Entry::Version { version }, &[])
    }

    /// Checks that no other learner has opened the run.
    ///
    /// # Errors
    /// [`LearnerError::Replaced`] if one has, or the store does not answer or refuses.
    pub(crate) fn check_newest(&self) -> Result<()> {
        let newer = self.runtime.block_on(read(&self.storage, &name(self.next)));
        if let Err(LearnerError::ObjectStore { source, .. }) = &newer
            && matches!(**source, StoreError::NotFound { .. })
        {
            return Ok(());
        }
        // The answer to a put of this learner may have been lost.
        match parse(&newer?) {
            Some((line, _)) if line.writer == self.writer => Ok(()),
            _ => Err(LearnerError::Replaced {
                run: self.storage.address.clone(),
            }),
        }
    }

    /// Returns what is needed to upload a checkpoint while the log is in use: where it goes.
    pub(crate) fn checkpoint_upload(&self, step: u64) -> CheckpointUpload {
        CheckpointUpload {
            storage: self.storage.clone(),
            runtime: self.runtime.clone(),
            checkpoint: CommittedCheckpoint {
                step,
                folder: format!("{CHECKPOINTS}/step_{step}-{:010}", self.next),
                begun_at: self.next,
            },
        }
    }

    /// Appends an uploaded checkpoint, and removes those before the newest `keep_last`.
    pub(crate) fn append_checkpoint(
        &mut self,
        uploaded: CheckpointUpload,
        keep_last: usize,
    ) -> Result<()> {
        self.put(&Entry::Checkpoint(uploaded.checkpoint.clone()), &[])?;
        self.checkpoints.push(uploaded.checkpoint);
        let excess = self.checkpoints.len().saturating_sub(keep_last.max(1));
        self.checkpoints.drain(..excess);
        let oldest = self.checkpoints.first().map_or(0, |oldest| oldest.begun_at);
        let kept: Vec<&str> = self
            .checkpoints
            .iter()
            .map(|it| it.folder.as_str())
            .collect();
        // Folders of later uploads may belong to a learner that has replaced this one since.
        let is_old = |folder: &str| {
            let begun_at = folder.rsplit_once('-').and_then(|(_, it)| it.parse().ok());
            !kept.contains(&folder) && begun_at.is_some_and(|begun_at: u64| begun_at < oldest)
        };
        let removed = transfer::remove_folders(&self.storage, CHECKPOINTS, is_old);
        if let Err(fault) = self.runtime.block_on(removed) {
            // The checkpoint is complete, and a bucket may forbid to delete.
            tracing::warn!(%fault, "an old checkpoint stays in the object store");
        }
        Ok(())
    }

    /// Puts an entry, unless another learner has put one in its place.
    fn put(&mut self, entry: &Entry, records: &[u8]) -> Result<()> {
        let line = Line {
            writer: self.writer.clone(),
            entry: entry.clone(),
        };
        let mut bytes = line.to_bytes();
        bytes.extend_from_slice(records);
        let runtime = self.runtime.clone();
        runtime.block_on(put_if_absent(&self.storage, &name(self.next), bytes.into()))?;
        self.next += 1;
        Ok(())
    }

    /// Returns the names and the sizes of the entries that were not read yet, in order.
    async fn listed(&self) -> Result<Vec<(String, u64)>> {
        let (storage, folder) = (&self.storage, self.storage.object("log"));
        let listing = match self.next {
            0 => storage.store.list(Some(&folder)),
            next => storage
                .store
                .list_with_offset(Some(&folder), &storage.object(&name(next - 1))),
        };
        let listed: Vec<_> = storage
            .answer(listing.try_collect())
            .await
            .map_err(|fault| storage.fault("list", "log", fault))?;
        let mut entries: Vec<(String, u64)> = listed
            .iter()
            .filter_map(|object| Some((object.location.filename()?.to_owned(), object.size)))
            .collect();
        entries.sort_unstable();
        Ok(entries)
    }

    async fn copy_entries(&mut self, entries: Vec<(String, u64)>, run_dir: &Path) -> Result<()> {
        let (mut file, journal) = open_copies(run_dir)?;
        let storage = self.storage.clone();
        let largest = entries.iter().map(|(_, size)| *size).max();
        let bodies = entries.into_iter().map(|(file_name, _)| {
            let storage = &storage;
            async move {
                let name = format!("log/{file_name}");
                let body = read(storage, &name).await?;
                Ok::<_, LearnerError>((name, body))
            }
        });
        let mut bodies = stream::iter(bodies).buffered(read_ahead(largest.unwrap_or(0)));
        while let Some(read) = bodies.next().await {
            let (found, body) = read?;
            let (Line { entry, .. }, records) = parse(&body)
                .filter(|_| found == name(self.next))
                .ok_or_else(|| LearnerError::ObjectAddress {
                address: format!("{}/{found}", storage.address),
                problem: format!(
                    "is not entry {} of a run's log; choose an address that only this run uses",
                    self.next
                ),
            })?;
            file.write_all(records).at("write", &journal)?;
            if let Entry::Checkpoint(checkpoint) = entry {
                self.checkpoints.push(checkpoint);
            }
            self.next += 1;
        }
        file.sync_all().at("sync", &journal)
    }
}

/// A checkpoint on its way into the store.
pub(crate) struct CheckpointUpload {
    storage: ObjectStorage,
    runtime: Handle,
    checkpoint: CommittedCheckpoint,
}

impl CheckpointUpload {
    /// Uploads the checkpoint in `folder`. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, or the store does not answer or refuses.
    pub(crate) fn run(&self, folder: &Path) -> Result<()> {
        let name = &self.checkpoint.folder;
        let upload = transfer::upload(&self.storage, folder, name);
        self.runtime.block_on(upload)
    }

    /// Uploads the other files of the run in `run_dir`, before the checkpoint counts: a resumed run
    /// does not repeat the steps before it. Blocks.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn run_files(&self, run_dir: &Path) -> Result<()> {
        let upload = transfer::upload_files(&self.storage, run_dir);
        self.runtime.block_on(upload)
    }
}

/// Returns how many entries are read at once if the largest has `largest` bytes.
fn read_ahead(largest: u64) -> usize {
    let [least, greatest] = READ_AHEAD;
    (READ_AHEAD_BYTES / largest.max(1)).clamp(least, greatest) as usize
}

/// Returns the name of entry `number`.
fn name(number: u64) -> String {
    format!("log/{number:010}")
}

fn parse(body: &Bytes) -> Option<(Line, &[u8])> {
    let end = body.iter().position(|&byte| byte == b'\n')?;
    let line = serde_json::from_slice(&body[..end]).ok()?;
    Some((line, &body[end + 1..]))
}

async fn read(storage: &ObjectStorage, name: &str) -> Result<Bytes> {
    let path = storage.object(name);
    let body = async { storage.store.get(&path).await?.bytes().await };
    let body = storage.answer(body).await;
    body.map_err(|fault| storage.fault("read", name, fault))
}

/// Puts an object that does not exist yet. Repeats the request if its answer is lost, and then
/// finds the object of its own earlier attempt.
async fn put_if_absent(storage: &ObjectStorage, name: &str, bytes: Bytes) -> Result<()> {
    let mut attempts_left = ATTEMPTS;
    loop {
        let fault = match try_put(storage, name, &bytes).await {
            Err(fault) if attempts_left > 0 && may_pass(&fault) => fault,
            put => return put,
        };
        attempts_left -= 1;
        tracing::warn!("{fault}; trying again");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns whether a request may succeed when it is repeated. A store may refuse a name that
/// another request is about to take, and the object is not there yet.
fn may_pass(fault: &LearnerError) -> bool {
    let LearnerError::ObjectStore { source, .. } = fault else {
        return false;
    };
    matches!(
        **source,
        StoreError::Generic { .. } | StoreError::NotFound { .. }
    )
}

async fn try_put(storage: &ObjectStorage, name: &str, bytes: &Bytes) -> Result<()> {
    let path = storage.object(name);
    let options = PutOptions::from(PutMode::Create);
    let put = storage.store.put_opts(&path, bytes.clone().into(), options);
    match storage.answer(put).await {
        Ok(_) => Ok(()),
        Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
            match read(storage, name).await? == *bytes {
                true => Ok(()),
                false => Err(LearnerError::Replaced {
                    run: storage.address.clone(),
                }),
            }
        }
        Err(fault) => Err(storage.fault("put", name, fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_entries_are_read_at_once_but_few_large_ones() {
        let at_once = [0, 1 << 10, 1 << 22, 64 << 20].map(read_ahead);
        assert_eq!(at_once, [128, 128, 64, 16]);
    }
}
