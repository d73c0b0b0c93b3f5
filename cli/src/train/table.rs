//! The comparison table: the accuracy of each policy on the evaluation questions.

use std::sync::Arc;

use actor::Policy;
use anyhow::Result;
use policy::{Chat, Model};
use report::{DecodingMode, PolicyName, RunFolder};

use crate::evaluation::{EvaluatedPolicy, EvaluationQuestions, Evaluator};

/// Evaluates random play, the oracle and the untrained base model.
pub(super) async fn baselines(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    base: &Model,
) -> Result<()> {
    let chat = Arc::new(base.chat.clone());
    let table = TableEvaluation {
        folder,
        evaluator,
        chat: &chat,
    };
    for name in [PolicyName::Random, PolicyName::Oracle] {
        let policy = evaluator.scripted(name, &chat);
        let evaluated = evaluated(name, 0, DecodingMode::Greedy);
        table.evaluate(evaluated, &*policy).await?;
    }
    let engine = evaluator.engine(base, 0)?;
    let policy = evaluator.model(&engine, DecodingMode::Greedy);
    let evaluated = evaluated(PolicyName::Base, 0, DecodingMode::Greedy);
    table.evaluate(evaluated, &policy).await
}

/// Evaluates a model: greedy on all splits, and sampled on `eval`.
pub(super) async fn model(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    name: PolicyName,
    model: &Model,
    step: u64,
) -> Result<()> {
    let chat = Arc::new(model.chat.clone());
    let table = TableEvaluation {
        folder,
        evaluator,
        chat: &chat,
    };
    let engine = evaluator.engine(model, step)?;
    for mode in [DecodingMode::Greedy, DecodingMode::Sampled] {
        let policy = evaluator.model(&engine, mode);
        table.evaluate(evaluated(name, step, mode), &policy).await?;
    }
    Ok(())
}

fn evaluated(policy: PolicyName, step: u64, mode: DecodingMode) -> EvaluatedPolicy {
    EvaluatedPolicy {
        policy,
        policy_version: step,
        step,
        mode,
    }
}

/// Evaluates policies for the comparison table and records the results in the run folder.
struct TableEvaluation<'a> {
    folder: &'a RunFolder,
    evaluator: &'a Evaluator<'a>,
    chat: &'a Arc<Chat>,
}

impl TableEvaluation<'_> {
    /// Evaluates a policy on each split of the table that the run folder has no result for.
    async fn evaluate(&self, evaluated: EvaluatedPolicy, policy: &dyn Policy) -> Result<()> {
        let Evaluator { config, setup, .. } = self.evaluator;
        for (split, mut questions) in EvaluationQuestions::draw(config, setup).table {
            let is_main = split == "eval";
            let is_base = evaluated.policy == PolicyName::Base;
            let is_greedy = evaluated.mode == DecodingMode::Greedy;
            if (!is_main && (is_base || !is_greedy))
                || evaluated.is_recorded(self.folder, &split)?
            {
                continue;
            }
            if is_base {
                // An untrained model makes no tool call and uses up every budget, so its episodes
                // are slow: it gets a quarter of the questions.
                questions.truncate(questions.len().div_ceil(4));
            }
            let (evaluation, episodes) = self
                .evaluator
                .examine(evaluated, policy, self.chat, &split, &questions)
                .await?;
            if is_main && is_greedy {
                for transcript in self.evaluator.transcripts(evaluated.policy, &episodes) {
                    self.folder.append_transcript(&transcript)?;
                }
            }
            self.folder.append_evaluation(&evaluation)?;
        }
        Ok(())
    }
}
