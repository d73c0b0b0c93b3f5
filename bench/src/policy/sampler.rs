//! Output tokens per second of the sampler. The time includes the prefill of the prompts.

use actor::{Completion, CompletionRequest, Engine, EngineSettings};
use anyhow::Result;
use futures::future::try_join_all;
use policy::{Coordinates, Model, Placement, SamplingSettings};

use super::{
    shape::text,
    throughput::{Throughput, median, now},
};
use crate::BenchPolicyArgs;

/// Measures completions of prompts, each of which `sharing` rows have in common. A completion that
/// stops early counts with the tokens that it has.
pub(crate) async fn measure(
    model: &Model,
    rows: usize,
    sharing: usize,
    args: &BenchPolicyArgs,
) -> Result<Throughput> {
    let engines = Engines::spawn(model, rows, sharing, args)?;
    let mut speeds = Vec::new();
    for repeat in 0..=args.repeats {
        let start = now();
        let completions = engines.complete(repeat, args).await?;
        let sampled: usize = completions.iter().map(|(_, done)| done.tokens.len()).sum();
        speeds.push(sampled as f64 / start.elapsed().as_secs_f64());
    }
    Ok(Throughput {
        what: match sharing {
            1 => "sampler".to_owned(),
            sharing => format!("sampler, groups of {sharing}"),
        },
        rows,
        row_tokens: args.prompt_tokens + args.new_tokens,
        tokens_per_second: median(speeds.split_off(1)),
        peak_mib: None,
        time_shares: String::new(),
    })
}

/// The engines of a run, each on its own thread. Rows that share a prompt are on one engine, like
/// the members of a group in an actor.
pub(super) struct Engines {
    pub(super) engines: Vec<Engine>,
    rows: usize,
    sharing: usize,
    vocabulary: usize,
}

impl Engines {
    pub(super) fn spawn(
        model: &Model,
        rows: usize,
        sharing: usize,
        args: &BenchPolicyArgs,
    ) -> Result<Self> {
        let texts = rows / sharing;
        let count = args.threads.min(texts);
        let settings = EngineSettings {
            slots: texts.div_ceil(count) * sharing,
            // The default would make rows of a large shape wait for pages.
            kv_cache_bytes: u64::MAX,
            ..EngineSettings::default()
        };
        let placement = Placement {
            device: args.device,
            dtype: args.dtype,
        };
        let context_tokens = args.prompt_tokens + args.new_tokens;
        let spawn = |_| Engine::spawn(model, 0, context_tokens, &settings, placement);
        Ok(Self {
            engines: (0..count).map(spawn).collect::<Result<_, _>>()?,
            rows,
            sharing,
            vocabulary: model.config.vocab_size,
        })
    }

    /// Completes all rows at once and returns prompts and completions. Each `repeat` has its own
    /// texts.
    pub(super) async fn complete(
        &self,
        repeat: usize,
        args: &BenchPolicyArgs,
    ) -> Result<Vec<(Vec<u32>, Completion)>> {
        let texts = self.rows / self.sharing;
        let complete = |row: usize| async move {
            let number = row / self.sharing;
            let prompt = text(repeat * texts + number, args.prompt_tokens, self.vocabulary);
            let request = CompletionRequest {
                context: prompt.clone(),
                max_tokens: args.new_tokens,
                coordinates: Coordinates {
                    run_seed: repeat as u64,
                    group: row as u64,
                    ..Coordinates::default()
                },
            };
            let engine = &self.engines[number % self.engines.len()];
            let sampling = SamplingSettings::default();
            anyhow::Ok((prompt, engine.complete(request, sampling).await?))
        };
        try_join_all((0..self.rows).map(complete)).await
    }
}
