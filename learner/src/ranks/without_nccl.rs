//! Stands in for NCCL where the program is built without it; settings that ask for NCCL are
//! refused.

use std::{collections::BTreeMap, time::Duration};

use candle_core::Device;

use crate::{
    error::{LearnerError, Result},
    optimizer::{Gradients, Parameter},
};

/// Cannot exist without NCCL.
pub(super) enum Nccl {}

/// Cannot exist without NCCL.
pub(super) enum Id {}

impl Id {
    pub(super) fn new() -> Result<Self> {
        Err(absent())
    }

    pub(super) fn from_bytes(_bytes: &[u8]) -> Result<Self> {
        Err(absent())
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match *self {}
    }
}

impl Nccl {
    pub(super) fn open(
        id: &Id,
        _device: &Device,
        _rank: usize,
        _count: usize,
        _timeout: Duration,
    ) -> Result<Self> {
        match *id {}
    }

    pub(super) fn all_reduce(
        &self,
        _parameters: &BTreeMap<String, Parameter>,
        _gradients: Gradients,
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
