//! The two ends of the stream that connects rank 0 with another rank.
//!
//! Invariant: messages arrive in order or not at all. Rank 0 waits at most its timeout in each
//! step, because one silent rank holds up the run, and assembles nothing that is larger than the
//! model says. The other rank waits as long as the connection lives, which HTTP/2 pings check: rank
//! 0 is silent while it waits for actors. Both ends belong to threads that may block.

use std::time::Duration;

use candle_core::Tensor;
use prost::{Message as _, bytes::Bytes};
use proto::{
    chunks::{Assembly, split},
    v1::{Chunk, TrainRequest, TrainResponse, train_request, train_response},
};
use safetensors::View as _;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    MicroBatchStatistics,
    duplex::{Duplex, Incoming, LINGER},
};
use crate::{
    clock::now,
    error::{LearnerError, Result},
};

/// Messages that wait for a slow receiver.
pub(super) const DEPTH: usize = 4;

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

    /// Adds the time that so many bytes may take, where time is limited.
    fn allow(&mut self, _bytes: usize) {}

    /// Receives all bytes that are sent under `name`, which are `expected` if that is known.
    fn receive_bytes(&mut self, name: &str, expected: Option<usize>) -> Result<Bytes> {
        let mut open: Option<Assembly> = None;
        loop {
            let chunk = self.receive_chunk()?;
            if chunk.name != name {
                let found = chunk.name;
                return Err(self.fault(format!("sent {found:?} in place of {name}")));
            }
            let size = chunk.size_bytes;
            if let Some(expected) = expected.filter(|&expected| expected as u64 != size) {
                let problem = format!("announced {size} bytes of {name}, which has {expected}");
                return Err(self.fault(problem));
            }
            let mut assembly = open.unwrap_or_else(|| Assembly::new(size));
            let pushed = assembly.push(chunk.offset, &chunk.data);
            pushed.map_err(|error| self.fault(format!("sent {name} damaged: {error}")))?;
            if assembly.is_complete() {
                return Ok(assembly.into_bytes());
            }
            if chunk.data.is_empty() {
                return Err(self.fault(format!("sent a chunk of {name} without data")));
            }
            open = Some(assembly);
        }
    }

    /// Sends the gradient of a parameter.
    fn send_gradient(&mut self, name: &str, bytes: &Bytes) -> Result<()> {
        self.allow(bytes.len());
        chunks(name, bytes).try_for_each(|chunk| self.send_gradient_chunk(chunk))
    }

    /// Receives the gradient of a parameter.
    fn receive_gradient(&mut self, name: &str, parameter: &Tensor) -> Result<Tensor> {
        let (dtype, device) = (parameter.dtype(), parameter.device());
        let expected = parameter.elem_count() * dtype.size_in_bytes();
        self.allow(expected);
        let bytes = self.receive_bytes(name, Some(expected))?;
        Ok(Tensor::from_raw_buffer(
            &bytes,
            dtype,
            parameter.dims(),
            device,
        )?)
    }
}

/// Returns a tensor's bytes in little-endian order, shared by all ranks that they are sent to.
///
/// # Errors
/// The device has failed.
pub(super) fn tensor_bytes(tensor: &Tensor) -> Result<Bytes> {
    // On a failed device the copy would panic.
    tensor.device().synchronize()?;
    Ok(tensor.data().into_owned().into())
}

/// Rank 0's end of its stream with another rank.
pub(crate) struct RankConnection {
    /// The other rank's number.
    pub(super) rank: usize,
    /// The numbers of the micro-batches that it computes in the update at hand.
    pub(super) share: Vec<usize>,
    /// The first parameter of the update at hand whose gradient is not finite, if all of rank 0's
    /// own gradients are.
    pub(super) not_finite: Option<String>,
    stream: Duplex<TrainResponse, TrainRequest>,
}

impl RankConnection {
    pub(super) fn new(
        sender: mpsc::Sender<TrainResponse>,
        incoming: Incoming<TrainRequest>,
        timeout: Duration,
        runtime: Handle,
    ) -> Self {
        Self {
            rank: 0,
            share: Vec::new(),
            not_finite: None,
            stream: Duplex::new(sender, incoming, runtime, Some(timeout)),
        }
    }

    /// Begins a step, for all of which the rank has the timeout.
    pub(super) fn begin_step(&mut self) {
        self.stream.begin_step();
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
    pub(super) fn reported_fault(&mut self, problem: String) -> LearnerError {
        // A rank that gives up sends its reason and then closes the stream, so the reason may still
        // lie unread before the end.
        let began = now();
        while self.is_gone() && now() - began < LINGER {
            let Some(received) = self.stream.receive_within(LINGER) else {
                break;
            };
            if let Err(fault) = self.part_of(received) {
                return fault;
            }
        }
        self.fault(problem)
    }

    pub(super) fn receive(&mut self) -> Result<train_request::Part> {
        let received = self.stream.receive();
        self.part_of(received)
    }

    /// Returns what was received, or the error with the reason that the rank cannot continue.
    fn part_of(&self, received: Result<TrainRequest, String>) -> Result<train_request::Part> {
        match received.map_err(|problem| self.fault(problem))?.part {
            Some(train_request::Part::Fault(reason)) => {
                Err(self.fault(format!("cannot continue: {reason}")))
            }
            Some(part) => Ok(part),
            None => Err(self.unexpected("a message")),
        }
    }

    pub(super) fn send_file(&mut self, name: &str, bytes: &Bytes) -> Result<()> {
        self.allow(bytes.len());
        chunks(name, bytes).try_for_each(|chunk| self.send(train_response::Part::File(chunk)))
    }

    pub(super) fn receive_statistics(&mut self) -> Result<Vec<MicroBatchStatistics>> {
        let train_request::Part::Statistics(statistics) = self.receive()? else {
            return Err(self.unexpected("its statistics"));
        };
        let decode = |bytes: &Vec<u8>| MicroBatchStatistics::decode(&bytes[..]);
        // The share is compared before anything is decoded, so that a flood takes little more than
        // its message.
        let encoded = statistics.micro_batches;
        if encoded.len() != self.share.len() {
            let (found, expected) = (encoded.len(), self.share.len());
            let problem =
                format!("sent statistics of {found} micro-batches; its share has {expected}");
            return Err(self.fault(problem));
        }
        let decoded: Vec<_> = encoded
            .iter()
            .map(decode)
            .collect::<Result<_, _>>()
            .map_err(|fault| {
                self.fault(format!("sent statistics that cannot be decoded: {fault}"))
            })?;
        let numbers = decoded.iter().map(|it| it.micro_batch as usize);
        match numbers.eq(self.share.iter().copied()) {
            true => Ok(decoded),
            false => Err(self.fault("sent statistics of another share".to_owned())),
        }
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

    fn allow(&mut self, bytes: usize) {
        self.stream.allow(bytes);
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
        Self(Duplex::new(sender, incoming, runtime, None))
    }

    /// Returns whether rank 0 has closed the stream.
    pub(super) fn is_gone(&self) -> bool {
        self.0.sender.is_closed()
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

#[cfg(test)]
mod tests;
