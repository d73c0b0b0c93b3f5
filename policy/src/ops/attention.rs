//! Causal grouped-query attention (GQA) over packed (varlen) rows, with keys from the batch itself
//! or from a KV cache.
//!
//! Invariant: one kernel serves training and sampling, and a row's bits depend on that row's tokens
//! alone. The kernels have no mask tensor: each query visits the keys up to its own position only,
//! which is the causal mask.
//!
//! Shapes: T packed tokens, H query heads, K key-value heads, D head size.

use candle_core::{Result, Tensor, bail};
use half::bf16;

use super::attention_kernel::{AttentionValue, Backward, Forward, Heads, Largest, RowHead};
use super::attention_tensor_ops::attention_in_pages;
use super::kv_pages::{KvPages, PAGE, PagedSequence};
use super::{Backend, autograd_backward, check_same_shape, read};
use crate::packed_rows::{PackedRow, row_offsets};

impl Backend {
    /// Attends with q [T, H, D] to k and v [T, K, D] of packed rows → [T, H * D]. A row with a past
    /// continues another row of the batch ([`PackedRow::slot`]).
    pub fn attention(
        self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rows: &[PackedRow],
    ) -> Result<Tensor> {
        match self {
            Self::CpuF32 => forward::<f32>([q, k, v], rows),
            Self::CpuBf16 => forward::<bf16>([q, k, v], rows),
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => super::cuda::attention(q, k, v, rows),
            Self::TensorOps => attention_in_pages(q, k, v, rows),
        }
    }

    /// Returns the gradients of q, k and v, from the output `out` and its gradient `dout`.
    pub fn attention_backward(
        self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rows: &[PackedRow],
        out: &Tensor,
        dout: &Tensor,
    ) -> Result<[Tensor; 3]> {
        match self {
            Self::CpuF32 => backward::<f32>([q, k, v, out, dout], rows),
            Self::CpuBf16 => backward::<bf16>([q, k, v, out, dout], rows),
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => super::cuda::attention_backward(q, k, v, rows, out, dout),
            Self::TensorOps => autograd_backward([q, k, v], dout, |[q, k, v]| {
                attention_in_pages(q, k, v, rows)
            }),
        }
    }
}

fn forward<T: AttentionValue>([q, k, v]: [&Tensor; 3], rows: &[PackedRow]) -> Result<Tensor> {
    let heads = Heads::of(q, k, v)?;
    let batch = AttentionBatch::new(rows, heads, q.dim(0)?)?;
    let out = read([q, k, v], |[q, k, v]| {
        let mut out = vec![0.0; q.len()];
        let mut keys = GatheredKv::<T>::new(batch.largest);
        let mut scratch = T::scratch(batch.largest);
        for (index, row) in rows.iter().enumerate() {
            for row_head in batch.row_heads(index) {
                keys.load(row, row_head, k, v);
                T::forward(Forward {
                    row_head,
                    q,
                    pages: &keys.pages,
                    sequence: keys.sequence(row_head),
                    scratch: &mut scratch,
                    out: &mut out,
                });
            }
            keys.mark_loaded(row, index);
        }
        Ok(out)
    })?;
    T::tensor(out, (q.dim(0)?, heads.heads * heads.head_dim))
}

fn backward<T: AttentionValue>(
    [q, k, v, out, dout]: [&Tensor; 5],
    rows: &[PackedRow],
) -> Result<[Tensor; 3]> {
    check_same_shape("attention", out, dout)?;
    let heads = Heads::of(q, k, v)?;
    let batch = AttentionBatch::new(rows, heads, q.dim(0)?)?;
    let [dq, dk, dv] = read([q, k, v, out, dout], |[q, k, v, out, dout]| {
        let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.len()]);
        let mut keys_values = GatheredKv::<T>::new(batch.largest);
        let mut values_keys = GatheredKv::<T>::new(batch.largest);
        let mut scratch = T::backward_scratch(batch.largest);
        for (index, row) in rows.iter().enumerate() {
            for row_head in batch.row_heads(index) {
                keys_values.load(row, row_head, k, v);
                values_keys.load(row, row_head, v, k);
                T::backward(Backward {
                    row_head,
                    q,
                    out,
                    dout,
                    keys_values: &keys_values.pages,
                    values_keys: &values_keys.pages,
                    sequence: keys_values.sequence(row_head),
                    scratch: &mut scratch,
                    dq: &mut dq,
                    dk: &mut dk,
                    dv: &mut dv,
                });
            }
            keys_values.mark_loaded(row, index);
            values_keys.mark_loaded(row, index);
        }
        Ok([dq, dk, dv])
    })?;
    Ok([
        T::tensor(dq, q.shape())?,
        T::tensor(dk, k.shape())?,
        T::tensor(dv, v.shape())?,
    ])
}

/// Appends the new keys and values to the cached sequences and attends to them by kernels. `table`
/// gives the block table of a slot.
pub(crate) fn cached_attention<'a, T: AttentionValue>(
    [q, k, v]: [&Tensor; 3],
    rows: &[PackedRow],
    pages: &mut KvPages<T>,
    table: impl Fn(usize) -> &'a [u32],
) -> Result<Tensor> {
    let heads = Heads::of(q, k, v)?;
    let batch = AttentionBatch::new(rows, heads, q.dim(0)?)?;
    let out = read([q, k, v], |[q, k, v]| {
        let mut out = vec![0.0; q.len()];
        let mut scratch = T::scratch(batch.largest);
        for (index, row) in rows.iter().enumerate() {
            for row_head in batch.row_heads(index) {
                let sequence = PagedSequence {
                    table: table(row.slot),
                    kv_head: row_head.kv_head,
                };
                // Appended first, because the new tokens attend to their own keys and values as
                // well.
                row_head.append(row_head.past..row_head.all_keys(), k, v, pages, sequence);
                T::forward(Forward {
                    row_head,
                    q,
                    pages,
                    sequence,
                    scratch: &mut scratch,
                    out: &mut out,
                });
            }
        }
        Ok(out)
    })?;
    T::tensor(out, (q.dim(0)?, heads.heads * heads.head_dim))
}

/// The rows of one call and their offsets in the packed batch.
struct AttentionBatch<'a> {
    rows: &'a [PackedRow],
    row_offsets: Vec<usize>,
    largest: Largest,
}

impl<'a> AttentionBatch<'a> {
    fn new(rows: &'a [PackedRow], heads: Heads, tokens: usize) -> Result<Self> {
        if rows.iter().map(|row| row.len).sum::<usize>() != tokens {
            bail!("attention: the rows do not add up to {tokens} tokens");
        }
        Ok(Self {
            rows,
            row_offsets: row_offsets(rows),
            largest: Largest {
                heads,
                len: rows.iter().map(|row| row.len).max().unwrap_or(0),
                keys: rows.iter().map(|row| row.past + row.len).max().unwrap_or(0),
            },
        })
    }

    /// Iterates over the key-value heads of one row.
    fn row_heads(&self, index: usize) -> impl Iterator<Item = RowHead> {
        let (row, heads) = (self.rows[index], self.largest.heads);
        let first = self.row_offsets[index];
        let past_offset = self.row_offsets.get(row.slot).copied().unwrap_or(0);
        (0..heads.kv_heads).map(move |kv_head| RowHead {
            heads,
            kv_head,
            first,
            len: row.len,
            past: row.past,
            past_offset,
        })
    }
}

/// Keys and values of one row at a time, copied from the packed batch into pages as the kernel
/// reads them. Rows that continue the same prefix reuse its pages.
struct GatheredKv<T: AttentionValue> {
    pages: KvPages<T>,
    table: Vec<u32>,
    /// The row whose tokens the pages begin with, and how many of them.
    loaded_prefix: Option<(usize, usize)>,
}

impl<T: AttentionValue> GatheredKv<T> {
    fn new(Largest { heads, keys, .. }: Largest) -> Self {
        let pages = keys.div_ceil(PAGE);
        Self {
            pages: KvPages::new(pages, heads.kv_heads, heads.head_dim),
            table: (0..pages as u32).collect(),
            loaded_prefix: None,
        }
    }

    /// Writes the keys and values that `row_head` sees and that the pages do not hold yet.
    fn load(&mut self, row: &PackedRow, row_head: RowHead, k: &[T], v: &[T]) {
        let there = match self.loaded_prefix {
            Some((loaded_prefix, tokens)) if row.past > 0 && loaded_prefix == row.slot => {
                tokens.min(row.past)
            }
            _ => 0,
        };
        let sequence = PagedSequence {
            table: &self.table,
            kv_head: row_head.kv_head,
        };
        row_head.append(there..row_head.all_keys(), k, v, &mut self.pages, sequence);
    }

    fn sequence(&self, row_head: RowHead) -> PagedSequence<'_> {
        PagedSequence {
            table: &self.table,
            kv_head: row_head.kv_head,
        }
    }

    /// Records the prefix that the pages hold once all heads of `row` are loaded.
    fn mark_loaded(&mut self, row: &PackedRow, index: usize) {
        self.loaded_prefix = Some(match row.past {
            0 => (index, row.len),
            past => (row.slot, past),
        });
    }
}

impl Heads {
    fn of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Self> {
        let (_, heads, head_dim) = q.dims3()?;
        let (_, kv_heads, key_dim) = k.dims3()?;
        let is_same = k.shape() == v.shape() && key_dim == head_dim;
        if !is_same || !heads.is_multiple_of(kv_heads) {
            let (k, v) = (k.shape(), v.shape());
            bail!("attention: {heads} heads of {head_dim} do not fit keys {k:?} and values {v:?}");
        }
        Ok(Self {
            heads,
            kv_heads,
            head_dim,
        })
    }
}
