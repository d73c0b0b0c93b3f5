//! The KV cache of a sampler: keys and values in pages, one sequence in each slot.
//!
//! Invariant: all memory is allocated at the start, and a token is appended in place. A slot's
//! length is the number of tokens that prefill and decode have written to it. To rewind a slot, run
//! it from a shorter past. Slots with a common prefix share its pages.

use candle_core::{DType, Device, Tensor};
use half::bf16;

use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};
#[cfg(feature = "cuda")]
use crate::ops::cuda::CachedBatch;
use crate::ops::{AttentionMetadata, Backend, KvPages, PAGE, TensorPages, cached_attention};
use crate::packed_rows::PackedRow;
use crate::page_tables::PageTables;

/// The KV cache of one decoder.
pub struct KvCache {
    layers: CacheLayers,
    tables: PageTables,
    lengths: Vec<usize>,
    capacity_tokens: usize,
}

/// The keys and values of all slots, by layer.
enum CacheLayers {
    /// For the CPU kernels in f32.
    F32(Vec<KvPages<f32>>),
    /// For the CPU kernels in bf16.
    Bf16(Vec<KvPages<bf16>>),
    /// For any device.
    Tensors {
        layers: Vec<TensorPages>,
        /// The metadata of the rows of the current pass.
        metadata: Option<AttentionMetadata>,
    },
    /// For the CUDA kernels.
    #[cfg(feature = "cuda")]
    Cuda {
        layers: Vec<TensorPages>,
        /// The query heads of a layer.
        heads: usize,
        /// The rows of the current pass.
        batch: Option<CachedBatch>,
    },
}

impl KvCache {
    /// Allocates a cache of `slots` sequences of up to `capacity_tokens` tokens, for a decoder on
    /// this backend whose weights are on a device in a dtype.
    pub(crate) fn new(
        config: &DecoderConfig,
        backend: Backend,
        (device, dtype): (&Device, DType),
        slots: usize,
        capacity_tokens: usize,
    ) -> Result<Self> {
        let (kv_heads, head_dim) = (config.kv_heads, config.head_dim);
        let pages = PageTables::pages(slots, capacity_tokens);
        let numbers = 0..config.layers;
        let layers = match backend {
            Backend::CpuF32 => {
                let layer = |_| KvPages::new(pages, kv_heads, head_dim);
                CacheLayers::F32(numbers.map(layer).collect())
            }
            Backend::CpuBf16 => {
                let layer = |_| KvPages::new(pages, kv_heads, head_dim);
                CacheLayers::Bf16(numbers.map(layer).collect())
            }
            Backend::TensorOps => {
                let layer = |_| TensorPages::new(pages, kv_heads, head_dim, device, dtype);
                CacheLayers::Tensors {
                    layers: numbers.map(layer).collect::<Result<_, _>>()?,
                    metadata: None,
                }
            }
            #[cfg(feature = "cuda")]
            Backend::CudaBf16 => {
                let layer = |_| TensorPages::new(pages, kv_heads, head_dim, device, dtype);
                CacheLayers::Cuda {
                    layers: numbers.map(layer).collect::<Result<_, _>>()?,
                    heads: config.heads,
                    batch: None,
                }
            }
        };
        Ok(Self {
            layers,
            tables: PageTables::new(slots, capacity_tokens),
            lengths: vec![0; slots],
            capacity_tokens,
        })
    }

    /// Returns the bytes that a slot of up to `capacity_tokens` tokens takes in the cache of a
    /// decoder on this backend whose weights have a dtype. A slot has whole pages, and on the CPU
    /// the values of a page are padded.
    pub fn slot_bytes(
        config: &DecoderConfig,
        backend: Backend,
        dtype: DType,
        capacity_tokens: usize,
    ) -> usize {
        let head_bytes = match backend {
            Backend::CpuF32 => KvPages::<f32>::token_bytes(config.head_dim),
            Backend::CpuBf16 => KvPages::<bf16>::token_bytes(config.head_dim),
            _ => TensorPages::token_bytes(config.head_dim, dtype),
        };
        let tokens = PageTables::pages(1, capacity_tokens) * PAGE;
        config.layers * config.kv_heads * head_bytes * tokens
    }

    /// Returns the tokens that the slot holds.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn length(&self, slot: usize) -> usize {
        self.lengths[slot]
    }

    /// Empties a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn reset_slot(&mut self, slot: usize) {
        self.tables.truncate(slot, 0);
        self.lengths[slot] = 0;
    }

    /// Makes slot `to` hold the first `tokens` tokens of slot `from`, without copying whole pages
    /// (prefix sharing).
    ///
    /// # Errors
    /// [`PolicyError::Usage`] if `from` holds fewer tokens.
    pub fn copy_prefix(&mut self, from: usize, to: usize, tokens: usize) -> Result<()> {
        if tokens > self.lengths[from] {
            let held = self.lengths[from];
            return Err(PolicyError::Usage(format!(
                "slot {from} of the KV cache holds {held} tokens, not {tokens}"
            )));
        }
        self.tables.share(from, to, tokens);
        self.lengths[to] = tokens;
        Ok(())
    }

    /// Allocates pages for the rows of the next pass and updates the slots' lengths.
    ///
    /// # Errors
    /// [`PolicyError::Usage`] if a row does not fit its slot; nothing is changed then.
    pub(crate) fn allocate(&mut self, rows: &[PackedRow]) -> Result<()> {
        // All rows are checked first, so that a refused batch leaves the cache as it was.
        let mut seen = vec![false; self.lengths.len()];
        for row in rows {
            let Some(&held) = self.lengths.get(row.slot) else {
                let slots = self.lengths.len();
                return invalid_row(row, &format!("the KV cache has {slots} slots"));
            };
            if std::mem::replace(&mut seen[row.slot], true) {
                return invalid_row(row, "another row of the batch has the same slot");
            }
            if row.past > held {
                return invalid_row(row, &format!("the slot holds only {held} tokens"));
            }
            if row.past + row.len > self.capacity_tokens {
                let capacity = self.capacity_tokens;
                return invalid_row(row, &format!("a slot holds at most {capacity} tokens"));
            }
        }
        for row in rows {
            self.lengths[row.slot] = row.past + row.len;
            // Copy on write: the row's last page may be shared with another slot.
            if let Some((from, to)) = self.tables.prepare(row.slot, row.past, row.len) {
                self.layers.copy_page(from, to)?;
            }
        }
        self.layers.prepare_metadata(rows, &self.tables)
    }

    /// Appends k and v [T, K, D] to one layer of the rows' slots and attends with q [T, H, D] →
    /// [T, H * D].
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        [q, k, v]: [&Tensor; 3],
        rows: &[PackedRow],
    ) -> Result<Tensor> {
        Ok(match &mut self.layers {
            CacheLayers::F32(layers) => {
                let table = |slot| self.tables.table(slot);
                cached_attention([q, k, v], rows, &mut layers[layer], table)?
            }
            CacheLayers::Bf16(layers) => {
                let table = |slot| self.tables.table(slot);
                cached_attention([q, k, v], rows, &mut layers[layer], table)?
            }
            CacheLayers::Tensors { layers, metadata } => {
                let metadata = metadata
                    .as_ref()
                    .expect("allocate comes first: this is a bug");
                layers[layer].attend(q, k, v, metadata)?
            }
            #[cfg(feature = "cuda")]
            CacheLayers::Cuda { layers, batch, .. } => {
                let batch = batch.as_ref().expect("allocate comes first: this is a bug");
                batch.attend([q, k, v], &layers[layer])?
            }
        })
    }
}

impl CacheLayers {
    fn copy_page(&mut self, from: u32, to: u32) -> Result<()> {
        match self {
            Self::F32(layers) => layers.iter_mut().for_each(|pages| pages.copy(from, to)),
            Self::Bf16(layers) => layers.iter_mut().for_each(|pages| pages.copy(from, to)),
            Self::Tensors { layers, .. } => {
                layers.iter().try_for_each(|pages| pages.copy(from, to))?;
            }
            #[cfg(feature = "cuda")]
            Self::Cuda { layers, .. } => {
                layers.iter().try_for_each(|pages| pages.copy(from, to))?;
            }
        }
        Ok(())
    }

    /// Computes the slot mapping and the block tables of the rows, once for all layers.
    fn prepare_metadata(&mut self, rows: &[PackedRow], tables: &PageTables) -> Result<()> {
        if let Self::Tensors { layers, metadata } = self {
            let table = |slot| tables.table(slot);
            *metadata = Some(AttentionMetadata::new(rows, table, &layers[0])?);
        }
        #[cfg(feature = "cuda")]
        if let Self::Cuda {
            layers,
            heads,
            batch,
        } = self
        {
            let table = |slot| tables.table(slot);
            *batch = Some(CachedBatch::new(rows, table, &layers[0], *heads)?);
        }
        Ok(())
    }
}

fn invalid_row(row: &PackedRow, reason: &str) -> Result<()> {
    let PackedRow { len, past, slot } = row;
    Err(PolicyError::Usage(format!(
        "a row of {len} tokens after {past} in slot {slot} cannot run: {reason}"
    )))
}
