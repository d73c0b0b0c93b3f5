//! `sqlenv trajectories`: writes the journal of a run as JSON lines, one trajectory per line.
//!
//! The tokens are copied as they were sampled. The messages beside them are a view for people and
//! for trainers that read OpenAI's format: what the policy was shown, and what it wrote. Tool
//! results that were elided later are whole in them. The journal is only read, so the run may
//! continue meanwhile.

use std::{
    fs::File,
    io::{BufWriter, Write},
    iter,
    path::Path,
};

use actor::{
    prompt::{openai_call, openai_messages, opening, tool_text},
    tool_call, tool_schemas,
};
use anyhow::{Context as _, Result, ensure};
use learner::{LearnerError, checkpoint::CHECKPOINTS, journal};
use policy::{Chat, ChatRole, Message};
use proto::v1::{Observation, Segment, SubmitRequest, Trajectory, Turn};
use serde_json::{Value, json};

use crate::{args::TrajectoriesArgs, model_folder::newest_chat, out_file, stdout};

/// Stands for a question where the prompt of an unknown one is rendered.
const MARK: &str = "\u{e000}question\u{e000}";
const MOST_SHOTS: usize = 3;

/// Writes all trajectories.
pub(crate) fn write(args: &TrajectoriesArgs) -> Result<()> {
    if let Some(path) = &args.out {
        check_is_not_read(path, &args.run_dir)?;
        out_file::check(path)?;
    }
    let chat = newest_chat(&args.run_dir)?.with_context(|| {
        format!(
            "{} has no checkpoint; give the folder of a run",
            args.run_dir.display()
        )
    })?;
    let mut groups = journal::read(&args.run_dir)?;
    // Where nothing can be read, an earlier output is better than none.
    let first = groups.next().transpose()?.with_context(|| {
        format!(
            "the journal in {} has no group that can be read, so nothing is written; wait for the \
             first group, or restore the journal",
            args.run_dir.display()
        )
    })?;
    let groups = iter::once(Ok(first)).chain(groups);
    match &args.out {
        Some(path) => {
            let file =
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            write_lines(&chat, groups, &mut BufWriter::new(file))
        }
        None => write_lines(&chat, groups, &mut BufWriter::new(stdout::lock())),
    }
}

/// Refuses an output among the files that are read.
fn check_is_not_read(out: &Path, run_dir: &Path) -> Result<()> {
    // A file that does not exist yet is known by its folder.
    let folder = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    for name in [journal::FOLDER, CHECKPOINTS] {
        let Ok(read) = run_dir.join(name).canonicalize() else {
            continue;
        };
        let is_in = |it: &Path| it.canonicalize().is_ok_and(|it| it.starts_with(&read));
        ensure!(
            !is_in(out) && !is_in(folder),
            "{} is in {}, from which trajectories are read; choose another file",
            out.display(),
            read.display()
        );
    }
    Ok(())
}

fn write_lines(
    chat: &Chat,
    groups: impl Iterator<Item = Result<SubmitRequest, LearnerError>>,
    out: &mut dyn Write,
) -> Result<()> {
    for group in groups {
        let group = group?;
        for trajectory in &group.trajectories {
            let line = line(chat, group.group_index, trajectory)?;
            writeln!(out, "{line}").context("cannot write the trajectories")?;
        }
    }
    out.flush().context("cannot write the trajectories")
}

fn line(chat: &Chat, group_index: u64, trajectory: &Trajectory) -> Result<Value> {
    let versions = || trajectory.turns.iter().map(|turn| turn.policy_version);
    let prompt = prompt(chat, trajectory)?;
    let mut messages = match &prompt {
        Some(prompt) => opening_messages(chat, prompt)?,
        None => Vec::new(),
    };
    for (at, turn) in trajectory.turns.iter().enumerate() {
        messages.extend(turn_messages(chat, at, turn, trajectory)?);
    }
    Ok(json!({
        "question_id": trajectory.question_id,
        "group_index": group_index,
        "member": trajectory.member,
        "return": trajectory.episode_return,
        "correct": trajectory.correct,
        "scored": trajectory.scored,
        "failure": trajectory.failure,
        "policy_span": [versions().min(), versions().max()],
        "prompt": prompt,
        "messages": messages,
        "tools": tool_schemas(),
        "segments": trajectory.segments.iter().map(segment).collect::<Vec<_>>(),
    }))
}

/// Returns the prompt of the first completion, as text; none if the turn is outside of its segment.
fn prompt(chat: &Chat, trajectory: &Trajectory) -> Result<Option<String>> {
    let Some(turn) = trajectory.turns.first() else {
        return Ok(Some(String::new()));
    };
    let segment = trajectory.segments.get(turn.segment as usize);
    let prompt = segment.and_then(|it| it.tokens.get(..turn.completion_start as usize));
    Ok(prompt.map(|tokens| chat.decode(tokens)).transpose()?)
}

/// Returns the messages that a prompt was rendered from: the journal holds its tokens only. Without
/// a match, which a template that rewrites its messages causes, there are none.
fn opening_messages(chat: &Chat, prompt: &str) -> Result<Vec<Value>> {
    // From the most examples down: a prompt with examples also begins and ends as one without.
    for shots in (0..=MOST_SHOTS).rev() {
        let mut messages = opening(&Observation::default(), shots);
        messages.pop();
        messages.push(Message::new(ChatRole::User, MARK));
        let rendered = chat.render(&messages, &tool_schemas(), true)?;
        let Some((before, after)) = rendered.split_once(MARK) else {
            continue;
        };
        if let Some(text) = prompt
            .strip_prefix(before)
            .and_then(|it| it.strip_suffix(after))
        {
            messages.pop();
            messages.push(Message::new(ChatRole::User, text));
            return Ok(openai_messages(&messages));
        }
    }
    Ok(Vec::new())
}

/// Returns a turn as two messages: what the assistant wrote, and the result of the tool as the
/// policy saw it. A malformed turn has its text and no call, so its result is one of the user.
fn turn_messages(
    chat: &Chat,
    at: usize,
    turn: &Turn,
    trajectory: &Trajectory,
) -> Result<[Value; 2]> {
    let action = turn.action.clone().unwrap_or_default();
    let id = format!("call_{at}");
    let (said, mut seen) = match turn.malformed {
        true => (
            json!({"role": "assistant", "content": action.argument}),
            json!({"role": "user"}),
        ),
        false => {
            let text = chat.completion_text(completion(turn, trajectory))?;
            let call = openai_call(&id, &tool_call::from_action(&action));
            let said = json!({
                "role": "assistant",
                "content": tool_call::text_before_call(&text),
                "tool_calls": [call],
            });
            (said, json!({"role": "tool", "tool_call_id": id}))
        }
    };
    let (result, error) = match turn.observation_is_error {
        true => (String::new(), turn.observation_text.clone()),
        false => (turn.observation_text.clone(), String::new()),
    };
    let observation = Observation {
        result,
        error,
        ..Observation::default()
    };
    seen["content"] = json!(tool_text(&observation));
    seen["is_error"] = json!(turn.observation_is_error);
    seen["malformed_call"] = json!(turn.malformed);
    seen["reward"] = json!(turn.reward);
    Ok([said, seen])
}

/// Returns the tokens of a turn's completion; none if the turn is outside of its segment.
fn completion<'a>(turn: &Turn, trajectory: &'a Trajectory) -> &'a [u32] {
    let segment = trajectory.segments.get(turn.segment as usize);
    let start = turn.completion_start as usize;
    let end = start.saturating_add(turn.completion_tokens as usize);
    let tokens = segment.and_then(|it| it.tokens.get(start..end));
    tokens.unwrap_or_default()
}

fn segment(segment: &Segment) -> Value {
    json!({"tokens": segment.tokens, "mask": segment.mask, "logprobs": segment.logprobs})
}

#[cfg(test)]
mod tests {
    use std::fs;

    use actor::prompt::tool_message;
    use policy::ToolCall;

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

    fn observation(text: &str, is_error: bool) -> Observation {
        let (result, error) = match is_error {
            true => ("", text),
            false => (text, ""),
        };
        Observation {
            question: "How many \"gulls\" are there?".to_owned(),
            schema_info: "Available tables:\n- gull".to_owned(),
            result: result.to_owned(),
            error: error.to_owned(),
            ..Observation::default()
        }
    }

    /// Returns a trajectory of these turns: text of the completion, whether it is malformed, and
    /// what the environment returned. Each was sampled after what the one before it showed.
    fn played(chat: &Chat, shots: usize, turns: &[(&str, bool, Observation)]) -> Trajectory {
        let mut segment = Segment::default();
        let mut push = |tokens: &[u32], mask: u8| {
            segment.tokens.extend(tokens);
            segment.mask.resize(segment.tokens.len(), mask);
            segment.tokens.len() as u32
        };
        let prompt = opening(&observation("", false), shots);
        let mut end = push(&chat.prompt_ids(&prompt, &tool_schemas()).unwrap(), 0);
        let mut played = Vec::new();
        for (at, (text, malformed, seen)) in turns.iter().enumerate() {
            if at > 0 {
                let shown = chat.tool_suffix_ids(&[tool_message(&turns[at - 1].2)]);
                end = push(&shown.unwrap(), 0);
            }
            let completion = chat.completion_ids(text).unwrap();
            played.push(Turn {
                completion_start: end,
                completion_tokens: completion.len() as u32,
                action: Some(tool_call::parse(text).action),
                malformed: *malformed,
                observation_text: format!("{}{}", seen.result, seen.error),
                observation_is_error: !seen.error.is_empty(),
                ..Turn::default()
            });
            end = push(&completion, u8::from(!malformed));
        }
        segment.logprobs = vec![0.0; segment.tokens.len()];
        Trajectory {
            segments: vec![segment],
            turns: played,
            correct: true,
            ..Trajectory::default()
        }
    }

    /// Checks that each call has an id, and that a tool message answers the call before it, as
    /// OpenAI's format requires.
    fn check_format(messages: &[Value]) {
        assert_eq!(messages[0]["role"], "system");
        for pair in messages.windows(2) {
            let call = &pair[0]["tool_calls"][0]["id"];
            assert_eq!(call, &pair[1]["tool_call_id"], "{pair:?}");
            assert_eq!(call.is_string(), pair[1]["role"] == "tool", "{pair:?}");
        }
    }

    /// What `sqlenv sft --transcripts` imitates of a line has the tokens of the rollout. Examples
    /// and malformed turns, also an empty one, are shown and not learned.
    #[test]
    fn an_imitated_line_has_the_tokens_of_its_rollout() {
        let chat = policy::embedded::base().unwrap().chat;
        let call = |tool: &str, parameter: &str, value: &str| {
            ToolCall::new(tool, parameter, value).to_text()
        };
        let describe = call("describe", "table_name", "gull");
        let query = call("query", "sql", "SELECT x FROM gull");
        let thoughtful = format!("Let me see.\n{}", call("query", "sql", "SELECT 1 WHERE 0"));
        let answer = call("answer", "value", "3");
        let turns = [
            (
                describe.as_str(),
                false,
                observation(&"long ".repeat(900), false),
            ),
            (
                query.as_str(),
                false,
                observation("no such column: x", true),
            ),
            ("SELECT 3", true, observation("1. 3", false)),
            ("", true, observation("SQL is empty", true)),
            (thoughtful.as_str(), false, observation("", false)),
            (
                answer.as_str(),
                false,
                observation("Answer submitted: correct.", false),
            ),
        ];
        for shots in [0, 1, 3] {
            let trajectory = played(&chat, shots, &turns);
            let line = line(&chat, 7, &trajectory).unwrap();
            let messages = line["messages"].as_array().unwrap();
            let before = opening(&observation("", false), shots).len();
            assert_eq!(messages.len(), before + 2 * turns.len());
            check_format(messages);
            let imitated = baselines::demonstration_of(&chat, &line).unwrap().unwrap();
            assert_eq!(imitated, trajectory.segments[0]);
        }
    }

    #[test]
    fn files_that_are_read_are_not_written() {
        let run = tempfile::tempdir().unwrap();
        let error = |out: &str| {
            let args = TrajectoriesArgs {
                run_dir: run.path().to_owned(),
                out: Some(run.path().join(out)),
            };
            write(&args).unwrap_err().to_string()
        };
        for name in ["journal/000001.bin", "checkpoints/step_1/state.json"] {
            let file = run.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            for state in ["absent", "there"] {
                let text = error(name);
                assert!(text.contains("from which trajectories are read"), "{text}");
                assert_eq!(file.exists(), state == "there");
                fs::write(&file, "kept").unwrap();
            }
        }
        // The checkpoint, which is damaged, is looked at next.
        let text = error("trajectories.jsonl");
        assert!(!text.contains("choose another file"), "{text}");
    }

    #[test]
    fn a_turn_outside_of_its_segment_has_no_prompt() {
        let chat = policy::embedded::base().unwrap().chat;
        let whole = line(&chat, 7, &trajectory(0, 2)).unwrap();
        assert!(whole["prompt"].is_string(), "{whole}");
        for broken in [trajectory(0, 900), trajectory(3, 1)] {
            let line = line(&chat, 7, &broken).unwrap();
            assert!(line["prompt"].is_null(), "{line}");
        }
    }
}
