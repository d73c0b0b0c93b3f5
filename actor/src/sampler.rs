//! The engine's thread: it owns the decoder and the KV cache and samples what the handles request.
//!
//! Continuous batching: rows enter and leave between forward passes as the [`Batcher`] schedules.
//!
//! Weights may be updated while completions are being sampled. A running completion finishes with
//! the weights version it started with, so each completion has one policy version, and each
//! recorded log-probability is exactly that of this version. The next turn of the same episode
//! starts with the new version: its context is prefilled again, because keys and values of the old
//! weights would give log-probabilities that belong to no version. While both versions have rows,
//! each needs a forward pass of its own.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use candle_core::{DType, Device, Tensor};
use policy::{
    ConstrainedCompletion, Coordinates, Decoder, DecoderMode, KvCache, Model, PackedRow,
    PackedRows, Placement, PolicyError, Sampled, SamplingSettings, Weights, ops::TokenSet,
    sampling,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    batcher::{Batcher, RowId, ScheduledTokens},
    completion::{Completion, CompletionRequest, FinishReason},
    config::EngineSettings,
    engine::EngineWork,
    error::ActorError,
    metrics,
    slots::{SlotAssignment, Slots},
};

/// A requested completion.
pub(crate) struct CompletionJob {
    pub(crate) request: CompletionRequest,
    pub(crate) sampling: SamplingSettings,
    /// Decides which tokens may come next; absent: any.
    pub(crate) constrained: Option<Box<ConstrainedCompletion>>,
    pub(crate) reply: oneshot::Sender<Result<Completion, ActorError>>,
}

/// A command of a handle to the thread.
pub(crate) enum EngineCommand {
    /// Samples a completion.
    Complete(CompletionJob),
    /// Replaces the weights. They are on the engine's device and in its dtype.
    UpdateWeights {
        policy_version: u64,
        weights: Box<Weights>,
        reply: oneshot::Sender<Result<(), ActorError>>,
    },
}

/// One update of the weights. `number` counts the updates. The policy version cannot identify the
/// weights: a learner that resumes from an older checkpoint publishes the same version again with
/// other weights.
struct WeightsVersion {
    number: u64,
    policy_version: u64,
    decoder: Decoder,
}

/// A completion that is being sampled.
struct ActiveRow {
    job: CompletionJob,
    weights: Arc<WeightsVersion>,
    slot: usize,
    /// The context, then the sampled tokens.
    tokens: Vec<u32>,
    /// Leading tokens whose keys and values are in the slot.
    cached_tokens: usize,
    logprobs: Vec<f32>,
}

impl ActiveRow {
    /// Returns the tokens that may come next, if they are constrained.
    fn allowed(&mut self) -> Option<TokenSet> {
        let constrained = self.job.constrained.as_mut();
        constrained.map(|constrained| constrained.allowed())
    }

    /// Returns the sampling settings and the coordinates of the next token.
    fn draw(&self) -> (SamplingSettings, Coordinates) {
        let position = self.logprobs.len() as u32;
        (self.job.sampling, self.job.request.coordinates.at(position))
    }
}

/// The state of the engine's thread.
pub(crate) struct Sampler {
    stop_ids: Vec<u32>,
    vocabulary_size: usize,
    context_tokens: usize,
    weights: Arc<WeightsVersion>,
    cache: KvCache,
    slots: Slots,
    batcher: Batcher,
    waiting: BTreeMap<RowId, CompletionJob>,
    active: BTreeMap<RowId, ActiveRow>,
    next_row: RowId,
    work: Arc<EngineWork>,
    gauges: metrics::EngineRows,
}

impl Sampler {
    /// Creates a sampler of `model`, whose weights are `policy_version`.
    pub(crate) fn new(
        model: &Model,
        policy_version: u64,
        context_tokens: usize,
        settings: &EngineSettings,
        placement: Placement,
    ) -> Result<Self, ActorError> {
        let (device, dtype) = placement.open(&model.config)?;
        let weights = model.weights.to(&device, dtype)?;
        let decoder = Decoder::new(&model.config, &weights, DecoderMode::Sample)?;
        Self::of_decoder(decoder, model, policy_version, context_tokens, settings)
    }

    fn of_decoder(
        decoder: Decoder,
        model: &Model,
        policy_version: u64,
        context_tokens: usize,
        settings: &EngineSettings,
    ) -> Result<Self, ActorError> {
        let (device, dtype) = (decoder.device(), decoder.dtype());
        decoder.config().check_context(context_tokens)?;
        let (config, backend) = (decoder.config(), decoder.backend());
        let slot_bytes = KvCache::slot_bytes(config, backend, dtype, context_tokens);
        let pass_tokens = settings.pass_tokens_on(device);
        let free_bytes = policy::free_memory(device);
        let slots = settings.affordable_slots(slot_bytes, free_bytes);
        Ok(Self {
            stop_ids: model.chat.stop_ids().to_vec(),
            vocabulary_size: model.chat.vocabulary_size(),
            context_tokens,
            cache: decoder.kv_cache(slots, context_tokens)?,
            weights: Arc::new(WeightsVersion {
                number: 0,
                policy_version,
                decoder,
            }),
            slots: Slots::new(slots, settings.prefix_sharing),
            batcher: Batcher::new(slots, pass_tokens),
            waiting: BTreeMap::new(),
            active: BTreeMap::new(),
            next_row: 0,
            work: Arc::default(),
            gauges: metrics::EngineRows::begin(slots),
        })
    }

    /// Returns what the engine's handles show of its work.
    pub(crate) fn work(&self) -> Arc<EngineWork> {
        Arc::clone(&self.work)
    }

    /// Returns the number of conversations that the KV cache holds.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the device of the decoder and the cache.
    pub(crate) fn device(&self) -> &Device {
        self.weights.decoder.device()
    }

    /// Returns the dtype of the weights and the cache.
    pub(crate) fn dtype(&self) -> DType {
        self.weights.decoder.dtype()
    }

    /// Handles commands and samples in turn, until all handles are dropped and all rows are done.
    pub(crate) fn run(mut self, mut commands: mpsc::Receiver<EngineCommand>) {
        loop {
            // Blocks only while there is nothing to sample. Otherwise commands are handled between
            // passes, so new rows join the batch at the next pass.
            if self.batcher.is_idle() {
                self.gauges.set(0, 0);
                match commands.blocking_recv() {
                    Some(command) => self.handle(command),
                    None => return,
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.handle(command);
            }
            self.pass();
        }
    }

    fn handle(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Complete(job) => self.enqueue(job),
            EngineCommand::UpdateWeights {
                policy_version,
                weights,
                reply,
            } => {
                let updated = self.update_weights(policy_version, &weights);
                // The caller may have stopped waiting.
                let _ = reply.send(updated);
            }
        }
    }

    /// Makes a weights version visible: rows admitted from now on sample with it. Rows that are
    /// active keep their own version alive by its `Arc`.
    fn update_weights(&mut self, policy_version: u64, weights: &Weights) -> Result<(), ActorError> {
        let decoder = self
            .weights
            .decoder
            .with_weights(weights, DecoderMode::Sample)?;
        self.weights = Arc::new(WeightsVersion {
            number: self.weights.number + 1,
            policy_version,
            decoder,
        });
        Ok(())
    }

    fn enqueue(&mut self, job: CompletionJob) {
        let CompletionRequest {
            context,
            max_tokens,
            ..
        } = &job.request;
        let (context, limit) = (context.len(), self.context_tokens);
        if context == 0 || *max_tokens == 0 || context + max_tokens > limit {
            let reason = format!(
                "a context of {context} tokens and a completion of up to {max_tokens} were \
                 requested; each must have at least 1 and both together at most {limit}"
            );
            let _ = job.reply.send(Err(ActorError::Setting {
                field: "learner.rollout.max_context_tokens",
                reason,
            }));
            return;
        }
        self.batcher.enqueue(self.next_row);
        self.waiting.insert(self.next_row, job);
        self.next_row += 1;
    }

    /// Runs one forward pass for each weights version that has rows, usually one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the duration of the pass is only a metric"
    )]
    fn pass(&mut self) {
        // Before the admission, so that the slots of abandoned rows serve waiting rows at once.
        self.remove_abandoned();
        self.admit();
        let (running, waiting) = (self.batcher.running(), self.batcher.waiting());
        self.gauges.set(running, waiting);
        // A forward pass runs one decoder, so rows of different weights versions cannot share it.
        let mut by_version: BTreeMap<u64, Vec<ScheduledTokens>> = BTreeMap::new();
        for run in self.batcher.schedule() {
            let version = self.row(run.row).weights.number;
            by_version.entry(version).or_default().push(run);
        }
        for runs in by_version.values() {
            let start = Instant::now();
            match self.forward(runs) {
                Ok(sampled) => {
                    let tokens = runs.iter().map(|run| run.tokens).sum();
                    let duration = start.elapsed();
                    self.work.add_pass(sampled, duration);
                    metrics::record_pass(tokens, sampled, duration.as_secs_f64());
                }
                Err(error) => self.fail(runs, &error),
            }
        }
    }

    /// Removes the rows whose caller stopped waiting.
    fn remove_abandoned(&mut self) {
        let abandoned: Vec<RowId> = self
            .active
            .iter()
            .filter(|(_, row)| row.job.reply.is_closed())
            .map(|(row, _)| *row)
            .collect();
        for row in abandoned {
            self.remove(row);
        }
    }

    fn admit(&mut self) {
        while let Some(id) = self.next_ready_row() {
            let job = self
                .waiting
                .remove(&id)
                .expect("the batcher admits waiting rows: this is a bug");
            if job.reply.is_closed() {
                continue;
            }
            let assignment = self
                .slots
                .assign(&job.request.context, self.weights.number)
                .expect("there is a slot for each running row: this is a bug");
            if let Err(error) = self.load_prefix(&assignment) {
                self.slots.release(assignment.slot, &[]);
                let _ = job.reply.send(Err(error.into()));
                continue;
            }
            let reused_tokens = assignment.reused_tokens;
            metrics::count_reused(reused_tokens);
            self.batcher
                .start(id, job.request.context.len() - reused_tokens);
            let active = ActiveRow {
                weights: self.weights.clone(),
                slot: assignment.slot,
                tokens: job.request.context.clone(),
                cached_tokens: reused_tokens,
                logprobs: Vec::with_capacity(job.request.max_tokens),
                job,
            };
            self.active.insert(id, active);
        }
    }

    /// Admits the first waiting row, except those whose prefix a running row is prefilling: they
    /// wait and then copy it.
    fn next_ready_row(&mut self) -> Option<RowId> {
        let (waiting, slots, version) = (&self.waiting, &self.slots, self.weights.number);
        self.batcher
            .admit(|row| !slots.is_prefix_pending(&waiting[&row].request.context, version))
    }

    /// Puts the reused keys and values into the slot.
    fn load_prefix(&mut self, assignment: &SlotAssignment) -> Result<(), PolicyError> {
        let (slot, reused_tokens) = (assignment.slot, assignment.reused_tokens);
        if let Some(source) = assignment.copy_from {
            self.cache.copy_prefix(source, slot, reused_tokens)?;
        } else if reused_tokens == 0 {
            self.cache.reset_slot(slot);
        }
        Ok(())
    }

    /// Computes the scheduled tokens, which share one weights version, and samples after each run
    /// that ends its row's pending tokens. Returns the number of samples.
    fn forward(&mut self, runs: &[ScheduledTokens]) -> Result<usize, PolicyError> {
        let (packed, last_positions) = self.pack(runs);
        let weights = self.row(runs[0].row).weights.clone();
        let hidden = weights.decoder.forward(&packed, Some(&mut self.cache))?;
        // Only after the pass succeeded: other rows copy the keys and values that are recorded
        // here.
        for run in runs {
            let row = self.row(run.row);
            row.cached_tokens += run.tokens;
            let (slot, cached_tokens) = (row.slot, row.cached_tokens);
            self.slots.record_cached(slot, cached_tokens);
        }
        if last_positions.is_empty() {
            return Ok(0);
        }
        // Only sampling positions need logits. A prompt's other positions would cost a product with
        // the whole vocabulary each.
        let positions = Tensor::new(last_positions.as_slice(), hidden.device())?;
        let logits = weights
            .decoder
            .logits(&hidden.index_select(&positions, 0)?)?;
        let samples = || runs.iter().filter(|run| run.samples);
        let draws: Vec<_> = samples().map(|run| self.row(run.row).draw()).collect();
        let backend = weights.decoder.backend();
        let allowed: Vec<Option<TokenSet>> =
            samples().map(|run| self.row(run.row).allowed()).collect();
        let logits = match allowed.iter().any(Option::is_some) {
            true => backend.restrict_rows(&logits, &allowed)?,
            false => logits,
        };
        let sampled = sampling::sample_rows(backend, &logits, self.vocabulary_size, &draws)?;
        for (run, sampled) in samples().zip(sampled) {
            self.push_token(run.row, sampled);
        }
        Ok(draws.len())
    }

    /// Concatenates the runs. Also returns the positions after which a token is sampled.
    fn pack(&mut self, runs: &[ScheduledTokens]) -> (PackedRows, Vec<u32>) {
        let mut tokens = Vec::new();
        let mut rows = Vec::with_capacity(runs.len());
        let mut last_positions = Vec::new();
        for run in runs {
            let row = self.row(run.row);
            let past = row.cached_tokens;
            tokens.extend_from_slice(&row.tokens[past..past + run.tokens]);
            rows.push(PackedRow {
                len: run.tokens,
                past,
                slot: row.slot,
            });
            if run.samples {
                last_positions.push(tokens.len() as u32 - 1);
            }
        }
        (PackedRows { tokens, rows }, last_positions)
    }

    fn push_token(&mut self, id: RowId, sampled: Sampled) {
        let row = self.row(id);
        if let Some(constrained) = &mut row.job.constrained {
            constrained.push(sampled.token);
        }
        row.tokens.push(sampled.token);
        row.logprobs.push(sampled.logprob);
        let is_full = row.logprobs.len() == row.job.request.max_tokens;
        if self.stop_ids.contains(&sampled.token) {
            self.finish(id, FinishReason::StopToken);
        } else if is_full {
            self.finish(id, FinishReason::Length);
        } else {
            self.batcher.continue_row(id);
        }
    }

    fn finish(&mut self, id: RowId, finish_reason: FinishReason) {
        let mut row = self.remove(id);
        let completion = Completion {
            tokens: row.tokens.split_off(row.job.request.context.len()),
            logprobs: row.logprobs,
            policy_version: row.weights.policy_version,
            finish_reason,
        };
        // The caller may have stopped waiting.
        let _ = row.job.reply.send(Ok(completion));
    }

    /// Ends the rows of a pass that failed. All of them are still active, because a pass removes
    /// rows only once nothing in it can fail any more.
    fn fail(&mut self, runs: &[ScheduledTokens], error: &PolicyError) {
        for run in runs {
            let row = self.remove(run.row);
            // The pass may have written some layers only, so nothing in the slot can be reused.
            self.slots.release(row.slot, &[]);
            let _ = row.job.reply.send(Err(ActorError::Engine(format!(
                "a forward pass failed: {error}"
            ))));
        }
    }

    /// Removes a row. Its slot keeps the cached tokens for the next turn of the conversation. The
    /// token that was sampled last is not among them, because no pass has computed it.
    fn remove(&mut self, id: RowId) -> ActiveRow {
        self.batcher.remove(id);
        let row = self
            .active
            .remove(&id)
            .expect("only active rows are removed: this is a bug");
        self.slots
            .release(row.slot, &row.tokens[..row.cached_tokens]);
        row
    }

    fn row(&mut self, id: RowId) -> &mut ActiveRow {
        self.active
            .get_mut(&id)
            .expect("the batcher schedules active rows: this is a bug")
    }
}

#[cfg(test)]
mod tests;
