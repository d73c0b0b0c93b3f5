//! Messages that keep the bytes in which they arrived: what actors submit.
//!
//! prost decodes a message and drops its bytes. The learner needs both: it reads the size of
//! episodes before it decodes them, it trains on the decoded group, and it appends the bytes to its
//! journal and forwards them to other ranks. [`Encoded`] messages therefore travel as bytes, which
//! tonic's receive buffer hands over without a copy, and the receiver decodes them once.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType},
};

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

impl<M> Message for Encoded<M> {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.bytes);
    }

    /// Splits tonic's buffer, which copies nothing.
    fn merge(&mut self, mut buffer: impl Buf) -> Result<(), DecodeError> {
        self.bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(())
    }

    /// Messages within others are read by field; the contract has no encoded one there.
    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        _: &mut impl Buf,
        _: DecodeContext,
    ) -> Result<(), DecodeError> {
        unreachable!("an encoded message within another: this is a bug")
    }

    fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
    }
}
