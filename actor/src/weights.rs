//! Snapshots from the learner's stream: assembled, verified, newest only.
//!
//! Invariant: a snapshot is whole and of the announced SHA-256, or it is an error; half of one is never used. A new header
//! discards what was collected before it, since the latest wins.

use proto::{
    LearnerClient,
    v1::{SnapshotChunk, SnapshotHeader, WeightsRequest, WeightsResponse, weights_response::Part},
};
use sha2::{Digest, Sha256};
use tonic::Streaming;

use crate::{error::ActorError, retry::Retry};

/// Memory is taken as chunks arrive beyond this, whatever a header claims.
const RESERVED_BYTES: u64 = 256 << 20;
/// Broken snapshots in a row after which the subscription gives up.
const BROKEN_LIMIT: u32 = 3;

/// One version's weights as they came: a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The version.
    pub policy_version: u64,
    /// The safetensors file.
    pub body: Vec<u8>,
}

/// Puts snapshots together from a stream's parts.
#[derive(Debug, Default)]
pub struct Assembler {
    open: Option<(SnapshotHeader, Vec<u8>)>,
}

impl Assembler {
    /// Takes the next part; answers with a snapshot when it is complete.
    ///
    /// # Errors
    /// [`ActorError::Snapshot`] where a part is out of order or damaged; the assembler then waits for a new header.
    pub fn push(&mut self, part: WeightsResponse) -> Result<Option<Snapshot>, ActorError> {
        match part.part {
            Some(Part::Header(header)) => {
                let body = Vec::with_capacity(header.size_bytes.min(RESERVED_BYTES) as usize);
                self.open = Some((header, body));
            }
            Some(Part::Chunk(chunk)) => self.append(&chunk)?,
            Some(Part::Finished(_)) | None => return Err(broken(0, "a part is empty")),
        }
        self.finished()
    }

    fn append(&mut self, chunk: &SnapshotChunk) -> Result<(), ActorError> {
        let version = chunk.policy_version;
        let Some((header, mut body)) = self.open.take() else {
            return Err(broken(version, "a chunk came before its header"));
        };
        if header.policy_version != version || chunk.offset != body.len() as u64 {
            return Err(broken(version, "a chunk is out of order"));
        }
        if crc32fast::hash(&chunk.data) != chunk.crc32 {
            return Err(broken(version, "a chunk's CRC-32 is wrong"));
        }
        if body.len() as u64 + chunk.data.len() as u64 > header.size_bytes {
            return Err(broken(version, "it is longer than its header says"));
        }
        body.extend_from_slice(&chunk.data);
        self.open = Some((header, body));
        Ok(())
    }

    fn finished(&mut self) -> Result<Option<Snapshot>, ActorError> {
        let whole =
            |(header, body): &mut (SnapshotHeader, Vec<u8>)| body.len() as u64 == header.size_bytes;
        let Some((header, body)) = self.open.take_if(whole) else {
            return Ok(None);
        };
        if !header
            .sha256
            .eq_ignore_ascii_case(&hex::encode(Sha256::digest(&body)))
        {
            return Err(broken(
                header.policy_version,
                "its SHA-256 is not the one announced",
            ));
        }
        Ok(Some(Snapshot {
            policy_version: header.policy_version,
            body,
        }))
    }
}

fn broken(policy_version: u64, reason: &str) -> ActorError {
    ActorError::Snapshot {
        policy_version,
        reason: reason.to_owned(),
    }
}

/// A subscription that outlives broken streams.
pub struct Snapshots {
    learner: LearnerClient,
    actor_id: String,
    retry: Retry,
    after_version: Option<u64>,
    stream: Option<Streaming<WeightsResponse>>,
    assembler: Assembler,
}

impl Snapshots {
    /// Subscribes from the newest snapshot on.
    #[must_use]
    pub fn new(learner: LearnerClient, actor_id: String, retry: Retry) -> Self {
        Self {
            learner,
            actor_id,
            retry,
            after_version: None,
            stream: None,
            assembler: Assembler::default(),
        }
    }

    /// Waits for a snapshot newer than all before; none once the run is over. Reconnects where the stream ends; not cancel
    /// safe.
    ///
    /// # Errors
    /// The learner stays away, or sends broken snapshots again and again.
    pub async fn next(&mut self) -> Result<Option<Snapshot>, ActorError> {
        let mut broken_left = BROKEN_LIMIT;
        loop {
            let Some(part) = self.next_part().await? else {
                continue;
            };
            if matches!(part.part, Some(Part::Finished(_))) {
                return Ok(None);
            }
            match self.assembler.push(part) {
                Ok(None) => {}
                Ok(Some(snapshot)) => {
                    self.after_version = Some(snapshot.policy_version);
                    return Ok(Some(snapshot));
                }
                Err(error) if broken_left == 0 => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "asking for the snapshot again");
                    broken_left -= 1;
                    self.stream = None;
                    self.retry.pause().await;
                }
            }
        }
    }

    /// The next part, or none where the stream had to be given up.
    async fn next_part(&mut self) -> Result<Option<WeightsResponse>, ActorError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                self.assembler = Assembler::default();
                let request = WeightsRequest {
                    actor_id: self.actor_id.clone(),
                    after_version: self.after_version,
                };
                none.insert(subscribe(&self.learner, &self.retry, request).await?)
            }
        };
        match stream.message().await {
            Ok(Some(part)) => Ok(Some(part)),
            ended => {
                tracing::debug!(?ended, "the weights stream ended");
                self.stream = None;
                self.retry.pause().await;
                Ok(None)
            }
        }
    }
}

async fn subscribe(
    learner: &LearnerClient,
    retry: &Retry,
    request: WeightsRequest,
) -> Result<Streaming<WeightsResponse>, ActorError> {
    retry
        .call("Learner.Weights", || {
            let (mut learner, request) = (learner.clone(), request.clone());
            async move { learner.weights(request).await }
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(version: u64, body: &[u8], chunk_bytes: usize) -> Vec<WeightsResponse> {
        let header = Part::Header(SnapshotHeader {
            policy_version: version,
            size_bytes: body.len() as u64,
            sha256: hex::encode(Sha256::digest(body)),
        });
        let chunks = body.chunks(chunk_bytes).enumerate().map(|(index, data)| {
            Part::Chunk(SnapshotChunk {
                policy_version: version,
                offset: (index * chunk_bytes) as u64,
                crc32: crc32fast::hash(data),
                data: data.to_vec(),
            })
        });
        std::iter::once(header)
            .chain(chunks)
            .map(|part| WeightsResponse { part: Some(part) })
            .collect()
    }

    fn push_all(
        assembler: &mut Assembler,
        parts: Vec<WeightsResponse>,
    ) -> Result<Option<Snapshot>, ActorError> {
        let mut last = None;
        for part in parts {
            last = assembler.push(part)?;
        }
        Ok(last)
    }

    #[test]
    fn parts_become_a_snapshot() {
        for body in [b"".as_slice(), b"abc", b"abcdefg"] {
            let snapshot = push_all(&mut Assembler::default(), parts(4, body, 3))
                .unwrap()
                .unwrap();
            assert_eq!(
                snapshot,
                Snapshot {
                    policy_version: 4,
                    body: body.to_vec()
                }
            );
        }
    }

    #[test]
    fn a_new_header_discards_the_old_snapshot() {
        let mut assembler = Assembler::default();
        let mut stream = parts(1, b"old weights", 4);
        stream.truncate(2);
        stream.extend(parts(2, b"new", 4));
        assert_eq!(
            push_all(&mut assembler, stream)
                .unwrap()
                .unwrap()
                .policy_version,
            2
        );
    }

    #[test]
    fn damage_is_named() {
        type Damage = fn(&mut Vec<WeightsResponse>);
        fn chunk(part: &mut WeightsResponse) -> &mut SnapshotChunk {
            match &mut part.part {
                Some(Part::Chunk(chunk)) => chunk,
                _ => panic!("not a chunk"),
            }
        }
        let damages: [(Damage, &str); 5] = [
            (|parts| chunk(&mut parts[1]).data[0] ^= 1, "CRC-32"),
            (|parts| drop(parts.remove(1)), "out of order"),
            (|parts| drop(parts.remove(0)), "before its header"),
            (|parts| parts[1].part = None, "empty"),
            (
                |parts| {
                    let damaged = chunk(&mut parts[1]);
                    damaged.data[0] ^= 1;
                    damaged.crc32 = crc32fast::hash(&damaged.data);
                },
                "SHA-256",
            ),
        ];
        for (damage, named) in damages {
            let mut stream = parts(7, b"abcdefg", 3);
            damage(&mut stream);
            let error = push_all(&mut Assembler::default(), stream)
                .unwrap_err()
                .to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
