//! A run's folder while the run goes on: its name, its settings, and how long its stages take.

use std::{collections::BTreeMap, fs, path::Path, time::Instant};

use anyhow::{Context as _, Result, bail, ensure};
use policy::Model;

use crate::{
    args::{ConfigArgs, TrainArgs},
    config::RunConfig,
    progress::Progress,
    run::{Asked, RunFolder, RunInfo, RunStatus, StageTime},
    setup::Setup,
};

/// An open run.
pub(super) struct Run {
    /// Its files.
    pub(super) folder: RunFolder,
    /// Its settings.
    pub(super) config: RunConfig,
    name: String,
    info: Option<RunInfo>,
    timing: Vec<StageTime>,
}

impl Run {
    /// Makes a new run's folder, or opens the one to resume.
    pub(super) fn open(args: &TrainArgs, progress: &Progress) -> Result<Self> {
        ensure!(
            !args.resume || args.config == ConfigArgs::default(),
            "--resume goes on with the run's own settings; leave out --preset, --config, --set, --seed, --data, \
             --databases and --model, or start a new run"
        );
        let name = match (&args.name, args.resume) {
            (Some(name), _) => name.clone(),
            (None, true) => newest(&args.runs_dir)?,
            (None, false) => next_free(&args.runs_dir),
        };
        let path = args.runs_dir.join(&name);
        let settings = path.join("config.toml");
        let config = if args.resume {
            RunConfig::read(&settings)
                .with_context(|| format!("{} cannot be resumed", path.display()))?
        } else {
            if settings.exists() {
                bail!(
                    "{} holds a run already; go on with it by --resume --name {name}, or choose another --name",
                    path.display()
                );
            }
            RunConfig::resolve(&args.config)?
        };
        let folder = RunFolder::create(&path)?;
        if !args.resume {
            folder.write_config(&config.to_toml()?)?;
        }
        progress.say(&format!("run folder: {}", path.display()));
        let timing = if args.resume {
            folder.read()?.timing
        } else {
            Vec::new()
        };
        Ok(Self {
            folder,
            config,
            name,
            info: None,
            timing,
        })
    }

    /// Writes down what is trained on what.
    pub(super) fn describe(&mut self, setup: &Setup, base: &Model) -> Result<()> {
        let mut questions = BTreeMap::new();
        for question in &setup.dataset.questions {
            *questions.entry(question.split.clone()).or_insert(0) += 1;
        }
        let asked = Asked {
            dataset: setup.dataset.name.clone(),
            databases: setup.dataset.databases.len() as u64,
            questions,
        };
        let info = RunInfo::begun(&self.name, &self.config, base, asked);
        self.folder.write_info(&info)?;
        self.info = Some(info);
        Ok(())
    }

    /// Waits for a stage and adds its time to the folder.
    pub(super) async fn timed<T>(
        &mut self,
        stage: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let began = now();
        let result = work.await;
        let seconds = now().duration_since(began).as_secs_f64();
        match self.timing.iter_mut().find(|time| time.stage == stage) {
            Some(time) => time.seconds += seconds,
            None => self.timing.push(StageTime {
                stage: stage.to_owned(),
                seconds,
            }),
        }
        let written = self.folder.write_timing(&self.timing);
        let value = result?;
        written?;
        Ok(value)
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

/// `run-001`, `run-002` ...: the first that is not there.
fn next_free(runs_dir: &Path) -> String {
    (1..)
        .map(|number| format!("run-{number:03}"))
        .find(|name| !runs_dir.join(name).exists())
        .expect("numbers do not run out: this is a bug")
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
                .join("config.toml")
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
