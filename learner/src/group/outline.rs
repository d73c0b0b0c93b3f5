//! The shape of an encoded group, read without decoding it.
//!
//! Pure. Invariant: reading takes time and memory in proportion to the bytes. Decoding allocates a
//! structure for each turn and segment, which may have two bytes on the wire, so their number is
//! checked here before a group is decoded.

use prost::encoding::{WireType, decode_key, decode_varint};

use super::{GroupHead, GroupRules};

/// Fields of `SubmitRequest`.
const ACTOR_ID: u32 = 1;
const GROUP_INDEX: u32 = 2;
const LEASE_ID: u32 = 3;
const TRAJECTORIES: u32 = 4;
/// Fields of `Trajectory`.
const SEGMENTS: u32 = 2;
const TURNS: u32 = 3;
/// Fields of `Segment`.
const TOKENS: u32 = 1;
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
        Some(field.ok_or_else(|| "the group cannot be decoded: it is no message".to_owned()))
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

/// Returns what identifies the group.
pub(super) fn head(group: &[u8]) -> Result<GroupHead, String> {
    let mut head = GroupHead::default();
    for field in Fields(group) {
        match field? {
            (ACTOR_ID, Value::Bytes(name)) => {
                head.actor_id = String::from_utf8_lossy(name).into_owned();
            }
            (GROUP_INDEX, Value::Varint(index)) => head.index = index,
            (LEASE_ID, Value::Varint(lease_id)) => head.lease_id = lease_id,
            _ => {}
        }
    }
    Ok(head)
}

/// Checks how many trajectories, turns, segments and tokens an encoded group has.
pub(super) fn check(group: &[u8], rules: &GroupRules) -> Result<(), String> {
    let index = head(group)?.index;
    let mut members = 0;
    for field in Fields(group) {
        if let (TRAJECTORIES, Value::Bytes(trajectory)) = field? {
            if members == rules.group_size {
                let size = rules.group_size;
                return Err(format!(
                    "group {index} has more than {size} trajectories, expected {size}"
                ));
            }
            check_trajectory(trajectory, rules)
                .map_err(|fault| format!("group {index}, member {members}: {fault}"))?;
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
        if turns > rules.max_turns {
            return Err(format!(
                "has more than {} turns, the actions of an episode (rollout.step_budget)",
                rules.max_turns
            ));
        }
        if segments > rules.max_segments() {
            return Err(format!(
                "has more than {} segments, one for each turn and one more",
                rules.max_segments()
            ));
        }
    }
    Ok(())
}

fn check_segment(segment: &[u8], rules: &GroupRules) -> Result<(), String> {
    let (mut tokens, mut logprobs) = (0, 0);
    for field in Fields(segment) {
        match field? {
            // A varint ends at the first byte without the high bit.
            (TOKENS, Value::Bytes(packed)) => {
                tokens += packed.iter().filter(|&&byte| byte < 0x80).count();
            }
            (TOKENS, _) => tokens += 1,
            (LOGPROBS, Value::Bytes(packed)) => logprobs += packed.len() / size_of::<f32>(),
            (LOGPROBS, _) => logprobs += 1,
            _ => {}
        }
    }
    let (most, limit) = (tokens.max(logprobs), rules.max_context_tokens);
    if most > limit {
        return Err(format!(
            "{most} tokens, more than max_context_tokens ({limit})"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use proto::v1::{Segment, SubmitRequest, Trajectory, Turn};

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

    fn group(members: usize, segments: usize, turns: usize, tokens: usize) -> Vec<u8> {
        let segment = Segment {
            tokens: vec![300; tokens],
            mask: vec![0; tokens],
            logprobs: vec![0.0; tokens],
        };
        let trajectory = Trajectory {
            segments: vec![segment; segments],
            turns: vec![Turn::default(); turns],
            ..Trajectory::default()
        };
        let request = SubmitRequest {
            group_index: 7,
            trajectories: vec![trajectory; members],
            ..SubmitRequest::default()
        };
        request.encode_to_vec()
    }

    #[test]
    fn too_much_of_anything_is_named_before_it_is_decoded() {
        check(&group(2, 4, 3, 8), &rules()).unwrap();
        assert_eq!(head(&group(2, 4, 3, 8)).unwrap().index, 7);
        let table = [
            (group(3, 1, 1, 1), "group 7 has more than 2 trajectories"),
            (
                group(1, 5, 1, 1),
                "group 7, member 0: has more than 4 segments",
            ),
            (
                group(2, 1, 4, 1),
                "group 7, member 0: has more than 3 turns",
            ),
            (
                group(2, 1, 1, 9),
                "segment 0: 9 tokens, more than max_context_tokens (8)",
            ),
        ];
        for (group, expected) in table {
            let fault = check(&group, &rules()).unwrap_err();
            assert!(fault.contains(expected), "{fault}");
        }
    }

    /// Two bytes on the wire become a structure of hundreds of bytes when they are decoded.
    #[test]
    fn megabytes_of_empty_turns_are_refused_undecoded() {
        let turns = [0x1a, 0x00].repeat(4 << 20);
        let mut group = vec![0x22];
        prost::encoding::encode_varint(turns.len() as u64, &mut group);
        group.extend(turns);
        let fault = check(&group, &rules()).unwrap_err();
        assert!(fault.contains("more than 3 turns"), "{fault}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&bytes, &rules());
        }
    }
}
