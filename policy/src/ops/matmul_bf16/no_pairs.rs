//! Other CPUs have no AVX512-BF16.

use half::bf16;

use super::sums::Sums;
use crate::ops::aligned::Aligned;
use crate::ops::matmul::View;

/// Unused.
pub(super) const DEPTH: usize = 32;

#[derive(Clone, Copy)]
pub(super) enum Permission {}

impl Permission {
    pub(super) fn of_cpu() -> Option<Self> {
        None
    }
}

pub(super) fn pack(_: View<'_, bf16>, _: usize, _: &mut Aligned<u16>) {
    unreachable!("no CPU of this kind has AVX512-BF16: this is a bug")
}

pub(super) fn add(
    permission: Permission,
    _: (&[u16], usize),
    _: usize,
    _: &[u32],
    _: &mut Sums<'_>,
) {
    match permission {}
}
