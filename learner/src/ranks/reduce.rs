//! Sums over ranks on rank 0, by the streams that connect it with the others.
//!
//! Invariant: a parameter's gradients are added in the order of ranks, and all ranks go on with the same bits. A rank first
//! sends, then reads, and rank 0 first reads, then sends, so that neither waits for the other.

use std::collections::BTreeMap;

use proto::v1::{train_request, train_response};
use safetensors::View as _;

use super::link::{ToLeader, ToRank};
use crate::{
    error::{LearnerError, Result},
    optimizer::{Gradients, Parameter},
};

/// Rank 0's gradients and, in the order of ranks, those of the busy others; all of them get the sum.
pub(super) fn sum(
    parameters: &BTreeMap<String, Parameter>,
    mut own: Gradients,
    others: &mut [ToRank],
    busy: &[bool],
) -> Result<Gradients> {
    for (name, parameter) in parameters {
        let total = match own.remove(name) {
            Some(gradient) => gradient,
            None => parameter.value.zeros_like()?,
        };
        let theirs = others.iter_mut().zip(busy).filter(|(_, busy)| **busy);
        let total = theirs
            .map(|(other, _)| other)
            .try_fold(total, |total, other| {
                Ok::<_, LearnerError>((total + other.gradient(name, &parameter.value)?)?)
            })?;
        own.insert(name.clone(), total);
    }
    for (name, total) in &own {
        let bytes = total.data();
        for other in &mut *others {
            other.send_bytes(train_response::Part::Gradient, name, &bytes)?;
        }
    }
    Ok(own)
}

/// Sends a rank's gradients and takes the sum.
pub(super) fn contribute(
    parameters: &BTreeMap<String, Parameter>,
    own: Gradients,
    leader: &mut ToLeader,
) -> Result<Gradients> {
    for (name, gradient) in own {
        leader.send_bytes(train_request::Part::Gradient, &name, &gradient.data())?;
    }
    let mut sum = Gradients::new();
    for (name, parameter) in parameters {
        sum.insert(name.clone(), leader.gradient(name, &parameter.value)?);
    }
    Ok(sum)
}
