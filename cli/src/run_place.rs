//! Where a run is kept: a folder, or an object store with a working copy in a local folder.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use learner::{
    RunStorage,
    object_storage::{ObjectLog, ObjectStorage},
};
use report::{ReportError, RunFolder};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    args::FetchArgs,
    config::WrongSettings,
    shutdown::{shell_quoted, unless_interrupted},
    stdout,
};

const ADDRESSES: &str = "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH";

/// The place of a run, opened.
pub(crate) struct RunPlace {
    folder: PathBuf,
    remote: Option<Remote>,
}

/// A run in an object store.
struct Remote {
    storage: ObjectStorage,
    /// None from when the learner has it.
    log: Option<ObjectLog>,
    /// Holds the working copy, and removes it when it is dropped.
    copy: TempDir,
}

impl RunPlace {
    /// Opens a folder, or fetches the run at the address of an object store into a folder of the
    /// same name below `work_dir` (default: the system's folder for temporary files).
    pub(crate) async fn open(run_dir: &str, work_dir: Option<&Path>) -> Result<Self> {
        if !ObjectStorage::is_address(run_dir) {
            check_folder(run_dir)?;
            ensure!(
                work_dir.is_none(),
                "--work-dir is for runs in an object store; {run_dir} is a folder, in which the \
                 learner works directly"
            );
            return Ok(Self {
                folder: run_dir.into(),
                remote: None,
            });
        }
        let storage = ObjectStorage::open(run_dir)?;
        let parent = work_dir.map_or_else(std::env::temp_dir, Path::to_owned);
        let copy = tempfile::Builder::new()
            .prefix("sqlenv-run-")
            .tempdir_in(&parent);
        let copy = copy.with_context(|| {
            format!(
                "cannot make a folder for the working copy in {}; choose another by --work-dir",
                parent.display()
            )
        })?;
        let name = storage.address().rsplit('/').next().unwrap_or_default();
        let folder = copy.path().join(name);
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let log = storage.fetch(&folder).await?;
        Ok(Self {
            folder,
            remote: Some(Remote {
                storage,
                log: Some(log),
                copy,
            }),
        })
    }

    /// Returns the run folder, or the working copy.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the address or path of a file of the run, as a user names it.
    pub(crate) fn display(&self, name: &str) -> String {
        match &self.remote {
            Some(remote) => format!("{}/{name}", remote.storage.address()),
            None => self.folder.join(name).display().to_string(),
        }
    }

    /// Returns the command before which a user fetches a file of the run, if it is not here.
    pub(crate) fn fetch_command(&self) -> Option<(String, PathBuf)> {
        let remote = self.remote.as_ref()?;
        let name = PathBuf::from(self.folder.file_name()?);
        let address = shell_quoted(remote.storage.address());
        let out = shell_quoted(&name.to_string_lossy());
        Some((format!("sqlenv fetch {address} {out}"), name))
    }

    /// Returns what the learner opens the run by. To be called once.
    pub(crate) fn storage(&mut self) -> RunStorage {
        RunStorage {
            folder: self.folder.clone(),
            objects: self.remote.as_mut().and_then(|remote| remote.log.take()),
        }
    }

    /// Puts the files of the working copy into the object store. If that fails, the copy stays.
    pub(crate) async fn save(self) -> Result<()> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        let saved = remote.storage.upload_files(&self.folder).await;
        if saved.is_ok() {
            return Ok(());
        }
        let folder = self.folder.clone();
        self.keep();
        saved.with_context(|| {
            format!(
                "the last files of the run are in {} and not in the object store",
                folder.display()
            )
        })
    }

    /// Leaves the working copy of a run in an object store where it is, and returns its path.
    pub(crate) fn keep(self) -> Option<PathBuf> {
        let _ = self.remote?.copy.keep();
        Some(self.folder)
    }
}

/// Refuses a folder of something else, and what looks like an address and is none: a run that was
/// meant for an object store would be lost with this machine.
fn check_folder(run_dir: &str) -> Result<()> {
    let scheme = run_dir.split_once(":/").map(|(scheme, _)| scheme);
    let is_scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    ensure!(
        !run_dir.is_empty() && !scheme.is_some_and(is_scheme),
        WrongSettings(anyhow!(
            "--run-dir {run_dir:?} is neither a folder nor the address of an object store; give a \
             folder, or {ADDRESSES}"
        ))
    );
    check_is_new_or_run(Path::new(run_dir))
}

/// Refuses a folder of something else, whose files a run could overwrite.
pub(crate) fn check_is_new_or_run(folder: &Path) -> Result<()> {
    RunFolder::check_is_new_or_run(folder).map_err(|fault| match fault {
        ReportError::Occupied(_) => WrongSettings(fault.into()).into(),
        _ => fault.into(),
    })
}

/// Copies a run from an object store into a new folder.
/// A signal ends it and removes what was copied.
pub(crate) async fn fetch(args: &FetchArgs, shutdown: &CancellationToken) -> Result<()> {
    let FetchArgs { address, out } = args;
    ensure!(
        ObjectStorage::is_address(address),
        "{address} is not the address of an object store; give {ADDRESSES}"
    );
    // A run there would be mixed with this one.
    ensure!(
        !out.exists(),
        "cannot make {}; choose a folder that is new",
        out.display()
    );
    let storage = ObjectStorage::open(address)?;
    let context = || format!("cannot make {}; choose another folder", out.display());
    // A copy that ends early lies elsewhere, so that the same command can be repeated.
    let beside = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let partial = tempfile::Builder::new()
        .prefix(".sqlenv-fetch-")
        .tempdir_in(beside)
        .with_context(context)?;
    let copy = partial.path().join("run");
    std::fs::create_dir(&copy).with_context(context)?;
    let log = unless_interrupted(shutdown, storage.fetch(&copy)).await??;
    ensure!(!log.is_empty(), "{address} holds no run; check the address");
    std::fs::rename(&copy, out).with_context(context)?;
    stdout::print(format_args!("{}\n", out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_no_object_store_is_no_folder() {
        for folder in ["no/such", "/no/such", "./gs:/one", "a b", "one:two"] {
            assert!(check_folder(folder).is_ok(), "{folder}");
        }
        for wrong in [
            "",
            "gcs://a/b",
            "S3://a/b",
            "s3:/a/b",
            "file:///a",
            "http://a/b",
        ] {
            let error = check_folder(wrong).unwrap_err();
            assert!(error.to_string().contains("s3://BUCKET"), "{error}");
        }
    }
}
