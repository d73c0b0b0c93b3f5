//! The engine's thread: it owns the decoder and the KV cache and samples what the handles ask for.
//!
//! Continuous batching: rows enter and leave between forward passes as [`Batcher`] plans. A running completion ends under the
//! weights it began with, and a conversation that goes on under new weights has its context fed again. So each recorded
//! log-probability is exactly that of the stated version.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use candle_core::{DType, Device, Tensor};
use policy::{
    Coordinates, Decoder, DecoderConfig, DecoderMode, KvCache, Model, PackedRow, PackedRows,
    Placement, PolicyError, Sampled, SamplingSettings, Weights, sampling,
};
use tokio::sync::mpsc;

use crate::{
    batcher::{Batcher, Chunk, RowId},
    config::EngineSettings,
    engine::{Command, CompletionRequest, Reply},
    error::ActorError,
    metrics,
    rollout::{Completion, Stop},
    slots::{Slots, Taken},
};

/// Weights as they were handed to the engine. `number` counts them, since a policy version may come again with other
/// weights: a learner that lost its newest steps makes them anew.
struct Edition {
    number: u64,
    policy_version: u64,
    decoder: Decoder,
}

/// One completion on its way.
struct Running {
    request: CompletionRequest,
    reply: Reply,
    edition: Arc<Edition>,
    slot: usize,
    /// The context, then what was sampled.
    tokens: Vec<u32>,
    /// Leading tokens whose keys and values lie in the slot.
    fed_tokens: usize,
    logprobs: Vec<f32>,
}

impl Running {
    /// How its next token is drawn.
    fn draw(&self) -> (SamplingSettings, Coordinates) {
        let position = self.logprobs.len() as u32;
        (self.request.sampling, self.request.coordinates.at(position))
    }
}

/// The state of the engine's thread.
pub(crate) struct Sampler {
    config: DecoderConfig,
    stop_ids: Vec<u32>,
    vocabulary_size: usize,
    context_tokens: usize,
    edition: Arc<Edition>,
    cache: KvCache,
    slots: Slots,
    batcher: Batcher,
    waiting: BTreeMap<RowId, (CompletionRequest, Reply)>,
    running: BTreeMap<RowId, Running>,
    next_row: RowId,
}

impl Sampler {
    /// A sampler of `model`, whose weights are `policy_version`.
    pub(crate) fn new(
        model: &Model,
        policy_version: u64,
        context_tokens: usize,
        settings: &EngineSettings,
        placement: Placement,
    ) -> Result<Self, ActorError> {
        let config = model.config.clone();
        let (device, dtype) = placement.open()?;
        let slots = affordable_slots(
            KvCache::token_bytes(&config, &device, dtype),
            context_tokens,
            cache_bytes(settings, policy::free_memory(&device)),
            settings,
        );
        let weights = model.weights.to(&device, dtype)?;
        let decoder = Decoder::new(&config, &weights, DecoderMode::Sample)?;
        Ok(Self {
            stop_ids: model.chat.stop_ids().to_vec(),
            vocabulary_size: model.chat.vocabulary_size(),
            context_tokens,
            cache: KvCache::on(&config, slots, context_tokens, &device, dtype)?,
            edition: Arc::new(Edition {
                number: 0,
                policy_version,
                decoder,
            }),
            slots: Slots::new(slots, settings.prefix_sharing),
            batcher: Batcher::new(slots, settings.pass_tokens),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            next_row: 0,
            config,
        })
    }

    /// Conversations that the KV cache holds.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Where it computes.
    pub(crate) fn device(&self) -> &Device {
        self.edition.decoder.device()
    }

    /// In which dtype.
    pub(crate) fn dtype(&self) -> DType {
        self.edition.decoder.dtype()
    }

    /// Obeys and samples by turns until all handles are gone and all rows done.
    pub(crate) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            if self.batcher.is_idle() {
                match commands.blocking_recv() {
                    Some(command) => self.obey(command),
                    None => return,
                }
            }
            while let Ok(command) = commands.try_recv() {
                self.obey(command);
            }
            self.pass();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Complete(request, reply) => self.arrive(request, reply),
            Command::Swap(version, weights, reply) => {
                let swapped = self.swap(version, &weights);
                // A caller that stopped waiting has no use for the answer.
                let _ = reply.send(swapped);
            }
        }
    }

    /// Takes weights that are on the device and in the dtype.
    fn swap(&mut self, policy_version: u64, weights: &Weights) -> Result<(), ActorError> {
        let decoder = Decoder::new(&self.config, weights, DecoderMode::Sample)?;
        self.edition = Arc::new(Edition {
            number: self.edition.number + 1,
            policy_version,
            decoder,
        });
        Ok(())
    }

    fn arrive(&mut self, request: CompletionRequest, reply: Reply) {
        let tokens = request.context.len() + request.max_tokens;
        if request.context.is_empty() || request.max_tokens == 0 || tokens > self.context_tokens {
            let reason = format!(
                "a context of {} and a completion of up to {} tokens; need 1 or more of each and at most {} together",
                request.context.len(),
                request.max_tokens,
                self.context_tokens
            );
            let _ = reply.send(Err(ActorError::Setting {
                field: "max_context_tokens",
                reason,
            }));
            return;
        }
        self.batcher.arrive(self.next_row);
        self.waiting.insert(self.next_row, (request, reply));
        self.next_row += 1;
    }

    /// One forward pass for each edition that has rows; usually one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the pass is timed for a metric only"
    )]
    fn pass(&mut self) {
        self.drop_abandoned();
        self.admit();
        metrics::set_rows(self.batcher.running(), self.batcher.waiting());
        let mut by_edition: BTreeMap<u64, Vec<Chunk>> = BTreeMap::new();
        for chunk in self.batcher.plan() {
            let number = self.row(chunk.row).edition.number;
            by_edition.entry(number).or_default().push(chunk);
        }
        for chunks in by_edition.values() {
            let begun = Instant::now();
            match self.forward(chunks) {
                Ok(sampled) => {
                    let fed = chunks.iter().map(|chunk| chunk.tokens).sum();
                    metrics::record_pass(fed, sampled, begun.elapsed().as_secs_f64());
                }
                Err(error) => self.fail(chunks, &error),
            }
        }
    }

    /// Rows whose caller went away make room.
    fn drop_abandoned(&mut self) {
        let abandoned: Vec<RowId> = self
            .running
            .iter()
            .filter(|(_, row)| row.reply.is_closed())
            .map(|(row, _)| *row)
            .collect();
        for row in abandoned {
            self.take_out(row);
        }
    }

    fn admit(&mut self) {
        while let Some(row) = self.next_in_line() {
            let (request, reply) = self
                .waiting
                .remove(&row)
                .expect("the batcher admits rows that wait: this is a bug");
            if reply.is_closed() {
                continue;
            }
            let taken = self
                .slots
                .take(&request.context, self.edition.number)
                .expect("there are as many slots as rows may run: this is a bug");
            if let Err(error) = self.lay_out(&taken) {
                self.slots.give_back(taken.slot, &[]);
                let _ = reply.send(Err(error.into()));
                continue;
            }
            metrics::count_reused(taken.reused_tokens);
            self.batcher
                .start(row, request.context.len() - taken.reused_tokens);
            let running = Running {
                edition: self.edition.clone(),
                slot: taken.slot,
                tokens: request.context.clone(),
                fed_tokens: taken.reused_tokens,
                logprobs: Vec::with_capacity(request.max_tokens),
                request,
                reply,
            };
            self.running.insert(row, running);
        }
    }

    /// The first row that does not wait for a running one to feed what both begin with.
    fn next_in_line(&mut self) -> Option<RowId> {
        let (waiting, slots, edition) = (&self.waiting, &self.slots, self.edition.number);
        self.batcher.admit(|row| {
            let (request, _) = &waiting[&row];
            !slots.promise(&request.context, edition)
        })
    }

    /// Brings the reused keys and values into the slot.
    fn lay_out(&mut self, taken: &Taken) -> Result<(), PolicyError> {
        match taken.copy_from {
            Some(source) => self
                .cache
                .copy_prefix(source, taken.slot, taken.reused_tokens),
            None if taken.reused_tokens == 0 => {
                self.cache.reset_slot(taken.slot);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Feeds the chunks and samples where they end a row's pending tokens; returns the number of samples.
    fn forward(&mut self, chunks: &[Chunk]) -> Result<usize, PolicyError> {
        let (packed, last_positions) = self.pack(chunks);
        let edition = self.row(chunks[0].row).edition.clone();
        let hidden = edition.decoder.forward(&packed, Some(&mut self.cache))?;
        for chunk in chunks {
            let row = self.row(chunk.row);
            row.fed_tokens += chunk.tokens;
            let (slot, fed_tokens) = (row.slot, row.fed_tokens);
            self.slots.fed(slot, fed_tokens);
        }
        if last_positions.is_empty() {
            return Ok(0);
        }
        let positions = Tensor::new(last_positions.as_slice(), hidden.device())?;
        let logits = edition
            .decoder
            .logits(&hidden.index_select(&positions, 0)?)?;
        let samples = || chunks.iter().filter(|chunk| chunk.samples);
        let draws: Vec<_> = samples().map(|chunk| self.row(chunk.row).draw()).collect();
        let sampled = sampling::sample_rows(&logits, self.vocabulary_size, &draws)?;
        for (chunk, sampled) in samples().zip(sampled) {
            self.take(chunk.row, sampled);
        }
        Ok(draws.len())
    }

    /// The chunks end to end, and the positions after which a token is sampled.
    fn pack(&mut self, chunks: &[Chunk]) -> (PackedRows, Vec<u32>) {
        let mut tokens = Vec::new();
        let mut rows = Vec::with_capacity(chunks.len());
        let mut last_positions = Vec::new();
        for chunk in chunks {
            let row = self.row(chunk.row);
            tokens.extend_from_slice(&row.tokens[row.fed_tokens..row.fed_tokens + chunk.tokens]);
            rows.push(PackedRow {
                len: chunk.tokens,
                past: row.fed_tokens,
                slot: row.slot,
            });
            if chunk.samples {
                last_positions.push(tokens.len() as u32 - 1);
            }
        }
        (PackedRows { tokens, rows }, last_positions)
    }

    fn take(&mut self, id: RowId, sampled: Sampled) {
        let row = self.row(id);
        row.tokens.push(sampled.token);
        row.logprobs.push(sampled.logprob);
        let full = row.logprobs.len() == row.request.max_tokens;
        if self.stop_ids.contains(&sampled.token) {
            self.finish(id, Stop::Token);
        } else if full {
            self.finish(id, Stop::Length);
        } else {
            self.batcher.continues(id);
        }
    }

    fn finish(&mut self, id: RowId, stop: Stop) {
        let mut row = self.take_out(id);
        let completion = Completion {
            tokens: row.tokens.split_off(row.request.context.len()),
            logprobs: row.logprobs,
            policy_version: row.edition.policy_version,
            stop,
        };
        // A caller that stopped waiting has no use for the answer.
        let _ = row.reply.send(Ok(completion));
    }

    fn fail(&mut self, chunks: &[Chunk], error: &PolicyError) {
        for chunk in chunks {
            if !self.running.contains_key(&chunk.row) {
                continue;
            }
            let row = self.take_out(chunk.row);
            self.slots.forget(row.slot);
            let _ = row.reply.send(Err(ActorError::Engine(format!(
                "a forward pass failed: {error}"
            ))));
        }
    }

    /// Removes a row; its slot keeps what was fed.
    fn take_out(&mut self, id: RowId) -> Running {
        self.batcher.leave(id);
        let row = self
            .running
            .remove(&id)
            .expect("only running rows are taken out: this is a bug");
        self.slots
            .give_back(row.slot, &row.tokens[..row.fed_tokens]);
        row
    }

    fn row(&mut self, id: RowId) -> &mut Running {
        self.running
            .get_mut(&id)
            .expect("the batcher plans rows that run: this is a bug")
    }
}

/// Bytes for the KV cache where the settings leave it open, of those that are free on a device that is not the CPU.
fn cache_bytes(settings: &EngineSettings, free: Option<u64>) -> u64 {
    const ON_THE_CPU: u64 = 2 << 30;
    match settings.kv_cache_bytes {
        0 => free.map_or(ON_THE_CPU, |free| free / 4),
        bytes => bytes,
    }
}

/// As many slots as were asked for and fit in the bytes, at least one.
fn affordable_slots(
    token_bytes: usize,
    context_tokens: usize,
    cache_bytes: u64,
    settings: &EngineSettings,
) -> usize {
    let slot_bytes = (token_bytes * context_tokens).max(1) as u64;
    let affordable = usize::try_from(cache_bytes / slot_bytes).unwrap_or(usize::MAX);
    if affordable < settings.slots {
        tracing::warn!(
            slots = settings.slots,
            affordable,
            "kv_cache_bytes limits the slots; raise it for larger batches"
        );
    }
    settings.slots.min(affordable).max(1)
}

#[cfg(test)]
mod tests;
