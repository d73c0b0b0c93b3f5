//! Copying files between a run folder and an object store.
//!
//! Invariant: files are streamed, in parts where they are large, so that memory does not depend on
//! their size.

use std::path::{Path, PathBuf};

use ::object_store::{Error as StoreError, ObjectMeta, ObjectStoreExt as _, buffered::BufWriter};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    fs::{self, File},
    io::{AsyncWriteExt as _, copy},
};

use super::ObjectStorage;
use crate::{
    checkpoint::{CHECKPOINTS, files_below},
    error::{AtPath as _, Result},
    journal::FOLDER,
};

/// The number of files that are copied at once.
const AT_ONCE: usize = 4;
/// What the log covers, or belongs to one machine.
const NOT_FILES: [&str; 3] = ["log", FOLDER, CHECKPOINTS];

/// Uploads every file below `folder` to `name`.
pub(super) async fn upload(storage: &ObjectStorage, folder: &Path, name: &str) -> Result<()> {
    let files = files_below(folder, |_| true)?;
    upload_all(storage, folder, name, files).await
}

/// Uploads the files of a run folder that neither the log nor a checkpoint has.
pub(super) async fn upload_files(storage: &ObjectStorage, run_dir: &Path) -> Result<()> {
    let files = files_below(run_dir, |name| {
        !name.starts_with('.') && !NOT_FILES.contains(&name)
    })?;
    let mut changed = Vec::new();
    for path in files {
        let metadata = path.metadata().at("read", &path)?;
        let version = (metadata.len(), metadata.modified().at("read", &path)?);
        if storage.uploaded.lock().get(&path) != Some(&version) {
            changed.push((path, version));
        }
    }
    let paths = changed.iter().map(|(path, _)| path.clone()).collect();
    upload_all(storage, run_dir, "", paths).await?;
    storage.uploaded.lock().extend(changed);
    Ok(())
}

/// Downloads every object below `name` into `folder`.
pub(super) async fn download(storage: &ObjectStorage, name: &str, folder: &Path) -> Result<()> {
    let objects = list(storage, name).await?;
    download_all(storage, objects, name, folder).await
}

/// Returns whether the address has any object.
pub(super) async fn has_objects(storage: &ObjectStorage) -> Result<bool> {
    Ok(!list(storage, "").await?.is_empty())
}

/// Downloads what [`upload_files`] uploads.
pub(super) async fn download_files(storage: &ObjectStorage, run_dir: &Path) -> Result<()> {
    let mut objects = list(storage, "").await?;
    objects.retain(|object| {
        let parts = object.location.prefix_match(&storage.run);
        let first = parts.and_then(|mut parts| parts.next());
        first.is_some_and(|first| !NOT_FILES.contains(&first.as_ref()))
    });
    download_all(storage, objects, "", run_dir).await
}

/// Removes the folders directly below `name` for which `is_removed` is true.
pub(super) async fn remove_folders(
    storage: &ObjectStorage,
    name: &str,
    is_removed: impl Fn(&str) -> bool,
) -> Result<()> {
    for object in list(storage, name).await? {
        let mut parts = object
            .location
            .prefix_match(&storage.object(name))
            .into_iter()
            .flatten();
        let is_old = parts
            .next()
            .is_some_and(|folder| is_removed(&format!("{name}/{}", folder.as_ref())));
        if is_old {
            let removed = storage.answer(storage.store.delete(&object.location)).await;
            match removed {
                // The answer of an earlier attempt was lost.
                Err(StoreError::NotFound { .. }) => {}
                removed => removed.map_err(|fault| storage.fault("remove", name, fault))?,
            }
        }
    }
    Ok(())
}

async fn list(storage: &ObjectStorage, name: &str) -> Result<Vec<ObjectMeta>> {
    let folder = storage.object(name);
    let listed = storage.store.list(Some(&folder)).try_collect();
    let listed = storage.answer(listed).await;
    listed.map_err(|fault| storage.fault("list", name, fault))
}

async fn upload_all(
    storage: &ObjectStorage,
    folder: &Path,
    name: &str,
    files: Vec<PathBuf>,
) -> Result<()> {
    let uploads = files.into_iter().map(|path| async move {
        let inside = path.strip_prefix(folder).unwrap_or(&path);
        let object = format!("{name}/{}", inside.to_string_lossy());
        let object = object.trim_start_matches('/');
        let mut file = File::open(&path).await.at("open", &path)?;
        let mut writer = BufWriter::new(storage.store.clone(), storage.object(object));
        let sent = async {
            copy(&mut file, &mut writer).await?;
            writer.shutdown().await
        };
        storage
            .answer(sent)
            .await
            .at("upload to the object store", &path)
    });
    stream::iter(uploads)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn download_all(
    storage: &ObjectStorage,
    objects: Vec<ObjectMeta>,
    name: &str,
    folder: &Path,
) -> Result<()> {
    let root = storage.object(name);
    let downloads = objects.into_iter().map(|object| {
        let parts = object.location.prefix_match(&root).into_iter().flatten();
        let path = parts.fold(folder.to_owned(), |path, part| path.join(part.as_ref()));
        async move {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).await.at("create", parent)?;
            }
            let mut file = File::create(&path).await.at("create", &path)?;
            let bytes = async {
                let mut bytes = storage.store.get(&object.location).await?.into_stream();
                while let Some(chunk) = bytes.next().await {
                    file.write_all(&chunk?).await?;
                }
                // Without it, the error of the last write would be lost.
                file.flush().await?;
                file.sync_all().await
            };
            let received: std::io::Result<()> = storage.answer(bytes).await;
            received.at("download from the object store", &path)
        }
    });
    stream::iter(downloads)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}
