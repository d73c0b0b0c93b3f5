//! Reads the event files of a run folder by message types of its own, not the writer's.

use std::{collections::BTreeMap, fs, path::Path, path::PathBuf};

use prost::Message;
use report::{
    DecodingMode, Evaluation, EvaluationMetrics, LearnerStepRecord, PolicyName, RunFolder,
    TrainingStage,
};

/// The length of the first message, 24, with its checksum, and the tag of the message's time. The
/// writer and these tests take checksums from one library, so the first one is written out.
const BEGINNING: [u8; 13] = *b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09";

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

fn assert_masked(bytes: &[u8], masked: &[u8]) {
    let crc = crc_fast::crc32_iscsi(bytes);
    let expected = crc.rotate_right(15).wrapping_add(0xa282_ead8);
    assert_eq!(expected.to_le_bytes(), masked);
}

/// Returns the messages of a file.
fn messages(path: &Path) -> Vec<Event> {
    let content = fs::read(path).unwrap();
    assert!(content.starts_with(&BEGINNING));
    let mut bytes = content.as_slice();
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let length = bytes.split_off(..8).unwrap();
        assert_masked(length, bytes.split_off(..4).unwrap());
        let length = u64::from_le_bytes(length.try_into().unwrap());
        let message = bytes.split_off(..length as usize).unwrap();
        assert_masked(message, bytes.split_off(..4).unwrap());
        messages.push(Event::decode(message).unwrap());
    }
    messages
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Reads the files of a folder as TensorBoard does: in the order of their names, where the start of
/// a session drops all steps from its own on.
fn scalars(folder: &Path) -> BTreeMap<String, Vec<(i64, f32)>> {
    let mut scalars: BTreeMap<String, Vec<(i64, f32)>> = BTreeMap::new();
    for file in files(folder) {
        for (place, event) in messages(&file).into_iter().enumerate() {
            let version = (place == 0).then_some("brain.Event:2");
            assert_eq!(event.file_version.as_deref(), version);
            if let Some(session) = event.session_log {
                assert_eq!(session.status, 1);
                scalars
                    .values_mut()
                    .for_each(|values| values.retain(|it| it.0 < event.step));
            }
            for value in event.summary.unwrap_or_default().value {
                let scalar = (event.step, value.simple_value.unwrap());
                scalars.entry(value.tag).or_default().push(scalar);
            }
        }
    }
    scalars
}

fn step(stage: TrainingStage, step: u64, reward: f64) -> LearnerStepRecord {
    let metrics = [
        ("reward", reward),
        ("clip_ratio/low_mean", 0.5),
        ("loss", f64::NAN),
    ];
    LearnerStepRecord {
        step,
        stage,
        policy_version: step,
        metrics: metrics.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}

#[test]
fn a_resumed_run_has_each_step_once() {
    let dir = tempfile::tempdir().unwrap();
    let grpo = |at, reward| step(TrainingStage::Grpo, at, reward);
    let first = RunFolder::create(dir.path()).unwrap();
    first
        .append_step(&step(TrainingStage::Sft, 7, 0.125))
        .unwrap();
    for (at, reward) in [(1, 1.0), (2, 2.0), (3, 3.0)] {
        first.append_step(&grpo(at, reward)).unwrap();
    }
    drop(first);
    // As if it were resumed from the checkpoint of step 1, twice.
    for reward in [20.0, 200.0] {
        let resumed = RunFolder::create(dir.path()).unwrap();
        resumed.append_step(&grpo(2, reward)).unwrap();
    }
    let folder = dir.path().join("tensorboard/grpo");
    assert_eq!(files(&folder).len(), 3);
    let scalars_of = scalars(&folder);
    assert_eq!(scalars_of["train/reward"], [(1, 1.0), (2, 200.0)]);
    assert_eq!(
        scalars_of["train/clip_ratio/low_mean"],
        [(1, 0.5), (2, 0.5)]
    );
    assert!(!scalars_of.contains_key("train/loss"), "NaN is absent");
    let warm_start = scalars(&dir.path().join("tensorboard/sft"));
    assert_eq!(warm_start["train/reward"], [(7, 0.125)]);
}

#[test]
fn evaluations_of_policies_are_apart_and_a_resumed_run_adds_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let evaluation = |policy, at, rate| Evaluation {
        policy,
        policy_version: at,
        step: at,
        split: "eval/curve".to_owned(),
        mode: DecodingMode::Greedy,
        metrics: EvaluationMetrics {
            success: report::SuccessRate {
                success_rate: rate,
                ..report::SuccessRate::default()
            },
            ..EvaluationMetrics::default()
        },
    };
    for (policy, at, rate) in [
        (PolicyName::OracleImitation, 0, 0.25),
        (PolicyName::Grpo, 5, 0.5),
        (PolicyName::Grpo, 2, 0.75),
    ] {
        let folder = RunFolder::create(dir.path()).unwrap();
        folder
            .append_evaluation(&evaluation(policy, at, rate))
            .unwrap();
    }
    let accuracy = |folder: &str| {
        let scalars = scalars(&dir.path().join("tensorboard/eval").join(folder));
        scalars["eval/accuracy/eval/curve/greedy"].clone()
    };
    assert_eq!(accuracy("oracle_imitation"), [(0, 0.25)]);
    assert_eq!(accuracy("GRPO"), [(5, 0.5), (2, 0.75)]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tensorboard"), "").unwrap();
    let folder = RunFolder::new(dir.path());
    let error = folder
        .append_step(&step(TrainingStage::Grpo, 1, 1.0))
        .unwrap_err();
    assert!(error.to_string().contains("tensorboard/grpo"), "{error}");
}
