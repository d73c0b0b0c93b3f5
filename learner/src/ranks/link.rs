//! The two ends of what connects rank 0 with another rank.
//!
//! Invariant: messages arrive in order or not at all. Rank 0's end waits at most its timeout for each; the other end waits
//! as long as the connection lives, which HTTP/2's pings tell. Both ends belong to threads that may block.

use std::{pin::Pin, time::Duration};

use candle_core::Tensor;
use prost::Message as _;
use proto::v1::{Chunk, TrainRequest, TrainResponse, train_request, train_response};
use tokio::{runtime::Handle, sync::mpsc, time};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::Status;

use super::Figures;
use crate::{
    error::{LearnerError, Result},
    weights::CHUNK_BYTES,
};

/// Messages that may wait for their reader.
pub(super) const DEPTH: usize = 4;

/// How long a rank that gives up stays for its reason to arrive.
const LINGER: Duration = Duration::from_secs(2);

pub(super) type Incoming<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// An end: says `Out`, hears `In`.
struct Link<Out, In> {
    sender: mpsc::Sender<Out>,
    incoming: Incoming<In>,
    runtime: Handle,
    timeout: Option<Duration>,
}

impl<Out, In> Link<Out, In> {
    fn say(&self, message: Out) -> Result<(), String> {
        match within(&self.runtime, self.timeout, self.sender.send(message)) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err("is gone".to_owned()),
            None => Err(self.silence("takes nothing")),
        }
    }

    fn hear(&mut self) -> Result<In, String> {
        match within(&self.runtime, self.timeout, self.incoming.next()) {
            Some(Some(Ok(message))) => Ok(message),
            Some(Some(Err(status))) => Err(format!("is gone: {}", status.message())),
            Some(None) => Err("is gone: its connection ended".to_owned()),
            None => Err(self.silence("is silent")),
        }
    }

    /// Waits a moment for the other side to end the connection.
    fn linger(&mut self) {
        let incoming = &mut self.incoming;
        let ended = async { while let Some(Ok(_)) = incoming.next().await {} };
        if within(&self.runtime, Some(LINGER), ended).is_none() {
            tracing::debug!("the other side has not ended the connection");
        }
    }

    fn silence(&self, what: &str) -> String {
        let seconds = self.timeout.unwrap_or_default().as_secs();
        format!("{what} for {seconds} s (learner.ranks.timeout_seconds)")
    }
}

/// Blocks on `work`; none if it takes longer than `timeout`.
fn within<T>(
    runtime: &Handle,
    timeout: Option<Duration>,
    work: impl Future<Output = T>,
) -> Option<T> {
    match timeout {
        None => Some(runtime.block_on(work)),
        // A timer starts in the runtime that it belongs to.
        Some(limit) => runtime
            .block_on(async { time::timeout(limit, work).await })
            .ok(),
    }
}

/// The chunks of `bytes`; one where there are none.
fn chunks<'a>(name: &'a str, bytes: &'a [u8]) -> impl Iterator<Item = Chunk> + 'a {
    (0..bytes.len().max(1))
        .step_by(CHUNK_BYTES)
        .map(move |offset| Chunk {
            name: name.to_owned(),
            offset: offset as u64,
            size_bytes: bytes.len() as u64,
            data: bytes[offset..bytes.len().min(offset + CHUNK_BYTES)].to_vec(),
        })
}

/// Puts the chunks of `name` together.
fn assemble(
    name: &str,
    mut next: impl FnMut() -> Result<Chunk>,
) -> Result<Result<Vec<u8>, String>> {
    let mut bytes = Vec::new();
    loop {
        let chunk = next()?;
        if chunk.name != name || chunk.offset != bytes.len() as u64 {
            let (found, offset) = (chunk.name, chunk.offset);
            return Ok(Err(format!(
                "sent byte {offset} of {found} in place of byte {} of {name}",
                bytes.len()
            )));
        }
        bytes.extend(chunk.data);
        if bytes.len() as u64 >= chunk.size_bytes {
            return Ok(Ok(bytes));
        }
    }
}

/// A tensor like `like` of these bytes.
fn tensor(name: &str, bytes: &[u8], like: &Tensor) -> Result<Result<Tensor, String>> {
    let expected = like.elem_count() * like.dtype().size_in_bytes();
    if bytes.len() != expected {
        let found = bytes.len();
        return Ok(Err(format!(
            "sent {found} bytes of {name}, which has {expected}"
        )));
    }
    let tensor = Tensor::from_raw_buffer(bytes, like.dtype(), like.dims(), like.device())?;
    Ok(Ok(tensor))
}

/// Rank 0's end of its connection with another rank.
pub(crate) struct ToRank {
    /// The other's number.
    pub(super) rank: usize,
    link: Link<TrainResponse, TrainRequest>,
}

impl ToRank {
    pub(super) fn new(
        sender: mpsc::Sender<TrainResponse>,
        incoming: Incoming<TrainRequest>,
        timeout: Duration,
        runtime: Handle,
    ) -> Self {
        let link = Link {
            sender,
            incoming,
            runtime,
            timeout: Some(timeout),
        };
        Self { rank: 0, link }
    }

    /// Whether the rank went away while nobody listened to it.
    pub(super) fn is_gone(&self) -> bool {
        self.link.sender.is_closed()
    }

    pub(super) fn say(&mut self, part: train_response::Part) -> Result<()> {
        let said = self.link.say(TrainResponse { part: Some(part) });
        said.map_err(|problem| self.last_words(problem))
    }

    /// Why it went, if it said so before.
    fn last_words(&mut self, problem: String) -> LearnerError {
        while self.is_gone() {
            if let Err(fault) = self.hear() {
                return fault;
            }
        }
        self.fault(problem)
    }

    pub(super) fn hear(&mut self) -> Result<train_request::Part> {
        let heard = self.link.hear().map_err(|problem| self.fault(problem))?;
        match heard.part {
            Some(train_request::Part::Fault(reason)) => {
                Err(self.fault(format!("cannot go on: {reason}")))
            }
            Some(part) => Ok(part),
            None => Err(self.unexpected("a message")),
        }
    }

    pub(super) fn send_bytes(
        &mut self,
        part: fn(Chunk) -> train_response::Part,
        name: &str,
        bytes: &[u8],
    ) -> Result<()> {
        chunks(name, bytes).try_for_each(|chunk| self.say(part(chunk)))
    }

    pub(super) fn figures(&mut self) -> Result<Vec<Figures>> {
        let train_request::Part::Figures(figures) = self.hear()? else {
            return Err(self.unexpected("its figures"));
        };
        let decoded = figures
            .micro_batches
            .iter()
            .map(|bytes| Figures::decode(&bytes[..]));
        let decoded: Result<Vec<_>, _> = decoded.collect();
        decoded.map_err(|fault| self.fault(format!("sent figures that cannot be read: {fault}")))
    }

    /// Its gradient of a parameter.
    pub(super) fn gradient(&mut self, name: &str, parameter: &Tensor) -> Result<Tensor> {
        let bytes = assemble(name, || match self.hear()? {
            train_request::Part::Gradient(chunk) => Ok(chunk),
            _ => Err(self.unexpected("its gradient")),
        })?;
        let bytes = bytes.map_err(|problem| self.fault(problem))?;
        tensor(name, &bytes, parameter)?.map_err(|problem| self.fault(problem))
    }

    pub(super) fn unexpected(&self, wanted: &str) -> LearnerError {
        self.fault(format!("sent something in place of {wanted}"))
    }

    fn fault(&self, problem: String) -> LearnerError {
        LearnerError::Rank {
            rank: self.rank,
            problem,
        }
    }
}

/// Another rank's end of its connection with rank 0.
pub(crate) struct ToLeader(Link<TrainRequest, TrainResponse>);

impl ToLeader {
    pub(super) fn new(
        sender: mpsc::Sender<TrainRequest>,
        incoming: Incoming<TrainResponse>,
        runtime: Handle,
    ) -> Self {
        Self(Link {
            sender,
            incoming,
            runtime,
            timeout: None,
        })
    }

    pub(super) fn say(&mut self, part: train_request::Part) -> Result<()> {
        let said = self.0.say(TrainRequest { part: Some(part) });
        said.map_err(|problem| LearnerError::LeaderAway { problem })
    }

    pub(super) fn hear(&mut self) -> Result<train_response::Part> {
        let away = |problem| LearnerError::LeaderAway { problem };
        let heard = self.0.hear().map_err(away)?;
        heard.part.ok_or_else(|| self.unexpected("a message"))
    }

    pub(super) fn send_bytes(
        &mut self,
        part: fn(Chunk) -> train_request::Part,
        name: &str,
        bytes: &[u8],
    ) -> Result<()> {
        chunks(name, bytes).try_for_each(|chunk| self.say(part(chunk)))
    }

    /// The bytes of a file.
    pub(super) fn file(&mut self, name: &str) -> Result<Vec<u8>> {
        let bytes = assemble(name, || match self.hear()? {
            train_response::Part::File(chunk) => Ok(chunk),
            _ => Err(self.unexpected("a file")),
        })?;
        bytes.map_err(|problem| self.fault(problem))
    }

    /// The summed gradient of a parameter.
    pub(super) fn gradient(&mut self, name: &str, parameter: &Tensor) -> Result<Tensor> {
        let bytes = assemble(name, || match self.hear()? {
            train_response::Part::Gradient(chunk) => Ok(chunk),
            _ => Err(self.unexpected("the gradient's sum")),
        })?;
        let bytes = bytes.map_err(|problem| self.fault(problem))?;
        tensor(name, &bytes, parameter)?.map_err(|problem| self.fault(problem))
    }

    pub(super) fn unexpected(&self, wanted: &str) -> LearnerError {
        self.fault(format!("sent something in place of {wanted}"))
    }

    /// Tells why this rank cannot go on, if rank 0 still listens.
    pub(super) fn give_up(&mut self, fault: &LearnerError) {
        match self.say(train_request::Part::Fault(fault.to_string())) {
            Ok(()) => self.0.linger(),
            Err(fault) => tracing::debug!(%fault, "rank 0 does not listen"),
        }
    }

    pub(super) fn fault(&self, problem: String) -> LearnerError {
        LearnerError::Leader { problem }
    }
}

/// Both ends of a connection within this process.
pub(super) fn in_process(rank: usize, timeout: Duration, runtime: &Handle) -> (ToRank, ToLeader) {
    let (to_rank, from_leader) = mpsc::channel(DEPTH);
    let (to_leader, from_rank) = mpsc::channel(DEPTH);
    let from_rank = Box::pin(ReceiverStream::new(from_rank).map(Ok));
    let from_leader = Box::pin(ReceiverStream::new(from_leader).map(Ok));
    let mut other = ToRank::new(to_rank, from_rank, timeout, runtime.clone());
    other.rank = rank;
    (
        other,
        ToLeader::new(to_leader, from_leader, runtime.clone()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up_to_the_bytes_and_nothing_else_does() {
        for size in [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1] {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let sent: Vec<Chunk> = chunks("a", &bytes).collect();
            assert!(sent.iter().all(|chunk| chunk.data.len() <= CHUNK_BYTES));
            let mut left = sent.clone().into_iter();
            let together = assemble("a", || Ok(left.next().unwrap())).unwrap();
            assert_eq!(together.unwrap(), bytes);
            assert_eq!(left.next(), None);
            let other = assemble("b", || Ok(sent[0].clone())).unwrap();
            assert!(
                other
                    .unwrap_err()
                    .contains("byte 0 of a in place of byte 0 of b")
            );
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_silent_rank_and_one_that_is_gone_are_named() {
        let (mut other, member) = in_process(3, Duration::from_secs(1), &Handle::current());
        tokio::task::spawn_blocking(move || {
            let fault = other.hear().unwrap_err().to_string();
            assert!(
                fault.starts_with("rank 3 of the run is silent for 1 s"),
                "{fault}"
            );
            drop(member);
            let fault = other.hear().unwrap_err().to_string();
            assert!(fault.starts_with("rank 3 of the run is gone"), "{fault}");
        })
        .await
        .unwrap();
    }
}
