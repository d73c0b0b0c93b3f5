//! The comparison table: who answers how many of the held-out questions.

use std::sync::Arc;

use actor::Policy;
use anyhow::Result;
use policy::{Chat, Model};

use report::{DecodingMode, PolicyName, RunFolder};

use crate::evaluation::{EvaluatedPolicy, EvaluationQuestions, Evaluator};

/// Random, oracle and the untrained base. A base that knows no tool call spends every budget it has, so it sits for a
/// quarter of the main block.
pub(super) async fn baselines(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    base: &Model,
) -> Result<()> {
    let chat = Arc::new(base.chat.clone());
    for name in [PolicyName::Random, PolicyName::Oracle] {
        let policy = evaluator.scripted(name, &chat);
        Sitting::new(
            folder,
            evaluator,
            &chat,
            evaluated(name, 0, DecodingMode::Greedy),
        )
        .sit(&*policy)
        .await?;
    }
    let engine = evaluator.engine(base, 0)?;
    let policy = evaluator.model(&engine, DecodingMode::Greedy);
    Sitting::new(
        folder,
        evaluator,
        &chat,
        evaluated(PolicyName::Base, 0, DecodingMode::Greedy),
    )
    .sit(&policy)
    .await
}

/// A model, greedy on all blocks and sampled on `eval`.
pub(super) async fn model(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    name: PolicyName,
    model: &Model,
    step: u64,
) -> Result<()> {
    let chat = Arc::new(model.chat.clone());
    let engine = evaluator.engine(model, step)?;
    for mode in [DecodingMode::Greedy, DecodingMode::Sampled] {
        let policy = evaluator.model(&engine, mode);
        Sitting::new(folder, evaluator, &chat, evaluated(name, step, mode))
            .sit(&policy)
            .await?;
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

/// One evaluated before the questions of the table.
struct Sitting<'a> {
    folder: &'a RunFolder,
    evaluator: &'a Evaluator<'a>,
    chat: &'a Arc<Chat>,
    evaluated: EvaluatedPolicy,
}

impl<'a> Sitting<'a> {
    fn new(
        folder: &'a RunFolder,
        evaluator: &'a Evaluator<'a>,
        chat: &'a Arc<Chat>,
        evaluated: EvaluatedPolicy,
    ) -> Self {
        Self {
            folder,
            evaluator,
            chat,
            evaluated,
        }
    }

    async fn sit(&self, policy: &dyn Policy) -> Result<()> {
        for (split, mut questions) in
            EvaluationQuestions::draw(self.evaluator.config, self.evaluator.setup).table
        {
            let is_main = split == "eval";
            let is_base = self.evaluated.policy == PolicyName::Base;
            let main_only = self.evaluated.mode == DecodingMode::Sampled || is_base;
            if (main_only && !is_main) || self.evaluated.is_recorded(self.folder, &split)? {
                continue;
            }
            if is_base {
                questions.truncate(questions.len().div_ceil(4));
            }
            let (evaluation, episodes) = self
                .evaluator
                .examine(self.evaluated, policy, self.chat, &split, &questions)
                .await?;
            if is_main && self.evaluated.mode == DecodingMode::Greedy {
                for transcript in self.evaluator.transcripts(self.evaluated.policy, &episodes) {
                    self.folder.append_transcript(&transcript)?;
                }
            }
            self.folder.append_evaluation(&evaluation)?;
        }
        Ok(())
    }
}
