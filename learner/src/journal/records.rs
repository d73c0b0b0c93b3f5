//! Records of groups: their bytes in a journal, and reading them.
//!
//! A record is the payload's length and CRC-32 (each u32, little-endian) and the payload, a
//! `SubmitRequest` in the bytes in which it arrived. A crash may tear the last record of a file, so
//! reading ends at the first one that is not whole. The next file begins where the whole records of
//! this one ended, so a record in front of it that is not whole was damaged later.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use proto::EncodedGroup;

use super::terms::{self, REMEDY, TermFile};
use crate::error::{AtPath as _, LearnerError, Result};

const HEADER_BYTES: usize = 8;

/// A record read back.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalEntry {
    /// Where the record begins in the journal, in bytes.
    pub offset: u64,
    /// The group.
    pub group: EncodedGroup,
}

/// Returns the record of a payload.
pub(super) fn record(payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
    record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    record.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

/// The whole records of one file. If they end before the file does, that is a warning in the
/// journal's last file, and an error in another one.
pub(super) struct Entries {
    reader: BufReader<File>,
    path: PathBuf,
    /// Where the next record begins in the journal, in bytes.
    pub(super) offset: u64,
    /// Bytes of the file from there on.
    left: u64,
    /// Where the next file begins in the journal, in bytes; none for the last file.
    until: Option<u64>,
}

impl Entries {
    /// Reads the records of `file` from byte `from` of the journal on, up to byte `until` if the
    /// file is not the journal's last one.
    ///
    /// # Errors
    /// The file cannot be read, or ends before the next one begins.
    pub(super) fn new(file: &TermFile, from: u64, until: Option<u64>) -> Result<Self> {
        let path = &file.path;
        let mut opened = File::open(path).at("open the journal", path)?;
        let length = opened.seek(SeekFrom::End(0)).at("read the journal", path)?;
        let offset = from.max(file.start);
        let end = file.start + length.saturating_sub(terms::HEADER_BYTES);
        if let Some(until) = until.filter(|&until| end < until && from < until) {
            let reason = format!(
                "ends at byte {end} of the journal, but the next file begins at byte {until}: \
                 groups are lost; {REMEDY}"
            );
            return Err(LearnerError::broken(path, reason));
        }
        let end = until.map_or(end, |until| until.min(end));
        // A file that ends before `from` has no record from there on.
        let offset = offset.min(end);
        opened
            .seek(SeekFrom::Start(file.position(offset)))
            .at("read the journal", path)?;
        Ok(Self {
            reader: BufReader::new(opened),
            path: path.clone(),
            offset,
            left: end.saturating_sub(offset),
            until,
        })
    }

    /// Ends the reading at a record that is not whole, of which the file has `left` bytes.
    fn not_whole(&self, left: u64) -> Option<Result<JournalEntry>> {
        let offset = self.offset;
        if left == 0 {
            return None;
        }
        let Some(until) = self.until else {
            let path = self.path.display();
            tracing::warn!(%path, offset, left, "the journal's last record is torn");
            return None;
        };
        let reason = format!(
            "has a damaged record at byte {offset} of the journal, but the next file begins at \
             byte {until}: groups are lost; {REMEDY}"
        );
        Some(Err(LearnerError::broken(&self.path, reason)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Iterator for Entries {
    type Item = Result<JournalEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let (offset, left) = (self.offset, self.left);
        match read_payload(&mut self.reader, left).at("read the journal", &self.path) {
            Ok(Some(payload)) => {
                let bytes = (HEADER_BYTES + payload.len()) as u64;
                (self.offset, self.left) = (offset + bytes, left - bytes);
                let group = EncodedGroup::new(payload.into());
                Some(Ok(JournalEntry { offset, group }))
            }
            Ok(None) => {
                self.left = 0;
                self.not_whole(left)
            }
            Err(fault) => {
                self.left = 0;
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
