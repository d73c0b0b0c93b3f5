//! The two ends of the stream that connects rank 0 with another rank.
//!
//! Invariant: messages arrive in order or not at all. Rank 0 waits at most its timeout for each
//! message, because one silent rank holds up the run. The other rank waits as long as the
//! connection lives, which HTTP/2 pings check: rank 0 is silent while it waits for actors. Both
//! ends belong to threads that may block.

use std::{pin::Pin, time::Duration};

use candle_core::Tensor;
use prost::{Message as _, bytes::Bytes};
use proto::{
    chunks::{Assembly, split},
    v1::{Chunk, TrainRequest, TrainResponse, train_request, train_response},
};
use safetensors::View as _;
use tokio::{runtime::Handle, sync::mpsc, time};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::Status;

use super::MicroBatchStatistics;
use crate::error::{LearnerError, Result};

/// Messages that wait for a slow receiver.
pub(super) const DEPTH: usize = 4;

/// How long a rank that gives up waits for its reason to arrive.
const LINGER: Duration = Duration::from_secs(2);

pub(super) type Incoming<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// An end of the stream: sends `Out`, receives `In`.
struct Duplex<Out, In> {
    sender: mpsc::Sender<Out>,
    incoming: Incoming<In>,
    runtime: Handle,
    timeout: Option<Duration>,
}

impl<Out, In> Duplex<Out, In> {
    fn send(&self, message: Out) -> Result<(), String> {
        match within(&self.runtime, self.timeout, self.sender.send(message)) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err("is gone".to_owned()),
            None => Err(self.timed_out("reads nothing")),
        }
    }

    fn receive(&mut self) -> Result<In, String> {
        match within(&self.runtime, self.timeout, self.incoming.next()) {
            Some(Some(Ok(message))) => Ok(message),
            Some(Some(Err(status))) => Err(format!("is gone: {}", status.message())),
            Some(None) => Err("is gone: its connection ended".to_owned()),
            None => Err(self.timed_out("is silent")),
        }
    }

    /// Waits for the other side to end the connection, which means that it has read what was sent.
    fn linger(&mut self) {
        let incoming = &mut self.incoming;
        let ended = async { while let Some(Ok(_)) = incoming.next().await {} };
        if within(&self.runtime, Some(LINGER), ended).is_none() {
            tracing::debug!("the other side has not ended the connection");
        }
    }

    fn timed_out(&self, what: &str) -> String {
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
        // A timer must be created inside the runtime that drives it.
        Some(limit) => runtime
            .block_on(async { time::timeout(limit, work).await })
            .ok(),
    }
}

/// Returns the messages that carry `bytes` under a name.
fn chunks<'a>(name: &'a str, bytes: &Bytes) -> impl Iterator<Item = Chunk> + use<'a> {
    let size_bytes = bytes.len() as u64;
    split(bytes).map(move |(offset, data)| Chunk {
        name: name.to_owned(),
        offset,
        size_bytes,
        data,
    })
}

/// What both ends have in common: they exchange gradients, parameter by parameter.
pub(super) trait Peer {
    /// Sends a part of a gradient.
    fn send_gradient_chunk(&mut self, chunk: Chunk) -> Result<()>;
    /// Receives a part of a gradient, or of a file.
    fn receive_chunk(&mut self) -> Result<Chunk>;
    /// Returns the error that names the other end.
    fn fault(&self, problem: String) -> LearnerError;

    /// Returns the error for a message that breaks the protocol.
    fn unexpected(&self, expected: &str) -> LearnerError {
        self.fault(format!("sent something else in place of {expected}"))
    }

    /// Receives all bytes that are sent under `name`.
    fn receive_bytes(&mut self, name: &str) -> Result<Bytes> {
        let mut open: Option<Assembly> = None;
        loop {
            let chunk = self.receive_chunk()?;
            if chunk.name != name {
                let found = chunk.name;
                return Err(self.fault(format!("sent {found} in place of {name}")));
            }
            let mut assembly = open.unwrap_or_else(|| Assembly::new(chunk.size_bytes));
            let pushed = assembly.push(chunk.offset, &chunk.data);
            pushed.map_err(|error| self.fault(format!("sent {name} damaged: {error}")))?;
            if assembly.is_complete() {
                return Ok(assembly.into_bytes());
            }
            open = Some(assembly);
        }
    }

    /// Sends the gradient of a parameter.
    fn send_gradient(&mut self, name: &str, bytes: &Bytes) -> Result<()> {
        chunks(name, bytes).try_for_each(|chunk| self.send_gradient_chunk(chunk))
    }

    /// Receives the gradient of a parameter.
    fn receive_gradient(&mut self, name: &str, parameter: &Tensor) -> Result<Tensor> {
        let bytes = self.receive_bytes(name)?;
        let expected = parameter.elem_count() * parameter.dtype().size_in_bytes();
        if bytes.len() != expected {
            let found = bytes.len();
            let problem = format!("sent {found} bytes of {name}, which has {expected}");
            return Err(self.fault(problem));
        }
        let (dtype, device) = (parameter.dtype(), parameter.device());
        Ok(Tensor::from_raw_buffer(
            &bytes,
            dtype,
            parameter.dims(),
            device,
        )?)
    }
}

/// Returns a tensor's bytes in little-endian order, shared by all ranks that they are sent to.
pub(super) fn tensor_bytes(tensor: &Tensor) -> Bytes {
    tensor.data().into_owned().into()
}

/// Rank 0's end of its stream with another rank.
pub(crate) struct RankConnection {
    /// The other rank's number.
    pub(super) rank: usize,
    stream: Duplex<TrainResponse, TrainRequest>,
}

impl RankConnection {
    pub(super) fn new(
        sender: mpsc::Sender<TrainResponse>,
        incoming: Incoming<TrainRequest>,
        timeout: Duration,
        runtime: Handle,
    ) -> Self {
        let stream = Duplex {
            sender,
            incoming,
            runtime,
            timeout: Some(timeout),
        };
        Self { rank: 0, stream }
    }

    /// Returns whether the rank has closed the stream.
    pub(super) fn is_gone(&self) -> bool {
        self.stream.sender.is_closed()
    }

    pub(super) fn send(&mut self, part: train_response::Part) -> Result<()> {
        let sent = self.stream.send(TrainResponse { part: Some(part) });
        sent.map_err(|problem| self.reported_fault(problem))
    }

    /// Returns the reason that the rank sent before it closed the stream, if any, in place of
    /// `problem`.
    fn reported_fault(&mut self, problem: String) -> LearnerError {
        // A rank that gives up sends its reason and then closes the stream, so the reason may still
        // lie unread before the end.
        while self.is_gone() {
            if let Err(fault) = self.receive() {
                return fault;
            }
        }
        self.fault(problem)
    }

    pub(super) fn receive(&mut self) -> Result<train_request::Part> {
        let received = self.stream.receive();
        match received.map_err(|problem| self.fault(problem))?.part {
            Some(train_request::Part::Fault(reason)) => {
                Err(self.fault(format!("cannot continue: {reason}")))
            }
            Some(part) => Ok(part),
            None => Err(self.unexpected("a message")),
        }
    }

    pub(super) fn send_file(&mut self, name: &str, bytes: &Bytes) -> Result<()> {
        chunks(name, bytes).try_for_each(|chunk| self.send(train_response::Part::File(chunk)))
    }

    pub(super) fn receive_statistics(&mut self) -> Result<Vec<MicroBatchStatistics>> {
        let train_request::Part::Figures(statistics) = self.receive()? else {
            return Err(self.unexpected("its statistics"));
        };
        let encoded = statistics.micro_batches.iter();
        let decoded = encoded.map(|bytes| MicroBatchStatistics::decode(&bytes[..]));
        decoded
            .collect::<Result<_, _>>()
            .map_err(|fault| self.fault(format!("sent statistics that cannot be decoded: {fault}")))
    }
}

impl Peer for RankConnection {
    fn send_gradient_chunk(&mut self, chunk: Chunk) -> Result<()> {
        self.send(train_response::Part::Gradient(chunk))
    }

    fn receive_chunk(&mut self) -> Result<Chunk> {
        match self.receive()? {
            train_request::Part::Gradient(chunk) => Ok(chunk),
            _ => Err(self.unexpected("its gradient")),
        }
    }

    fn fault(&self, problem: String) -> LearnerError {
        let rank = self.rank;
        LearnerError::Rank { rank, problem }
    }
}

/// Another rank's end of its stream with rank 0.
pub(crate) struct LeaderConnection(Duplex<TrainRequest, TrainResponse>);

impl LeaderConnection {
    pub(super) fn new(
        sender: mpsc::Sender<TrainRequest>,
        incoming: Incoming<TrainResponse>,
        runtime: Handle,
    ) -> Self {
        Self(Duplex {
            sender,
            incoming,
            runtime,
            timeout: None,
        })
    }

    pub(super) fn send(&mut self, part: train_request::Part) -> Result<()> {
        let sent = self.0.send(TrainRequest { part: Some(part) });
        sent.map_err(LearnerError::LeaderAway)
    }

    pub(super) fn receive(&mut self) -> Result<train_response::Part> {
        let received = self.0.receive().map_err(LearnerError::LeaderAway)?;
        received.part.ok_or_else(|| self.unexpected("a message"))
    }

    /// Tells rank 0 why this rank cannot continue, if rank 0 still reads.
    pub(super) fn give_up(&mut self, fault: &LearnerError) {
        match self.send(train_request::Part::Fault(fault.to_string())) {
            Ok(()) => self.0.linger(),
            Err(fault) => tracing::debug!(%fault, "rank 0 does not learn why this rank ends"),
        }
    }
}

impl Peer for LeaderConnection {
    fn send_gradient_chunk(&mut self, chunk: Chunk) -> Result<()> {
        self.send(train_request::Part::Gradient(chunk))
    }

    fn receive_chunk(&mut self) -> Result<Chunk> {
        match self.receive()? {
            train_response::Part::File(chunk) | train_response::Part::Gradient(chunk) => Ok(chunk),
            _ => Err(self.unexpected("a file or the gradient's sum")),
        }
    }

    fn fault(&self, problem: String) -> LearnerError {
        LearnerError::Leader(problem)
    }
}

/// Creates both ends of a stream within this process.
pub(super) fn in_process(
    rank: usize,
    timeout: Duration,
    runtime: &Handle,
) -> (RankConnection, LeaderConnection) {
    let (to_rank, from_leader) = mpsc::channel(DEPTH);
    let (to_leader, from_rank) = mpsc::channel(DEPTH);
    let from_rank = Box::pin(ReceiverStream::new(from_rank).map(Ok));
    let from_leader = Box::pin(ReceiverStream::new(from_leader).map(Ok));
    let mut other = RankConnection::new(to_rank, from_rank, timeout, runtime.clone());
    other.rank = rank;
    (
        other,
        LeaderConnection::new(to_leader, from_leader, runtime.clone()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn files_and_gradients_arrive_whole_and_under_their_names() {
        let (mut rank, mut leader) = in_process(1, Duration::from_secs(9), &Handle::current());
        let bytes: Bytes = (0..3 << 20).map(|i| (i % 251) as u8).collect();
        let sent = bytes.clone();
        let sending = tokio::task::spawn_blocking(move || {
            for name in ["a", "b", "a"] {
                rank.send_file(name, &sent).unwrap();
            }
        });
        let receiving = tokio::task::spawn_blocking(move || {
            assert_eq!(leader.receive_bytes("a").unwrap(), bytes);
            assert_eq!(leader.receive_bytes("b").unwrap(), bytes);
            let fault = leader.receive_bytes("b").unwrap_err().to_string();
            assert!(fault.contains("sent a in place of b"), "{fault}");
            let fault = leader.receive_bytes("a").unwrap_err().to_string();
            assert!(fault.contains("byte 1048576 in place of byte 0"), "{fault}");
            // Kept until all is sent.
            leader
        });
        sending.await.unwrap();
        receiving.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_silent_rank_and_one_that_is_gone_are_named() {
        let (mut other, member) = in_process(3, Duration::from_secs(1), &Handle::current());
        tokio::task::spawn_blocking(move || {
            let fault = other.receive().unwrap_err().to_string();
            assert!(
                fault.starts_with("rank 3 of the run is silent for 1 s"),
                "{fault}"
            );
            drop(member);
            let fault = other.receive().unwrap_err().to_string();
            assert!(fault.starts_with("rank 3 of the run is gone"), "{fault}");
        })
        .await
        .unwrap();
    }
}
