//! The gRPC codec of all services: Protobuf, except that what actors submit keeps the bytes in
//! which it arrived.
//!
//! prost decodes a message and drops its bytes. The learner needs both: it reads the size of
//! episodes before it decodes them, it trains on the decoded group, and it appends the bytes to its
//! journal and forwards them to other ranks. [`Encoded`] messages therefore travel as bytes, which
//! tonic's receive buffer hands over without a copy, and the receiver decodes them once.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use prost::{DecodeError, Message};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::v1::{SubmitEvaluationRequest, SubmitRequest, Trajectory};

/// A message in its wire encoding. Clones share the bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded<M> {
    bytes: Bytes,
    message: PhantomData<fn() -> M>,
}

/// A group in its encoding.
pub type EncodedGroup = Encoded<SubmitRequest>;
/// The episodes of a part of an evaluation in their encoding.
pub type EncodedEvaluation = Encoded<SubmitEvaluationRequest>;

impl<M> Encoded<M> {
    /// Wraps the encoding of a message, which is not checked.
    pub fn new(bytes: Bytes) -> Self {
        Self {
            bytes,
            message: PhantomData,
        }
    }

    /// Returns the encoding.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl EncodedGroup {
    /// Decodes the group.
    ///
    /// # Errors
    /// The bytes are not a `SubmitRequest`.
    pub fn decode(&self) -> Result<SubmitRequest, DecodeError> {
        let mut group = SubmitRequest::decode(self.bytes.clone())?;
        shrink(&mut group.trajectories);
        Ok(group)
    }
}

impl EncodedEvaluation {
    /// Decodes the episodes.
    ///
    /// # Errors
    /// The bytes are not a `SubmitEvaluationRequest`.
    pub fn decode(&self) -> Result<SubmitEvaluationRequest, DecodeError> {
        let mut part = SubmitEvaluationRequest::decode(self.bytes.clone())?;
        shrink(&mut part.trajectories);
        Ok(part)
    }
}

/// Returns the room that prost leaves in lists that it does not know the lengths of: up to as much
/// again.
fn shrink(trajectories: &mut [Trajectory]) {
    for segment in trajectories.iter_mut().flat_map(|it| &mut it.segments) {
        segment.tokens.shrink_to_fit();
        segment.logprobs.shrink_to_fit();
    }
}

impl<M: Message> From<&M> for Encoded<M> {
    fn from(message: &M) -> Self {
        Self::new(message.encode_to_vec().into())
    }
}

/// A message that the services exchange.
pub trait WireMessage: Sized + Send + 'static {
    /// Appends the message's encoding.
    fn encode_to(self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status>;
    /// Reads the message that `buffer` holds.
    fn decode_from(buffer: &mut DecodeBuf<'_>) -> Result<Option<Self>, Status>;
}

impl<M: Message + Default + 'static> WireMessage for M {
    fn encode_to(self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        ProstEncoder::default().encode(self, buffer)
    }

    fn decode_from(buffer: &mut DecodeBuf<'_>) -> Result<Option<Self>, Status> {
        ProstDecoder::default().decode(buffer)
    }
}

impl<M: 'static> WireMessage for Encoded<M> {
    fn encode_to(self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(self.bytes);
        Ok(())
    }

    fn decode_from(buffer: &mut DecodeBuf<'_>) -> Result<Option<Self>, Status> {
        // Splits tonic's buffer, which copies nothing.
        Ok(Some(Self::new(buffer.copy_to_bytes(buffer.remaining()))))
    }
}

/// Encodes `T` and decodes `U`; the generated clients and servers use it.
pub struct WireCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for WireCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: WireMessage, U: WireMessage> Codec for WireCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: WireMessage, U: WireMessage> Encoder for WireCodec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode_to(buffer)
    }
}

impl<T: WireMessage, U: WireMessage> Decoder for WireCodec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode_from(buffer)
    }
}
