//! The [`Policy`] trait, which supplies completions to episodes, and its implementation by a model.
//!
//! Scripted policies (crate `baselines`) implement the same trait. Every policy therefore runs
//! through the same rollout, and the trajectories of a scripted policy serve as demonstrations.

use std::sync::Arc;

use async_trait::async_trait;
use policy::{Constrainer, SamplingSettings};
use proto::v1::Observation;
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};

use crate::{
    completion::{Completion, CompletionRequest},
    engine::Engine,
    error::ActorError,
};

/// What a policy may know when it completes a turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnView<'a> {
    /// The question's id.
    pub question_id: &'a str,
    /// The newest observation.
    pub observation: &'a Observation,
    /// The tokens before the completion, its coordinates and its token limit.
    pub request: &'a CompletionRequest,
}

/// Supplies completions. Equal views give equal completions.
#[async_trait]
pub trait Policy: Send + Sync {
    /// Completes one turn.
    ///
    /// # Errors
    /// A failure outside the agent, such as a stopped engine. It ends the episode without a score.
    async fn complete(&self, view: TurnView<'_>) -> Result<Completion, ActorError>;

    /// Waits until one more episode may run. The caller holds the permit until the episode ends.
    /// Returns none if the policy does not limit concurrent episodes.
    ///
    /// There is no default: a policy around another one must pass this on.
    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit>;
}

/// A model on an engine.
#[derive(Clone, Debug)]
pub struct ModelPolicy {
    engine: Engine,
    sampling: SamplingSettings,
    constrainer: Option<Arc<Constrainer>>,
}

impl ModelPolicy {
    /// Creates a policy that samples from `engine`, by a constrainer if there is one. Temperature 0
    /// is greedy.
    pub fn new(
        engine: Engine,
        sampling: SamplingSettings,
        constrainer: Option<Arc<Constrainer>>,
    ) -> Self {
        Self {
            engine,
            sampling,
            constrainer,
        }
    }
}

#[async_trait]
impl Policy for ModelPolicy {
    async fn complete(&self, view: TurnView<'_>) -> Result<Completion, ActorError> {
        let constrained = match &self.constrainer {
            None => None,
            Some(constrainer) => {
                let (constrainer, context) = (constrainer.clone(), view.request.context.clone());
                // A new grammar takes milliseconds to compile.
                let begin = spawn_blocking(move || constrainer.begin(&context));
                let panicked = |_| ActorError::Engine("compiling a grammar panicked".to_owned());
                Some(begin.await.map_err(panicked)??)
            }
        };
        self.engine
            .complete_constrained(view.request.clone(), self.sampling, constrained)
            .await
    }

    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.engine.acquire_permit().await
    }
}
