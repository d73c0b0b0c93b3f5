//! `sqlenv play`: lets a person act in place of the policy.

use std::io::stdin;

use anyhow::Result;
use policy::random::derive_seed;
use proto::v1::ResetRequest;

use crate::{
    args::PlayArgs,
    config::RunConfig,
    evaluation::questions,
    play::{self, RevealedGold},
    play_policy,
    progress::Progress,
    setup::Setup,
    stdout,
};

/// Plays one episode on stdin and stdout.
pub(crate) async fn play(args: &PlayArgs, progress: &Progress) -> Result<()> {
    let config = RunConfig::resolve(&args.config)?;
    if let Some(policy) = args.policy {
        return play_policy::play(args, policy, config, progress).await;
    }
    let mut setup = Setup::open(&config, progress)?;
    if let Some(address) = &args.env {
        setup.play_on(address, &args.env_credentials).await?;
    }
    let request = ResetRequest {
        question_id: choose(args, &setup, config.seed)?,
        ..ResetRequest::default()
    };
    let gold = |id: &str| {
        let question = setup
            .dataset
            .questions
            .iter()
            .find(|question| question.question_id == id)?;
        Some(RevealedGold {
            sql: question.gold_sql.clone(),
            answer: data::answer_text(question),
        })
    };
    play::play(
        setup.env.clone(),
        request,
        gold,
        stdin().lock(),
        stdout::lock(),
    )
    .await?;
    Ok(())
}

/// Returns the id of the question to play.
pub(crate) fn choose(args: &PlayArgs, setup: &Setup, seed: u64) -> Result<String> {
    if let Some(id) = &args.question {
        return Ok(id.clone());
    }
    let questions = questions(setup, &args.split)?;
    let index = derive_seed(seed, "play") as usize % questions.len();
    Ok(questions[index].question_id.clone())
}
