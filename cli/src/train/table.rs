//! The evaluations of the comparison table.

use std::sync::Arc;

use actor::Policy;
use anyhow::Result;
use policy::{Chat, Model};
use proto::v1;
use report::{DecodingMode, EVAL_SPLIT, PolicyName};

use super::Stages;
use crate::evaluation::{EvaluatedPolicy, EvaluationQuestions, copies, record};

/// A base that a warm start is to train is evaluated on one of so many questions. With random
/// weights it makes no tool calls, so each of its episodes uses up the whole step budget.
const BASE_SHARE: usize = 4;

impl Stages<'_> {
    /// Evaluates random and oracle.
    pub(super) async fn evaluate_scripted(&self) -> Result<()> {
        let chat = Arc::new(self.base.chat.clone());
        for policy in [PolicyName::Random, PolicyName::Oracle] {
            let evaluated = EvaluatedPolicy {
                policy,
                step: 0,
                mode: DecodingMode::Greedy,
            };
            let policy = self.evaluator.scripted(policy, &chat);
            for (split, questions) in self.table() {
                self.evaluate(evaluated, &[&*policy], &chat, &split, &questions)
                    .await?;
            }
        }
        Ok(())
    }

    /// Evaluates a base that a warm start is to train, on a part of `eval`.
    pub(super) async fn evaluate_base_before_warm_start(&self) -> Result<()> {
        let evaluated = EvaluatedPolicy {
            policy: PolicyName::Base,
            step: 0,
            mode: DecodingMode::Greedy,
        };
        let (split, questions) = self.table().swap_remove(0);
        let part = &questions[..questions.len().div_ceil(BASE_SHARE)];
        if !self.is_missing(evaluated, &split, part)? {
            return Ok(());
        }
        let chat = Arc::new(self.base.chat.clone());
        let engines = self.evaluator.engines(&self.base, 0)?;
        let models = self.evaluator.models(&engines, &chat, evaluated.mode)?;
        self.evaluate(evaluated, &copies(&models), &chat, &split, part)
            .await
    }

    /// Evaluates a model, greedy on all splits and sampled on `eval`.
    pub(super) async fn evaluate_model(
        &self,
        policy: PolicyName,
        model: &Model,
        step: u64,
    ) -> Result<()> {
        let table = self.table();
        let mut missing = Vec::new();
        for mode in [DecodingMode::Greedy, DecodingMode::Sampled] {
            let evaluated = EvaluatedPolicy { policy, step, mode };
            for (split, questions) in &table {
                let is_wanted = mode == DecodingMode::Greedy || split == EVAL_SPLIT;
                if is_wanted && self.is_missing(evaluated, split, questions)? {
                    missing.push((evaluated, split, questions));
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let chat = Arc::new(model.chat.clone());
        let engines = self.evaluator.engines(model, step)?;
        for of_mode in missing.chunk_by(|a, b| a.0.mode == b.0.mode) {
            let models = self.evaluator.models(&engines, &chat, of_mode[0].0.mode)?;
            for (evaluated, split, questions) in of_mode {
                self.evaluate(*evaluated, &copies(&models), &chat, split, questions)
                    .await?;
            }
        }
        Ok(())
    }

    fn table(&self) -> Vec<(String, Vec<v1::Question>)> {
        let questions = self.evaluator.setup.questions();
        EvaluationQuestions::draw(&self.evaluator.config.evaluation, &questions).table
    }

    /// Tells whether there are questions of a split, and the folder does not have the evaluation.
    fn is_missing(
        &self,
        evaluated: EvaluatedPolicy,
        split: &str,
        questions: &[v1::Question],
    ) -> Result<bool> {
        Ok(!questions.is_empty() && !evaluated.is_recorded(&self.folder, split)?)
    }

    /// Evaluates a policy on questions of a split and records the result, unless the folder has it.
    async fn evaluate(
        &self,
        evaluated: EvaluatedPolicy,
        policies: &[&dyn Policy],
        chat: &Arc<Chat>,
        split: &str,
        questions: &[v1::Question],
    ) -> Result<()> {
        if !self.is_missing(evaluated, split, questions)? {
            return Ok(());
        }
        let played = self
            .evaluator
            .evaluate(evaluated, policies, chat, split, questions);
        let (evaluation, episodes) = played.await?;
        let transcripts = self.evaluator.transcripts(evaluated.policy, &episodes);
        record(&self.folder, &evaluation, transcripts)
    }
}
