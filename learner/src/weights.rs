//! Snapshots: one version's weights as they go over the wire.
//!
//! Invariant: a snapshot's messages are a header, then chunks of at most 1 MiB in order, whose bytes together are a
//! safetensors file with the header's SHA-256. Sending is latest-wins: a version that was overtaken is never sent.

use std::sync::Arc;

use proto::v1::{SnapshotChunk, SnapshotHeader, WeightsResponse, weights_response::Part};
use sha2::{Digest, Sha256};

/// Bytes of weights in one message; well below gRPC's default limit of 4 MiB.
pub const CHUNK_BYTES: usize = 1 << 20;

/// One version's weights, cheap to clone.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The version; 0 is the base.
    pub policy_version: u64,
    body: Arc<Vec<u8>>,
    sha256: String,
}

impl Snapshot {
    /// Wraps a safetensors file.
    #[must_use]
    pub fn new(policy_version: u64, body: Vec<u8>) -> Self {
        let sha256 = hex::encode(Sha256::digest(&body));
        Self {
            policy_version,
            body: Arc::new(body),
            sha256,
        }
    }

    /// The safetensors file.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// How many messages the snapshot takes.
    #[must_use]
    pub fn messages(&self) -> usize {
        1 + self.body.len().div_ceil(CHUNK_BYTES)
    }

    /// Message `number`, counted from 0; the header comes first.
    #[must_use]
    pub fn message(&self, number: usize) -> WeightsResponse {
        let part = match number.checked_sub(1) {
            None => Part::Header(SnapshotHeader {
                policy_version: self.policy_version,
                size_bytes: self.body.len() as u64,
                sha256: self.sha256.clone(),
            }),
            Some(chunk) => Part::Chunk(self.chunk(chunk * CHUNK_BYTES)),
        };
        WeightsResponse { part: Some(part) }
    }

    fn chunk(&self, offset: usize) -> SnapshotChunk {
        let end = self.body.len().min(offset + CHUNK_BYTES);
        let data = self.body[offset..end].to_vec();
        let crc32 = crc32fast::hash(&data);
        SnapshotChunk {
            policy_version: self.policy_version,
            offset: offset as u64,
            data,
            crc32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_add_up_to_the_body() {
        for size in [
            0,
            1,
            CHUNK_BYTES - 1,
            CHUNK_BYTES,
            CHUNK_BYTES + 1,
            3 * CHUNK_BYTES,
        ] {
            let body: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let snapshot = Snapshot::new(3, body.clone());
            let mut received = Vec::new();
            for number in 0..snapshot.messages() {
                match snapshot.message(number).part.unwrap() {
                    Part::Header(header) => {
                        assert_eq!((number, header.size_bytes), (0, size as u64));
                        assert_eq!(header.sha256, hex::encode(Sha256::digest(&body)));
                    }
                    Part::Chunk(chunk) => {
                        assert_eq!(chunk.offset, received.len() as u64);
                        assert!(chunk.data.len() <= CHUNK_BYTES);
                        assert_eq!(chunk.crc32, crc32fast::hash(&chunk.data));
                        received.extend(chunk.data);
                    }
                    Part::Finished(_) => panic!("a snapshot does not end the run"),
                }
            }
            assert_eq!(received, body);
        }
    }
}
