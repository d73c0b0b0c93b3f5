//! The size of submitted episodes, read from their encoding before they are decoded.
//!
//! Pure. Invariant: what passes takes at most 4 times its bytes when it is decoded, besides the
//! structures of turns and segments, whose number the settings bound. An empty turn has two bytes
//! on the wire and hundreds in memory; a token has at least one and up to eight.

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::config::LearnerConfig;

/// The field `trajectories` of `SubmitRequest`.
pub(crate) const OF_GROUP: u32 = 4;
/// The field `trajectories` of `SubmitEvaluationRequest`.
pub(crate) const OF_EVALUATION: u32 = 5;
/// Fields of `Trajectory`.
const SEGMENTS: u32 = 2;
const TURNS: u32 = 3;
/// Fields of `Segment`.
const TOKENS: u32 = 1;
const MASK: u32 = 2;
const LOGPROBS: u32 = 3;

/// The most that a submission may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeLimits {
    pub(crate) episodes: usize,
    /// Of an episode: one for each action.
    pub(crate) turns: usize,
    /// Of a segment.
    pub(crate) tokens: usize,
}

impl SizeLimits {
    /// Returns the limits of a submission of `episodes`.
    pub(crate) fn new(config: &LearnerConfig, episodes: usize) -> Self {
        Self {
            episodes,
            turns: config.rollout.step_budget as usize,
            tokens: config.rollout.max_context_tokens as usize,
        }
    }

    /// Checks an encoded submission, whose episodes are in the field `trajectories`.
    ///
    /// # Errors
    /// Names what there is too much of.
    pub(crate) fn check(&self, encoded: &[u8], trajectories: u32) -> Result<(), String> {
        let mut episodes = 0;
        for_each_field(encoded, |tag, value| {
            if tag != trajectories {
                return Ok(());
            }
            let number = episodes;
            episodes += 1;
            at_most(episodes, self.episodes, "trajectories")?;
            let checked = self.check_episode(value.bytes()?);
            checked.map_err(|fault| format!("trajectory {number}: {fault}"))
        })
    }

    fn check_episode(&self, encoded: &[u8]) -> Result<(), String> {
        let (mut segments, mut turns) = (0, 0);
        for_each_field(encoded, |tag, value| match tag {
            TURNS => {
                turns += 1;
                at_most(turns, self.turns, "turns (rollout.step_budget)")
            }
            SEGMENTS => {
                let number = segments;
                segments += 1;
                // Each completion may begin a segment.
                at_most(segments, self.turns.saturating_add(1), "segments")?;
                let checked = self.check_segment(value.bytes()?);
                checked.map_err(|fault| format!("segment {number}: {fault}"))
            }
            _ => Ok(()),
        })
    }

    fn check_segment(&self, encoded: &[u8]) -> Result<(), String> {
        let (mut tokens, mut mask, mut logprobs) = (0, 0, 0);
        for_each_field(encoded, |tag, value| {
            match tag {
                TOKENS => tokens += value.varints(),
                // The last one counts.
                MASK => mask = value.bytes()?.len(),
                LOGPROBS => logprobs += value.floats(),
                _ => {}
            }
            at_most(
                tokens.max(logprobs),
                self.tokens,
                "tokens (rollout.max_context_tokens)",
            )
        })?;
        match mask == tokens && logprobs == tokens {
            true => Ok(()),
            false => Err(format!(
                "{tokens} tokens, {mask} mask bytes and {logprobs} logprobs; they must be as many"
            )),
        }
    }
}

fn at_most(count: usize, most: usize, what: &str) -> Result<(), String> {
    match count <= most {
        true => Ok(()),
        false => Err(format!("has more than {most} {what}")),
    }
}

/// A field's value.
enum Value<'a> {
    Scalar,
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(&self) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Scalar => Err(broken()),
        }
    }

    /// Returns the number of integers, packed or alone. A varint ends with the first byte without
    /// the high bit.
    fn varints(&self) -> usize {
        match self {
            Self::Bytes(packed) => packed.iter().filter(|&&byte| byte < 0x80).count(),
            Self::Scalar => 1,
        }
    }

    fn floats(&self) -> usize {
        match self {
            Self::Bytes(packed) => packed.len() / size_of::<f32>(),
            Self::Scalar => 1,
        }
    }
}

fn broken() -> String {
    "cannot be decoded: it is no message of the contract".to_owned()
}

fn for_each_field<'a>(
    mut encoded: &'a [u8],
    mut take: impl FnMut(u32, Value<'a>) -> Result<(), String>,
) -> Result<(), String> {
    while !encoded.is_empty() {
        let (tag, value) = next_field(&mut encoded).ok_or_else(broken)?;
        take(tag, value)?;
    }
    Ok(())
}

fn next_field<'a>(encoded: &mut &'a [u8]) -> Option<(u32, Value<'a>)> {
    let (tag, wire_type) = decode_key(encoded).ok()?;
    let length = match wire_type {
        WireType::Varint => {
            decode_varint(encoded).ok()?;
            return Some((tag, Value::Scalar));
        }
        WireType::LengthDelimited => usize::try_from(decode_varint(encoded).ok()?).ok()?,
        WireType::ThirtyTwoBit => 4,
        WireType::SixtyFourBit => 8,
        // The contract has no groups in Protobuf's sense.
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    let (bytes, rest) = encoded.split_at_checked(length)?;
    *encoded = rest;
    let value = match wire_type {
        WireType::LengthDelimited => Value::Bytes(bytes),
        _ => Value::Scalar,
    };
    Some((tag, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use proto::v1::{Segment, SubmitEvaluationRequest, SubmitRequest, Trajectory, Turn};

    use super::*;

    const LIMITS: SizeLimits = SizeLimits {
        episodes: 2,
        turns: 3,
        tokens: 8,
    };

    fn episodes(count: usize, segments: usize, turns: usize, tokens: usize) -> Vec<Trajectory> {
        let segment = Segment {
            tokens: vec![300; tokens],
            mask: vec![1; tokens],
            logprobs: vec![-1.0; tokens],
        };
        let trajectory = Trajectory {
            member: 1,
            segments: vec![segment; segments],
            turns: vec![Turn::default(); turns],
            episode_return: 1.0,
            failure: "none".to_owned(),
            ..Trajectory::default()
        };
        vec![trajectory; count]
    }

    fn check(trajectories: Vec<Trajectory>) -> Result<(), String> {
        let group = SubmitRequest {
            group_index: 7,
            trajectories: trajectories.clone(),
            ..SubmitRequest::default()
        };
        let evaluation = SubmitEvaluationRequest {
            part_id: 7,
            trajectories,
            ..SubmitEvaluationRequest::default()
        };
        let of_group = LIMITS.check(&group.encode_to_vec(), OF_GROUP);
        assert_eq!(
            of_group,
            LIMITS.check(&evaluation.encode_to_vec(), OF_EVALUATION)
        );
        of_group
    }

    #[test]
    fn what_there_is_too_much_of_is_named() {
        check(episodes(2, 4, 3, 8)).unwrap();
        check(vec![]).unwrap();
        let mut uneven = episodes(1, 1, 1, 4);
        uneven[0].segments[0].mask.push(1);
        for (submission, expected) in [
            (episodes(3, 1, 1, 1), "more than 2 trajectories"),
            (
                episodes(1, 5, 1, 1),
                "trajectory 0: has more than 4 segments",
            ),
            (
                episodes(2, 1, 4, 1),
                "more than 3 turns (rollout.step_budget)",
            ),
            (episodes(2, 1, 1, 9), "segment 0: has more than 8 tokens"),
            (uneven, "4 tokens, 5 mask bytes and 4 logprobs"),
        ] {
            let fault = check(submission).unwrap_err();
            assert!(fault.contains(expected), "{fault}");
        }
    }

    proptest! {
        /// Whatever passes has no more than the limits when prost decodes it.
        #[test]
        fn any_bytes_are_read_as_prost_reads_them(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let passes = LIMITS.check(&bytes, OF_GROUP).is_ok();
            let Ok(decoded) = SubmitRequest::decode(&bytes[..]) else { return Ok(()) };
            prop_assert!(!passes || decoded.trajectories.len() <= 2);
            for trajectory in decoded.trajectories.iter().filter(|_| passes) {
                prop_assert!(trajectory.turns.len() <= 3 && trajectory.segments.len() <= 4);
                let fits = |it: &Segment| it.tokens.len() <= 8 && it.logprobs.len() <= 8;
                prop_assert!(trajectory.segments.iter().all(fits));
            }
        }
    }
}
