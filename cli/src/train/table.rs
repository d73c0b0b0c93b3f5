//! The evaluations of the comparison table.

use std::sync::Arc;

use actor::Policy;
use anyhow::Result;
use policy::{Chat, Model};
use proto::v1;
use report::{DecodingMode, PolicyName, RunFolder};

use crate::evaluation::{EvaluatedPolicy, EvaluationQuestions, Evaluator, copies};

/// The split of new questions on the databases of the training.
const MAIN: &str = "eval";
/// A base that a warm start is to train is evaluated on one of so many questions. With random
/// weights it makes no tool calls, so each of its episodes uses up the whole step budget.
const BASE_SHARE: usize = 4;

/// Evaluates random and oracle.
pub(super) async fn scripted(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    base: &Model,
) -> Result<()> {
    let chat = Arc::new(base.chat.clone());
    for policy in [PolicyName::Random, PolicyName::Oracle] {
        let evaluated = EvaluatedPolicy {
            policy,
            step: 0,
            mode: DecodingMode::Greedy,
        };
        let policy = evaluator.scripted(policy, &chat);
        for (split, questions) in table(evaluator) {
            let asked = (&*split, &*questions);
            evaluate(folder, evaluator, evaluated, &[&*policy], &chat, asked).await?;
        }
    }
    Ok(())
}

/// Evaluates a base that a warm start is to train, on a part of `eval`.
pub(super) async fn base_before_warm_start(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    base: &Model,
) -> Result<()> {
    let evaluated = EvaluatedPolicy {
        policy: PolicyName::Base,
        step: 0,
        mode: DecodingMode::Greedy,
    };
    let chat = Arc::new(base.chat.clone());
    let engines = evaluator.engines(base, 0)?;
    let policies = evaluator.models(&engines, &chat, DecodingMode::Greedy)?;
    let (split, questions) = table(evaluator).swap_remove(0);
    let part = &questions[..questions.len().div_ceil(BASE_SHARE)];
    let asked = (&*split, part);
    evaluate(
        folder,
        evaluator,
        evaluated,
        &copies(&policies),
        &chat,
        asked,
    )
    .await
}

/// Evaluates a model, greedy on all splits and sampled on `eval`.
pub(super) async fn model(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    policy: PolicyName,
    model: &Model,
    step: u64,
) -> Result<()> {
    let chat = Arc::new(model.chat.clone());
    let engines = evaluator.engines(model, step)?;
    for mode in [DecodingMode::Greedy, DecodingMode::Sampled] {
        let evaluated = EvaluatedPolicy { policy, step, mode };
        let models = evaluator.models(&engines, &chat, mode)?;
        for (split, questions) in table(evaluator) {
            if mode == DecodingMode::Greedy || split == MAIN {
                let asked = (&*split, &*questions);
                evaluate(folder, evaluator, evaluated, &copies(&models), &chat, asked).await?;
            }
        }
    }
    Ok(())
}

fn table(evaluator: &Evaluator<'_>) -> Vec<(String, Vec<v1::Question>)> {
    let questions = evaluator.setup.questions();
    EvaluationQuestions::draw(&evaluator.config.evaluation, &questions).table
}

/// Evaluates a policy on questions of a split and records the result, unless the folder has it.
async fn evaluate(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    evaluated: EvaluatedPolicy,
    policies: &[&dyn Policy],
    chat: &Arc<Chat>,
    (split, questions): (&str, &[v1::Question]),
) -> Result<()> {
    if questions.is_empty() || evaluated.is_recorded(folder, split)? {
        return Ok(());
    }
    let (evaluation, episodes) = evaluator
        .evaluate(evaluated, policies, chat, split, questions)
        .await?;
    if split == MAIN && evaluated.mode == DecodingMode::Greedy {
        for transcript in evaluator.transcripts(evaluated.policy, &episodes) {
            folder.append_transcript(&transcript)?;
        }
    }
    // The evaluation comes last: a run that stops in between records both again.
    folder.append_evaluation(&evaluation)?;
    Ok(())
}
