//! Keys and values of the tokens that a sampler has seen, in slots.
//!
//! Invariant: all memory is taken at the start; a token is appended in place. A slot holds one sequence, and its length is
//! the number of tokens fed to it. Rewinding is feeding from a shorter past. On the CPU slots that share a beginning share
//! its pages.

use candle_core::{DType, Device, Tensor};

use crate::config::DecoderConfig;
use crate::decoder::Row;
use crate::error::{PolicyError, Result};
use crate::ops::{self, KvPages};
use crate::page_tables::PageTables;

/// The cache of one decoder.
pub struct KvCache {
    layers: Vec<LayerCache>,
    tables: PageTables,
    lengths: Vec<usize>,
    capacity_tokens: usize,
}

/// One layer's keys and values of all slots.
enum LayerCache {
    /// For the kernels.
    Pages(KvPages),
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
                let pages = PageTables::pages(slots, capacity_tokens);
                return Ok(LayerCache::Pages(KvPages::new(pages, kv_heads, head_dim)));
            }
            let shape = (slots, capacity_tokens, kv_heads, head_dim);
            Ok(LayerCache::Tensors {
                keys: Tensor::zeros(shape, dtype, device)?,
                values: Tensor::zeros(shape, dtype, device)?,
            })
        };
        Ok(Self {
            layers: (0..config.layers).map(|_| layer()).collect::<Result<_>>()?,
            tables: PageTables::new(slots, capacity_tokens),
            lengths: vec![0; slots],
            capacity_tokens,
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
        self.tables.truncate(slot, 0);
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
        for layer in &self.layers {
            if let LayerCache::Tensors { keys, values } = layer {
                for tensor in [keys, values] {
                    let prefix = tensor.narrow(0, from, 1)?.narrow(1, 0, tokens)?;
                    tensor.narrow(0, to, 1)?.slice_set(&prefix.copy()?, 1, 0)?;
                }
            }
        }
        self.tables.share(from, to, tokens);
        self.lengths[to] = tokens;
        Ok(())
    }

    /// Takes note of the rows about to be fed, and makes room for them.
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
            if let Some((from, to)) = self.tables.prepare(row.slot, row.past, row.len) {
                for layer in &mut self.layers {
                    if let LayerCache::Pages(pages) = layer {
                        pages.copy(from, to);
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn layer(&mut self, layer: usize) -> CachedLayer<'_> {
        CachedLayer {
            layer: &mut self.layers[layer],
            tables: &self.tables,
        }
    }
}

/// One layer of a cache, for one forward pass.
pub(crate) struct CachedLayer<'a> {
    layer: &'a mut LayerCache,
    tables: &'a PageTables,
}

impl CachedLayer<'_> {
    /// Appends k and v [T, kv_heads, D] to the rows' slots and attends with q [T, heads, D] → [T, heads * D].
    pub(crate) fn attend(self, q: &Tensor, k: &Tensor, v: &Tensor, rows: &[Row]) -> Result<Tensor> {
        match self.layer {
            LayerCache::Pages(pages) => {
                let table = |slot| self.tables.table(slot);
                Ok(ops::cached_attention(q, k, v, rows, pages, table)?)
            }
            LayerCache::Tensors { keys, values } => {
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
