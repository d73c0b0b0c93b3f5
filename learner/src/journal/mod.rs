//! The journal of accepted groups: the run's source of truth.
//!
//! Invariant: a group is on the disk, and in the object store if the run has one, before the
//! actor's submission is acknowledged. An acknowledged group is never rolled out again, so losing
//! it would stall the run; one that was not acknowledged costs a rollout.
//!
//! Each time a learner opens a run, it begins a new term, which ends the one before. A learner
//! that still runs, for example on the other side of a network that failed, notices the newer term
//! at its next write and stops. It writes a group first and then looks for a newer term; the newer
//! learner begins its term first and then reads. So the newer learner reads every group that the
//! older one acknowledges.

mod records;
mod terms;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use policy::durable;
use proto::{EncodedGroup, v1::SubmitRequest};

pub(crate) use self::terms::open_copies;
pub use self::{
    records::JournalEntry,
    terms::{FOLDER, NewTerm},
};
use self::{
    records::{Entries, record},
    terms::TermFile,
};
use crate::{
    error::{AtPath as _, LearnerError, Result},
    object_storage::ObjectLog,
};

/// An open journal, ready to append.
#[derive(Debug)]
pub struct Journal {
    run_dir: PathBuf,
    term: u64,
    /// This term's own file.
    file: File,
    of_term: TermFile,
    /// Bytes of the whole journal.
    end: u64,
    /// What has failed: part of a record, or one that was not acknowledged, may stand at the end of
    /// the file.
    failure: Option<String>,
    /// The copy in an object store, which is what counts if there is one.
    objects: Option<ObjectLog>,
}

impl NewTerm {
    /// Reads the records from byte `from` on, and opens the journal to append.
    ///
    /// # Errors
    /// A file cannot be read or written, a record in front of a later file is damaged, or the
    /// journal ends before `from`. [`LearnerError::Replaced`]: another learner has opened the run.
    pub fn open(mut self, from: u64) -> Result<(Journal, Vec<JournalEntry>)> {
        let run_dir = &self.run_dir;
        let mut entries = Vec::new();
        let mut end = 0;
        // What a newer learner writes meanwhile is not before this term.
        for mut of_file in entries_from(run_dir, self.number, from)? {
            // A record that its killed writer did not sync counts from now on.
            durable::sync(of_file.path()).at("sync the journal", of_file.path())?;
            entries.extend(of_file.by_ref().collect::<Result<Vec<_>>>()?);
            end = of_file.offset;
        }
        // A newer learner's checkpoint may refer to groups of its own.
        self.check_newest()?;
        if from > end {
            let reason = format!(
                "ends at byte {end}, but the checkpoint continues at byte {from}: groups are \
                 lost; restore the whole folder, or start a new run from the checkpoint's hf \
                 folder by --model"
            );
            return Err(LearnerError::broken(&terms::folder(run_dir), reason));
        }
        let of_term = terms::write_header(&mut self.file, &self.path, end)?;
        let journal = Journal {
            run_dir: self.run_dir,
            term: self.number,
            file: self.file,
            of_term,
            end,
            failure: None,
            objects: None,
        };
        Ok((journal, entries))
    }
}

impl Journal {
    /// Appends to `objects` as well from now on.
    pub(crate) fn attach(&mut self, objects: Option<ObjectLog>) {
        self.objects = objects;
    }

    /// Appends groups, waits until they are durable and returns where each record begins.
    ///
    /// # Errors
    /// [`LearnerError::File`] if the disk is full or fails: the journal then does not hold the
    /// groups, and if the part that was written cannot be removed, nothing more is appended.
    /// [`LearnerError::Replaced`] if another learner has opened the run.
    pub fn append(&mut self, groups: &[EncodedGroup]) -> Result<Vec<u64>> {
        self.check_whole()?;
        let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
        for group in groups {
            offsets.push(self.end + bytes.len() as u64);
            bytes.extend(record(group.bytes()));
        }
        let written = self.write(&bytes);
        if let Err(fault) = written.at("append to the journal", &self.of_term.path) {
            // A later record behind a torn one would be lost: reading ends at the first that is not
            // whole.
            if self.cut().is_err() {
                self.failure = Some(fault.to_string());
            }
            return Err(fault);
        }
        // From here on, the records are in the file whether they are acknowledged or not.
        let kept = self.keep(&bytes);
        self.remember(&kept);
        kept?;
        self.end += bytes.len() as u64;
        Ok(offsets)
    }

    /// Puts records into the object store, and checks that they count.
    fn keep(&mut self, records: &[u8]) -> Result<()> {
        if let Some(objects) = &mut self.objects {
            objects.append_groups(records)?;
        }
        self.check_newest_term()
    }

    fn remember(&mut self, outcome: &Result<()>) {
        if let Err(fault) = outcome {
            self.failure = Some(fault.to_string());
        }
    }

    /// Checks that all records were written whole, and acknowledged.
    fn check_whole(&self) -> Result<()> {
        let Some(failure) = &self.failure else {
            return Ok(());
        };
        // The reason may be that the run is no longer this learner's.
        self.check_newest_term()?;
        Err(LearnerError::JournalEnded {
            failure: failure.clone(),
        })
    }

    /// Checks that no other learner has opened the run, before something of it is published.
    ///
    /// # Errors
    /// [`LearnerError::Replaced`] if one has.
    pub(crate) fn check_newest(&self) -> Result<()> {
        if let Some(objects) = &self.objects {
            objects.check_newest()?;
        }
        self.check_newest_term()
    }

    fn check_newest_term(&self) -> Result<()> {
        terms::check_newest(&self.run_dir, self.term)
    }

    /// Records that a policy version is published. An actor gets the version after that.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(crate) fn publish(&mut self, version: u64) -> Result<()> {
        self.check_whole()?;
        self.check_newest_term()?;
        let Some(objects) = &mut self.objects else {
            return Ok(());
        };
        let appended = objects.append_version(version);
        self.remember(&appended);
        appended
    }

    /// Returns the copy in an object store, if the run has one.
    pub(crate) fn objects(&mut self) -> Option<&mut ObjectLog> {
        self.objects.as_mut()
    }

    fn cut(&mut self) -> io::Result<()> {
        let position = self.of_term.position(self.end);
        self.file.set_len(position)?;
        self.file.seek(SeekFrom::Start(position))?;
        Ok(())
    }

    fn write(&mut self, records: &[u8]) -> io::Result<()> {
        self.file.write_all(records)?;
        self.file.sync_data()
    }

    /// Returns where the next record will begin, in bytes.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// Returns the size of the journal in a run folder, in bytes.
///
/// # Errors
/// A file cannot be read.
pub fn bytes(run_dir: &Path) -> Result<u64> {
    let files = terms::files(run_dir, terms::ALL)?;
    let sizes = files.iter().map(|file| {
        let metadata = std::fs::metadata(&file.path);
        metadata.at("read the journal", &file.path)
    });
    sizes.map(|size| Ok(size?.len())).sum()
}

/// Returns whether a run folder has groups.
pub(crate) fn has_groups(run_dir: &Path) -> Result<bool> {
    let mut entries = entries_from(run_dir, terms::ALL, 0)?.into_iter().flatten();
    Ok(entries.next().transpose()?.is_some())
}

/// Reads the groups of the journal in a run folder, oldest first and one at a time. Does not change
/// a file, so that another process may write meanwhile.
///
/// # Errors
/// There is no journal, a file cannot be read, a record in front of a later file is damaged, or a
/// record is not a group.
pub fn read(run_dir: &Path) -> Result<impl Iterator<Item = Result<SubmitRequest>> + use<>> {
    let files = entries_from(run_dir, terms::ALL, 0)?;
    if files.is_empty() {
        let reason = "holds no journal of groups; give the folder of a run with GRPO";
        return Err(LearnerError::broken(run_dir, reason));
    }
    Ok(files.into_iter().flat_map(|entries| {
        let path = entries.path().to_owned();
        entries.map(move |entry| {
            let decoded = entry?.group.decode();
            decoded.map_err(|error| LearnerError::broken(&path, format!("holds no group: {error}")))
        })
    }))
}

/// Returns the records of each file of a term before `before`, from byte `from` of the journal on.
fn entries_from(run_dir: &Path, before: u64, from: u64) -> Result<Vec<Entries>> {
    let files = terms::files(run_dir, before)?;
    if let Some(first) = files.first().filter(|first| first.start > from) {
        let reason = format!(
            "begins at byte {} of the journal, and no file holds the groups before it; {}",
            first.start,
            terms::REMEDY
        );
        return Err(LearnerError::broken(&first.path, reason));
    }
    let ends = files.iter().skip(1).map(|next| Some(next.start));
    let with_ends = files.iter().zip(ends.chain([None]));
    // Later files begin behind `from`, and an earlier one may end before it.
    let needed = with_ends.filter(|(_, end)| end.is_none_or(|end| end > from));
    needed
        .map(|(file, end)| Entries::new(file, from, end))
        .collect()
}
