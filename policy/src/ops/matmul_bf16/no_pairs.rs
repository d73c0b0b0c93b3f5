//! Other CPUs have no AVX512-BF16.

use super::matrix::{Bf16Matrix, Bf16View};
use crate::ops::matmul::WriteMode;

#[derive(Clone, Copy)]
pub(super) enum Permission {}

impl Permission {
    pub(super) fn of_process() -> Option<Self> {
        None
    }
}

pub(super) fn multiply(
    permission: Permission,
    _: Bf16View<'_>,
    _: &Bf16Matrix,
    _: &mut [f32],
    _: WriteMode,
) {
    match permission {}
}
