//! `sqlenv trajectories`: writes the journal of a run as JSON lines, one trajectory per line.
//!
//! The tokens are copied as they were sampled. The messages beside them are a view for people and
//! for trainers that read OpenAI's format. The journal is only read, so the run may continue
//! meanwhile.

use std::{
    fs::File,
    io::{BufWriter, Write},
};

use actor::tool_call;
use anyhow::{Context as _, Result};
use learner::journal;
use policy::{Chat, DTypeChoice, DeviceChoice, Placement, ToolCall};
use proto::v1::{Segment, Trajectory, Turn};
use serde_json::{Value, json};

use crate::{args::TrajectoriesArgs, local::newest_model, out_file, stdout};

/// Writes all trajectories.
pub(crate) fn write(args: &TrajectoriesArgs) -> Result<()> {
    args.out.as_deref().map_or(Ok(()), out_file::check)?;
    let on_cpu = Placement {
        device: DeviceChoice::Cpu,
        dtype: DTypeChoice::F32,
    };
    let chat = newest_model(&args.run_dir, on_cpu)?
        .with_context(|| {
            format!(
                "{} has no checkpoint; give the folder of a run",
                args.run_dir.display()
            )
        })?
        .chat;
    let groups = journal::read(&args.run_dir)?;
    let mut out: Box<dyn Write> = match &args.out {
        Some(path) => {
            let file =
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            Box::new(BufWriter::new(file))
        }
        None => Box::new(BufWriter::new(stdout::lock())),
    };
    for group in groups {
        let group = group?;
        for trajectory in &group.trajectories {
            let line = line(&chat, group.group_index, trajectory)?;
            writeln!(out, "{line}").context("cannot write the trajectories")?;
        }
    }
    out.flush().context("cannot write the trajectories")
}

fn line(chat: &Chat, group_index: u64, trajectory: &Trajectory) -> Result<Value> {
    let versions = || trajectory.turns.iter().map(|turn| turn.policy_version);
    Ok(json!({
        "question_id": trajectory.question_id,
        "group_index": group_index,
        "member": trajectory.member,
        "return": trajectory.episode_return,
        "correct": trajectory.correct,
        "scored": trajectory.scored,
        "failure": trajectory.failure,
        "policy_span": [versions().min(), versions().max()],
        "prompt": prompt(chat, trajectory)?,
        "messages": trajectory.turns.iter().enumerate().flat_map(|(at, turn)| messages(at, turn)).collect::<Vec<_>>(),
        "segments": trajectory.segments.iter().map(segment).collect::<Vec<_>>(),
    }))
}

/// Returns the prompt of the first completion, as text; none if the turn is outside of its segment,
/// as the journal of an earlier version of the program may hold it.
fn prompt(chat: &Chat, trajectory: &Trajectory) -> Result<Option<String>> {
    let Some(turn) = trajectory.turns.first() else {
        return Ok(Some(String::new()));
    };
    let segment = trajectory.segments.get(turn.segment as usize);
    let prompt = segment.and_then(|it| it.tokens.get(..turn.completion_start as usize));
    Ok(prompt.map(|tokens| chat.decode(tokens)).transpose()?)
}

/// Returns a turn as two messages: the call of the assistant and the result of the tool.
fn messages(at: usize, turn: &Turn) -> [Value; 2] {
    let action = turn.action.clone().unwrap_or_default();
    let ToolCall { name, arguments } = tool_call::from_action(&action);
    // In OpenAI's format the arguments are a string that contains JSON.
    let function = json!({"name": name, "arguments": arguments.to_string()});
    let id = format!("call_{at}");
    let call = json!({"id": id, "type": "function", "function": function});
    [
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({
            "role": "tool",
            "tool_call_id": id,
            "content": turn.observation_text,
            "is_error": turn.observation_is_error,
            "malformed_call": turn.malformed,
            "reward": turn.reward,
        }),
    ]
}

fn segment(segment: &Segment) -> Value {
    json!({"tokens": segment.tokens, "mask": segment.mask, "logprobs": segment.logprobs})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(segment: u32, completion_start: u32) -> Trajectory {
        Trajectory {
            segments: vec![Segment {
                tokens: vec![72, 105, 33],
                ..Segment::default()
            }],
            turns: vec![Turn {
                segment,
                completion_start,
                completion_tokens: 1,
                ..Turn::default()
            }],
            ..Trajectory::default()
        }
    }

    #[test]
    fn a_turn_outside_of_its_segment_has_no_prompt() {
        let chat = policy::tiny::base().unwrap().chat;
        let whole = line(&chat, 7, &trajectory(0, 2)).unwrap();
        assert!(whole["prompt"].is_string(), "{whole}");
        for broken in [trajectory(0, 900), trajectory(3, 1)] {
            let line = line(&chat, 7, &broken).unwrap();
            assert!(line["prompt"].is_null(), "{line}");
        }
    }
}
