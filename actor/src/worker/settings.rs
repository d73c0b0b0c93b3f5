//! Converts what the learner sends to the settings of rollouts.

use policy::{Constraint, DTypeChoice, Placement, SamplingSettings, Weights};
use proto::v1::{self, RolloutSettings};

use crate::{error::ActorError, rollout::RolloutLimits};

pub(super) fn limits(sent: &RolloutSettings) -> Result<RolloutLimits, ActorError> {
    let limits = RolloutLimits {
        max_completion_tokens: sent.max_completion_tokens as usize,
        max_context_tokens: sent.max_context_tokens as usize,
        shots: sent.shots as usize,
    };
    for (field, tokens) in [
        (
            "learner.rollout.max_completion_tokens",
            limits.max_completion_tokens,
        ),
        (
            "learner.rollout.max_context_tokens",
            limits.max_context_tokens,
        ),
    ] {
        if tokens == 0 {
            let reason =
                "the learner sent 0, but it must be 1 or more; change it in the learner's settings"
                    .to_owned();
            return Err(ActorError::Setting { field, reason });
        }
    }
    Ok(limits)
}

/// Returns the defaults if the learner sends none.
pub(super) fn sampling(
    sent: Option<&v1::SamplingSettings>,
) -> Result<SamplingSettings, ActorError> {
    let sampling = sent.map_or_else(SamplingSettings::default, |sent| SamplingSettings {
        temperature: sent.temperature,
        top_k: sent.top_k,
        top_p: sent.top_p,
        min_p: sent.min_p,
    });
    sampling.validate()?;
    Ok(sampling)
}

pub(super) fn constraint(sent: v1::Constraint) -> Constraint {
    match sent {
        v1::Constraint::Unspecified => Constraint::None,
        v1::Constraint::ToolCall => Constraint::ToolCall,
        v1::Constraint::Sql => Constraint::Sql,
    }
}

/// Returns where to compute. Weights travel in the dtype in which the learner computes, and another
/// one gives other log-probabilities, so it takes a setting, and is warned of.
pub(super) fn placement_for(weights: &Weights, placement: Placement) -> Placement {
    let of_learner = Placement {
        dtype: DTypeChoice::Auto,
        ..placement
    };
    let (dtype, of_learner) = (placement.dtype, of_learner.or_dtype_of(weights).dtype);
    if dtype != DTypeChoice::Auto && dtype != of_learner {
        tracing::warn!(
            "dtype is {dtype}, and the learner trains in {of_learner}: their log-probabilities differ, \
             and the weights of the run depend on which actor samples; leave dtype at auto"
        );
    }
    placement.or_dtype_of(weights)
}
