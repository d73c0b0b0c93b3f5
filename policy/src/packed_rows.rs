//! The batch of a forward pass: rows of any length, packed end to end without padding.

use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};

/// The tokens of several rows, laid end to end (packed, or "varlen", rows).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedRows {
    /// The tokens of all rows, `[T]`.
    pub tokens: Vec<u32>,
    /// The rows, in order.
    pub rows: Vec<PackedRow>,
}

/// One row of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRow {
    /// Tokens of this row in the batch; at least 1. A decode step has 1, prefill more.
    pub len: usize,
    /// Tokens before them, which are in the KV cache or, without one, are the first tokens of
    /// another row of the batch.
    pub past: usize,
    /// The slot of the KV cache or, without one, the index of that other row, which is not read if
    /// `past` is 0.
    pub slot: usize,
}

impl PackedRows {
    /// Appends a whole sequence, as in training.
    pub fn push(&mut self, tokens: &[u32]) {
        self.push_after(tokens, 0, 0);
    }

    /// Appends the next tokens of a sequence after the `past` tokens that its slot holds or,
    /// without a KV cache, with which row `slot` begins.
    pub fn push_after(&mut self, tokens: &[u32], past: usize, slot: usize) {
        self.tokens.extend_from_slice(tokens);
        self.rows.push(PackedRow {
            len: tokens.len(),
            past,
            slot,
        });
    }

    /// Checks that the rows fit the tokens and that the tokens are in the vocabulary.
    pub(crate) fn validate(&self, config: &DecoderConfig) -> Result<()> {
        let total: usize = self.rows.iter().map(|row| row.len).sum();
        if total != self.tokens.len() || self.rows.iter().any(|row| row.len == 0) {
            let (rows, tokens) = (self.rows.len(), self.tokens.len());
            return Err(PolicyError::Usage(format!(
                "{rows} packed rows of {total} tokens in all do not fit {tokens} tokens, or one is \
                 empty"
            )));
        }
        match self
            .tokens
            .iter()
            .find(|&&token| token as usize >= config.vocab_size)
        {
            Some(token) => Err(PolicyError::Usage(format!(
                "token {token} is outside of the vocabulary of {}",
                config.vocab_size
            ))),
            None => Ok(()),
        }
    }

    /// Checks rows without a cache, whose past must be a prefix of an earlier row.
    pub(crate) fn validate_prefixes(&self) -> Result<()> {
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.past > 0) {
            let held = match self.rows[..index].get(row.slot) {
                Some(prefix) if prefix.past == 0 => prefix.len,
                _ => 0,
            };
            if row.past > held {
                let (past, slot) = (row.past, row.slot);
                return Err(PolicyError::Usage(format!(
                    "row {index} has a past of {past} tokens; without a KV cache they must be a \
                     prefix of an earlier row without a past, and row {slot} has {held}"
                )));
            }
        }
        Ok(())
    }

    /// Returns the position of each token in its sequence.
    pub(crate) fn positions(&self) -> Vec<u32> {
        let positions = |row: &PackedRow| (row.past as u32)..(row.past + row.len) as u32;
        self.rows.iter().flat_map(positions).collect()
    }
}

/// Returns the first packed token of each row.
pub(crate) fn row_offsets(rows: &[PackedRow]) -> Vec<usize> {
    let begin = |next: &mut usize, row: &PackedRow| {
        let first = *next;
        *next += row.len;
        Some(first)
    };
    rows.iter().scan(0, begin).collect()
}
