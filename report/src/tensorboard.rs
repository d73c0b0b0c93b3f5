//! TensorBoard's event files of a run: `tensorboard/grpo`, `tensorboard/sft`, and a folder for each
//! policy that was evaluated, so that TensorBoard draws them over each other.
//!
//! A file is a log. Each record has its length, a checksum of the length, an `Event` message, and a
//! checksum of the message (`tensorflow/core/lib/io/record_writer.h`, `core/util/event.proto`).
//!
//! Invariant: a process only appends to files that it has made. TensorBoard reads the files of a
//! folder in the order of their names, so a new name is greater than all others. A later file of a
//! stage begins with the step from which on it replaces the earlier ones, so that a resumed run has
//! no step twice.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use prost::Message;

use crate::{
    error::ReportError,
    records::{Evaluation, LearnerStepRecord, TrainingStage},
};

const FOLDER: &str = "tensorboard";
/// What TensorBoard recognises event files by.
const PREFIX: &str = "events.out.tfevents.";
/// The version of the format, which each file begins with.
const VERSION: &str = "brain.Event:2";

/// `tensorflow.Event`, with the fields that are written here.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<SummaryValue>,
}

/// `tensorflow.Summary.Value` with a scalar.
#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// `tensorflow.SessionLog`.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `tensorflow.SessionLog.START`. TensorBoard then drops the steps of earlier files that are not
/// before the event's.
const START: SessionLog = SessionLog { status: 1 };

/// The event files of a run folder. Each is made with its first record.
#[derive(Debug)]
pub(crate) struct EventFiles {
    folder: PathBuf,
    open: Mutex<BTreeMap<String, EventFile>>,
}

#[derive(Debug)]
struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFiles {
    /// Names the files of a run folder without touching them.
    pub(crate) fn new(run_folder: &Path) -> Self {
        Self {
            folder: run_folder.join(FOLDER),
            open: Mutex::default(),
        }
    }

    /// Appends the metrics of a learner step, under the tags that TRL's users know.
    ///
    /// # Errors
    /// A file cannot be made or written.
    pub(crate) fn append_step(&self, record: &LearnerStepRecord) -> Result<(), ReportError> {
        let folder = match record.stage {
            TrainingStage::Sft => "sft",
            TrainingStage::Grpo => "grpo",
        };
        let metrics = record.metrics.iter();
        let values = metrics.map(|(name, value)| (format!("train/{name}"), *value));
        self.append(folder, record.step, values, Some(START))
    }

    /// Appends the result of an evaluation. No run makes one twice, so it replaces nothing.
    ///
    /// # Errors
    /// A file cannot be made or written.
    pub(crate) fn append_evaluation(&self, record: &Evaluation) -> Result<(), ReportError> {
        let folder = format!("eval/{}", record.policy).replace(' ', "_");
        let metrics = &record.metrics;
        let values = [
            ("accuracy", metrics.success.success_rate),
            ("reward", metrics.mean_reward),
            ("steps", metrics.mean_steps),
            ("malformed", metrics.malformed_rate),
        ];
        let (split, mode) = (&record.split, record.mode);
        let tag = |(name, value)| (format!("eval/{name}/{split}/{mode}"), value);
        self.append(&folder, record.step, values.into_iter().map(tag), None)
    }

    /// Appends an event to the file of a folder. A file beside earlier ones begins with `restart`.
    fn append(
        &self,
        folder: &str,
        step: u64,
        values: impl Iterator<Item = (String, f64)>,
        restart: Option<SessionLog>,
    ) -> Result<(), ReportError> {
        let values = values.filter(|(_, value)| value.is_finite());
        let value = |(tag, value)| SummaryValue {
            tag,
            simple_value: Some(value as f32),
        };
        let event = Event {
            wall_time: unix_seconds(),
            step: step as i64,
            summary: Some(Summary {
                values: values.map(value).collect(),
            }),
            ..Event::default()
        };
        let mut open = self.open.lock();
        if !open.contains_key(folder) {
            let opened = EventFile::create(&self.folder.join(folder), event.step, restart)?;
            open.insert(folder.to_owned(), opened);
        }
        let file = open.get_mut(folder);
        file.map_or(Ok(()), |file| file.append(&event))
    }
}

impl EventFile {
    fn create(folder: &Path, step: i64, restart: Option<SessionLog>) -> Result<Self, ReportError> {
        fs::create_dir_all(folder).map_err(ReportError::io("make the folder", folder))?;
        let newest = newest_seconds(folder).map_err(ReportError::io("list", folder))?;
        let wall_time = unix_seconds();
        // The clock of another machine may have been ahead.
        let seconds = newest.map_or(0, |newest| newest + 1).max(wall_time as u64);
        let name = format!("{PREFIX}{seconds:010}.sqlenv.{}", std::process::id());
        let path = folder.join(name);
        let file = File::options().append(true).create_new(true).open(&path);
        let file = file.map_err(ReportError::io("make", &path))?;
        let mut made = Self { path, file };
        made.append(&Event {
            wall_time,
            file_version: Some(VERSION.to_owned()),
            ..Event::default()
        })?;
        if newest.is_some() && restart.is_some() {
            made.append(&Event {
                wall_time,
                step,
                session_log: restart,
                ..Event::default()
            })?;
        }
        Ok(made)
    }

    fn append(&mut self, event: &Event) -> Result<(), ReportError> {
        // With one write per record, a crash can cut only the last record.
        let written = self.file.write_all(&record(&event.encode_to_vec()));
        written.map_err(ReportError::io("append to", &self.path))
    }
}

/// Returns the greatest time in the names of a folder's event files.
fn newest_seconds(folder: &Path) -> io::Result<Option<u64>> {
    let mut newest = None;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let seconds = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('.').next());
        newest = newest.max(seconds.and_then(|seconds| seconds.parse().ok()));
    }
    Ok(newest)
}

/// Frames a message.
fn record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(message.len() + 16);
    record.extend(length);
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(message);
    record.extend(masked_checksum(message).to_le_bytes());
    record
}

/// Returns the CRC-32C of bytes, rotated and moved as the format wants it.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: events say when they happened"
)]
fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
