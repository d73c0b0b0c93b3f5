//! The journal of accepted groups: the run's source of truth.
//!
//! Invariant: a group is on the disk before the actor's submission is acknowledged. An acknowledged
//! group is never rolled out again, so losing it would stall the run; one that was not acknowledged
//! costs a rollout.
//!
//! A record is the payload's length and CRC-32 (each u32, little-endian) and the payload, a
//! `SubmitRequest` in the bytes in which it arrived. A crash may tear the last record; opening cuts
//! off what follows the last whole one, and those groups are rolled out again.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use policy::durable;
use proto::{EncodedGroup, v1::SubmitRequest};

use crate::error::{AtPath as _, LearnerError, Result};

const HEADER_BYTES: usize = 8;

/// A record read back.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalEntry {
    /// Where the record begins in the file, in bytes.
    pub offset: u64,
    /// The group.
    pub group: EncodedGroup,
}

/// An open journal, ready to append.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    end: u64,
    /// True where part of a record that failed may stand at the end.
    is_torn: bool,
}

impl Journal {
    /// Opens or creates the journal, reads the records from byte `from` on and cuts off a torn
    /// tail.
    ///
    /// # Errors
    /// The file cannot be read or written, another process has it open, or it ends before `from`.
    pub fn open(path: &Path, from: u64) -> Result<(Self, Vec<JournalEntry>)> {
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(path);
        let mut file = file.at("open the journal", path)?;
        // Two writers would cut and overwrite each other's groups.
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let reason =
                    "is in use by another process; wait for its end or choose another run folder";
                return Err(LearnerError::broken(path, reason));
            }
            Err(TryLockError::Error(fault)) => Err(fault).at("lock the journal", path)?,
        }
        // A new file is lost in a crash unless its folder is synced, whatever is synced in the file
        // itself.
        durable::sync_parent(path).at("sync the folder of", path)?;
        let length = file.metadata().at("read the journal", path)?.len();
        if from > length {
            let reason = format!(
                "ends at byte {length}, but the checkpoint continues at byte {from}: groups are \
                 lost; restore the whole file, or start a new run from the checkpoint's hf folder \
                 by --model"
            );
            return Err(LearnerError::broken(path, reason));
        }
        let mut records = Entries::new(&mut file, path, from)?;
        let entries = records.by_ref().collect::<Result<Vec<_>>>()?;
        let end = records.offset;
        if end < length {
            file.set_len(end)
                .at("cut the torn tail of the journal", path)?;
        }
        file.seek(SeekFrom::Start(end))
            .at("read the journal", path)?;
        Ok((
            Self {
                file,
                path: path.to_owned(),
                end,
                is_torn: false,
            },
            entries,
        ))
    }

    /// Appends a group, waits until it is on the disk (`fdatasync`) and returns where its record
    /// begins.
    ///
    /// # Errors
    /// [`LearnerError::Journal`] if the disk is full or fails. The journal then does not hold the
    /// group. If the part that was written cannot be removed, nothing more is appended.
    pub fn append(&mut self, group: &EncodedGroup) -> Result<u64> {
        let offset = self.end;
        let written = self.write(group.bytes()).map_err(|fault| {
            // A later record behind a torn one would be lost: reading ends at the first that is not
            // whole.
            self.is_torn |= self.cut(offset).is_err();
            LearnerError::Journal {
                path: self.path.clone(),
                source: fault,
            }
        });
        self.end = offset + written?;
        Ok(offset)
    }

    fn cut(&mut self, end: u64) -> io::Result<()> {
        self.file.set_len(end)?;
        self.file.seek(SeekFrom::Start(end))?;
        Ok(())
    }

    fn write(&mut self, payload: &[u8]) -> io::Result<u64> {
        if self.is_torn {
            return Err(io::Error::other("an earlier record is torn"));
        }
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
        self.file.write_all(&header)?;
        self.file.write_all(payload)?;
        self.file.sync_data()?;
        Ok((HEADER_BYTES + payload.len()) as u64)
    }

    /// Returns where the next record will begin, in bytes.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// Reads the groups of a journal, oldest first and one at a time. Does not change the file, so that
/// another process may write it meanwhile.
///
/// # Errors
/// The file cannot be read, or a record is not a group.
pub fn read(path: &Path) -> Result<impl Iterator<Item = Result<SubmitRequest>> + use<>> {
    let file = File::open(path).at("open the journal", path)?;
    let entries = Entries::new(file, path, 0)?;
    let path = path.to_owned();
    Ok(entries.map(move |entry| {
        let decoded = entry?.group.decode();
        decoded.map_err(|error| LearnerError::broken(&path, format!("holds no group: {error}")))
    }))
}

/// The complete records of a journal. Warns if they end before the file does.
struct Entries<F> {
    reader: BufReader<F>,
    path: PathBuf,
    /// Where the next record begins, in bytes.
    offset: u64,
    /// Bytes of the file when it was opened.
    length: u64,
}

impl<F: Read + Seek> Entries<F> {
    fn new(mut file: F, path: &Path, offset: u64) -> Result<Self> {
        let length = file.seek(SeekFrom::End(0)).at("read the journal", path)?;
        file.seek(SeekFrom::Start(offset))
            .at("read the journal", path)?;
        Ok(Self {
            reader: BufReader::new(file),
            path: path.to_owned(),
            offset,
            length,
        })
    }
}

impl<F: Read> Iterator for Entries<F> {
    type Item = Result<JournalEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let (offset, left_bytes) = (self.offset, self.length - self.offset);
        match read_payload(&mut self.reader, left_bytes).at("read the journal", &self.path) {
            Ok(Some(payload)) => {
                self.offset += (HEADER_BYTES + payload.len()) as u64;
                let group = EncodedGroup::new(payload.into());
                Some(Ok(JournalEntry { offset, group }))
            }
            Ok(None) => {
                if left_bytes > 0 {
                    let path = self.path.display();
                    tracing::warn!(%path, offset, left_bytes, "the journal's last record is torn");
                }
                self.length = self.offset;
                None
            }
            Err(fault) => {
                self.length = self.offset;
                Some(Err(fault))
            }
        }
    }
}

/// Reads the payload of the next record; none if the `left` bytes do not begin with a whole record.
fn read_payload(reader: &mut impl Read, left: u64) -> io::Result<Option<Vec<u8>>> {
    if left < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header)?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (payload_bytes, crc) = (word(0), word(4));
    // An empty group is never accepted: a length of 0 is a hole that a crash left.
    if payload_bytes == 0 || HEADER_BYTES as u64 + u64::from(payload_bytes) > left {
        return Ok(None);
    }
    let mut payload = vec![0; payload_bytes as usize];
    reader.read_exact(&mut payload)?;
    Ok((crc32fast::hash(&payload) == crc).then_some(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(group_index: u64) -> EncodedGroup {
        let request = SubmitRequest {
            actor_id: "a".to_owned(),
            group_index,
            lease_id: 9,
            ..SubmitRequest::default()
        };
        EncodedGroup::from(&request)
    }

    /// The bytes that earlier builds wrote: a run folder of theirs must resume.
    #[test]
    fn the_format_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        Journal::open(&path, 0)
            .unwrap()
            .0
            .append(&group(7))
            .unwrap();
        let payload = [0x0a, 1, b'a', 0x10, 7, 0x18, 9];
        let mut expected = vec![7, 0, 0, 0];
        expected.extend(crc32fast::hash(&payload).to_le_bytes());
        expected.extend(payload);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }

    fn written(path: &Path) -> Vec<u64> {
        let (mut journal, entries) = Journal::open(path, 0).unwrap();
        assert_eq!(entries, []);
        (1..4)
            .map(|index| journal.append(&group(index)).unwrap())
            .collect()
    }

    #[test]
    fn groups_come_back_in_order_and_from_an_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let offsets = written(&path);
        let (journal, entries) = Journal::open(&path, 0).unwrap();
        let found: Vec<(u64, u64)> = entries
            .iter()
            .map(|e| (e.offset, e.group.decode().unwrap().group_index))
            .collect();
        assert_eq!(found, [(offsets[0], 1), (offsets[1], 2), (offsets[2], 3)]);
        let indices = read(&path).unwrap().map(|group| group.unwrap().group_index);
        assert_eq!(indices.collect::<Vec<_>>(), [1, 2, 3]);
        let end = journal.end();
        let second = Journal::open(&path, 0).unwrap_err().to_string();
        assert!(second.contains("is in use by another process"), "{second}");
        drop(journal);
        let (_, entries) = Journal::open(&path, offsets[2]).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(Journal::open(&path, end).unwrap().1, []);
        let fault = Journal::open(&path, end + 1).unwrap_err().to_string();
        assert!(fault.contains("groups are lost"), "{fault}");
    }

    /// `/dev/full` takes no byte and cannot be cut: a disk that is full and fails.
    #[test]
    fn a_full_disk_is_named_and_a_journal_that_cannot_be_mended_takes_nothing_more() {
        let full = Path::new("/dev/full");
        let Ok(file) = OpenOptions::new().write(true).open(full) else {
            eprintln!("SKIPPED: no /dev/full on this system");
            return;
        };
        let mut journal = Journal {
            file,
            path: full.to_owned(),
            end: 0,
            is_torn: false,
        };
        let fault = journal.append(&group(1)).unwrap_err().to_string();
        assert!(
            fault.starts_with("cannot append to the journal /dev/full: ")
                && fault.ends_with("free the disk, then resume the run"),
            "{fault}"
        );
        let fault = journal.append(&group(1)).unwrap_err().to_string();
        assert!(fault.contains("an earlier record is torn"), "{fault}");
        assert_eq!(journal.end(), 0);
    }

    #[test]
    fn a_torn_tail_of_any_length_is_cut_and_appending_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let offsets = written(&path);
        let whole = std::fs::read(&path).unwrap();
        for length in offsets[2]..whole.len() as u64 {
            std::fs::write(&path, &whole[..length as usize]).unwrap();
            assert_eq!(read(&path).unwrap().count(), 2, "read up to {length}");
            let (mut journal, entries) = Journal::open(&path, 0).unwrap();
            assert_eq!(entries.len(), 2, "cut at {length}");
            assert_eq!(journal.append(&group(3)).unwrap(), offsets[2]);
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn a_changed_byte_or_a_hole_ends_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let offsets = written(&path);
        let whole = std::fs::read(&path).unwrap();
        for at in offsets[2] as usize..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x40;
            std::fs::write(&path, &changed).unwrap();
            assert_eq!(Journal::open(&path, 0).unwrap().1.len(), 2, "byte {at}");
        }
        std::fs::write(&path, [whole.as_slice(), &[0; 100]].concat()).unwrap();
        assert_eq!(Journal::open(&path, 0).unwrap().1.len(), 3);
    }
}
