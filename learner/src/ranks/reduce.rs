//! Sums gradients over ranks on rank 0, over the streams that connect it with the others.
//!
//! Invariant: a parameter's gradients are added in the order of ranks, and all ranks continue with
//! the same bits. A rank sends first and then receives. Rank 0 receives first and then sends. So
//! the two never wait for each other.

use std::collections::BTreeMap;

use super::connection::{LeaderConnection, Peer as _, RankConnection, tensor_bytes};
use crate::{
    error::{LearnerError, Result},
    optimizer::{Gradients, Parameter, all_finite},
};

/// Adds the gradients of the other ranks that have some (`has_gradients`) to rank 0's `own`, in the
/// order of ranks, and sends the sum to all of them. What is not finite is added as well, so that
/// all ranks see it, and rank 0 looks for the group or demonstration that it comes from.
pub(super) fn sum(
    parameters: &BTreeMap<String, Parameter>,
    mut own: Gradients,
    others: &mut [RankConnection],
    has_gradients: &[bool],
) -> Result<Gradients> {
    let own_is_finite = all_finite(own.values())?;
    // All ranks iterate over the same sorted names, so the streams need no index, and rank 0 holds
    // one foreign gradient at a time.
    for (name, parameter) in parameters {
        let total = match own.remove(name) {
            Some(gradient) => gradient,
            None => parameter.value.zeros_like()?,
        };
        let senders = others.iter_mut().zip(has_gradients);
        let mut senders = senders.filter(|(_, has)| **has).map(|(other, _)| other);
        let total = senders.try_fold(total, |total, other| {
            let gradient = other.receive_gradient(name, &parameter.value)?;
            if own_is_finite && other.not_finite.is_none() && !all_finite([&gradient])? {
                other.not_finite = Some(name.clone());
            }
            Ok::<_, LearnerError>((total + gradient)?)
        })?;
        own.insert(name.clone(), total);
    }
    // Only after all gradients have arrived: a rank sends all of its own before it reads a sum.
    for (name, total) in &own {
        let bytes = tensor_bytes(total)?;
        for other in &mut *others {
            other.send_gradient(name, &bytes)?;
        }
    }
    Ok(own)
}

/// Sends a rank's gradients to rank 0 and receives the sum.
pub(super) fn contribute(
    parameters: &BTreeMap<String, Parameter>,
    own: Gradients,
    leader: &mut LeaderConnection,
) -> Result<Gradients> {
    for (name, gradient) in own {
        leader.send_gradient(&name, &tensor_bytes(&gradient)?)?;
    }
    let mut sum = Gradients::new();
    for (name, parameter) in parameters {
        let total = leader.receive_gradient(name, &parameter.value)?;
        sum.insert(name.clone(), total);
    }
    Ok(sum)
}
