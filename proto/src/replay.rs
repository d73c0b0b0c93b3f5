//! The request of a replay, whose actions are counted while they are decoded.
//!
//! Invariant: a decoded request has at most one action more than a node takes. An empty action has
//! two bytes on the wire and 48 in memory, so that a request of the largest size would otherwise
//! take 150 MB before anyone could count its actions.

use bytes::{Buf, BufMut};
use prost::{
    DecodeError, Message,
    encoding::{self, DecodeContext, WireType},
};

use crate::v1::Action;

/// The most actions of a replay: more than an episode has.
pub const MAX_REPLAYED_ACTIONS: usize = 10_000;

const TOKEN: u32 = 1;
const ACTIONS: u32 = 2;

/// Actions on an episode, in order: the message `ReplayRequest` of the contract.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayRequest {
    /// The token of the latest response.
    pub token: Vec<u8>,
    /// The actions. Those after the first one too many are not decoded, so their number shows only
    /// that there are too many.
    pub actions: Vec<Action>,
}

impl Message for ReplayRequest {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        if !self.token.is_empty() {
            encoding::bytes::encode(TOKEN, &self.token, buffer);
        }
        encoding::message::encode_repeated(ACTIONS, &self.actions, buffer);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            TOKEN => encoding::bytes::merge(wire_type, &mut self.token, buffer, context),
            ACTIONS if self.actions.len() <= MAX_REPLAYED_ACTIONS => {
                let actions = &mut self.actions;
                encoding::message::merge_repeated(wire_type, actions, buffer, context)
            }
            _ => encoding::skip_field(wire_type, tag, buffer, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let token = match self.token.is_empty() {
            true => 0,
            false => encoding::bytes::encoded_len(TOKEN, &self.token),
        };
        token + encoding::message::encoded_len_repeated(ACTIONS, &self.actions)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::StepRequest;

    fn action(argument: &str) -> Action {
        Action {
            action_type: "QUERY".to_owned(),
            argument: argument.to_owned(),
        }
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        for (token, actions) in [
            (&b""[..], vec![]),
            (&b"token"[..], vec![]),
            (
                &b"token"[..],
                vec![action("SELECT 1"), Action::default(), action("é")],
            ),
        ] {
            let request = ReplayRequest {
                token: token.to_vec(),
                actions,
            };
            let encoded = request.encode_to_vec();
            assert_eq!(encoded.len(), request.encoded_len());
            assert_eq!(ReplayRequest::decode(&encoded[..]).unwrap(), request);
        }
        // Its first two fields are those of a step.
        let step = StepRequest {
            token: b"token".to_vec(),
            action: Some(action("SELECT 1")),
        };
        let request = ReplayRequest {
            token: step.token.clone(),
            actions: vec![action("SELECT 1")],
        };
        assert_eq!(request.encode_to_vec(), step.encode_to_vec());
    }

    #[test]
    fn actions_beyond_the_limit_are_not_decoded() {
        let empty = |count: usize| [0x12_u8, 0x00].repeat(count);
        for (count, expected) in [
            (MAX_REPLAYED_ACTIONS, MAX_REPLAYED_ACTIONS),
            (3_000_000, MAX_REPLAYED_ACTIONS + 1),
        ] {
            let request = ReplayRequest::decode(&empty(count)[..]).unwrap();
            assert_eq!(request.actions.len(), expected);
        }
        let truncated = [empty(MAX_REPLAYED_ACTIONS + 9), vec![0x12, 0x05]].concat();
        ReplayRequest::decode(&truncated[..]).unwrap_err();
    }
}
