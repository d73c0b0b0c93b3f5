//! `sqlenv play`: lets a person act in place of the policy.

use std::io::{IsTerminal as _, Write, stdin};

use anyhow::{Context as _, Result, ensure};
use data::Dataset;
use policy::random::derive_seed;
use proto::{
    EnvClient,
    v1::{Question, ResetRequest},
};
use rustyline::{DefaultEditor, error::ReadlineError};

use crate::{
    args::{PlayArgs, PlayPolicy},
    config::RunConfig,
    eval_command::settings_for_model,
    evaluation::questions,
    play::{self, PlayerLines, RevealedGold},
    play_policy,
    progress::Progress,
    setup::{self, Setup},
    stdout,
};

/// Plays one episode on the terminal, or on stdin and stdout.
pub(crate) async fn play(args: &PlayArgs, progress: &Progress) -> Result<()> {
    let config = settings_for_model(&args.config, progress)?;
    let model = config.model.dir.is_some().then_some(PlayPolicy::Model);
    if let Some(policy) = args.policy.or(model) {
        return play_policy::play(args, policy, config, progress).await;
    }
    ensure!(
        args.database.is_none(),
        "--database needs a policy that answers; give --policy base, or --model DIR"
    );
    // The questions are those of the env-node, so no data is needed here. Gold answers are known
    // only if somebody gives the data.
    if args.env.is_some() && config.data.dir.is_none() {
        return play_remote(args, &config).await;
    }
    let mut setup = Setup::open(&config, progress)?;
    if let Some(address) = &args.env {
        setup.play_on(address, &args.env_credentials).await?;
    }
    let request = ResetRequest {
        question_id: choose(args, &setup, config.seed)?,
        ..ResetRequest::default()
    };
    let gold = |id: &str| gold_of(&setup.dataset, id);
    run(setup.env.clone(), request, gold).await
}

/// Plays a question of an env-node.
async fn play_remote(args: &PlayArgs, config: &RunConfig) -> Result<()> {
    let address = args.env.as_deref().unwrap_or_default();
    let env = setup::dial_serving_env(address, &args.env_credentials).await?;
    let request = ResetRequest {
        question_id: served_question(args, &env, config.seed).await?.question_id,
        ..ResetRequest::default()
    };
    run(env, request, |_| None).await
}

/// Returns the question to play of those that an env-node serves.
pub(crate) async fn served_question(
    args: &PlayArgs,
    env: &EnvClient,
    seed: u64,
) -> Result<Question> {
    let address = args.env.as_deref().unwrap_or_default();
    let split = match &args.question {
        Some(_) => "",
        None => &args.split,
    };
    let listed = actor::list_questions(env, split).await;
    let mut listed =
        listed.with_context(|| format!("cannot list the questions of --env {address}"))?;
    match &args.question {
        Some(id) => {
            let found = listed.into_iter().find(|it| it.question_id == *id);
            found.with_context(|| format!("--question {id}: --env {address} has no such question"))
        }
        None => {
            ensure!(
                !listed.is_empty(),
                "--env {address} has no question of {split:?}"
            );
            Ok(listed.swap_remove(drawn_index(listed.len(), seed)))
        }
    }
}

/// Plays on the terminal, where lines can be edited, or on stdin.
async fn run(
    env: EnvClient,
    request: ResetRequest,
    gold: impl FnOnce(&str) -> Option<RevealedGold>,
) -> Result<()> {
    if stdin().is_terminal() {
        let lines = TerminalLines::new()?;
        play::play(env, request, gold, lines, stdout::lock()).await?;
    } else {
        play::play(env, request, gold, stdin().lock(), stdout::lock()).await?;
    }
    Ok(())
}

fn gold_of(dataset: &Dataset, id: &str) -> Option<RevealedGold> {
    let mut questions = dataset.questions.iter();
    let question = questions.find(|question| question.question_id == id)?;
    Some(RevealedGold {
        sql: question.gold_sql.clone(),
        answer: data::answer_text(question),
    })
}

/// Returns the id of the question to play.
pub(crate) fn choose(args: &PlayArgs, setup: &Setup, seed: u64) -> Result<String> {
    match &args.question {
        Some(id) => Ok(id.clone()),
        None => {
            let mut questions = questions(setup, &args.split)?;
            let index = drawn_index(questions.len(), seed);
            Ok(questions.swap_remove(index).question_id)
        }
    }
}

/// Draws one of `count` questions.
fn drawn_index(count: usize, seed: u64) -> usize {
    derive_seed(seed, "play") as usize % count
}

/// Lines of a terminal that can be edited, with those before them (arrow keys).
struct TerminalLines(DefaultEditor);

impl TerminalLines {
    fn new() -> Result<Self> {
        Ok(Self(
            DefaultEditor::new().context("cannot use the terminal")?,
        ))
    }
}

impl PlayerLines for TerminalLines {
    fn ask(&mut self, output: &mut impl Write) -> Result<Option<String>> {
        writeln!(output)?;
        output.flush()?;
        match self.0.readline("> ") {
            Ok(line) => {
                // A line that cannot be remembered can still be played.
                let _ = self.0.add_history_entry(line.as_str());
                Ok(Some(line))
            }
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
            Err(fault) => Err(fault).context("cannot read from the terminal"),
        }
    }
}
