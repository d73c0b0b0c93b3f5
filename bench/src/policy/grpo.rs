//! Whole GRPO steps without an environment: sample groups, reward them at random, train on them.

use std::sync::Arc;

use ::learner::{
    LearnerConfig,
    group::{Group, GroupRules, StepGroups},
    trainer::Trainer,
};
use actor::Completion;
use anyhow::{Result, anyhow, ensure};
use candle_core::DType;
use policy::{Model, random::derive_seed};
use proto::{
    EncodedGroup,
    v1::{Segment, SubmitRequest, Trajectory, Turn},
};

use super::{
    sampler::Engines,
    shape::learner_config,
    throughput::{GROUP_SIZE, Throughput, now},
};
use crate::{BenchPolicyArgs, ModelShape};

/// The times of one step, in seconds since its start.
struct StepTimes {
    tokens: u64,
    sampled: f64,
    trained: f64,
    published: f64,
}

impl StepTimes {
    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.published
    }

    fn time_shares(&self) -> String {
        let share = |seconds: f64| 100.0 * seconds / self.published;
        format!(
            "sampling {:.0} %, learning {:.0} %, weights {:.0} %",
            share(self.sampled),
            share(self.trained - self.sampled),
            share(self.published - self.trained)
        )
    }
}

/// Measures steps of `rows / 8` groups, one after another as at staleness 0. Prompt tokens count
/// too.
pub(super) async fn measure(
    model: &Model,
    shape: ModelShape,
    rows: usize,
    args: &BenchPolicyArgs,
) -> Result<Throughput> {
    let engines = Engines::spawn(model, rows, GROUP_SIZE, args)?;
    let row_tokens = args.prompt_tokens + args.new_tokens;
    let config = learner_config(shape, row_tokens, args);
    let mut trainer = Trainer::new(&config, super::shape::workload(shape, args).workers, model)?;
    let mut weights = model.weights.iter();
    let is_exact =
        weights.all(|(_, tensor)| tensor.device().is_cpu() && tensor.dtype() == DType::F32);
    let mut steps = Vec::new();
    for number in 0..=args.repeats {
        let seen = trainer.tokens_seen;
        let start = now();
        let seconds = || start.elapsed().as_secs_f64();
        let rows = engines.complete(number, args).await?;
        let groups = groups(&rows, &config, model.config.vocab_size)?;
        let sampled = seconds();
        let metrics = trainer.step(&groups, number as u64)?;
        let trained = seconds();
        let weights = trainer.network.weights();
        for engine in &engines.engines {
            engine
                .update_weights(number as u64 + 1, weights.clone())
                .await?;
        }
        ensure!(
            !is_exact || metrics.get("sampling/sampling_logp_difference/max") == Some(&0.0),
            "the learner's log-probabilities differ from the sampler's: this is a bug"
        );
        steps.push(StepTimes {
            tokens: trainer.tokens_seen - seen,
            sampled,
            trained,
            published: seconds(),
        });
    }
    let mut steps = steps.split_off(1);
    steps.sort_by(|a, b| a.tokens_per_second().total_cmp(&b.tokens_per_second()));
    let step = &steps[steps.len() / 2];
    Ok(Throughput {
        what: "grpo".to_owned(),
        rows,
        row_tokens,
        tokens_per_second: step.tokens_per_second(),
        peak_mib: None,
        time_shares: step.time_shares(),
    })
}

fn groups(
    rows: &[(Vec<u32>, Completion)],
    config: &LearnerConfig,
    vocabulary: usize,
) -> Result<StepGroups> {
    let groups = rows.chunks(GROUP_SIZE).enumerate();
    let kept = groups.map(|(index, rows)| Ok(Arc::new(group(index, rows, config, vocabulary)?)));
    Ok(StepGroups {
        kept: kept.collect::<Result<_>>()?,
        ..StepGroups::default()
    })
}

/// Returns a group of episodes with one turn each, which are right or wrong at random.
pub(super) fn group(
    index: usize,
    rows: &[(Vec<u32>, Completion)],
    config: &LearnerConfig,
    vocabulary: usize,
) -> Result<Group> {
    let trajectory = |(member, (prompt, completion)): (usize, &(Vec<u32>, Completion))| {
        let is_correct = derive_seed(index as u64, &member.to_string()).is_multiple_of(2);
        trajectory(member, prompt, completion, is_correct)
    };
    let request = SubmitRequest {
        group_index: index as u64,
        trajectories: rows.iter().enumerate().map(trajectory).collect(),
        ..SubmitRequest::default()
    };
    Group::new(
        EncodedGroup::from(&request),
        &GroupRules::new(config, vocabulary),
    )
    .map_err(|fault| anyhow!(fault))
}

fn trajectory(member: usize, prompt: &[u32], completion: &Completion, correct: bool) -> Trajectory {
    let (given, sampled) = (prompt.len(), completion.tokens.len());
    Trajectory {
        member: member as u32,
        segments: vec![Segment {
            tokens: [prompt, &completion.tokens].concat(),
            mask: [vec![0; given], vec![1; sampled]].concat(),
            logprobs: [vec![0.0; given], completion.logprobs.clone()].concat(),
        }],
        turns: vec![Turn {
            completion_start: given as u32,
            completion_tokens: sampled as u32,
            policy_version: completion.policy_version,
            ..Turn::default()
        }],
        episode_return: f64::from(u8::from(correct)),
        correct,
        scored: true,
        ..Trajectory::default()
    }
}
