//! Stands for `tiles` where no CPU has AMX, so no process has the permission.

use super::super::sums::Sums;
use crate::ops::amx_permission::Permission;

pub(in super::super) struct Tiles;

impl Tiles {
    pub(in super::super) fn configure(_: Permission) -> Self {
        unreachable!("no CPU of this kind has AMX: this is a bug")
    }

    pub(super) fn two_rows(&self, _: [&[u16]; 2], _: &[u32], _: &mut Sums<'_>) {}

    pub(super) fn one_row(&self, _: &[u16], _: &[u32], _: &mut Sums<'_>) {}
}
