//! The left-hand matrix of a product, packed as the instructions read it.

use half::bf16;

use super::instructions::Instructions;
use super::matrix::{BLOCK, PANEL};
use super::sums::Sums;
use super::{amx, lanes, pairs};
use crate::ops::aligned::Aligned;
use crate::ops::matmul::View;
use crate::ops::simd::dispatch;

/// The rows of sums are a multiple of this under some instructions: the height of a tile.
pub(crate) const SUM_ROWS: usize = amx::TILE_ROWS;

/// The rows of A, each padded with zeros to whole blocks of k. The memory is used again when other
/// rows are packed.
pub(crate) struct Bf16Rows {
    instructions: Instructions,
    /// For pairs and tiles.
    packed: Aligned<u16>,
    /// For lanes: widened to f32.
    wide: Vec<f32>,
    rows: usize,
    /// k, padded to whole blocks.
    padded: usize,
}

impl Default for Bf16Rows {
    fn default() -> Self {
        Self {
            instructions: Instructions::Lanes,
            packed: Aligned::new(0),
            wide: Vec::new(),
            rows: 0,
            padded: 0,
        }
    }
}

impl Bf16Rows {
    /// Packs the rows of `a` in place of the former ones.
    pub(crate) fn pack(&mut self, a: View<'_, bf16>) {
        self.pack_for(Instructions::fastest(), a);
    }

    /// Packs the rows of `a` for certain instructions.
    pub(super) fn pack_for(&mut self, instructions: Instructions, a: View<'_, bf16>) {
        self.instructions = instructions;
        self.rows = a.rows;
        self.padded = a.cols.next_multiple_of(BLOCK);
        match instructions {
            Instructions::Tiles(_) => amx::pack(a, self.padded, &mut self.packed),
            Instructions::Pairs(_) => pairs::pack(a, self.padded, &mut self.packed),
            Instructions::Lanes => a.widen(self.padded, &mut self.wide),
        }
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the rows that the sums of a product must have: some instructions add zeros to rows
    /// behind the last one.
    pub(crate) fn padded_rows(&self) -> usize {
        match self.instructions {
            Instructions::Tiles(_) => self.rows.next_multiple_of(SUM_ROWS),
            Instructions::Pairs(_) | Instructions::Lanes => self.rows,
        }
    }

    /// Returns what multiplies these rows.
    pub(crate) fn multiplier(&self) -> Multiplier<'_> {
        Multiplier {
            rows: self,
            unit: match self.instructions {
                Instructions::Tiles(permission) => Unit::Tiles(amx::Tiles::configure(permission)),
                Instructions::Pairs(permission) => Unit::Pairs(permission),
                Instructions::Lanes => Unit::Lanes,
            },
        }
    }
}

/// Packed rows, ready to be multiplied.
pub(crate) struct Multiplier<'a> {
    rows: &'a Bf16Rows,
    unit: Unit,
}

enum Unit {
    Tiles(amx::Tiles),
    Pairs(pairs::Permission),
    Lanes,
}

impl Multiplier<'_> {
    /// Adds the products of the blocks of k from `first` on with as many blocks of one panel of B,
    /// `[steps / 2][32 pairs]`, to the sums.
    pub(crate) fn add_strip(&self, first: usize, pairs: &[u32], sums: &mut Sums<'_>) {
        let blocks = self.rows.padded / BLOCK;
        let depth = match self.unit {
            Unit::Tiles(_) => amx::DEPTH,
            Unit::Pairs(_) => pairs::DEPTH,
            Unit::Lanes => lanes::DEPTH,
        };
        // The strip is cut into pieces of equal size, so that all rows read a piece while it is in
        // the cache.
        let in_strip = pairs.len() / (BLOCK / 2 * PANEL);
        assert!(
            first + in_strip <= blocks && pairs.len().is_multiple_of(BLOCK / 2 * PANEL),
            "a strip does not fit the rows: this is a bug"
        );
        let piece = in_strip
            .div_ceil(in_strip.div_ceil(depth / BLOCK).max(1))
            .max(1);
        for (number, pairs) in pairs.chunks(piece * BLOCK / 2 * PANEL).enumerate() {
            self.add_piece(first + number * piece, pairs, sums);
        }
    }

    /// Adds the products of all steps with several panels of B. The sums of a panel begin
    /// `panel_step` values behind those of the panel before.
    pub(crate) fn add_panels(&self, panels: &[u32], sums: &mut Sums<'_>, panel_step: usize) {
        let len = (self.rows.padded / 2 * PANEL).max(1);
        assert!(
            panels.len().is_multiple_of(len),
            "panels do not fit the rows: this is a bug"
        );
        for (panel, pairs) in panels.chunks_exact(len).enumerate() {
            let mut sums = Sums {
                values: &mut sums.values[panel * panel_step..],
                stride: sums.stride,
            };
            self.add_strip(0, pairs, &mut sums);
        }
    }

    fn add_piece(&self, first: usize, pairs: &[u32], sums: &mut Sums<'_>) {
        let rows = self.rows;
        match &self.unit {
            Unit::Tiles(tiles) => {
                let blocks = rows.padded / BLOCK;
                amx::add(tiles, (rows.packed.read(), blocks), first, pairs, sums);
            }
            Unit::Pairs(permission) => {
                let packed = (rows.packed.read(), rows.padded);
                pairs::add(*permission, packed, first * BLOCK, pairs, sums);
            }
            Unit::Lanes => dispatch(lanes::Add {
                a: &rows.wide[first * BLOCK..],
                stride: rows.padded,
                rows: rows.rows,
                pairs,
                sums,
            }),
        }
    }
}
