//! The evaluations of the comparison table.

use std::sync::Arc;

use actor::Policy;
use anyhow::Result;
use policy::{Chat, Model};
use report::{DecodingMode, PolicyName, RunFolder};

use crate::evaluation::{EvaluatedPolicy, EvaluationQuestions, Evaluator};

/// Evaluates random, oracle and the untrained base.
pub(super) async fn baselines(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    base: &Model,
) -> Result<()> {
    let chat = Arc::new(base.chat.clone());
    let greedy = |policy| EvaluatedPolicy {
        policy,
        step: 0,
        mode: DecodingMode::Greedy,
    };
    for name in [PolicyName::Random, PolicyName::Oracle] {
        let policy = evaluator.scripted(name, &chat);
        evaluate(folder, evaluator, greedy(name), &*policy, &chat).await?;
    }
    let engine = evaluator.engine(base, 0)?;
    let policy = evaluator.model(&engine, DecodingMode::Greedy);
    evaluate(folder, evaluator, greedy(PolicyName::Base), &policy, &chat).await
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
    let engine = evaluator.engine(model, step)?;
    for mode in [DecodingMode::Greedy, DecodingMode::Sampled] {
        let evaluated = EvaluatedPolicy { policy, step, mode };
        let model = evaluator.model(&engine, mode);
        evaluate(folder, evaluator, evaluated, &model, &chat).await?;
    }
    Ok(())
}

/// Evaluates a policy on the questions of the table and records what the folder does not have yet.
async fn evaluate(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    evaluated: EvaluatedPolicy,
    policy: &dyn Policy,
    chat: &Arc<Chat>,
) -> Result<()> {
    let table = EvaluationQuestions::draw(evaluator.config, evaluator.setup).table;
    for (split, mut questions) in table {
        let is_main = split == "eval";
        let is_base = evaluated.policy == PolicyName::Base;
        let only_main = evaluated.mode == DecodingMode::Sampled || is_base;
        if (only_main && !is_main) || evaluated.is_recorded(folder, &split)? {
            continue;
        }
        if is_base {
            // The base makes no tool calls, so each of its episodes uses up the whole step budget.
            questions.truncate(questions.len().div_ceil(4));
        }
        let (evaluation, episodes) = evaluator
            .evaluate(evaluated, policy, chat, &split, &questions)
            .await?;
        if is_main && evaluated.mode == DecodingMode::Greedy {
            for transcript in evaluator.transcripts(evaluated.policy, &episodes) {
                folder.append_transcript(&transcript)?;
            }
        }
        // The evaluation comes last: a run that stops in between records both again.
        folder.append_evaluation(&evaluation)?;
    }
    Ok(())
}
