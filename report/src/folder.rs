//! Writing and reading a run folder.
//!
//! Invariant: a file is either replaced as a whole or is a log of JSON lines, which a crash may cut
//! short. Reading accepts both: it skips and counts the lines that it cannot read, so an
//! interrupted run still has a report. If several lines are about the same thing, the last one
//! counts, because a resumed run repeats the steps after its checkpoint. Checkpoints and the
//! journal belong to the learner.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use policy::durable;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::ReportError,
    live::{Finding, Severity},
    records::{Evaluation, LearnerStepRecord, RunInfo, RunStatus, StageTime, Transcript},
    run_lock::{self, LOCK},
    run_records::{RunRecords, evaluation_key},
    tensorboard::EventFiles,
};

type Result<T> = std::result::Result<T, ReportError>;

/// A run folder.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    events: Arc<EventFiles>,
    /// The lock of the process that writes the run. The last clone releases it.
    _lock: Option<Arc<File>>,
}

/// The file of a run folder that has the resolved settings.
pub const SETTINGS: &str = "config.toml";
const RUN: &str = "run.json";
const METRICS: &str = "metrics.jsonl";
const EVALUATIONS: &str = "evaluations.jsonl";
const TRANSCRIPTS: &str = "transcripts.jsonl";
const TIMING: &str = "timing.json";
const REPORT: &str = "report.html";

impl RunFolder {
    /// Names a folder without touching it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            events: Arc::new(EventFiles::new(&path)),
            path,
            _lock: None,
        }
    }

    /// Checks that a new run may begin in a folder or continue its own: other files in it could be
    /// overwritten.
    ///
    /// # Errors
    /// [`ReportError::Occupied`], or the folder cannot be read.
    pub fn check_is_new_or_run(path: &Path) -> Result<()> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(ReportError::io("read", path))?,
        };
        let names = entries.map(|entry| entry.map(|it| it.file_name()));
        let names: Vec<_> = names
            .collect::<io::Result<_>>()
            .map_err(ReportError::io("read", path))?;
        let signs = [LOCK, RUN, "journal", "checkpoints"];
        let is_of_run = names.iter().any(|name| signs.iter().any(|it| name == it));
        match is_of_run || names.iter().all(|name| is_harmless(Path::new(name))) {
            true => Ok(()),
            false => Err(ReportError::Occupied(path.to_owned())),
        }
    }

    /// Makes the folder unless it exists, locks it against other processes, and ends lines that a
    /// crash cut short, so that the next line does not continue them.
    ///
    /// # Errors
    /// The folder cannot be made, another process holds the lock, or a log cannot be read or
    /// written.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path).map_err(ReportError::io("make the run folder", &path))?;
        let folder = Self {
            _lock: Some(Arc::new(run_lock::take(&path)?)),
            ..Self::new(path)
        };
        for log in [METRICS, EVALUATIONS, TRANSCRIPTS] {
            let text = folder.text(log)?.unwrap_or_default();
            if !text.is_empty() && !text.ends_with('\n') {
                folder.append_text(log, "\n")?;
            }
        }
        Ok(folder)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `run.json`.
    ///
    /// # Errors
    /// The file cannot be written. This holds for all methods here that write.
    pub fn write_info(&self, info: &RunInfo) -> Result<()> {
        self.write_json(RUN, info)
    }

    /// Writes `config.toml`, the resolved settings.
    pub fn write_config(&self, toml: &str) -> Result<()> {
        self.write(SETTINGS, toml)
    }

    /// Writes `timing.json`.
    pub fn write_timing(&self, stages: &[StageTime]) -> Result<()> {
        self.write_json(TIMING, stages)
    }

    /// Writes `report.html` and returns its path.
    pub(crate) fn write_report(&self, page: &str) -> Result<PathBuf> {
        self.write(REPORT, page)?;
        Ok(self.path.join(REPORT))
    }

    /// Appends a line to `metrics.jsonl`, and an event for TensorBoard.
    pub fn append_step(&self, step: &LearnerStepRecord) -> Result<()> {
        self.append(METRICS, step)?;
        self.events.append_step(step)
    }

    /// Appends a line to `evaluations.jsonl`, and an event for TensorBoard.
    pub fn append_evaluation(&self, evaluation: &Evaluation) -> Result<()> {
        self.append(EVALUATIONS, evaluation)?;
        self.events.append_evaluation(evaluation)
    }

    /// Appends a line to `transcripts.jsonl` for each transcript.
    pub fn append_transcripts(
        &self,
        transcripts: impl IntoIterator<Item = Transcript>,
    ) -> Result<()> {
        let lines = transcripts.into_iter().map(|it| line(&it));
        self.append_text(TRANSCRIPTS, &lines.collect::<Result<String>>()?)
    }

    /// Returns whether a run has begun here, of which these are the records. At first it has only
    /// its lock.
    pub fn is_of_run(&self, records: &RunRecords) -> bool {
        !records.is_empty() || self.path.join(LOCK).exists()
    }

    /// Returns a problem if the run has not ended and no process works in the folder, as far as the
    /// file system knows.
    pub fn ended_early(&self, records: &RunRecords) -> Option<Finding> {
        let is_running = |info: &Option<RunInfo>| match info {
            Some(info) => info.status == RunStatus::Running,
            // A run writes this before its first step. A pretraining records steps without it.
            None => !records.unreadable.contains_key(RUN) && !self.path.join(METRICS).exists(),
        };
        if !is_running(&records.info) || !run_lock::is_free(&self.path) {
            return None;
        }
        // The run may have ended since its records were read.
        let info = self.info().ok()?;
        is_running(&info).then(|| ended_early_finding(info.is_some()))
    }

    /// Returns when a step, an evaluation or the duration of a stage was last recorded; none if
    /// there is no such file.
    pub fn last_recorded(&self) -> Option<SystemTime> {
        let files = [METRICS, EVALUATIONS, TIMING].into_iter();
        let times = files.filter_map(|name| {
            let metadata = fs::metadata(self.path.join(name)).ok()?;
            metadata.modified().ok()
        });
        times.max()
    }

    /// Reads `run.json` alone; none if it is missing or damaged.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn info(&self) -> Result<Option<RunInfo>> {
        self.json(RUN, &mut BTreeMap::new())
    }

    /// Reads the evaluations alone, ordered by policy, split, mode and step.
    ///
    /// # Errors
    /// `evaluations.jsonl` cannot be opened.
    pub fn evaluations(&self) -> Result<Vec<Evaluation>> {
        let evaluations = self.lines(EVALUATIONS, &mut BTreeMap::new())?;
        Ok(latest(evaluations, evaluation_key))
    }

    /// Reads all records. A missing file counts as empty.
    ///
    /// # Errors
    /// The folder is missing, or a file in it cannot be opened.
    pub fn read(&self) -> Result<RunRecords> {
        if !self.path.is_dir() {
            return Err(ReportError::NotAFolder(self.path.clone()));
        }
        let mut unreadable = BTreeMap::new();
        let steps: Vec<LearnerStepRecord> = self.lines(METRICS, &mut unreadable)?;
        let evaluations: Vec<Evaluation> = self.lines(EVALUATIONS, &mut unreadable)?;
        let transcripts: Vec<Transcript> = self.lines(TRANSCRIPTS, &mut unreadable)?;
        Ok(RunRecords {
            info: self.json(RUN, &mut unreadable)?,
            config: self.text(SETTINGS)?,
            steps: latest(steps, |s| (s.stage, s.step)),
            evaluations: latest(evaluations, evaluation_key),
            transcripts: latest(transcripts, |t| (t.policy, t.episode.question_id.clone())),
            timing: self.json(TIMING, &mut unreadable)?.unwrap_or_default(),
            unreadable,
        })
    }

    fn write_json<T: Serialize + ?Sized>(&self, name: &str, content: &T) -> Result<()> {
        self.write(name, &(serde_json::to_string_pretty(content)? + "\n"))
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        durable::replace_file(&path, text.as_bytes()).map_err(ReportError::io("write", &path))
    }

    fn append(&self, name: &str, record: &impl Serialize) -> Result<()> {
        self.append_text(name, &line(record)?)
    }

    /// Appends by one write, of which a crash can only cut the end.
    fn append_text(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        durable::append(&path, text.as_bytes()).map_err(ReportError::io("append to", &path))
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        let path = self.path.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ReportError::io("read", path)(error)),
        }
    }

    fn json<T: DeserializeOwned>(
        &self,
        name: &'static str,
        unreadable: &mut BTreeMap<&'static str, usize>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let content = serde_json::from_str(&text).ok();
        if content.is_none() {
            unreadable.insert(name, text.lines().count().max(1));
        }
        Ok(content)
    }

    fn lines<T: DeserializeOwned>(
        &self,
        name: &'static str,
        unreadable: &mut BTreeMap<&'static str, usize>,
    ) -> Result<Vec<T>> {
        let text = self.text(name)?.unwrap_or_default();
        let mut records = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(record) => records.push(record),
                Err(_) => *unreadable.entry(name).or_default() += 1,
            }
        }
        Ok(records)
    }
}

/// Returns a record as a line of JSON.
fn line(record: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(record)? + "\n")
}

/// Describes a run that ended early, before or after it wrote `run.json`.
fn ended_early_finding(has_info: bool) -> Finding {
    let (seen, remedy) = match has_info {
        true => (
            "The run has not ended, and no process works in its folder.",
            "Resume it from its last checkpoint: start the same learner again, or `sqlenv train \
             --resume`.",
        ),
        // `--resume` reads the settings, which may be missing as well. `sqlenv train` finds out.
        false => (
            "The folder is that of a run that ended before its first step: it has no run.json, and \
             no process works in it.",
            "Begin the run again with the same command. It names the command that resumes, if the \
             folder needs that one.",
        ),
    };
    Finding {
        severity: Severity::Problem,
        rule: "ended-early".to_owned(),
        seen: seen.to_owned(),
        meaning: "Its process was killed, or failed and could not record it. (A process on \
                  another machine is seen only if the file system shares locks.)"
            .to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// Returns whether a run may begin beside this: the log of its process, or what a volume has from
/// the start.
fn is_harmless(name: &Path) -> bool {
    let is_hidden = name.to_string_lossy().starts_with('.');
    let is_log = name
        .extension()
        .is_some_and(|it| it == "log" || it == "out");
    is_hidden || is_log || name == Path::new("lost+found")
}

/// Keeps the last record of each key, ordered by key.
fn latest<T, K: Ord>(records: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let by_key: BTreeMap<K, T> = records.into_iter().map(|r| (key(&r), r)).collect();
    by_key.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::records::TrainingStage;

    fn step(step: u64, loss: f64) -> LearnerStepRecord {
        LearnerStepRecord {
            step,
            stage: TrainingStage::Grpo,
            policy_version: step,
            metrics: BTreeMap::from([("loss".to_owned(), loss)]),
        }
    }

    #[test]
    fn a_resumed_runs_later_line_counts() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path().join("a/b")).unwrap();
        for record in [step(1, 1.0), step(2, 2.0), step(2, 0.5)] {
            folder.append_step(&record).unwrap();
        }
        assert_eq!(folder.read().unwrap().steps, [step(1, 1.0), step(2, 0.5)]);
    }

    #[test]
    fn a_torn_line_is_skipped_and_counted_and_nan_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        folder.append_step(&step(1, f64::NAN)).unwrap();
        let path = dir.path().join(METRICS);
        let torn = fs::read_to_string(&path).unwrap() + "{\"step\": 2, \"sta";
        fs::write(&path, torn).unwrap();
        let records = folder.read().unwrap();
        assert!(records.steps[0].metrics.is_empty());
        assert_eq!(records.unreadable, BTreeMap::from([(METRICS, 1)]));
        let [damage] = &records.damage()[..] else {
            panic!("one file is damaged");
        };
        assert_eq!(damage.seen, "One line of metrics.jsonl could not be read.");

        let folder = RunFolder::create(dir.path()).unwrap();
        folder.append_step(&step(2, 2.0)).unwrap();
        let error = RunFolder::create(dir.path()).unwrap_err().to_string();
        assert!(error.contains("is in use by another process"), "{error}");
        assert_eq!(folder.read().unwrap().steps.len(), 2);
    }

    #[test]
    fn a_run_whose_process_is_gone_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let found = || {
            let folder = RunFolder::new(dir.path());
            folder.ended_early(&folder.read().unwrap()).is_some()
        };
        assert!(!found(), "no run has begun");
        let working = RunFolder::create(dir.path()).unwrap();
        assert!(!found(), "a process works in it");
        drop(working);
        assert!(found());
        // As a learner that is killed before it writes `run.json`.
        let folder = RunFolder::new(dir.path());
        folder.write_config("").unwrap();
        fs::write(dir.path().join(EVALUATIONS), "{\"policy").unwrap();
        let finding = folder.ended_early(&folder.read().unwrap()).unwrap();
        assert!(finding.seen.contains("no run.json"), "{finding:?}");
        assert!(finding.remedy.contains("the same command"), "{finding:?}");
        folder.append_step(&step(1, 1.0)).unwrap();
        assert!(!found(), "a pretraining");
    }

    #[test]
    fn a_run_does_not_begin_between_files_of_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let is_allowed = |name| RunFolder::check_is_new_or_run(&dir.path().join(name)).is_ok();
        assert!(is_allowed("new") && is_allowed(""), "an empty one");
        for harmless in ["lost+found", ".snapshot", "learner.log"] {
            fs::create_dir(dir.path().join(harmless)).unwrap();
        }
        assert!(is_allowed(""), "a volume with a log");
        fs::write(dir.path().join(REPORT), "mine").unwrap();
        assert!(!is_allowed(""));
        drop(RunFolder::create(dir.path()).unwrap());
        assert!(is_allowed(""), "a run has begun");
    }

    #[test]
    fn a_lock_does_not_follow_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("thesis.txt");
        fs::write(&target, "years of work").unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(&target, run.join(LOCK)).unwrap();
        let error = RunFolder::create(&run).unwrap_err().to_string();
        assert!(error.contains(".lock is a link"), "{error}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "years of work");
    }

    #[test]
    fn an_empty_folder_reads_as_nothing_and_a_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let records = RunFolder::new(dir.path()).read().unwrap();
        assert!(records.steps.is_empty() && records.info.is_none());
        let error = RunFolder::new(dir.path().join("nope")).read().unwrap_err();
        assert!(error.to_string().contains("nope"), "{error}");
    }

    /// After GRPO, `sqlenv train` records evaluations and durations, and no steps.
    #[test]
    fn a_folder_was_last_recorded_to_when_the_youngest_of_its_logs_was() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        assert_eq!(folder.last_recorded(), None);
        let at = |hours: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(3_600 * hours);
        for (name, hours, last) in [
            (METRICS, 2, 2),
            (EVALUATIONS, 1, 2),
            (EVALUATIONS, 3, 3),
            (TIMING, 4, 4),
            (SETTINGS, 9, 4),
        ] {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(at(hours)).unwrap();
            assert_eq!(folder.last_recorded(), Some(at(last)), "{name}");
        }
    }

    #[test]
    fn step_lines_are_flat() {
        let line = serde_json::to_string(&step(3, 0.25)).unwrap();
        assert_eq!(
            line,
            r#"{"step":3,"stage":"grpo","policy_version":3,"loss":0.25}"#
        );
    }
}
