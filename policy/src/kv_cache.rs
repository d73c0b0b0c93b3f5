//! Keys and values of the tokens that a sampler has seen, in slots.
//!
//! Invariant: all memory is taken at the start; a token is appended in place. A slot holds one sequence, and its length is
//! the number of tokens fed to it. Rewinding is feeding from a shorter past.

use candle_core::{DType, Device, Tensor};

use crate::config::DecoderConfig;
use crate::decoder::Row;
use crate::error::{PolicyError, Result};
use crate::ops::{self, KvStrips};

/// The cache of one decoder.
pub struct KvCache {
    layers: Vec<LayerCache>,
    lengths: Vec<usize>,
    capacity_tokens: usize,
    kv_heads: usize,
}

/// One layer's keys and values of all slots.
pub(crate) enum LayerCache {
    /// For the kernels.
    Strips(KvStrips),
    /// For any device: [slots, capacity, kv_heads, D] each.
    Tensors { keys: Tensor, values: Tensor },
}

impl KvCache {
    /// A cache for an f32 decoder on the CPU: `slots` sequences of up to `capacity_tokens` tokens.
    ///
    /// # Errors
    /// Only what the tensor library raises.
    pub fn new(config: &DecoderConfig, slots: usize, capacity_tokens: usize) -> Result<Self> {
        Self::on(config, slots, capacity_tokens, &Device::Cpu, DType::F32)
    }

    /// A cache for a decoder on a device in a dtype.
    ///
    /// # Errors
    /// Only what the tensor library raises.
    pub fn on(
        config: &DecoderConfig,
        slots: usize,
        capacity_tokens: usize,
        device: &Device,
        dtype: DType,
    ) -> Result<Self> {
        let (kv_heads, head_dim) = (config.kv_heads, config.head_dim);
        let layer = || -> Result<LayerCache> {
            if device.is_cpu() && dtype == DType::F32 {
                let strips = KvStrips::new(slots * kv_heads, capacity_tokens, head_dim);
                return Ok(LayerCache::Strips(strips));
            }
            let shape = (slots, capacity_tokens, kv_heads, head_dim);
            Ok(LayerCache::Tensors {
                keys: Tensor::zeros(shape, dtype, device)?,
                values: Tensor::zeros(shape, dtype, device)?,
            })
        };
        Ok(Self {
            layers: (0..config.layers).map(|_| layer()).collect::<Result<_>>()?,
            lengths: vec![0; slots],
            capacity_tokens,
            kv_heads,
        })
    }

    /// Slots of the cache.
    pub fn slots(&self) -> usize {
        self.lengths.len()
    }

    /// Tokens that a slot can hold.
    pub fn capacity_tokens(&self) -> usize {
        self.capacity_tokens
    }

    /// Tokens that the slot holds.
    ///
    /// # Panics
    /// Where there is no such slot.
    pub fn length(&self, slot: usize) -> usize {
        self.lengths[slot]
    }

    /// Empties a slot.
    ///
    /// # Panics
    /// Where there is no such slot.
    pub fn reset_slot(&mut self, slot: usize) {
        self.lengths[slot] = 0;
    }

    /// Makes slot `to` hold the first `tokens` tokens of slot `from`, as if they had been fed to it.
    ///
    /// # Errors
    /// [`PolicyError::Usage`] where `from` holds fewer tokens.
    pub fn copy_prefix(&mut self, from: usize, to: usize, tokens: usize) -> Result<()> {
        if tokens > self.lengths[from] {
            let held = self.lengths[from];
            return Err(PolicyError::Usage(format!(
                "slot {from} of the KV cache holds {held} tokens, not {tokens}"
            )));
        }
        for layer in &mut self.layers {
            match layer {
                LayerCache::Strips(strips) => {
                    for head in 0..self.kv_heads {
                        let sequence = |slot| slot * self.kv_heads + head;
                        strips.copy(sequence(from), sequence(to), tokens);
                    }
                }
                LayerCache::Tensors { keys, values } => {
                    for tensor in [keys, values] {
                        let prefix = tensor.narrow(0, from, 1)?.narrow(1, 0, tokens)?;
                        tensor.narrow(0, to, 1)?.slice_set(&prefix.copy()?, 1, 0)?;
                    }
                }
            }
        }
        self.lengths[to] = tokens;
        Ok(())
    }

    /// Takes note of the rows about to be fed.
    pub(crate) fn admit(&mut self, rows: &[Row]) -> Result<()> {
        let mut seen = vec![false; self.slots()];
        for row in rows {
            let Some(&held) = self.lengths.get(row.slot) else {
                let slots = self.slots();
                return refuse(row, &format!("the KV cache has {slots} slots"));
            };
            if std::mem::replace(&mut seen[row.slot], true) {
                return refuse(row, "another row of the batch has the same slot");
            }
            if row.past > held {
                return refuse(row, &format!("the slot holds only {held} tokens"));
            }
            if row.past + row.len > self.capacity_tokens {
                let capacity = self.capacity_tokens;
                return refuse(row, &format!("a slot holds at most {capacity} tokens"));
            }
        }
        for row in rows {
            self.lengths[row.slot] = row.past + row.len;
        }
        Ok(())
    }

    pub(crate) fn layer(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }
}

impl LayerCache {
    /// Appends k and v [T, kv_heads, D] to the rows' slots and attends with q [T, heads, D] → [T, heads * D].
    pub(crate) fn attend(
        &mut self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rows: &[Row],
    ) -> Result<Tensor> {
        match self {
            Self::Strips(strips) => Ok(ops::cached_attention(q, k, v, rows, strips)?),
            Self::Tensors { keys, values } => {
                let mut outputs = Vec::with_capacity(rows.len());
                let mut first = 0;
                for row in rows {
                    let part = |x: &Tensor| x.narrow(0, first, row.len);
                    let append = |cache: &Tensor, new: &Tensor| {
                        let slot = cache.narrow(0, row.slot, 1)?;
                        slot.slice_set(&part(new)?.unsqueeze(0)?.contiguous()?, 1, row.past)?;
                        slot.squeeze(0)?.narrow(0, 0, row.past + row.len)
                    };
                    let (keys, values) = (append(keys, k)?, append(values, v)?);
                    outputs.push(ops::attend_composed(&part(q)?, &keys, &values)?);
                    first += row.len;
                }
                Ok(Tensor::cat(&outputs, 0)?)
            }
        }
    }
}

fn refuse(row: &Row, reason: &str) -> Result<()> {
    let Row { len, past, slot } = row;
    Err(PolicyError::Usage(format!(
        "a row of {len} tokens after {past} in slot {slot} cannot be fed: {reason}"
    )))
}
