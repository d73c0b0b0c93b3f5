//! Replaces NCCL in a program that is built without it. Settings that request NCCL are refused.

use std::{collections::BTreeMap, time::Duration};

use candle_core::Device;

use crate::{
    error::{LearnerError, Result},
    optimizer::{Gradients, Parameter},
};

/// Cannot exist without NCCL.
pub(super) enum Nccl {}

pub(super) fn check(_: &Device) -> Result<()> {
    Err(absent())
}

pub(super) fn new_id(_: &Device) -> Result<Vec<u8>> {
    Err(absent())
}

impl Nccl {
    pub(super) fn open(_: &[u8], _: &Device, _: usize, _: usize, _: Duration) -> Result<Self> {
        Err(absent())
    }

    pub(super) fn all_reduce(
        &self,
        _parameters: &BTreeMap<String, Parameter>,
        _gradients: Gradients,
        _lost: impl FnMut() -> Option<LearnerError>,
    ) -> Result<Gradients> {
        match *self {}
    }
}

fn absent() -> LearnerError {
    LearnerError::setting(
        "ranks.reduce",
        "is nccl, which this rank's program is built without; build it by `make cuda`, or set grpc \
         in the learner",
    )
}
