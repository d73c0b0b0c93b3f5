//! Reads the event files of a run folder, without the code that writes them.

use std::{collections::BTreeMap, fs, path::Path, path::PathBuf};

use report::{
    DecodingMode, Evaluation, EvaluationMetrics, LearnerStepRecord, PolicyName, RunFolder,
    TrainingStage,
};

/// The fields of a protobuf message by number, in order.
#[derive(Debug, Clone, PartialEq)]
enum Field {
    Number(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

fn take(bytes: &mut &[u8], count: usize) -> Vec<u8> {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken.to_vec()
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => Field::Fixed(take(&mut bytes, 8)),
            2 => {
                let length = varint(&mut bytes) as usize;
                Field::Bytes(take(&mut bytes, length))
            }
            5 => Field::Fixed(take(&mut bytes, 4)),
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

/// CRC-32C bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= 0x82f6_3b78;
            }
        }
    }
    !crc
}

fn assert_masked(bytes: &[u8], masked: &[u8]) {
    let crc = checksum(bytes);
    let expected = crc.rotate_right(15).wrapping_add(0xa282_ead8);
    assert_eq!(expected.to_le_bytes(), masked);
}

/// Returns the messages of a file.
fn messages(path: &Path) -> Vec<Vec<(u64, Field)>> {
    let content = fs::read(path).unwrap();
    let mut bytes = &content[..];
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let length = take(&mut bytes, 8);
        assert_masked(&length, &take(&mut bytes, 4));
        let message = take(
            &mut bytes,
            u64::from_le_bytes(length.try_into().unwrap()) as usize,
        );
        assert_masked(&message, &take(&mut bytes, 4));
        messages.push(fields(&message));
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

fn number(message: &[(u64, Field)], tag: u64) -> Option<u64> {
    let found = message.iter().find(|(number, _)| *number == tag)?;
    match &found.1 {
        Field::Number(value) => Some(*value),
        other => panic!("{other:?}"),
    }
}

fn bytes(message: &[(u64, Field)], tag: u64) -> Option<&[u8]> {
    let found = message.iter().find(|(number, _)| *number == tag)?;
    match &found.1 {
        Field::Bytes(value) => Some(value),
        other => panic!("{other:?}"),
    }
}

/// Reads the files of a folder as TensorBoard does: in the order of their names, where the start of
/// a session drops all steps from its own on.
fn scalars(folder: &Path) -> BTreeMap<String, Vec<(u64, f32)>> {
    let mut scalars: BTreeMap<String, Vec<(u64, f32)>> = BTreeMap::new();
    for file in files(folder) {
        for (place, message) in messages(&file).into_iter().enumerate() {
            let version = bytes(&message, 3);
            assert_eq!(version, (place == 0).then_some(&b"brain.Event:2"[..]));
            let step = number(&message, 2).unwrap_or(0);
            if let Some(session) = bytes(&message, 7) {
                assert_eq!(number(&fields(session), 1), Some(1));
                scalars
                    .values_mut()
                    .for_each(|values| values.retain(|it| it.0 < step));
            }
            let Some(summary) = bytes(&message, 5) else {
                continue;
            };
            for (_, value) in fields(summary) {
                let Field::Bytes(value) = value else { panic!() };
                let value = fields(&value);
                let tag = String::from_utf8(bytes(&value, 1).unwrap().to_vec()).unwrap();
                let Field::Fixed(scalar) = &value[1].1 else {
                    panic!()
                };
                let scalar = f32::from_le_bytes(scalar[..].try_into().unwrap());
                scalars.entry(tag).or_default().push((step, scalar));
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
