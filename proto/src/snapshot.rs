//! Snapshots: the weights of one policy version, as the learner sends them and the actor receives
//! them.
//!
//! A snapshot travels as a header and chunks. Each chunk has a CRC-32, the whole has a SHA-256, and
//! a snapshot that does not match is an error; the receiver never sees half of one. A new header
//! discards what came before it, because only the newest version is of use.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::{
    chunks::{Assembly, split},
    v1::{SnapshotChunk, SnapshotHeader, WeightsResponse, weights_response::Part},
};

/// The weights of one policy version; clones share the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The policy version; 0 is the base model.
    pub policy_version: u64,
    body: Bytes,
    sha256: String,
}

impl Snapshot {
    /// Wraps a safetensors file.
    pub fn new(policy_version: u64, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self {
            policy_version,
            sha256: hex::encode(Sha256::digest(&body)),
            body,
        }
    }

    /// Returns the safetensors file.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the messages that carry the snapshot: its header, then its chunks.
    pub fn messages(&self) -> impl Iterator<Item = WeightsResponse> + use<> {
        let policy_version = self.policy_version;
        let header = Part::Header(SnapshotHeader {
            policy_version,
            size_bytes: self.body.len() as u64,
            sha256: self.sha256.clone(),
        });
        let chunks = split(&self.body).map(move |(offset, data)| {
            Part::Chunk(SnapshotChunk {
                policy_version,
                offset,
                crc32: crc32fast::hash(&data),
                data,
            })
        });
        let parts = std::iter::once(header).chain(chunks);
        parts.map(|part| WeightsResponse { part: Some(part) })
    }
}

/// A snapshot that arrived damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy snapshot v{policy_version}: {reason}")]
pub struct SnapshotError {
    /// The version that was announced; 0 if there was none.
    pub policy_version: u64,
    /// What is wrong.
    pub reason: String,
}

/// Puts a stream's messages together to snapshots.
#[derive(Debug, Default)]
pub struct SnapshotAssembler {
    open: Option<Open>,
    /// The size of the last snapshot that was complete.
    last_bytes: u64,
}

/// A snapshot of which chunks are missing.
#[derive(Debug)]
struct Open {
    header: SnapshotHeader,
    assembly: Assembly,
    /// Of the chunks so far. Hashing gigabytes at the end would hold up the task that receives.
    hash: Sha256,
}

impl SnapshotAssembler {
    /// Discards the snapshot of which chunks are missing, because its stream ended.
    pub fn discard(&mut self) {
        self.open = None;
    }

    /// Returns whether a header came, and not yet all chunks of its snapshot.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the next message and returns the snapshot that it completes, if any.
    ///
    /// # Errors
    /// A message is out of order or damaged; the assembler then waits for a new header.
    pub fn push(&mut self, message: WeightsResponse) -> Result<Option<Snapshot>, SnapshotError> {
        match message.part {
            Some(Part::Header(header)) => {
                let assembly = Assembly::after(header.size_bytes, self.last_bytes);
                self.open = Some(Open {
                    header,
                    assembly,
                    hash: Sha256::new(),
                });
                Ok(None)
            }
            Some(Part::Chunk(chunk)) => self.append(&chunk),
            Some(Part::Finished(_)) | None => Err(damaged(0, "a message is empty")),
        }
    }

    fn append(&mut self, chunk: &SnapshotChunk) -> Result<Option<Snapshot>, SnapshotError> {
        let version = chunk.policy_version;
        // Taken out first: after an error only a new header opens the assembler again.
        let Some(mut open) = self.open.take() else {
            return Err(damaged(version, "a chunk came before its header"));
        };
        if open.header.policy_version != version {
            return Err(damaged(version, "a chunk is out of order"));
        }
        if crc32fast::hash(&chunk.data) != chunk.crc32 {
            return Err(damaged(version, "a chunk's CRC-32 is wrong"));
        }
        let pushed = open.assembly.push(chunk.offset, &chunk.data);
        pushed.map_err(|error| damaged(version, &error))?;
        open.hash.update(&chunk.data);
        if !open.assembly.is_complete() {
            self.open = Some(open);
            return Ok(None);
        }
        let sha256 = hex::encode(open.hash.finalize());
        if !open.header.sha256.eq_ignore_ascii_case(&sha256) {
            return Err(damaged(version, "its SHA-256 is not the one announced"));
        }
        let body = open.assembly.into_bytes();
        self.last_bytes = body.len() as u64;
        Ok(Some(Snapshot {
            policy_version: version,
            body,
            sha256,
        }))
    }
}

fn damaged(policy_version: u64, reason: &str) -> SnapshotError {
    SnapshotError {
        policy_version,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::CHUNK_BYTES;

    /// A body of more than two chunks.
    fn body() -> Vec<u8> {
        (0..2 * CHUNK_BYTES + 7).map(|i| (i % 251) as u8).collect()
    }

    fn push_all(
        assembler: &mut SnapshotAssembler,
        messages: impl IntoIterator<Item = WeightsResponse>,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        let mut last = None;
        for message in messages {
            last = assembler.push(message)?;
        }
        Ok(last)
    }

    #[test]
    fn messages_become_the_snapshot_again() {
        for body in [Vec::new(), b"abc".to_vec(), vec![7; CHUNK_BYTES], body()] {
            let snapshot = Snapshot::new(4, body.clone());
            let messages: Vec<_> = snapshot.messages().collect();
            assert_eq!(messages.len(), 1 + body.len().div_ceil(CHUNK_BYTES).max(1));
            let Some(Part::Header(header)) = &messages[0].part else {
                panic!("the header comes first")
            };
            assert_eq!(header.size_bytes, body.len() as u64);
            assert_eq!(header.sha256, hex::encode(Sha256::digest(&body)));
            let received = push_all(&mut SnapshotAssembler::default(), messages).unwrap();
            assert_eq!(received.as_ref().map(Snapshot::body), Some(&body[..]));
            assert_eq!(received, Some(snapshot));
        }
    }

    #[test]
    fn a_new_header_discards_the_old_snapshot() {
        let mut assembler = SnapshotAssembler::default();
        let old = Snapshot::new(1, body());
        let stream = old.messages().take(2);
        let stream = stream.chain(Snapshot::new(2, "new").messages());
        let received = push_all(&mut assembler, stream).unwrap().unwrap();
        assert_eq!(received.policy_version, 2);
    }

    #[test]
    fn a_snapshot_is_open_from_its_header_to_its_last_chunk() {
        let mut assembler = SnapshotAssembler::default();
        assert!(!assembler.is_open());
        let messages: Vec<_> = Snapshot::new(1, body()).messages().collect();
        let last = messages.len() - 1;
        for (number, message) in messages.into_iter().enumerate() {
            assembler.push(message).unwrap();
            assert_eq!(assembler.is_open(), number < last);
        }
    }

    #[test]
    fn damage_is_named() {
        type Damage = fn(&mut Vec<WeightsResponse>);
        fn chunk(message: &mut WeightsResponse) -> &mut SnapshotChunk {
            match &mut message.part {
                Some(Part::Chunk(chunk)) => chunk,
                _ => panic!("not a chunk"),
            }
        }
        fn change(message: &mut WeightsResponse) -> &mut SnapshotChunk {
            let chunk = chunk(message);
            let mut data = chunk.data.to_vec();
            data[0] ^= 1;
            chunk.data = data.into();
            chunk
        }
        let damages: [(Damage, &str); 6] = [
            (
                |messages| {
                    change(&mut messages[1]);
                },
                "CRC-32",
            ),
            (|messages| drop(messages.remove(1)), "out of order"),
            (|messages| drop(messages.remove(0)), "before its header"),
            (|messages| messages[1].part = None, "empty"),
            (
                |messages| {
                    let changed = change(&mut messages[1]);
                    changed.crc32 = crc32fast::hash(&changed.data);
                },
                "SHA-256",
            ),
            (
                |messages| match &mut messages[0].part {
                    Some(Part::Header(header)) => header.size_bytes -= 1,
                    _ => panic!("not a header"),
                },
                "more than the",
            ),
        ];
        for (damage, named) in damages {
            let mut stream: Vec<_> = Snapshot::new(7, body()).messages().collect();
            damage(&mut stream);
            let error = push_all(&mut SnapshotAssembler::default(), stream).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
