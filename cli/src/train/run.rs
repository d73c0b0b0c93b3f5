//! The folder of a run in progress: its name, its settings, and the duration of its stages.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use policy::Model;
use report::{RunFolder, RunInfo, RunStatus, SETTINGS, StageTime};
use tokio::{task::JoinSet, time::sleep};

use super::resumable::{check_is_of_train, newest};
use crate::{
    args::{ConfigArgs, DEFAULT_RUNS_DIR, TrainArgs},
    clock::now,
    config::{self, RunConfig, WrongSettings},
    live::LiveRun,
    progress::Progress,
    run_info::{check_data, run_info},
    run_place::check_is_new_or_run,
    setup::Setup,
    shutdown::shell_quoted,
    warm_start,
};

const TIMING_EVERY: Duration = Duration::from_secs(5);

/// A new run before its folder exists, or a run to resume.
pub(super) struct PlannedRun {
    pub(super) config: RunConfig,
    target: RunTarget,
}

enum RunTarget {
    /// A new folder with the next free number in this folder.
    NextIn(PathBuf),
    /// A new folder with this path.
    New(PathBuf),
    /// The folder of an existing run.
    Resumed(PathBuf),
}

impl PlannedRun {
    /// Resolves the settings, or reads those of the run to resume.
    pub(super) fn resolve(args: &TrainArgs) -> Result<Self> {
        if args.resume {
            return Self::resumed(args);
        }
        let target = match &args.name {
            Some(name) => RunTarget::New(args.runs_dir.join(folder_name(name)?)),
            None => RunTarget::NextIn(args.runs_dir.clone()),
        };
        let config = config::resolve(&args.config)?;
        if let RunTarget::New(path) = &target
            && path.join(SETTINGS).exists()
        {
            check_is_of_train(path).map_err(WrongSettings)?;
            if args.or_resume {
                return Self::continued(config, path.clone());
            }
            bail!(
                "{} contains a run already; continue it with `{}`, or choose another --name",
                path.display(),
                resume_command(path)
            );
        }
        if let RunTarget::New(path) = &target {
            check_is_new_or_run(path)?;
        }
        Ok(Self { config, target })
    }

    /// Resumes the run in a folder, which must have these settings.
    fn continued(config: RunConfig, path: PathBuf) -> Result<Self> {
        let earlier = RunConfig::read(&path.join(SETTINGS))
            .with_context(|| format!("{} cannot be resumed", path.display()))?;
        ensure!(
            config::to_toml(&earlier)? == config::to_toml(&config)?,
            WrongSettings(anyhow!(
                "{} has other settings than this command; give the settings of its {SETTINGS}, or \
                 choose another --name",
                path.display()
            ))
        );
        Ok(Self {
            config,
            target: RunTarget::Resumed(path),
        })
    }

    fn resumed(args: &TrainArgs) -> Result<Self> {
        let mut given = args.config.clone();
        let data = given.data.take();
        ensure!(
            given == ConfigArgs::default(),
            WrongSettings(anyhow!(
                "--resume uses the settings of the run; remove --preset, --config, --set, --seed, \
                 --databases and --model, or start a new run"
            ))
        );
        let name = match &args.name {
            Some(name) => name.clone(),
            None => newest(&args.runs_dir)?,
        };
        let path = args.runs_dir.join(name);
        let config = RunConfig::read(&path.join(SETTINGS))
            .with_context(|| format!("{} cannot be resumed", path.display()))?;
        check_is_of_train(&path).map_err(WrongSettings)?;
        ensure!(
            data.is_none() || data == config.data.dir,
            WrongSettings(anyhow!(
                "--resume uses the data of the run; remove --data, or start a new run"
            ))
        );
        Ok(Self {
            config,
            target: RunTarget::Resumed(path),
        })
    }

    /// Creates the folder of the new run, or opens the folder of the run to resume.
    pub(super) fn open(self, progress: &Progress, live: LiveRun) -> Result<OpenRun> {
        let is_new = !matches!(self.target, RunTarget::Resumed(_));
        let path = match self.target {
            RunTarget::NextIn(runs_dir) => make_next(&runs_dir)?,
            RunTarget::New(path) | RunTarget::Resumed(path) => path,
        };
        let folder = RunFolder::create(&path)?;
        if is_new {
            folder.write_config(&config::to_toml(&self.config)?)?;
        }
        progress.print(&format!("run folder: {}", path.display()));
        let known = folder.read()?;
        Ok(OpenRun {
            name: path.file_name().unwrap_or_default().display().to_string(),
            folder,
            config: self.config,
            info: known.info,
            timing: known.timing,
            live,
        })
    }
}

/// A run whose folder is open.
pub(super) struct OpenRun {
    pub(super) folder: RunFolder,
    pub(super) live: LiveRun,
    config: RunConfig,
    name: String,
    info: Option<RunInfo>,
    timing: Vec<StageTime>,
}

impl OpenRun {
    /// Records the model, the data and the command of the run, and returns them.
    pub(super) fn describe(&mut self, setup: &Setup, base: &Model) -> Result<RunInfo> {
        let mut questions = BTreeMap::new();
        for question in &setup.dataset.questions {
            *questions.entry(question.split.clone()).or_insert(0) += 1;
        }
        let config = &self.config;
        let placement = config.placement();
        let started = run_info(&self.name, config.seed, &config.model, placement, base)?;
        let mut info = RunInfo {
            dataset: setup.dataset.name.clone(),
            data_sha256: setup.data_sha256.clone(),
            databases: setup.dataset.databases.len() as u64,
            questions,
            warm_start: warm_start::description(&config.warm_start),
            eval_queries_in_train: Some(data::queries_in_train(&setup.dataset, "eval") as u64),
            ..started
        };
        check_data(self.info.as_ref(), &info)?;
        if let Some(earlier) = self.info.take() {
            // A resumed run keeps the command that started it.
            info.command = earlier.command;
        }
        self.folder.write_info(&info)?;
        self.info = Some(info.clone());
        Ok(info)
    }

    /// Waits for a stage and records its duration every few seconds, so that the folder of a killed
    /// run has it as well. The live page then shows what the stage has evaluated.
    pub(super) async fn timed<T>(
        &mut self,
        stage: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.timed_every(TIMING_EVERY, stage, work).await
    }

    async fn timed_every<T>(
        &mut self,
        every: Duration,
        stage: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (before, start) = (self.timing.clone(), now());
        let stage = stage.to_owned();
        let so_far = move || added(&before, &stage, start.elapsed().as_secs_f64());
        let (folder, timing) = (self.folder.clone(), so_far.clone());
        // A task of its own, since a training blocks the task that waits for it.
        let mut writer = JoinSet::new();
        writer.spawn(async move {
            loop {
                sleep(every).await;
                // The write at the end of the stage reports an error.
                let _ = folder.write_timing(&timing());
            }
        });
        let result = work.await;
        writer.shutdown().await;
        self.timing = so_far();
        let written = self.folder.write_timing(&self.timing);
        let value = result?;
        written?;
        self.live.evaluated(&self.folder);
        Ok(value)
    }

    /// Returns the command that continues the run.
    pub(super) fn resume_command(&self) -> String {
        resume_command(self.folder.path())
    }

    /// Records how the run ended.
    pub(super) fn close(&mut self, status: RunStatus) -> Result<()> {
        if let Some(info) = &mut self.info {
            info.status = status;
            self.folder.write_info(info)?;
        }
        Ok(())
    }
}

/// Returns the durations with `seconds` added to a stage.
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

/// Creates the first of `run-001`, `run-002`, ... that does not exist. Two processes never get the
/// same folder.
fn make_next(runs_dir: &Path) -> Result<PathBuf> {
    let context = || format!("cannot create a run folder in {}", runs_dir.display());
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

/// Returns the command that continues the run in a folder.
fn resume_command(folder: &Path) -> String {
    let runs_dir = folder.parent().unwrap_or(Path::new(""));
    let runs_dir = match runs_dir == Path::new(DEFAULT_RUNS_DIR) {
        true => String::new(),
        false => format!(" --runs-dir {}", shell_quoted(&runs_dir.to_string_lossy())),
    };
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "sqlenv train --resume --name {}{runs_dir}",
        shell_quoted(&name)
    )
}

/// Returns the name of a run if its folder lies in that of the runs.
///
/// # Errors
/// [`WrongSettings`].
pub(super) fn folder_name(name: &str) -> Result<&Path> {
    let path = Path::new(name);
    let is_below = |part| matches!(part, Component::Normal(_));
    ensure!(
        !name.is_empty() && path.components().all(is_below),
        WrongSettings(anyhow!(
            "--name {name:?} is not the name of a folder; give one such as `my-run`, and the \
             folder of the runs by --runs-dir"
        ))
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// As a supervised training does, for hours.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_stage_that_blocks_its_task_is_timed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path()).unwrap();
        let known = folder.clone();
        let mut run = OpenRun {
            folder,
            live: LiveRun::default(),
            config: RunConfig::default(),
            name: "run".to_owned(),
            info: None,
            timing: Vec::new(),
        };
        let deadline = now() + Duration::from_secs(60);
        let block = || {
            while known.read().unwrap().timing.is_empty() {
                assert!(now() < deadline, "no duration was written");
                thread::sleep(Duration::from_millis(1));
            }
            anyhow::Ok(known.read()?.timing)
        };
        let work = async { tokio::task::block_in_place(block) };
        let every = Duration::from_millis(1);
        let meanwhile = run.timed_every(every, "imitation", work).await.unwrap();
        assert_eq!(meanwhile[0].stage, "imitation");
        assert!(meanwhile[0].seconds <= run.timing[0].seconds);
    }
}
