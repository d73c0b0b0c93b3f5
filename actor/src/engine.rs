//! The handle of a sampling engine: one thread samples all completions of an actor.
//!
//! A completion is a function of the weights, its context, the sampling settings and the
//! coordinates alone. It does not depend on other rows of the batch, on slots or on time. New
//! weights serve the completions that start after them. The thread itself is in `sampler`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use candle_core::{DType, Device};
use policy::{ConstrainedCompletion, Model, Placement, SamplingSettings, Weights};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::spawn_blocking,
};

use crate::{
    completion::{Completion, CompletionRequest},
    config::EngineSettings,
    error::ActorError,
    sampler::{CompletionJob, EngineCommand, Sampler},
};

/// Capacity of the engine's command channel. Senders wait while it is full.
const QUEUED_COMMANDS: usize = 256;

/// A handle of an engine on one device. The thread ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<EngineCommand>,
    permits: Arc<Semaphore>,
    device: Device,
    dtype: DType,
    work: Arc<EngineWork>,
}

/// What an engine has done since it started.
#[derive(Debug, Default)]
pub(crate) struct EngineWork {
    sampled_tokens: AtomicU64,
    busy_microseconds: AtomicU64,
}

impl EngineWork {
    pub(crate) fn add_pass(&self, sampled_tokens: usize, duration: Duration) {
        self.sampled_tokens
            .fetch_add(sampled_tokens as u64, Relaxed);
        let microseconds = duration.as_micros() as u64;
        self.busy_microseconds.fetch_add(microseconds, Relaxed);
    }
}

impl Engine {
    /// Starts an engine on a model whose weights are `policy_version`. A context and its completion
    /// together have at most `context_tokens`. `placement` names the device and the dtype.
    ///
    /// # Errors
    /// The device does not exist, the weights do not fit the config, or the thread cannot start.
    pub fn spawn(
        model: &Model,
        policy_version: u64,
        context_tokens: usize,
        settings: &EngineSettings,
        placement: Placement,
    ) -> Result<Self, ActorError> {
        let sampler = Sampler::new(model, policy_version, context_tokens, settings, placement)?;
        let permits = Arc::new(Semaphore::new(sampler.slots()));
        let (device, dtype) = (sampler.device().clone(), sampler.dtype());
        let (slots, work) = (sampler.slots(), sampler.work());
        tracing::info!(device = ?device.location(), ?dtype, slots, "engine started");
        let (commands, received) = mpsc::channel(QUEUED_COMMANDS);
        thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || sampler.run(received))
            .map_err(|error| ActorError::Engine(format!("cannot start its thread: {error}")))?;
        Ok(Self {
            commands,
            permits,
            device,
            dtype,
            work,
        })
    }

    /// Returns the tokens that were sampled and the time that was computed since the engine
    /// started.
    pub(crate) fn work(&self) -> (u64, Duration) {
        let microseconds = self.work.busy_microseconds.load(Relaxed);
        (
            self.work.sampled_tokens.load(Relaxed),
            Duration::from_micros(microseconds),
        )
    }

    /// Waits until an episode may run. Permits are granted in the order of the calls. The semaphore
    /// is never closed, so there always is a permit.
    ///
    /// An engine has as many permits as slots. With more episodes, each conversation would evict
    /// another one from the KV cache before its next turn, and every turn would prefill its whole
    /// context.
    pub async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.ok()
    }

    /// Samples a completion.
    ///
    /// # Errors
    /// The request does not fit the engine, the decoder failed, or the engine stopped.
    pub async fn complete(
        &self,
        request: CompletionRequest,
        sampling: SamplingSettings,
    ) -> Result<Completion, ActorError> {
        self.complete_constrained(request, sampling, None).await
    }

    /// Samples a completion of the tokens that `constrained` allows, if it is there.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub async fn complete_constrained(
        &self,
        request: CompletionRequest,
        sampling: SamplingSettings,
        constrained: Option<ConstrainedCompletion>,
    ) -> Result<Completion, ActorError> {
        self.send(|reply| {
            EngineCommand::Complete(CompletionJob {
                request,
                sampling,
                constrained: constrained.map(Box::new),
                reply,
            })
        })
        .await
    }

    /// Replaces the weights for all completions that start from now on. The weights are copied to
    /// the engine's device while it continues to sample.
    ///
    /// # Errors
    /// The weights do not fit the config (the engine keeps the old ones), or the engine stopped.
    pub async fn update_weights(
        &self,
        policy_version: u64,
        weights: Weights,
    ) -> Result<(), ActorError> {
        let (device, dtype) = (self.device.clone(), self.dtype);
        let weights = spawn_blocking(move || weights.to(&device, dtype))
            .await
            .map_err(|_| ActorError::Engine("copying its weights panicked".to_owned()))??;
        self.send(|reply| EngineCommand::UpdateWeights {
            policy_version,
            weights: Box::new(weights),
            reply,
        })
        .await
    }

    async fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ActorError>>) -> EngineCommand,
    ) -> Result<T, ActorError> {
        let stopped = || ActorError::Engine("its thread ended".to_owned());
        let (reply, response) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| stopped())?;
        response.await.map_err(|_| stopped())?
    }
}
