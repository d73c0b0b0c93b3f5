//! The lock of a run folder: one process works in it.

use std::{
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::Path,
    thread,
    time::Duration,
};

use crate::error::ReportError;

/// The file that is locked.
pub(crate) const LOCK: &str = ".lock";
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// Locks a folder until the file is closed.
///
/// # Errors
/// Another process holds the lock, or the file cannot be made.
pub(crate) fn take(folder: &Path) -> Result<File, ReportError> {
    let path = folder.join(LOCK);
    // A link would have its target made or locked, wherever that is.
    if path.is_symlink() {
        return Err(ReportError::LinkedLock(path));
    }
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(ReportError::io("write", &path))?;
    let mut attempts_left = ATTEMPTS;
    loop {
        attempts_left -= 1;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // `is_free` holds a lock for a moment.
            Err(TryLockError::WouldBlock) if attempts_left > 0 => thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(ReportError::InUse(folder.to_owned())),
            // Some network file systems have no locks. A learner also notices another one by the
            // journal.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                return Ok(file);
            }
            Err(TryLockError::Error(error)) => return Err(ReportError::io("lock", path)(error)),
        }
    }
}

/// Returns whether a folder has a lock that no process holds, as far as the file system knows.
pub(crate) fn is_free(folder: &Path) -> bool {
    let path = folder.join(LOCK);
    // Opening a pipe would wait.
    let is_file = path.symlink_metadata().is_ok_and(|it| it.is_file());
    is_file && File::open(path).is_ok_and(|lock| lock.try_lock_shared().is_ok())
}
