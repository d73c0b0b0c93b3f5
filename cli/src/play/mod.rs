//! `sqlenv play`: a person plays one episode, or watches a policy play it.

mod model;
mod person;

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use data::Dataset;
use policy::random::derive_seed;
use proto::{EnvClient, env_client, v1::Question};

use crate::{
    args::{PlayArgs, PlayPolicy},
    config::RunConfig,
    eval_command::settings_for_model,
    evaluation::questions,
    progress::Progress,
    setup::{self, Setup},
};

/// The largest file that is checked before a question is asked about it. Larger ones would take
/// seconds to read.
const MAX_CHECKED_BYTES: u64 = 1 << 30;

/// The question, and the environment that serves it.
struct Asked {
    env: EnvClient,
    question: Question,
    /// The same with its answer, if that is known.
    gold: Option<data::Question>,
}

/// Plays one episode.
pub(crate) async fn play(args: &PlayArgs, progress: &Progress) -> Result<()> {
    let config = settings_for_model(&args.config, progress)?;
    let model = config.model.dir.is_some().then_some(PlayPolicy::Model);
    if let Some(policy) = args.policy.or(model) {
        return model::play(args, policy, config, progress).await;
    }
    ensure!(
        args.database.is_none(),
        "--database needs a policy that answers; give --policy base, or --model DIR"
    );
    let asked = ask(args, &config, progress).await?;
    person::play(asked, &config.learner.rollout).await
}

/// Opens what the command line names: a file with a question of the user, an env-node, or data.
async fn ask(args: &PlayArgs, config: &RunConfig, progress: &Progress) -> Result<Asked> {
    if let (Some(database), Some(question)) = (&args.database, &args.ask) {
        let dataset = own_question(database, question)?;
        let setup = Setup::of_dataset(dataset, config, progress)
            .with_context(|| format!("--database {} cannot be used", database.display()))?;
        warn_of_faults(&setup.dataset, database, progress)?;
        return Ok(Asked {
            question: env_node::question(&setup.dataset.questions[0]),
            env: setup.env_client(),
            gold: None,
        });
    }
    // The questions are those of the env-node, so no data is needed here. Gold answers are known
    // only if somebody gives the data.
    if let (Some(address), None) = (&args.env, &config.data.dir) {
        let env = env_client(setup::dial_serving_env(address, &args.env_credentials).await?);
        return Ok(Asked {
            question: served_question(args, &env, config.seed).await?,
            env,
            gold: None,
        });
    }
    let mut setup = Setup::open(config, progress)?;
    if let Some(address) = &args.env {
        setup.play_on(address, &args.env_credentials).await?;
    }
    let id = match &args.question {
        Some(id) => id.clone(),
        None => {
            let mut questions = questions(&setup, &args.split)?;
            let index = drawn_index(questions.len(), config.seed);
            questions.swap_remove(index).question_id
        }
    };
    let mut questions = setup.dataset.questions.iter();
    let gold = questions
        .find(|question| question.question_id == id)
        .with_context(|| format!("--question {id}: the data has no such question"))?;
    Ok(Asked {
        question: env_node::question(gold),
        gold: Some(gold.clone()),
        env: setup.env_client(),
    })
}

/// Opens a file of the user, and asks a question about it.
fn own_question(database: &Path, question: &str) -> Result<Dataset> {
    ensure!(
        !question.trim().is_empty(),
        "-q is empty; give a question, for example -q \"How many orders are there?\""
    );
    ensure!(
        !database.is_dir(),
        "--database {}: is a folder; import CSV files by `sqlenv data import DIR --database \
         FOLDER`, and give DIR/databases/NAME/NAME.sqlite",
        database.display()
    );
    ensure!(
        database.is_file(),
        "--database {}: no such file; give a SQLite file",
        database.display()
    );
    // The environment reads the file alone, and would not see these changes.
    if let Some(log) = data::unread_log(database) {
        bail!(
            "{} holds changes that {} does not have yet; close the programs that write the \
             database, or make a copy with `VACUUM INTO`",
            log.display(),
            database.display()
        );
    }
    Ok(Dataset::of_question(database, question)?)
}

/// Prints what is wrong with a file, such as the damage of a broken download: answers may be wrong.
fn warn_of_faults(dataset: &Dataset, database: &Path, progress: &Progress) -> Result<()> {
    if database.metadata()?.len() <= MAX_CHECKED_BYTES {
        for fault in data::faults(dataset)? {
            progress.print(&format!("warning: answers may be wrong: {fault}"));
        }
    }
    Ok(())
}

/// Returns the question to play of those that an env-node serves.
async fn served_question(args: &PlayArgs, env: &EnvClient, seed: u64) -> Result<Question> {
    let address = args.env.as_deref().unwrap_or_default();
    let split = match &args.question {
        Some(_) => "",
        None => &args.split,
    };
    let listed = actor::list_questions(env, split, &actor::Retry::default()).await;
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

/// Draws one of `count` questions.
fn drawn_index(count: usize, seed: u64) -> usize {
    derive_seed(seed, "play") as usize % count
}

/// Returns the answer of a question and the SQL that it was made from.
fn gold_text(question: &data::Question) -> String {
    let (answer, sql) = (data::answer_text(question), &question.gold_sql);
    format!("Gold answer: {answer}\nGold SQL: {sql}\n")
}
