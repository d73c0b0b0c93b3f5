//! `sqlenv pretrain`: makes a base policy, by imitating the oracle on procedural databases.
//!
//! A shard is a number of databases with their questions. Each is built, demonstrated, trained on
//! once and thrown away, so that no database is repeated and the disk holds one shard. In the last
//! shards the model also acts itself, and the oracle corrects it. After a shard there is a
//! checkpoint, from which the same command continues. The weights are a function of settings and
//! seed, whether the training was interrupted or not.

use std::{io::ErrorKind, ops::ControlFlow, path::Path, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use baselines::DemonstratorMix;
use candle_core::{DType, Device};
use data::{DataError, ProceduralData, WordShare};
use learner::{
    checkpoint::{self, CHECKPOINTS},
    sft::{SftProgress, SftTrainer},
};
use policy::{Model, durable, random::derive_seed};
use proto::v1::Segment;
use report::{DecodingMode, MESSY_SCHEMAS_SPLIT, NEW_WORDS_SPLIT, PolicyName, RunFolder, SETTINGS};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{Preset, PretrainArgs},
    config::{self, DataConfig, RunConfig},
    demonstrations::{QuestionRange, corrected_episodes, demonstrations},
    evaluation::{EvaluatedPolicy, Evaluator, copies, shuffled},
    progress::Progress,
    setup::{Setup, with_tools},
    shutdown::{Interrupted, read_unless_interrupted},
    supervised::{TrainingTotals, step_record},
};

/// The hashes of what the training starts from, in the format of sha256sum.
pub(crate) const MODEL_FILES: &str = "model.sha256";
const SHARD: &str = "shard";
const HELD_OUT: &str = "held-out";
const HELD_OUT_MESSY: &str = "held-out-messy";
const MODEL: &str = "model";
/// The weights of a model to start from.
const WEIGHTS: &str = "model.safetensors";
/// The number of held-out databases, and of the questions on each.
const HELD_OUT_SIZE: (usize, usize) = (100, 5);
/// One for all trainings, so that their evaluations can be compared.
const HELD_OUT_SEED: u64 = 0;

/// Trains a base policy, or continues the training in the folder.
pub(crate) async fn pretrain(
    args: &PretrainArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    // The presets of GRPO have a hundredth of the learning rate that random weights need here.
    let config: RunConfig = config::resolve_with(&args.config, Preset::Base)?;
    let (start, architecture) = (config.model.dir.clone(), args.architecture.clone());
    let seed = derive_seed(config.seed, "weights");
    let open = move || initial_model(start.as_deref(), architecture.as_deref(), seed);
    let base = read_unless_interrupted(&shutdown, open).await?;
    let folder = RunFolder::create(&args.out)?;
    // Checked before the training, so that its result is not lost, and under the lock of the
    // folder, since the check removes what an interrupted save has left.
    let out = args.out.join(MODEL);
    Model::check_target(&out).context("--out")?;
    let settings = folder.path().join(SETTINGS);
    keep_same(&settings, &config::to_toml(&config)?, "settings")?;
    let model_files = folder.path().join(MODEL_FILES);
    keep_same(
        &model_files,
        &sha256_of(&base, config.model.dir.as_deref())?,
        "model files",
    )?;
    let pretraining = Pretraining {
        config: &config,
        folder: &folder,
        progress,
        shutdown: &shutdown,
    };
    let model = pretraining.run(&base).await?;
    model.save(&out)?;
    let report = folder.path().join("report.html");
    progress.print(&format!(
        "model: {}\nreport: {}",
        out.display(),
        report.display()
    ));
    Ok(())
}

/// Writes what a new training starts from. A training that continues must start from the same.
fn keep_same(path: &Path, content: &str, what: &str) -> Result<()> {
    match std::fs::read_to_string(path) {
        Ok(known) => ensure!(
            known == content,
            "{} was written with other {what}; give the same, or another --out",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            durable::replace_file(path, content.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Err(error) => bail!("cannot read {}: {error}", path.display()),
    }
    Ok(())
}

/// Returns a line for each file of a model: the hash and the name. Weights are a file if they come
/// from the folder `start`.
fn sha256_of(model: &Model, start: Option<&Path>) -> Result<String> {
    let line = |hash: &str, name: &str| format!("{hash}  {name}\n");
    let of_file =
        |(name, content): &(String, Vec<u8>)| line(&hex::encode(Sha256::digest(content)), name);
    let mut lines: Vec<String> = model.files.iter().map(of_file).collect();
    if let Some(dir) = start {
        let path = dir.join(WEIGHTS);
        let (hash, _) =
            data::file_sha256(&path).with_context(|| format!("cannot read {}", path.display()))?;
        lines.push(line(&hash, WEIGHTS));
    }
    lines.sort();
    Ok(lines.concat())
}

/// Returns the model in `start`, or one of `architecture` with random weights.
fn initial_model(start: Option<&Path>, architecture: Option<&Path>, seed: u64) -> Result<Model> {
    Ok(match (start, architecture) {
        (Some(dir), _) => with_tools(Model::open(dir, &Device::Cpu, DType::F32)?, dir)?,
        (None, Some(dir)) => with_tools(Model::random(dir, seed)?, dir)?,
        (None, None) => policy::embedded::model(seed)?,
    })
}

struct Pretraining<'a> {
    config: &'a RunConfig,
    folder: &'a RunFolder,
    progress: &'a Progress,
    shutdown: &'a CancellationToken,
}

impl Pretraining<'_> {
    async fn run(&self, base: &Model) -> Result<Model> {
        let settings = &self.config.pretrain;
        let placed = self.config.placement().place(base)?;
        let arguments = self
            .config
            .arguments(derive_seed(self.config.seed, "pretrain"));
        let mut trainer = SftTrainer::new(&placed, &settings.sft, arguments)?;
        let checkpoints = self.folder.path().join(CHECKPOINTS);
        let mut done = 0;
        if let Some(newest) = checkpoint::load_latest(&checkpoints)? {
            trainer.restore(&newest)?;
            done = newest.state.step;
            self.progress
                .print(&format!("continuing after shard {done}"));
        }
        loop {
            let model = trained(base, &trainer)?;
            let is_last = done == settings.shards;
            let is_due = done.is_multiple_of(settings.evaluate_every_shards) && done > 0;
            if is_last || is_due {
                self.evaluate(&model, trainer.steps()).await?;
                report::write(self.folder.path())?;
            }
            if is_last {
                return Ok(model);
            }
            let episodes = self.shard(&model, done).await?;
            self.train(&mut trainer, done, &episodes)?;
            done += 1;
            trainer.save(&checkpoints, done, base)?;
        }
    }

    /// Builds the databases of a shard and returns the demonstrations of its questions. `model` is
    /// the one trained so far.
    async fn shard(&self, model: &Model, shard: u64) -> Result<Vec<Segment>> {
        let settings = &self.config.pretrain;
        let dir = self.folder.path().join(SHARD);
        let wanted = ProceduralData {
            seed: self.config.seed,
            first: shard as usize * settings.databases_per_shard,
            databases: settings.databases_per_shard,
            questions: settings.questions_per_database,
            words: WordShare::Training,
            declared_percent: settings.declared_percent,
            messy_percent: match shard < settings.tidy_shards {
                true => 0,
                false => settings.messy_percent,
            },
            is_simple: shard < settings.simple_shards,
        };
        let stage = self
            .progress
            .stage("databases", wanted.databases as u64, "databases");
        self.build(&dir, &wanted, |done| stage.set(done as u64))?;
        stage.finish("");
        let config = RunConfig {
            data: DataConfig {
                dir: Some(dir),
                databases: None,
            },
            ..self.config.clone()
        };
        let setup = Setup::open(&config, self.progress)?;
        let evaluator = self.evaluator(&config, &setup);
        let mix = DemonstratorMix {
            error_share: settings.recovery_share,
            detour_share: settings.recovery_share,
            looks_at_rows: true,
            ..DemonstratorMix::default()
        };
        let name = format!("shard {shard}");
        let range = QuestionRange::ALL;
        let mut episodes = demonstrations(&evaluator, &name, model, mix, range).await?;
        if shard + settings.corrected_shards >= settings.shards {
            let questions = settings.corrected_episodes;
            episodes.extend(corrected_episodes(&evaluator, &name, model, 0, questions).await?);
        }
        Ok(episodes)
    }

    fn evaluator<'a>(&'a self, config: &'a RunConfig, setup: &'a Setup) -> Evaluator<'a> {
        Evaluator {
            config,
            setup,
            progress: self.progress,
            shutdown: self.shutdown,
        }
    }

    fn train(&self, trainer: &mut SftTrainer<'_>, shard: u64, episodes: &[Segment]) -> Result<()> {
        let settings = &self.config.pretrain;
        let tokens = episodes
            .iter()
            .map(|episode| episode.tokens.len() as u64)
            .sum::<u64>();
        let title = format!("shard {} of {}", shard + 1, settings.shards);
        let stage = self.progress.stage(&title, tokens, "tokens");
        let (before, mut losses, mut last) = (trainer.tokens(), Vec::new(), None);
        let finished = tokio::task::block_in_place(|| {
            trainer.train_shard(shard, episodes, settings.planned_steps(), &mut |state| {
                stage.note(&format!("loss {:.3}", state.loss));
                stage.set(state.tokens - before);
                losses.push(state.loss);
                last = Some(state);
                match self.shutdown.is_cancelled() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
        })?;
        if !finished {
            bail!(Interrupted);
        }
        let mean = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        stage.finish(&format!("loss {mean:.4}"));
        last.map_or(Ok(()), |state| self.record(&state, mean))
    }

    /// Records a shard. Its loss is the mean over its updates.
    fn record(&self, state: &SftProgress, loss: f64) -> Result<()> {
        let record = step_record(TrainingTotals::default(), state, loss);
        Ok(self.folder.append_step(&record)?)
    }

    /// Evaluates on procedural databases of held-out words, and on what the project's own data has
    /// unseen.
    async fn evaluate(&self, model: &Model, step: u64) -> Result<()> {
        let words = self.held_out_data(HELD_OUT, 0)?;
        let own = self.config.data.clone();
        let mut evaluations = vec![
            (words, NEW_WORDS_SPLIT, NEW_WORDS_SPLIT),
            (own.clone(), "eval-unseen/database", "eval-unseen/database"),
            (own, "eval-unseen/domain", "eval-unseen/domain"),
        ];
        if self.config.pretrain.messy_percent > 0 {
            let messy = self.held_out_data(HELD_OUT_MESSY, 100)?;
            evaluations.push((messy, NEW_WORDS_SPLIT, MESSY_SCHEMAS_SPLIT));
        }
        for (data, split, recorded_as) in evaluations {
            self.evaluate_split(model, step, data, split, recorded_as)
                .await?;
        }
        Ok(())
    }

    async fn evaluate_split(
        &self,
        model: &Model,
        step: u64,
        data: DataConfig,
        split: &str,
        recorded_as: &str,
    ) -> Result<()> {
        let evaluated = EvaluatedPolicy {
            policy: PolicyName::Base,
            step,
            mode: DecodingMode::Greedy,
        };
        if evaluated.is_recorded(self.folder, recorded_as)? {
            return Ok(());
        }
        let config = RunConfig {
            data,
            ..self.config.clone()
        };
        let setup = Setup::open(&config, self.progress)?;
        let mut questions = shuffled(&setup, split);
        if questions.is_empty() {
            let message = format!("no question has the split {split}, so it is not evaluated");
            self.progress.print(&message);
            return Ok(());
        }
        questions.truncate(config.evaluation.questions);
        let evaluator = self.evaluator(&config, &setup);
        let engines = evaluator.engines(model, step)?;
        let chat = Arc::new(model.chat.clone());
        let policies = evaluator.models(&engines, &chat, DecodingMode::Greedy)?;
        let (evaluation, _) = evaluator
            .evaluate(
                evaluated,
                &copies(&policies),
                &chat,
                recorded_as,
                &questions,
            )
            .await?;
        self.folder.append_evaluation(&evaluation)?;
        Ok(())
    }

    /// Builds held-out databases, unless they exist.
    fn held_out_data(&self, folder: &str, messy_percent: u64) -> Result<DataConfig> {
        let dir = self.folder.path().join(folder);
        if !dir.is_dir() {
            let wanted = ProceduralData {
                seed: HELD_OUT_SEED,
                first: 0,
                databases: HELD_OUT_SIZE.0,
                questions: HELD_OUT_SIZE.1,
                words: WordShare::HeldOut,
                declared_percent: 0,
                messy_percent,
                is_simple: false,
            };
            self.build(&dir, &wanted, |_| {})
                .context("building the held-out databases")?;
        }
        Ok(DataConfig {
            dir: Some(dir),
            databases: None,
        })
    }

    /// Builds databases, and calls `show` with the number of those that are done. A signal stops
    /// it after the database at hand.
    fn build(&self, dir: &Path, wanted: &ProceduralData, show: impl Fn(usize)) -> Result<()> {
        let built = data::build_procedural(dir, wanted, &mut |done, _| {
            show(done);
            match self.shutdown.is_cancelled() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        match built {
            Ok(_) => Ok(()),
            Err(DataError::Stopped) => bail!(Interrupted),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the model with the trainer's weights.
fn trained(base: &Model, trainer: &SftTrainer<'_>) -> Result<Model> {
    Ok(Model {
        weights: trainer.weights().to(&Device::Cpu, DType::F32)?,
        ..base.clone()
    })
}
