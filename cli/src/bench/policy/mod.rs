//! `sqlenv bench policy`: output tokens per second of the sampler, tokens per second of the learner and of whole GRPO steps.
//!
//! Weights and tokens are arbitrary: what a step costs does not depend on them. As in a run, the threads are engines over
//! conversations and workers over micro-batches. Each figure is the median of some repeats, after one to warm up.

mod grpo;
pub(crate) mod learner;
pub(crate) mod sampler;
pub(crate) mod shape;

use std::time::Instant;

use ::learner::{LearnerConfig, config::RolloutConfig};
use anyhow::Result;

use self::shape::random_model_on;
use crate::{
    args::{BenchPolicyArgs, Part, Shape},
    number::short_count,
    stdout,
};

const HEADER: &str = "| shape | parameters | what | rows | tokens a row | tokens/s | peak MiB | time goes to |\n\
                      |---|---|---|---|---|---|---|---|";

/// Members of a group.
const GROUP_SIZE: usize = 8;

/// A row of the table.
pub(crate) struct Line {
    pub(crate) what: &'static str,
    pub(crate) rows: usize,
    pub(crate) row_tokens: usize,
    /// Tokens a second.
    pub(crate) speed: f64,
    /// Of main memory, or of the device's.
    pub(crate) peak_mib: Option<f64>,
    shares: String,
}

/// Measures the wanted parts of every shape and prints a row for each figure.
///
/// # Errors
/// The engine or the learner fails, which is a bug, or they disagree about a log-probability.
pub async fn bench_policy(args: &BenchPolicyArgs) -> Result<()> {
    stdout::print(format_args!("{HEADER}\n"))?;
    for &shape in &args.shapes {
        let model = random_model_on(shape, args)?;
        let parameters = short_count(model.config.parameters() as u64);
        let print = |line: &Line| {
            let peak = line
                .peak_mib
                .map_or_else(|| "n/a".to_owned(), |mib| format!("{mib:.0}"));
            stdout::print(format_args!(
                "| {shape} | {parameters} | {} | {} | {} | {:.0} | {peak} | {} |\n",
                line.what, line.rows, line.row_tokens, line.speed, line.shares
            ))
        };
        for part in parts(shape, args) {
            match part {
                Part::Sampler => {
                    for &rows in &args.rows {
                        print(&sampler::line(&model, rows, 1, args).await?)?;
                    }
                }
                Part::Groups => {
                    for rows in whole_groups(args) {
                        print(&sampler::line(&model, rows, GROUP_SIZE, args).await?)?;
                    }
                }
                Part::Learner => print(&learner::line(&model, shape, args)?)?,
                Part::Prefix => {
                    for line in learner::prefix_lines(&model, shape, args)? {
                        print(&line)?;
                    }
                }
                Part::Grpo => {
                    for rows in whole_groups(args) {
                        print(&grpo::line(&model, shape, rows, args).await?)?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn parts(shape: Shape, args: &BenchPolicyArgs) -> Vec<Part> {
    use Part::{Groups, Grpo, Learner, Prefix, Sampler};
    match shape {
        _ if !args.parts.is_empty() => args.parts.clone(),
        Shape::Tiny | Shape::Small => vec![Sampler, Groups, Learner, Prefix, Grpo],
        Shape::Qwen3_06b => vec![Sampler, Groups, Learner],
    }
}

fn whole_groups(args: &BenchPolicyArgs) -> impl Iterator<Item = usize> {
    let rows = args.rows.iter().copied();
    rows.filter(|rows| rows.is_multiple_of(GROUP_SIZE))
}

/// A learner of groups whose contexts have up to `context_tokens`.
fn learner_config(shape: Shape, context_tokens: usize, args: &BenchPolicyArgs) -> LearnerConfig {
    let work = shape::work(shape, args);
    LearnerConfig {
        group_size: GROUP_SIZE,
        micro_batch_tokens: work.micro_batch_tokens.max(context_tokens),
        rollout: RolloutConfig {
            max_context_tokens: context_tokens as u32,
            ..RolloutConfig::default()
        },
        ..LearnerConfig::default()
    }
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The one in the middle, or just above it.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
