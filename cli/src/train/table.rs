//! The comparison table: who answers how many of the held-out questions.

use std::sync::Arc;

use actor::Policy;
use anyhow::Result;
use policy::{Chat, Model};

use crate::{
    evaluation::{Candidate, Examiner, HeldOut},
    run::{Mode, PolicyName, RunFolder},
};

/// Random, oracle and the untrained base. A base that knows no tool call spends every budget it has, so it sits for a
/// quarter of the main block.
pub(super) async fn baselines(
    folder: &RunFolder,
    examiner: &Examiner<'_>,
    base: &Model,
) -> Result<()> {
    let chat = Arc::new(base.chat.clone());
    for name in [PolicyName::Random, PolicyName::Oracle] {
        let policy = examiner.scripted(name, &chat);
        Sitting::new(folder, examiner, &chat, candidate(name, 0, Mode::Greedy))
            .sit(&*policy)
            .await?;
    }
    let engine = examiner.engine(base, 0)?;
    let policy = examiner.model(&engine, Mode::Greedy);
    Sitting::new(
        folder,
        examiner,
        &chat,
        candidate(PolicyName::Base, 0, Mode::Greedy),
    )
    .sit(&policy)
    .await
}

/// A model, greedy on all blocks and sampled on `eval`.
pub(super) async fn model(
    folder: &RunFolder,
    examiner: &Examiner<'_>,
    name: PolicyName,
    model: &Model,
    step: u64,
) -> Result<()> {
    let chat = Arc::new(model.chat.clone());
    let engine = examiner.engine(model, step)?;
    for mode in [Mode::Greedy, Mode::Sampled] {
        let policy = examiner.model(&engine, mode);
        Sitting::new(folder, examiner, &chat, candidate(name, step, mode))
            .sit(&policy)
            .await?;
    }
    Ok(())
}

fn candidate(policy: PolicyName, step: u64, mode: Mode) -> Candidate {
    Candidate {
        policy,
        policy_version: step,
        step,
        mode,
    }
}

/// One candidate before the questions of the table.
struct Sitting<'a> {
    folder: &'a RunFolder,
    examiner: &'a Examiner<'a>,
    chat: &'a Arc<Chat>,
    candidate: Candidate,
}

impl<'a> Sitting<'a> {
    fn new(
        folder: &'a RunFolder,
        examiner: &'a Examiner<'a>,
        chat: &'a Arc<Chat>,
        candidate: Candidate,
    ) -> Self {
        Self {
            folder,
            examiner,
            chat,
            candidate,
        }
    }

    async fn sit(&self, policy: &dyn Policy) -> Result<()> {
        for (split, mut questions) in HeldOut::draw(self.examiner.config, self.examiner.setup).table
        {
            let is_main = split == "eval";
            let is_base = self.candidate.policy == PolicyName::Base;
            let main_only = self.candidate.mode == Mode::Sampled || is_base;
            if (main_only && !is_main) || self.candidate.is_recorded(self.folder, &split)? {
                continue;
            }
            if is_base {
                questions.truncate(questions.len().div_ceil(4));
            }
            let (evaluation, episodes) = self
                .examiner
                .examine(self.candidate, policy, self.chat, &split, &questions)
                .await?;
            if is_main && self.candidate.mode == Mode::Greedy {
                for transcript in self.examiner.transcripts(self.candidate.policy, &episodes) {
                    self.folder.append_transcript(&transcript)?;
                }
            }
            self.folder.append_evaluation(&evaluation)?;
        }
        Ok(())
    }
}
