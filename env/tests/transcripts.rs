//! Replays whole episodes from text files, byte for byte. A file has the question, the profile and,
//! on lines that begin with `> `, the actions. All other text is the environment's.
//! `UPDATE_TRANSCRIPTS=1 cargo test` rewrites the files.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{fmt::Write as _, fs, path::Path};

use common::Fixture;
use env::{EnvSettings, Observation, RewardComponents};

#[tokio::test]
async fn replay() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let fixture = Fixture::new(EnvSettings::default());
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 4, "{paths:?}");
    for path in paths {
        let expected = fs::read_to_string(&path).unwrap();
        let actual = play(&fixture, &expected).await;
        if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
            fs::write(&path, &actual).unwrap();
        } else {
            assert_eq!(actual, expected, "{}", path.display());
        }
    }
}

/// Plays the actions of a transcript and writes it anew.
async fn play(fixture: &Fixture, transcript: &str) -> String {
    let header = transcript.lines().next().unwrap();
    let (question_id, profile) = header
        .strip_prefix("# ")
        .unwrap()
        .split_once(" under ")
        .unwrap();
    let reset = fixture.reset(question_id, profile);
    let mut text = format!("{header}\n");
    show(&mut text, &reset.observation, None);
    let mut token = reset.token;
    for action in transcript
        .lines()
        .filter_map(|line| line.strip_prefix("> "))
    {
        let (action_type, argument) = action.split_once(' ').unwrap_or((action, ""));
        let reply = fixture
            .step(&token, action_type, &argument.replace("\\n", "\n"))
            .await;
        writeln!(text, "\n> {action}").unwrap();
        show(&mut text, &reply.observation, Some(reply.reward_components));
        token = reply.token;
    }
    text
}

fn show(text: &mut String, seen: &Observation, reward: Option<RewardComponents>) {
    for (name, value) in [
        ("schema_info", &seen.schema_info),
        ("result", &seen.result),
        ("error", &seen.error),
    ] {
        if !value.is_empty() {
            writeln!(text, "{name}:").unwrap();
            value
                .lines()
                .for_each(|line| writeln!(text, "  {line}").unwrap());
        }
    }
    writeln!(
        text,
        "step_count: {}, budget_remaining: {}, done: {}",
        seen.step_count, seen.budget_remaining, seen.done
    )
    .unwrap();
    if let (Some(total), Some(layers)) = (seen.reward, reward) {
        let RewardComponents {
            operational,
            progress,
            terminal,
            clip,
        } = layers;
        writeln!(text, "reward: {total} = operational {operational} + progress {progress} + terminal {terminal} + clip {clip}").unwrap();
    }
}
