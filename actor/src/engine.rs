//! The sampling engine as its users hold it: a handle on one thread that samples all completions of an actor.
//!
//! A completion is a function of the weights, its context, settings and coordinates alone, never of its neighbours, of slots
//! or of time. New weights serve the completions that begin after them. How the thread samples is in `sampler`.

use std::{sync::Arc, thread};

use candle_core::{DType, Device};
use policy::{Coordinates, Model, Placement, SamplingSettings, Weights};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::spawn_blocking,
};

use crate::{config::EngineSettings, error::ActorError, rollout::Completion, sampler::Sampler};

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

/// Where a completion goes.
pub(crate) type Reply = oneshot::Sender<Result<Completion, ActorError>>;

/// What a handle asks of the thread.
pub(crate) enum Command {
    Complete(CompletionRequest, Reply),
    Swap(u64, Box<Weights>, oneshot::Sender<Result<(), ActorError>>),
}

/// A handle on an engine, which computes on one device. The thread ends when the last handle is gone.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
    places: Arc<Semaphore>,
    device: Device,
    dtype: DType,
}

/// An episode's right to play on an engine. There are as many as slots: with more, each conversation would push another
/// out of the KV cache before its next turn, and be fed anew every time.
#[derive(Debug)]
pub struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Engine {
    /// Starts an engine on a model, whose weights are `policy_version`. Contexts with their completions may have up to
    /// `context_tokens`.
    ///
    /// # Errors
    /// There is no such device, the weights do not fit the config, or the thread cannot start.
    pub fn spawn(
        model: &Model,
        policy_version: u64,
        context_tokens: usize,
        settings: &EngineSettings,
        placement: Placement,
    ) -> Result<Self, ActorError> {
        let sampler = Sampler::new(model, policy_version, context_tokens, settings, placement)?;
        let places = Arc::new(Semaphore::new(sampler.slots()));
        let (device, dtype) = (sampler.device().clone(), sampler.dtype());
        tracing::info!(device = ?device.location(), ?dtype, slots = sampler.slots(), "an engine starts");
        let (commands, received) = mpsc::channel(QUEUE);
        thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || sampler.run(received))
            .map_err(|error| ActorError::Engine(format!("its thread cannot start: {error}")))?;
        Ok(Self {
            commands,
            places,
            device,
            dtype,
        })
    }

    /// Waits until an episode may play, first come, first served.
    pub async fn place(&self) -> Place {
        Place {
            // The semaphore is never closed.
            _permit: self.places.clone().acquire_owned().await.ok(),
        }
    }

    /// Samples a completion.
    ///
    /// # Errors
    /// The request does not fit the engine, the decoder failed, or the engine is gone.
    pub async fn complete(&self, request: CompletionRequest) -> Result<Completion, ActorError> {
        self.ask(|reply| Command::Complete(request, reply)).await
    }

    /// Replaces the weights for all completions that begin from now on. They are brought to the engine's device while it
    /// goes on sampling.
    ///
    /// # Errors
    /// The weights do not fit the config (the old ones stay), or the engine is gone.
    pub async fn swap(&self, policy_version: u64, weights: Weights) -> Result<(), ActorError> {
        let (device, dtype) = (self.device.clone(), self.dtype);
        let moved = spawn_blocking(move || weights.to(&device, dtype))
            .await
            .map_err(|_| ActorError::Engine("moving its weights panicked".to_owned()))??;
        self.ask(|reply| Command::Swap(policy_version, Box::new(moved), reply))
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
