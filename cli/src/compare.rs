//! `sqlenv compare`: several policies on the same questions, in one table.

mod compared_policy;
mod shared_settings;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use actor::{EpisodeRecord, EvaluationMetrics, Policy};
use anyhow::{Context as _, Result, bail, ensure};
use bench::at_least_one;
use clap::{Parser, value_parser};
use policy::random::derive_seed;
use proto::v1::Question;
use report::{ComparisonRow, DecodingMode, PolicyComparison};
use tokio_util::sync::CancellationToken;

use self::{
    compared_policy::{ComparedPolicy, Kind, OpenPolicy},
    shared_settings::SharedSettings,
};
use crate::{
    args::{ConfigArgs, EnvCredentials, shots},
    config::{RunConfig, WrongSettings},
    evaluation::{EvaluationQuestions, Evaluator, success_text, table_questions},
    out_file,
    progress::Progress,
    setup::Setup,
    stdout,
};

#[derive(Clone, Debug, Parser)]
pub(crate) struct CompareArgs {
    /// Policies, the first of which the others are compared with: `random`, `oracle`, `base`, a
    /// model folder, a run folder, ORG/NAME in Hugging Face's cache, or `openai:URL,MODEL` for a
    /// model behind a chat API.
    #[arg(required = true, value_name = "POLICY")]
    pub(crate) policies: Vec<String>,
    /// Settings and data. Each run's model has the limits of its run.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Splits, separated by commas.
    #[arg(
        long = "split",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "eval"
    )]
    pub(crate) splits: Vec<String>,
    /// Numbers of solved examples before each question, separated by commas: 0, 1 or 3. Scripted
    /// policies have none. Default: those of the settings.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = shots)]
    pub(crate) shots: Option<Vec<u32>>,
    /// Largest number of questions of a split; their ids decide, so they are always the same.
    /// Default: those of the first run's report, or all if no run is compared.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) questions: Option<usize>,
    /// Samples of each question besides greedy decoding, for pass@k.
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = value_parser!(u32).range(..=256))]
    pub(crate) samples: u32,
    /// Temperature of the samples.
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub(crate) temperature: f32,
    /// Env-node (http://HOST:PORT), or several separated by commas; default: one in this process.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) env: Option<String>,
    #[command(flatten)]
    pub(crate) env_credentials: EnvCredentials,
    /// File with the key of the chat API.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Write the comparison as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the comparison as a page to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Compares and prints the table.
pub(crate) async fn compare(args: &CompareArgs, progress: &Progress) -> Result<()> {
    check(args).map_err(WrongSettings)?;
    let kinds = Kind::parse_all(args)?;
    let mut shared = SharedSettings::read(args, &kinds)?;
    set_temperature(&mut shared.config, args.temperature).map_err(WrongSettings)?;
    let config = &shared.config;
    out_file::check_two([
        ("--json", args.json.as_deref()),
        ("--html", args.html.as_deref()),
    ])?;
    // All are tried first: what is misspelt or broken is found before hours of work.
    let policies = compared(args, kinds, &shared)?;
    for policy in &policies {
        let tried = policy.try_out().await;
        tried.with_context(|| format!("{} cannot be compared", policy.name))?;
    }
    if let Some(run) = shared.run() {
        progress.print(&format!("settings: those of {run}"));
    }
    let mut setup = Setup::open(config, progress)?;
    shared.report_other_data(&setup, progress);
    if let Some(address) = &args.env {
        setup.play_on(address, &args.env_credentials).await?;
    }
    let mut comparison = PolicyComparison {
        dataset: setup.dataset.name.clone(),
        data_sha256: setup.data_sha256.clone(),
        seed: config.seed,
        temperature: config.learner.rollout.sampling.temperature,
        questions: BTreeMap::new(),
        rows: Vec::new(),
    };
    let chosen = chosen_questions(args, &shared, &setup)?;
    for (split, questions) in &chosen {
        let ids = questions.iter().map(|it| it.question_id.clone());
        comparison.questions.insert(split.clone(), ids.collect());
    }
    let round = Round {
        args,
        setup: &setup,
        progress,
        shutdown: CancellationToken::new(),
    };
    for policy in &policies {
        let played = round.play(policy, &chosen, &mut comparison).await;
        // Hours of work must not be lost to a policy that fails.
        let has_rows = !comparison.rows.is_empty();
        if has_rows {
            write(args, &comparison)?;
        }
        if let Err(fault) = played {
            if has_rows {
                stdout::print(comparison.text())?;
            }
            return Err(fault).with_context(|| format!("{} is not compared", policy.name));
        }
    }
    stdout::print(comparison.text())
}

/// Checks the arguments.
fn check(args: &CompareArgs) -> Result<()> {
    ensure!(
        args.config.model.is_none(),
        "--model is for other commands; name the models before the options: `sqlenv compare base \
         FOLDER`"
    );
    refuse_repetition("POLICY", &args.policies)?;
    refuse_repetition("--split", &args.splits)?;
    refuse_repetition("--shots", args.shots.as_deref().unwrap_or_default())
}

fn set_temperature(config: &mut RunConfig, temperature: f32) -> Result<()> {
    ensure!(
        temperature > 0.0 && temperature.is_finite(),
        "--temperature is {temperature}; greedy decoding is always in the table, and samples need \
         a temperature above 0"
    );
    let sampling = &mut config.learner.rollout.sampling;
    sampling.temperature = temperature;
    sampling.validate().context("--temperature cannot be used")
}

/// Returns the policies with their settings.
fn compared<'a>(
    args: &'a CompareArgs,
    kinds: Vec<Kind>,
    shared: &SharedSettings,
) -> Result<Vec<ComparedPolicy<'a>>> {
    let with_settings = |(name, kind): (&'a String, Kind)| {
        Ok(ComparedPolicy {
            name,
            config: shared.of_policy(args, name, &kind)?,
            kind,
        })
    };
    args.policies.iter().zip(kinds).map(with_settings).collect()
}

/// A policy that plays twice would make two equal rows.
fn refuse_repetition<T: fmt::Display + Ord>(what: &str, values: &[T]) -> Result<()> {
    let mut seen = BTreeSet::new();
    match values.iter().find(|value| !seen.insert(*value)) {
        Some(value) => bail!("{what} {value} is given twice; give it once"),
        None => Ok(()),
    }
}

/// Returns the questions of each split: those of the run's report, if settings of a run are used
/// and no number is given.
fn chosen_questions(
    args: &CompareArgs,
    shared: &SharedSettings,
    setup: &Setup,
) -> Result<Vec<(String, Vec<Question>)>> {
    let of_report = (args.questions.is_none() && shared.run().is_some())
        .then(|| EvaluationQuestions::draw(&shared.config.evaluation, &setup.questions()));
    let of_split = |split: &String| {
        let reported = of_report.as_ref().map(|it| it.of_split(split));
        let questions = match reported.filter(|questions| !questions.is_empty()) {
            Some(questions) => questions,
            None => table_questions(setup, split, args.questions)?,
        };
        Ok((split.clone(), questions))
    };
    args.splits.iter().map(of_split).collect()
}

/// What all policies of a comparison share.
struct Round<'a> {
    args: &'a CompareArgs,
    setup: &'a Setup,
    progress: &'a Progress,
    /// A signal ends the process at once, so nothing cancels it.
    shutdown: CancellationToken,
}

impl Round<'_> {
    fn evaluator<'b>(&'b self, config: &'b RunConfig) -> Evaluator<'b> {
        Evaluator {
            config,
            setup: self.setup,
            progress: self.progress,
            shutdown: &self.shutdown,
        }
    }

    /// Adds the rows of a policy: one for each number of examples and split.
    async fn play(
        &self,
        policy: &ComparedPolicy<'_>,
        chosen: &[(String, Vec<Question>)],
        comparison: &mut PolicyComparison,
    ) -> Result<()> {
        let mut open = policy.open(self)?;
        for shots in policy.shots(self.args.shots.as_deref()) {
            open.config.learner.rollout.shots = shots;
            for (split, questions) in chosen {
                let (row, samples) = self.row(&open, split, questions).await?;
                comparison.push(row, &samples);
            }
        }
        Ok(())
    }

    /// Plays the questions of a split with greedy decoding, and as often as there are samples.
    /// Returns for each sample which questions were answered.
    async fn row(
        &self,
        open: &OpenPolicy<'_>,
        split: &str,
        questions: &[Question],
    ) -> Result<(ComparisonRow, Vec<Vec<bool>>)> {
        let (policy, shots) = (open.policy, open.config.learner.rollout.shots);
        let title = format!("{} on {split}, {shots} shots", policy.name);
        let seed = derive_seed(open.config.seed, "evaluation");
        let played = self.evaluate(&title, open, DecodingMode::Greedy, questions, seed);
        let (metrics, episodes) = played.await?;
        let mut samples = Vec::new();
        for number in 1..=policy.samples(self.args.samples) {
            let title = format!("{title}, sample {number}");
            let seed = derive_seed(open.config.seed, &format!("sample {number}"));
            let played = self.evaluate(&title, open, DecodingMode::Sampled, questions, seed);
            samples.push(correct(&played.await?.1));
        }
        let row = ComparisonRow {
            policy: policy.name.to_owned(),
            shots,
            split: split.to_owned(),
            limits: open.limits(),
            greedy: metrics,
            correct: correct(&episodes),
            against_first: None,
            sampled: None,
        };
        Ok((row, samples))
    }

    /// Plays each question once.
    async fn evaluate(
        &self,
        title: &str,
        open: &OpenPolicy<'_>,
        mode: DecodingMode,
        questions: &[Question],
        seed: u64,
    ) -> Result<(EvaluationMetrics, Vec<EpisodeRecord>)> {
        let stage = self
            .progress
            .stage(title, questions.len() as u64, "episodes");
        let evaluator = self.evaluator(&open.config);
        let settings = evaluator.episode_settings(&open.chat);
        let concurrency = open.config.evaluation.concurrency;
        let on_done = |done: usize| stage.set(done as u64);
        let (metrics, episodes) = match open.chat_api(mode) {
            Some(api) => {
                actor::evaluate_chat(&api, &settings, questions, seed, concurrency, on_done).await
            }
            None => {
                let name = open.policy.kind.reported();
                let policies = evaluator.policies(name, &open.engines, &open.chat, mode)?;
                let policies: Vec<&dyn Policy> = policies.iter().map(|it| &**it).collect();
                actor::evaluate(&policies, &settings, questions, seed, concurrency, on_done).await
            }
        };
        stage.finish(&success_text(&metrics, &episodes));
        let failed = episodes.iter().find(|episode| !episode.failure.is_empty());
        if let Some(first) = failed.filter(|_| metrics.failed == questions.len() as u64) {
            bail!(
                "every episode of {} failed: {}",
                open.policy.name,
                first.failure
            );
        }
        Ok((metrics, episodes))
    }
}

fn correct(episodes: &[EpisodeRecord]) -> Vec<bool> {
    episodes.iter().map(|episode| episode.correct).collect()
}

fn write(args: &CompareArgs, comparison: &PolicyComparison) -> Result<()> {
    if let Some(path) = &args.json {
        out_file::write_json(path, comparison)?;
    }
    if let Some(path) = &args.html {
        out_file::write(path, comparison.page() + "\n")?;
    }
    Ok(())
}
