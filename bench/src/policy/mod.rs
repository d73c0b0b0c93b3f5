//! `sqlenv bench policy`: tokens per second of the sampler, of the learner and of whole GRPO steps.
//!
//! Weights and tokens are arbitrary, because the cost of a step does not depend on them. As in a
//! run, threads are engines over conversations and workers over micro-batches. Each number is the
//! median of some repeats, after one to warm up.

mod grpo;
pub(crate) mod learner;
pub(crate) mod sampler;
pub(crate) mod shape;
pub(crate) mod throughput;

use std::io::Write;

use anyhow::{Result, ensure};
use report::number::short_count;

use self::{
    shape::random_model_on,
    throughput::{GROUP_SIZE, Throughput},
};
use crate::{BenchPolicyArgs, ModelShape, PolicyBenchmark};

const HEADER: &str = "\
| shape | parameters | what | rows | tokens a row | tokens/s | peak MiB | time goes to |
|---|---|---|---|---|---|---|---|";

/// Runs the benchmarks for every shape and writes a table row for each result to `out`.
///
/// # Errors
/// Only benchmarks of groups are asked for, without rows for them. The engine or the learner fails,
/// or their log-probabilities differ; both are bugs.
pub async fn bench_policy(args: &BenchPolicyArgs, out: &mut impl Write) -> Result<()> {
    let of_groups =
        |it: &PolicyBenchmark| matches!(it, PolicyBenchmark::Groups | PolicyBenchmark::Grpo);
    ensure!(
        !args.parts.iter().any(of_groups) || whole_groups(args).next().is_some(),
        "--rows has no multiple of {GROUP_SIZE}, so there are no whole groups to measure; give one, \
         such as 64"
    );
    writeln!(out, "{HEADER}")?;
    for &shape in &args.shapes {
        let model = random_model_on(shape, args)?;
        let parameters = short_count(model.config.parameters() as u64);
        let mut print = |result: Throughput| writeln!(out, "| {shape} | {parameters} | {result} |");
        for benchmark in benchmarks(shape, args) {
            match benchmark {
                PolicyBenchmark::Sampler => {
                    for &rows in &args.rows {
                        print(sampler::measure(&model, rows, 1, args).await?)?;
                    }
                }
                PolicyBenchmark::Groups => {
                    for rows in whole_groups(args) {
                        print(sampler::measure(&model, rows, GROUP_SIZE, args).await?)?;
                    }
                }
                PolicyBenchmark::Learner => print(learner::measure(&model, shape, args)?)?,
                PolicyBenchmark::Prefix => {
                    for result in learner::measure_prefixes(&model, shape, args)? {
                        print(result)?;
                    }
                }
                PolicyBenchmark::Grpo => {
                    for rows in whole_groups(args) {
                        print(grpo::measure(&model, shape, rows, args).await?)?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn benchmarks(shape: ModelShape, args: &BenchPolicyArgs) -> Vec<PolicyBenchmark> {
    use PolicyBenchmark::{Groups, Grpo, Learner, Prefix, Sampler};
    match shape {
        _ if !args.parts.is_empty() => args.parts.clone(),
        ModelShape::Tiny | ModelShape::Small | ModelShape::SmolLm2_135m => {
            vec![Sampler, Groups, Learner, Prefix, Grpo]
        }
        ModelShape::Qwen3_06b => vec![Sampler, Groups, Learner],
    }
}

fn whole_groups(args: &BenchPolicyArgs) -> impl Iterator<Item = usize> {
    let rows = args.rows.iter().copied();
    rows.filter(|rows| rows.is_multiple_of(GROUP_SIZE))
}
