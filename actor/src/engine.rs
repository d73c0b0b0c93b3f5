//! The sampling engine: one thread that owns the decoder and the KV cache and samples all completions of an actor.
//!
//! Continuous batching: rows enter and leave between forward passes as [`Batcher`] plans. A completion is a function of the
//! weights, its context, settings and coordinates alone, never of its neighbours, of slots or of time. New weights serve the
//! completions that begin after them: a running one ends under the version it began with, and a conversation that goes on
//! under new weights has its context fed again. So each recorded log-probability is exactly that of the stated version.

use std::{collections::BTreeMap, sync::Arc, thread, time::Instant};

use candle_core::{DType, Tensor};
use policy::{
    Coordinates, Decoder, DecoderConfig, KvCache, Model, PackedRows, PolicyError, Row,
    SamplingSettings, Use, Weights, sampling,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    batcher::{Batcher, Chunk, RowId},
    config::EngineSettings,
    error::ActorError,
    metrics,
    rollout::{Completion, Stop},
    slots::{Slots, Taken},
};

/// Commands that wait for the engine; more make their senders wait.
const QUEUE: usize = 256;

/// What to complete, and how.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// All tokens before the completion, at least one.
    pub context: Vec<u32>,
    /// Tokens to sample at most, at least one.
    pub max_tokens: usize,
    /// Temperature and filters.
    pub sampling: SamplingSettings,
    /// Where the first token's random number lies; the next ones follow by position.
    pub coordinates: Coordinates,
}

type Reply = oneshot::Sender<Result<Completion, ActorError>>;

enum Command {
    Complete(CompletionRequest, Reply),
    Swap(u64, Box<Weights>, oneshot::Sender<Result<(), ActorError>>),
}

/// A handle on an engine. The thread ends when the last handle is gone.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
}

impl Engine {
    /// Starts an engine on a model, whose weights are `policy_version`. Contexts with their completions may have up to
    /// `context_tokens`.
    ///
    /// # Errors
    /// The weights do not fit the config, or the thread cannot start.
    pub fn spawn(
        model: &Model,
        policy_version: u64,
        context_tokens: usize,
        settings: &EngineSettings,
    ) -> Result<Self, ActorError> {
        let sampler = Sampler::new(model, policy_version, context_tokens, settings)?;
        let (commands, received) = mpsc::channel(QUEUE);
        thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || sampler.run(received))
            .map_err(|error| ActorError::Engine(format!("its thread cannot start: {error}")))?;
        Ok(Self { commands })
    }

    /// Samples a completion.
    ///
    /// # Errors
    /// The request does not fit the engine, the decoder failed, or the engine is gone.
    pub async fn complete(&self, request: CompletionRequest) -> Result<Completion, ActorError> {
        self.ask(|reply| Command::Complete(request, reply)).await
    }

    /// Replaces the weights for all completions that begin from now on.
    ///
    /// # Errors
    /// The weights do not fit the config (the old ones stay), or the engine is gone.
    pub async fn swap(&self, policy_version: u64, weights: Weights) -> Result<(), ActorError> {
        self.ask(|reply| Command::Swap(policy_version, Box::new(weights), reply))
            .await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ActorError>>) -> Command,
    ) -> Result<T, ActorError> {
        let gone = || ActorError::Engine("its thread ended".to_owned());
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// A decoder and the version of its weights.
struct Policy {
    version: u64,
    decoder: Decoder,
}

/// One completion on its way.
struct Running {
    request: CompletionRequest,
    reply: Reply,
    policy: Arc<Policy>,
    slot: usize,
    /// The context, then what was sampled.
    tokens: Vec<u32>,
    /// Leading tokens whose keys and values lie in the slot.
    fed_tokens: usize,
    logprobs: Vec<f32>,
}

/// The state of the engine's thread.
struct Sampler {
    config: DecoderConfig,
    stop_ids: Vec<u32>,
    vocabulary_size: usize,
    context_tokens: usize,
    policy: Arc<Policy>,
    cache: KvCache,
    slots: Slots,
    batcher: Batcher,
    waiting: BTreeMap<RowId, (CompletionRequest, Reply)>,
    running: BTreeMap<RowId, Running>,
    next_row: RowId,
}

impl Sampler {
    fn new(
        model: &Model,
        version: u64,
        context_tokens: usize,
        settings: &EngineSettings,
    ) -> Result<Self, ActorError> {
        let config = model.config.clone();
        let slots = affordable_slots(&config, context_tokens, settings);
        let decoder = Decoder::new(&config, &model.weights, Use::Sample)?;
        let dtype = model.weights.get("model.embed_tokens.weight")?.dtype();
        Ok(Self {
            stop_ids: model.chat.stop_ids().to_vec(),
            vocabulary_size: model.chat.vocabulary_size(),
            context_tokens,
            cache: KvCache::on(&config, slots, context_tokens, decoder.device(), dtype)?,
            policy: Arc::new(Policy { version, decoder }),
            slots: Slots::new(slots),
            batcher: Batcher::new(slots, settings.pass_tokens),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            next_row: 0,
            config,
        })
    }

    /// Obeys and samples by turns until all handles are gone and all rows done.
    fn run(mut self, mut commands: mpsc::Receiver<Command>) {
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

    fn swap(&mut self, version: u64, weights: &Weights) -> Result<(), ActorError> {
        let decoder = Decoder::new(&self.config, weights, Use::Sample)?;
        self.policy = Arc::new(Policy { version, decoder });
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

    /// One forward pass for each policy version that has rows; usually one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the pass is timed for a metric only"
    )]
    fn pass(&mut self) {
        self.drop_abandoned();
        self.admit();
        metrics::set_rows(self.batcher.running(), self.batcher.waiting());
        let mut by_version: BTreeMap<u64, Vec<Chunk>> = BTreeMap::new();
        for chunk in self.batcher.plan() {
            let version = self.row(chunk.row).policy.version;
            by_version.entry(version).or_default().push(chunk);
        }
        for chunks in by_version.values() {
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
        while let Some(row) = self.batcher.admit() {
            let (request, reply) = self
                .waiting
                .remove(&row)
                .expect("the batcher admits rows that wait: this is a bug");
            if reply.is_closed() {
                continue;
            }
            let taken = self
                .slots
                .take(&request.context, self.policy.version)
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
                policy: self.policy.clone(),
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
        let policy = self.row(chunks[0].row).policy.clone();
        let hidden = policy.decoder.forward(&packed, Some(&mut self.cache))?;
        for chunk in chunks {
            self.row(chunk.row).fed_tokens += chunk.tokens;
        }
        if last_positions.is_empty() {
            return Ok(0);
        }
        let positions = Tensor::new(last_positions.as_slice(), hidden.device())?;
        let logits = policy
            .decoder
            .logits(&hidden.index_select(&positions, 0)?)?;
        let logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let samples = chunks.iter().filter(|chunk| chunk.samples);
        for (chunk, logits) in samples.zip(&logits) {
            self.sample(chunk.row, logits);
        }
        Ok(logits.len())
    }

    /// The chunks end to end, and the positions after which a token is sampled.
    fn pack(&mut self, chunks: &[Chunk]) -> (PackedRows, Vec<u32>) {
        let mut tokens = Vec::new();
        let mut rows = Vec::with_capacity(chunks.len());
        let mut last_positions = Vec::new();
        for chunk in chunks {
            let row = self.row(chunk.row);
            tokens.extend_from_slice(&row.tokens[row.fed_tokens..row.fed_tokens + chunk.tokens]);
            rows.push(Row {
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

    fn sample(&mut self, id: RowId, logits: &[f32]) {
        let vocabulary_size = self.vocabulary_size;
        let row = self.row(id);
        let coordinates = row.request.coordinates.at(row.logprobs.len() as u32);
        let sampled =
            sampling::sample(logits, vocabulary_size, &row.request.sampling, &coordinates);
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
            policy_version: row.policy.version,
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

/// As many slots as were asked for and fit in the bytes, at least one.
fn affordable_slots(
    config: &DecoderConfig,
    context_tokens: usize,
    settings: &EngineSettings,
) -> usize {
    const KEYS_AND_VALUES: usize = 2;
    let token_bytes =
        KEYS_AND_VALUES * config.layers * config.kv_heads * config.head_dim * size_of::<f32>();
    let slot_bytes = (token_bytes * context_tokens).max(1) as u64;
    let affordable = usize::try_from(settings.kv_cache_bytes / slot_bytes).unwrap_or(usize::MAX);
    if affordable < settings.slots {
        tracing::warn!(
            slots = settings.slots,
            affordable,
            "kv_cache_bytes limits the slots; raise it for larger batches"
        );
    }
    settings.slots.min(affordable).max(1)
}
