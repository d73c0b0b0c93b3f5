//! A run's folder while the run goes on: its name, its settings, and how long its stages take.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use policy::Model;
use report::{RunFolder, RunInfo, RunStatus, StageTime};

use crate::{
    args::{ConfigArgs, TrainArgs},
    config::RunConfig,
    progress::Progress,
    run_info::{DatasetSummary, run_info},
    setup::Setup,
};

const SETTINGS: &str = "config.toml";
const TIMING_EVERY: Duration = Duration::from_secs(5);

/// A run before anything of it is on disk, or one to resume.
pub(super) struct Plan {
    /// Its settings.
    pub(super) config: RunConfig,
    place: Place,
}

enum Place {
    /// The next free number in this folder.
    NextIn(PathBuf),
    /// A folder that holds no run yet.
    New(PathBuf),
    /// A run that is there.
    Resumed(PathBuf),
}

impl Plan {
    /// Resolves the settings, or finds those of the run to resume.
    pub(super) fn new(args: &TrainArgs) -> Result<Self> {
        if args.resume {
            return Self::resumed(args);
        }
        let place = match &args.name {
            Some(name) => Place::New(args.runs_dir.join(name)),
            None => Place::NextIn(args.runs_dir.clone()),
        };
        if let Place::New(path) = &place
            && path.join(SETTINGS).exists()
        {
            bail!(
                "{path} holds a run already; go on with it by --resume --name {name}, or choose another --name",
                path = path.display(),
                name = path.file_name().unwrap_or_default().display()
            );
        }
        Ok(Self {
            config: RunConfig::resolve(&args.config)?,
            place,
        })
    }

    fn resumed(args: &TrainArgs) -> Result<Self> {
        ensure!(
            args.config == ConfigArgs::default(),
            "--resume goes on with the run's own settings; leave out --preset, --config, --set, --seed, --data, \
             --databases and --model, or start a new run"
        );
        let name = match &args.name {
            Some(name) => name.clone(),
            None => newest(&args.runs_dir)?,
        };
        let path = args.runs_dir.join(name);
        let config = RunConfig::read(&path.join(SETTINGS))
            .with_context(|| format!("{} cannot be resumed", path.display()))?;
        Ok(Self {
            config,
            place: Place::Resumed(path),
        })
    }

    /// Makes the new run's folder, or opens the one to resume.
    pub(super) fn open(self, progress: &Progress) -> Result<Run> {
        let is_new = !matches!(self.place, Place::Resumed(_));
        let path = match self.place {
            Place::NextIn(runs_dir) => make_next(&runs_dir)?,
            Place::New(path) | Place::Resumed(path) => path,
        };
        let folder = RunFolder::create(&path)?;
        if is_new {
            folder.write_config(&self.config.to_toml()?)?;
        }
        progress.say(&format!("run folder: {}", path.display()));
        let known = folder.read()?;
        Ok(Run {
            name: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            folder,
            config: self.config,
            info: known.info,
            timing: known.timing,
        })
    }
}

/// An open run.
pub(super) struct Run {
    /// Its files.
    pub(super) folder: RunFolder,
    config: RunConfig,
    name: String,
    info: Option<RunInfo>,
    timing: Vec<StageTime>,
}

impl Run {
    /// Writes down what is trained on what.
    pub(super) fn describe(&mut self, setup: &Setup, base: &Model) -> Result<()> {
        let mut questions = BTreeMap::new();
        for question in &setup.dataset.questions {
            *questions.entry(question.split.clone()).or_insert(0) += 1;
        }
        let summary = DatasetSummary {
            dataset: setup.dataset.name.clone(),
            databases: setup.dataset.databases.len() as u64,
            questions,
            eval_queries_in_train: Some(data::queries_in_train(&setup.dataset, "eval") as u64),
        };
        let mut info = run_info(
            &self.name,
            (self.config.seed, &self.config.model),
            base,
            summary,
        );
        if let Some(begun) = self.info.take() {
            // A resumed run is still the one that this command began.
            info.command = begun.command;
        }
        self.folder.write_info(&info)?;
        self.info = Some(info);
        Ok(())
    }

    /// Waits for a stage and adds its time to the folder, every few seconds, so that a run that is killed has it too.
    pub(super) async fn timed<T>(
        &mut self,
        stage: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let before = self.timing.clone();
        let began = now();
        let mut work = pin!(work);
        loop {
            let result = tokio::time::timeout(TIMING_EVERY, &mut work).await;
            self.timing = added(&before, stage, now().duration_since(began).as_secs_f64());
            let written = self.folder.write_timing(&self.timing);
            if let Ok(result) = result {
                let value = result?;
                written?;
                return Ok(value);
            }
        }
    }

    /// Writes down how the run ended.
    pub(super) fn close(&mut self, status: RunStatus) -> Result<()> {
        if let Some(info) = &mut self.info {
            info.status = status;
            self.folder.write_info(info)?;
        }
        Ok(())
    }
}

/// The times with `seconds` more for a stage.
fn added(timing: &[StageTime], stage: &str, seconds: f64) -> Vec<StageTime> {
    let mut timing = timing.to_vec();
    match timing.iter_mut().find(|time| time.stage == stage) {
        Some(time) => time.seconds += seconds,
        None => timing.push(StageTime {
            stage: stage.to_owned(),
            seconds,
        }),
    }
    timing
}

/// Makes `run-001`, `run-002` ...: the first that is not there. Of two processes only one makes a folder.
fn make_next(runs_dir: &Path) -> Result<PathBuf> {
    let context = || format!("cannot make a run folder in {}", runs_dir.display());
    fs::create_dir_all(runs_dir).with_context(context)?;
    for number in 1.. {
        let path = runs_dir.join(format!("run-{number:03}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(context),
        }
    }
    unreachable!("numbers do not run out: this is a bug")
}

/// The run whose settings were written last.
fn newest(runs_dir: &Path) -> Result<String> {
    let entries =
        fs::read_dir(runs_dir).with_context(|| format!("cannot read {}", runs_dir.display()))?;
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let written = entry
                .path()
                .join(SETTINGS)
                .metadata()
                .ok()?
                .modified()
                .ok()?;
            Some((written, entry.file_name().to_string_lossy().into_owned()))
        })
        .max()
        .map(|(_, name)| name)
        .with_context(|| format!("{} holds no run to resume", runs_dir.display()))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the rim: how long a stage takes is only shown"
)]
fn now() -> Instant {
    Instant::now()
}
