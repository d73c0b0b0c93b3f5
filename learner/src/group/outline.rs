//! The shape of submitted episodes, read from their encoding without decoding it.
//!
//! Pure. Invariant: reading takes time and memory in proportion to the bytes, and what passes takes
//! at most 4 times its bytes when it is decoded, besides the structures of turns and segments,
//! whose number the settings bound. An empty turn has two bytes on the wire and hundreds in memory;
//! a token has at least one and up to eight.

use prost::encoding::{WireType, decode_key, decode_varint};

use super::{GroupRules, SubmissionHead, check::NAME_BYTES};

/// A field of `SubmitRequest` and of `SubmitEvaluationRequest`.
const ACTOR_ID: u32 = 1;
const TRAJECTORIES: u32 = 4;
const EVALUATED: u32 = 5;
/// Fields that identify submitted work, besides `actor_id`.
pub(super) struct HeadFields {
    number: u32,
    lease_id: u32,
    run_id: u32,
}
/// Those of `SubmitRequest`.
pub(super) const OF_GROUP: HeadFields = HeadFields {
    number: 2,
    lease_id: 3,
    run_id: 5,
};
/// Those of `SubmitEvaluationRequest`.
pub(super) const OF_PART: HeadFields = HeadFields {
    number: 3,
    lease_id: 4,
    run_id: 2,
};
/// Fields of `Trajectory`.
const SEGMENTS: u32 = 2;
const TURNS: u32 = 3;
/// Fields of `Segment`.
const TOKENS: u32 = 1;
const MASK: u32 = 2;
const LOGPROBS: u32 = 3;

/// A value as it stands on the wire.
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// The fields of a message that are not read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "it cannot be decoded: it is no message".to_owned()))
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u32, Value<'a>)> {
        let (tag, wire_type) = decode_key(&mut self.0).ok()?;
        let value = match wire_type {
            WireType::Varint => Value::Varint(decode_varint(&mut self.0).ok()?),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut self.0).ok()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            WireType::ThirtyTwoBit => self.take(4).map(|_| Value::Fixed)?,
            WireType::SixtyFourBit => self.take(8).map(|_| Value::Fixed)?,
            // No message of the contract has groups.
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        Some((tag, value))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Returns a name. A longer one is nobody's, and is not copied.
fn text(name: &[u8]) -> Option<String> {
    let is_name = name.len() <= NAME_BYTES;
    is_name.then(|| String::from_utf8_lossy(name).into_owned())
}

/// Returns what identifies submitted work.
pub(super) fn head(submitted: &[u8], fields: &HeadFields) -> Result<SubmissionHead, String> {
    let mut head = SubmissionHead::default();
    for field in Fields(submitted) {
        match field? {
            (ACTOR_ID, Value::Bytes(name)) => head.actor_id = text(name).unwrap_or_default(),
            (tag, Value::Bytes(name)) if tag == fields.run_id => head.run_id = text(name),
            (tag, Value::Varint(number)) if tag == fields.number => head.number = number,
            (tag, Value::Varint(id)) if tag == fields.lease_id => head.lease_id = id,
            _ => {}
        }
    }
    Ok(head)
}

/// Checks how many trajectories, turns, segments and tokens an encoded group has.
pub(super) fn check_group(group: &[u8], rules: &GroupRules) -> Result<(), String> {
    let index = head(group, &OF_GROUP)
        .map_err(|fault| format!("the group: {fault}"))?
        .number;
    check_members(group, (TRAJECTORIES, rules.group_size), rules)
        .map_err(|fault| format!("group {index}: {fault}"))
}

/// Checks an encoded part of an evaluation as [`check_group`] does.
pub(super) fn check_evaluation(
    part: &[u8],
    questions: usize,
    rules: &GroupRules,
) -> Result<(), String> {
    check_members(part, (EVALUATED, questions), rules)
}

/// Checks the trajectories, which have this field number and are at most this many.
fn check_members(
    encoded: &[u8],
    (trajectories, most): (u32, usize),
    rules: &GroupRules,
) -> Result<(), String> {
    let mut members = 0;
    for field in Fields(encoded) {
        let (tag, value) = field?;
        if let (true, Value::Bytes(trajectory)) = (tag == trajectories, value) {
            at_most(members + 1, most, "trajectories")?;
            check_trajectory(trajectory, rules)
                .map_err(|fault| format!("member {members}: {fault}"))?;
            members += 1;
        }
    }
    Ok(())
}

fn check_trajectory(trajectory: &[u8], rules: &GroupRules) -> Result<(), String> {
    let (mut segments, mut turns) = (0, 0);
    for field in Fields(trajectory) {
        match field? {
            (SEGMENTS, Value::Bytes(segment)) => {
                check_segment(segment, rules)
                    .map_err(|fault| format!("segment {segments}: {fault}"))?;
                segments += 1;
            }
            (TURNS, _) => turns += 1,
            _ => {}
        }
        at_most(turns, rules.max_turns, "turns (rollout.step_budget)")?;
        let most = rules.max_segments();
        at_most(segments, most, "segments (rollout.step_budget and one)")?;
    }
    Ok(())
}

fn check_segment(segment: &[u8], rules: &GroupRules) -> Result<(), String> {
    let (mut tokens, mut mask, mut logprobs) = (0, 0, 0);
    for field in Fields(segment) {
        match field? {
            // A varint ends at the first byte without the high bit.
            (TOKENS, Value::Bytes(packed)) => {
                tokens += packed.iter().filter(|&&byte| byte < 0x80).count();
            }
            (TOKENS, _) => tokens += 1,
            // Of several, the last one counts.
            (MASK, Value::Bytes(bytes)) => mask = bytes.len(),
            (LOGPROBS, Value::Bytes(packed)) => logprobs += packed.len() / size_of::<f32>(),
            (LOGPROBS, _) => logprobs += 1,
            _ => {}
        }
    }
    let (most, limit) = (tokens.max(logprobs), rules.max_context_tokens);
    at_most(most, limit, "tokens (rollout.max_context_tokens)")?;
    match mask == tokens && logprobs == tokens {
        true => Ok(()),
        false => Err(format!(
            "{tokens} tokens, {mask} mask bytes and {logprobs} logprobs; they must be as many"
        )),
    }
}

fn at_most(count: usize, most: usize, what: &str) -> Result<(), String> {
    match count <= most {
        true => Ok(()),
        false => Err(format!("has more than {most} {what}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use proto::v1::{Segment, SubmitEvaluationRequest, SubmitRequest, Trajectory, Turn};

    use super::*;
    use crate::LearnerConfig;

    fn rules() -> GroupRules {
        let mut config = LearnerConfig {
            group_size: 2,
            ..LearnerConfig::default()
        };
        config.rollout.step_budget = 3;
        config.rollout.max_context_tokens = 8;
        GroupRules::new(&config, 10)
    }

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

    /// Checks the episodes as a group and as a part of an evaluation.
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
        let of_evaluation = check_evaluation(&evaluation.encode_to_vec(), 2, &rules());
        let of_group = check_group(&group.encode_to_vec(), &rules());
        let named = of_evaluation.map_err(|fault| format!("group 7: {fault}"));
        assert_eq!(of_group, named);
        of_group
    }

    #[test]
    fn too_much_of_anything_is_named_before_it_is_decoded() {
        check(episodes(2, 4, 3, 8)).unwrap();
        check(vec![]).unwrap();
        let mut uneven = episodes(1, 1, 1, 4);
        uneven[0].segments[0].mask.push(1);
        for (submission, expected) in [
            (
                episodes(3, 1, 1, 1),
                "group 7: has more than 2 trajectories",
            ),
            (episodes(1, 5, 1, 1), "member 0: has more than 4 segments"),
            (episodes(2, 1, 4, 1), "member 0: has more than 3 turns"),
            (episodes(2, 1, 1, 9), "segment 0: has more than 8 tokens"),
            (uneven, "4 tokens, 5 mask bytes and 4 logprobs"),
        ] {
            let fault = check(submission).unwrap_err();
            assert!(fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn the_head_is_read_from_a_group_that_breaks_every_other_rule() {
        let group = SubmitRequest {
            actor_id: "a".to_owned(),
            group_index: 7,
            lease_id: 9,
            trajectories: episodes(3, 9, 9, 9),
            run_id: "run".to_owned(),
        };
        let of_group = head(&group.encode_to_vec(), &OF_GROUP).unwrap();
        let expected = SubmissionHead {
            number: 7,
            lease_id: 9,
            actor_id: "a".to_owned(),
            run_id: Some("run".to_owned()),
        };
        assert_eq!(of_group, expected);
        let part = SubmitEvaluationRequest {
            actor_id: "a".to_owned(),
            run_id: "run".to_owned(),
            part_id: 7,
            lease_id: 9,
            trajectories: episodes(3, 9, 9, 9),
        };
        assert_eq!(head(&part.encode_to_vec(), &OF_PART).unwrap(), expected);
        let long = SubmitRequest {
            actor_id: "a".repeat(1 << 20),
            ..SubmitRequest::default()
        };
        let of_long = head(&long.encode_to_vec(), &OF_GROUP).unwrap();
        assert_eq!(of_long.actor_id, "");
    }

    /// Two bytes on the wire become a structure of hundreds of bytes when they are decoded.
    #[test]
    fn megabytes_of_empty_turns_are_refused_undecoded() {
        let turns = [0x1a, 0x00].repeat(4 << 20);
        let mut group = vec![0x22];
        prost::encoding::encode_varint(turns.len() as u64, &mut group);
        group.extend(turns);
        let fault = check_group(&group, &rules()).unwrap_err();
        assert!(fault.contains("more than 3 turns"), "{fault}");
    }

    proptest! {
        /// Whatever passes has no more than the limits when prost decodes it.
        #[test]
        fn any_bytes_are_read_as_prost_reads_them(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let passes = check_group(&bytes, &rules()).is_ok();
            let Ok(decoded) = SubmitRequest::decode(&bytes[..]) else { return Ok(()) };
            prop_assert!(!passes || decoded.trajectories.len() <= 2);
            for trajectory in decoded.trajectories.iter().filter(|_| passes) {
                prop_assert!(trajectory.turns.len() <= 3 && trajectory.segments.len() <= 4);
                let fits = |it: &Segment| {
                    let tokens = it.tokens.len();
                    tokens <= 8 && it.mask.len() == tokens && it.logprobs.len() == tokens
                };
                prop_assert!(trajectory.segments.iter().all(fits));
            }
        }
    }
}
