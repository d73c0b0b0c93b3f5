//! Keys and values laid out as strips for the tile kernel, where appending a token writes in place.
//!
//! Invariant: a key block holds 32 keys as `[D][32]`, a value panel holds 32 of the D columns as `[capacity][32]`; what lies
//! beyond a sequence's tokens is finite and never weighs. Lengths are the caller's.

use super::matmul::PANEL;

/// Keys and values of some sequences.
pub(crate) struct KvStrips {
    keys: Vec<f32>,
    values: Vec<f32>,
    capacity: usize,
    head_dim: usize,
}

impl KvStrips {
    /// Room for `capacity` tokens (rounded up to 32) of each of `sequences` sequences.
    pub(crate) fn new(sequences: usize, capacity: usize, head_dim: usize) -> Self {
        let capacity = capacity.next_multiple_of(PANEL);
        Self {
            keys: vec![0.0; sequences * capacity * head_dim],
            values: vec![0.0; sequences * capacity * head_dim.next_multiple_of(PANEL)],
            capacity,
            head_dim,
        }
    }

    /// Writes the key and the value [D] of one token.
    pub(crate) fn write(&mut self, sequence: usize, position: usize, key: &[f32], value: &[f32]) {
        assert!(
            position < self.capacity,
            "a key beyond the capacity: this is a bug"
        );
        let sequence = self.sequence(sequence);
        let (block, column) = (position / PANEL, position % PANEL);
        let keys = &mut self.keys[sequence.keys_at + block * self.head_dim * PANEL + column..];
        for (d, &key) in key.iter().enumerate() {
            keys[d * PANEL] = key;
        }
        for (panel, value) in value.chunks(PANEL).enumerate() {
            let at = sequence.values_at + (panel * self.capacity + position) * PANEL;
            self.values[at..at + value.len()].copy_from_slice(value);
        }
    }

    /// Copies the first `tokens` tokens of one sequence over another's.
    pub(crate) fn copy(&mut self, from: usize, to: usize, tokens: usize) {
        let (from, to) = (self.sequence(from), self.sequence(to));
        let keys = tokens.next_multiple_of(PANEL) * self.head_dim;
        self.keys
            .copy_within(from.keys_at..from.keys_at + keys, to.keys_at);
        for panel in 0..self.head_dim.div_ceil(PANEL) {
            let panel = panel * self.capacity * PANEL;
            let start = from.values_at + panel;
            self.values
                .copy_within(start..start + tokens * PANEL, to.values_at + panel);
        }
    }

    /// Where a sequence begins.
    pub(super) fn sequence(&self, sequence: usize) -> Sequence {
        Sequence {
            keys_at: sequence * self.capacity * self.head_dim,
            values_at: sequence * self.capacity * self.head_dim.next_multiple_of(PANEL),
        }
    }

    /// 32 keys as `[D][32]`.
    pub(super) fn key_block(&self, sequence: Sequence, block: usize) -> &[f32] {
        let size = self.head_dim * PANEL;
        &self.keys[sequence.keys_at + block * size..][..size]
    }

    /// 32 columns of the first `keys` values as `[keys][32]`.
    pub(super) fn value_panel(&self, sequence: Sequence, panel: usize, keys: usize) -> &[f32] {
        &self.values[sequence.values_at + panel * self.capacity * PANEL..][..keys * PANEL]
    }
}

/// Offsets of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    keys_at: usize,
    values_at: usize,
}
