//! The files of a journal, one for each time that a learner opened the run, which is a term.
//!
//! Invariant: a learner writes only to the file that it created itself, and a term's file is
//! created once (`O_EXCL`). So two learners on one folder never write to the same file, whether or
//! not the file system shares locks. The header of a file says where its records begin in the whole
//! journal, which fixes how much of the file before it counts.

use std::{
    cmp::Ordering,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
};

use policy::durable;

use crate::error::{AtPath as _, LearnerError, Result};

/// The folder of the terms' files in a run folder.
pub const FOLDER: &str = "journal";
/// The term of groups that were copied from an object store: those of all learners that had the run
/// before.
const TERM_OF_COPIES: u64 = 0;
pub(super) const MAGIC: &[u8; 8] = b"SQLENVJ1";
pub(super) const HEADER_BYTES: u64 = 16;
/// No journal is longer, so that places in it add up without overflow.
const MAX_BYTES: u64 = 1 << 60;
pub(super) const REMEDY: &str = "restore the file, or start a new run from the last checkpoint's hf folder by \
                      --model";

/// One file of a journal.
#[derive(Clone, Debug)]
pub(super) struct TermFile {
    pub(super) path: PathBuf,
    /// The byte of the whole journal at which the file's records begin.
    pub(super) start: u64,
}

/// Above the number of any term.
pub(super) const ALL: u64 = u64::MAX;

/// A term that was begun: no learner before it acknowledges or publishes anything further.
#[derive(Debug)]
pub struct NewTerm {
    pub(super) run_dir: PathBuf,
    pub(super) number: u64,
    pub(super) file: File,
    pub(super) path: PathBuf,
}

impl NewTerm {
    /// Begins a new term of the journal in `run_dir`: creates its file, without header. From then
    /// on no earlier term acknowledges a group.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn begin(run_dir: &Path) -> Result<Self> {
        let folder = folder(run_dir);
        fs::create_dir_all(&folder).at("create", &folder)?;
        loop {
            let number = newest(run_dir)? + 1;
            let path = file_of(&folder, number);
            let mut options = OpenOptions::new();
            match options.write(true).create_new(true).open(&path) {
                Ok(file) => {
                    // A new file is lost in a crash unless its folder is synced, whatever is
                    // synced in the file itself.
                    durable::sync_parent(&path).at("sync the folder of", &path)?;
                    durable::sync_parent(&folder).at("sync the folder of", &folder)?;
                    return Ok(Self {
                        run_dir: run_dir.to_owned(),
                        number,
                        file,
                        path,
                    });
                }
                // Another learner was faster. The next number is free.
                Err(fault) if fault.kind() == ErrorKind::AlreadyExists => {}
                Err(fault) => return Err(fault).at("create the journal", &path),
            }
        }
    }

    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Checks that no other learner has opened the run since.
    ///
    /// # Errors
    /// [`LearnerError::Replaced`] if one has.
    pub(crate) fn check_newest(&self) -> Result<()> {
        check_newest(&self.run_dir, self.number)
    }
}

impl TermFile {
    /// Returns the byte of the file at which byte `offset` of the journal stands.
    pub(super) fn position(&self, offset: u64) -> u64 {
        HEADER_BYTES + (offset - self.start)
    }
}

/// Returns the folder of the terms' files.
pub(super) fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join(FOLDER)
}

fn file_of(folder: &Path, term: u64) -> PathBuf {
    folder.join(format!("{term:06}.bin"))
}

/// Opens the file of groups that are copied from an object store, to append their records, and
/// makes it if it is missing. Only before the first term of a run folder begins.
pub(crate) fn open_copies(run_dir: &Path) -> Result<(File, PathBuf)> {
    let folder = folder(run_dir);
    fs::create_dir_all(&folder).at("create", &folder)?;
    let path = file_of(&folder, TERM_OF_COPIES);
    let mut options = OpenOptions::new();
    let opened = options.create(true).append(true).open(&path);
    let mut file = opened.at("open the journal", &path)?;
    let metadata = file.metadata().at("read the journal", &path)?;
    if metadata.len() == 0 {
        write_header(&mut file, &path, 0)?;
    }
    Ok((file, path))
}

/// Writes the header of a new term's file and waits until it is on the disk.
pub(super) fn write_header(file: &mut File, path: &Path, start: u64) -> Result<TermFile> {
    let header = [MAGIC.as_slice(), &start.to_le_bytes()].concat();
    file.write_all(&header).at("write the journal", path)?;
    file.sync_all().at("sync the journal", path)?;
    Ok(TermFile {
        path: path.to_owned(),
        start,
    })
}

/// Returns the newest term of a run folder; 0 if none was begun.
///
/// Reads the folder, because file systems over a network may remember for a while that a file did
/// not exist.
pub(super) fn newest(run_dir: &Path) -> Result<u64> {
    Ok(numbers(&folder(run_dir))?.last().copied().unwrap_or(0))
}

/// Checks that no term was begun after this one.
///
/// # Errors
/// [`LearnerError::Replaced`] if one was.
pub(super) fn check_newest(run_dir: &Path, term: u64) -> Result<()> {
    match newest(run_dir)?.cmp(&term) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(LearnerError::Replaced {
            run: run_dir.display().to_string(),
        }),
        Ordering::Less => Err(LearnerError::Broken {
            path: run_dir.to_owned(),
            reason:
                "the run folder was moved or removed under the running learner; start it again \
                     on the folder where it is now"
                    .to_owned(),
        }),
    }
}

/// Returns the files of a journal's terms before `before`, in their order, in which none begins
/// before another. Leaves out those of a learner that ended before it wrote the header.
pub(super) fn files(run_dir: &Path, before: u64) -> Result<Vec<TermFile>> {
    let mut files = Vec::new();
    let folder = folder(run_dir);
    for term in numbers(&folder)?.into_iter().filter(|&it| it < before) {
        files.extend(read_header(&file_of(&folder, term))?);
    }
    let mut pairs = files.windows(2);
    match pairs.find(|pair| pair[1].start < pair[0].start) {
        Some(pair) => {
            let (before, after) = (pair[0].start, pair[1].start);
            let reason = format!(
                "begins at byte {after} of the journal, before the file of the term before it (byte \
                 {before}); {REMEDY}"
            );
            Err(LearnerError::broken(&pair[1].path, reason))
        }
        None => Ok(files),
    }
}

fn numbers(folder: &Path) -> Result<Vec<u64>> {
    let listed = match fs::read_dir(folder) {
        Err(fault) if fault.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.at("read", folder)?,
    };
    let mut numbers = Vec::new();
    for entry in listed {
        let name = entry.at("read", folder)?.file_name();
        let number = name.to_string_lossy();
        let number = number.strip_suffix(".bin").map(str::parse::<u64>);
        numbers.extend(number.and_then(Result::ok));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn read_header(path: &Path) -> Result<Option<TermFile>> {
    let mut header = [0; HEADER_BYTES as usize];
    let mut file = File::open(path).at("open the journal", path)?;
    match file.read_exact(&mut header) {
        Err(fault) if fault.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read.at("read the journal", path)?,
    }
    // A crash of the machine may leave the length of a file without its bytes. Its learner wrote no
    // record, since it syncs the header first.
    if header == [0; HEADER_BYTES as usize] {
        return Ok(None);
    }
    let (magic, start) = header.split_at(MAGIC.len());
    let bytes = start.iter().rev();
    let start = bytes.fold(0, |sum, &byte| (sum << 8) | u64::from(byte));
    if magic != MAGIC || start > MAX_BYTES {
        let reason = format!("is not a journal of this program; {REMEDY}");
        return Err(LearnerError::broken(path, reason));
    }
    Ok(Some(TermFile {
        path: path.to_owned(),
        start,
    }))
}
