//! A run whose truth is in an object store (S3, Google Cloud Storage, Azure), so that a learner
//! continues it on another machine.
//!
//! The learner works on a local copy of the run folder. Below the address of the run, the store
//! has:
//!
//! - `log/0000000000`, `log/0000000001`, …: what the learner did, in order: groups, published
//!   versions, checkpoints. This alone decides what the run is.
//! - `checkpoints/step_N-K/`: the files of a checkpoint, which counts once the log names it.
//! - all other files of the run folder, as of the last checkpoint: settings, metrics, evaluations,
//!   and at the end the model and the report.
//!
//! Invariant: what is acknowledged to an actor or published is in the log before.

mod log;
mod transfer;

use std::{
    collections::HashMap,
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use ::object_store::{self as store, ObjectStore, path::Path as ObjectPath};
use parking_lot::Mutex;

pub use self::log::ObjectLog;
use crate::error::{LearnerError, Result};

const SCHEMES: [&str; 7] = ["s3", "s3a", "gs", "az", "azure", "abfs", "abfss"];
/// The prefixes of the variables that object stores are configured by.
const VARIABLES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
/// A store that sends nothing for so long is asked again.
const READ_TIMEOUT: &str = "30 seconds";
/// The time for one request with its body, which has at most 10 MB when it is sent.
const REQUEST_TIMEOUT: &str = "600 seconds";
/// After how long without an answer the learner says so.
const SLOW: Duration = Duration::from_secs(15);

/// The place of one run in an object store; cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    /// The path of the run in its bucket.
    run: ObjectPath,
    /// What the user typed.
    address: String,
    /// Length and time of the files that were uploaded, by path: a model that did not change is not
    /// uploaded with each checkpoint.
    uploaded: Arc<Mutex<HashMap<PathBuf, (u64, SystemTime)>>>,
}

impl ObjectStorage {
    /// Returns whether a text is the address of an object store rather than a path.
    pub fn is_address(text: &str) -> bool {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| SCHEMES.contains(&scheme))
    }

    /// Opens the place that `address` names: `s3://BUCKET/PATH`, `gs://BUCKET/PATH` or
    /// `az://CONTAINER/PATH`. Credentials and endpoint come from the environment variables of the
    /// provider (`AWS_*`, `GOOGLE_*`, `AZURE_*`). Sends nothing yet.
    ///
    /// # Errors
    /// The address or a variable cannot be used.
    pub fn open(address: &str) -> Result<Self> {
        // The HTTP client takes the process's provider. One is installed already at the second run
        // of a process.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let wrong = |problem: String| LearnerError::ObjectAddress {
            address: address.to_owned(),
            problem,
        };
        let url = url::Url::parse(address).map_err(|error| wrong(error.to_string()))?;
        // Others need not be text.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| VARIABLES.iter().any(|prefix| name.starts_with(prefix)));
        let times = [("timeout", REQUEST_TIMEOUT), ("read_timeout", READ_TIMEOUT)];
        let times = times.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let (store, run) = store::parse_url_opts(&url, times.into_iter().chain(variables))
            .map_err(|error| wrong(error.to_string()))?;
        if run.as_ref().is_empty() {
            return Err(wrong("names no folder for the run".to_owned()));
        }
        Ok(Self::new(store.into(), run, address))
    }

    fn new(store: Arc<dyn ObjectStore>, run: ObjectPath, address: &str) -> Self {
        Self {
            store,
            run,
            address: address.trim_end_matches('/').to_owned(),
            uploaded: Arc::default(),
        }
    }

    /// Returns the address of the run.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Copies the run into the empty folder `run_dir`: everything but checkpoints older than the
    /// newest one. Returns the log as far as it was copied, which is empty if no object has the
    /// address.
    ///
    /// # Errors
    /// The address has objects of something else, the store does not answer or refuses, or the disk
    /// is full.
    pub async fn fetch(&self, run_dir: &Path) -> Result<ObjectLog> {
        let mut log = ObjectLog::new(self.clone());
        log.copy_new(run_dir).await?;
        if log.is_empty() {
            return match transfer::has_objects(self).await? {
                true => Err(LearnerError::ObjectAddress {
                    address: self.address.clone(),
                    problem: "has objects, but no run; give an address that only this run uses"
                        .to_owned(),
                }),
                false => Ok(log),
            };
        }
        transfer::download_files(self, run_dir).await?;
        Ok(log)
    }

    /// Puts the files of the run folder that are not part of the log or of a checkpoint into the
    /// store, as far as they have changed: settings, metrics, evaluations, model, report.
    ///
    /// # Errors
    /// A file cannot be read, or the store does not answer or refuses.
    pub async fn upload_files(&self, run_dir: &Path) -> Result<()> {
        transfer::upload_files(self, run_dir).await
    }

    fn object(&self, name: &str) -> ObjectPath {
        let names = name.split('/').filter(|part| !part.is_empty());
        names.fold(self.run.clone(), |path, part| path.join(part))
    }

    fn fault(&self, action: &'static str, name: &str, source: store::Error) -> LearnerError {
        LearnerError::ObjectStore {
            action,
            address: format!("{}/{name}", self.address),
            source: Box::new(source),
        }
    }

    /// Waits for the store, and says so if it does not answer. The client repeats requests that
    /// failed for a while.
    async fn answer<T>(&self, asked: impl Future<Output = T>) -> T {
        let mut asked = std::pin::pin!(asked);
        loop {
            match tokio::time::timeout(SLOW, &mut asked).await {
                Ok(answer) => return answer,
                Err(_) => tracing::warn!(
                    "{} has not answered for {} s; still trying",
                    self.address,
                    SLOW.as_secs()
                ),
            }
        }
    }
}

#[cfg(test)]
mod unconditional;

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;
    use tokio::task::spawn_blocking;

    use ::object_store::ObjectStoreExt as _;

    use super::{unconditional::Unconditional, *};
    use crate::checkpoint::{self, CheckpointState};

    /// A store that ignores If-None-Match is refused before anything is trained.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_that_ignores_conditions_is_refused() {
        let storage = ObjectStorage::new(
            Arc::new(Unconditional::default()),
            ObjectPath::from("runs/run"),
            "s3://bucket/runs/run",
        );
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().to_owned();
        let mut log = ObjectLog::new(storage);
        let begun = spawn_blocking(move || log.begin(&run_dir)).await.unwrap();
        let fault = begun.unwrap_err().to_string();
        assert!(
            fault.contains("s3://bucket/runs/run: the store replaces objects"),
            "{fault}"
        );
    }

    /// Uploads a checkpoint without a model.
    fn upload(log: &ObjectLog, step: u64, run_dir: &Path) -> log::CheckpointUpload {
        let folder = run_dir.join(format!("checkpoints/step_{step}"));
        std::fs::create_dir_all(&folder).unwrap();
        let tensors = folder.join(checkpoint::TENSORS);
        let hash = checkpoint::write_hashed(&tensors, step.to_string().as_bytes()).unwrap();
        let state = CheckpointState {
            step,
            files: [(checkpoint::TENSORS.to_owned(), hash)].into(),
            ..CheckpointState::default()
        };
        checkpoint::write_state(&folder, state).unwrap();
        let upload = log.checkpoint_upload(step);
        upload.run(&folder).unwrap();
        upload
    }

    /// The content of the newest checkpoint of a copy.
    fn latest(run_dir: &Path) -> String {
        let checkpoints = run_dir.join("checkpoints");
        let latest = std::fs::read_to_string(checkpoints.join("LATEST")).unwrap();
        std::fs::read_to_string(checkpoints.join(latest).join(checkpoint::TENSORS)).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_newest_whole_checkpoint_is_copied() {
        let storage = ObjectStorage::open("memory:///runs/run").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (mut log, run_dir) = (ObjectLog::new(storage.clone()), dir.path().to_owned());
        let work = move || {
            log.begin(&run_dir).unwrap();
            for step in 0..4 {
                let uploaded = upload(&log, step, &run_dir);
                log.append_checkpoint(uploaded, 3).unwrap();
            }
        };
        spawn_blocking(work).await.unwrap();
        let copy = async || {
            let copy = tempfile::tempdir().unwrap();
            let fetched = storage.fetch(copy.path()).await;
            fetched
                .map(|_| latest(copy.path()))
                .map_err(|fault| fault.to_string())
        };
        assert_eq!(copy().await.unwrap(), "3");
        let object = |name: &str| storage.object(&format!("checkpoints/{name}"));
        let damaged = object("step_3-0000000004/trainer.safetensors");
        storage.store.put(&damaged, "4".into()).await.unwrap();
        assert_eq!(copy().await.unwrap(), "2");
        for name in ["state.json", "trainer.safetensors"] {
            let lost = object(&format!("step_2-0000000003/{name}"));
            storage.store.delete(&lost).await.unwrap();
        }
        assert_eq!(copy().await.unwrap(), "1");
        let damaged = object("step_1-0000000002/state.json");
        storage.store.put(&damaged, "{}".into()).await.unwrap();
        let fault = copy().await.unwrap_err();
        assert!(
            fault.contains("runs/run/checkpoints/step_3-0000000004/trainer.safetensors: changed"),
            "{fault}"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn older_checkpoints_and_abandoned_uploads_are_removed() {
        let storage = ObjectStorage::open("memory:///runs/run").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (mut log, run_dir) = (ObjectLog::new(storage.clone()), dir.path().to_owned());
        let work = move || {
            log.begin(&run_dir).unwrap();
            for step in 0..4 {
                let uploaded = upload(&log, step, &run_dir);
                log.append_groups(b"records").unwrap();
                if step != 1 {
                    log.append_checkpoint(uploaded, 2).unwrap();
                }
            }
            // That of a learner that has the run by now, for all that this one knows.
            let late = upload(&log, 9, &run_dir);
            log.append_version(4).unwrap();
            log.append_version(5).unwrap();
            drop(late);
        };
        spawn_blocking(work).await.unwrap();
        let listed = storage.store.list(Some(&storage.object("checkpoints")));
        let listed: Vec<_> = listed.try_collect().await.unwrap();
        let mut names: Vec<&str> = listed.iter().map(|it| it.location.as_ref()).collect();
        names.retain(|name| name.ends_with("state.json"));
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "runs/run/checkpoints/step_2-0000000004/state.json",
                "runs/run/checkpoints/step_3-0000000006/state.json",
                "runs/run/checkpoints/step_9-0000000008/state.json",
            ]
        );
        let copy = tempfile::tempdir().unwrap();
        storage.fetch(copy.path()).await.unwrap();
        assert_eq!(latest(copy.path()), "3");
        let journal = std::fs::read(copy.path().join("journal/000000.bin")).unwrap();
        let header = [b"SQLENVJ1".as_slice(), &[0; 8]].concat();
        assert_eq!(journal, [header, b"records".repeat(4)].concat());
    }
}
