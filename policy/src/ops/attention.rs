//! Causal attention with grouped heads over packed rows, from the rows' own keys or from a KV cache.
//!
//! Invariant: one kernel serves training and sampling, and a row's bits depend on that row's tokens alone. There is no mask
//! tensor: a query sees the keys up to its own position.

use candle_core::{CpuStorage, CustomOp3, D, Device, Layout, Result, Shape, Tensor, bail};

use super::attention_kernel::{Backward, BackwardScratch, Forward, Heads, Scratch, Span};
use super::kv_strips::KvStrips;
use super::simd::dispatch;
use super::{at_least_f32, has_kernels, read, values};
use crate::Row;

/// q [T, heads, D], k and v [T, kv_heads, D], rows laid end to end → [T, heads * D]. Each row is a whole sequence
/// (its `past` and `slot` are not read).
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, rows: &[Row]) -> Result<Tensor> {
    if !has_kernels(q) {
        return attention_composed(q, k, v, rows);
    }
    let op = Attention { rows: rows.into() };
    q.contiguous()?
        .apply_op3(&k.contiguous()?, &v.contiguous()?, op)
}

/// The same from candle's operations, row by row; the softmax is at least in f32.
pub fn attention_composed(q: &Tensor, k: &Tensor, v: &Tensor, rows: &[Row]) -> Result<Tensor> {
    let mut outputs = Vec::with_capacity(rows.len());
    let mut first = 0;
    for row in rows {
        let part = |x: &Tensor| x.narrow(0, first, row.len);
        outputs.push(attend_composed(&part(q)?, &part(k)?, &part(v)?)?);
        first += row.len;
    }
    Tensor::cat(&outputs, 0)
}

/// One row: q [len, heads, D], k and v [keys, kv_heads, D], the queries being the last `len` of the keys' positions.
pub(crate) fn attend_composed(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (len, heads, head_dim) = q.dims3()?;
    let (keys, kv_heads, _) = k.dims3()?;
    let group = heads / kv_heads;
    let q = q
        .reshape((len, kv_heads, group, head_dim))?
        .permute((1, 2, 0, 3))?;
    let q = q.reshape((kv_heads, group * len, head_dim))?;
    let scores = (q.matmul(&k.permute((1, 2, 0))?.contiguous()?)? / (head_dim as f64).sqrt())?;
    let scores = at_least_f32(&scores)?.reshape((kv_heads, group, len, keys))?;
    let hidden: Vec<f32> = (0..len)
        .flat_map(|i| (0..keys).map(move |j| (i, j)))
        .map(|(i, j)| {
            if j > keys - len + i {
                f32::NEG_INFINITY
            } else {
                0.0
            }
        })
        .collect();
    let hidden = Tensor::from_vec(hidden, (len, keys), q.device())?.to_dtype(scores.dtype())?;
    let scores = scores.broadcast_add(&hidden)?;
    let weights = scores
        .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
        .exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    let weights = weights
        .to_dtype(v.dtype())?
        .reshape((kv_heads, group * len, keys))?;
    let out = weights.matmul(&v.permute((1, 0, 2))?.contiguous()?)?;
    out.reshape((kv_heads, group, len, head_dim))?
        .permute((2, 0, 1, 3))?
        .reshape((len, heads * head_dim))
}

/// Appends the new keys and values to the cached sequences (`slot * kv_heads + kv head`) and attends to them. No gradient.
pub(crate) fn cached_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rows: &[Row],
    strips: &mut KvStrips,
) -> Result<Tensor> {
    let (tokens, heads, head_dim) = q.dims3()?;
    let heads = Heads {
        heads,
        kv_heads: k.dim(1)?,
        head_dim,
    };
    let most_keys = rows.iter().map(|row| row.past + row.len).max().unwrap_or(0);
    let out = read([q, k, v], |[q, k, v]| {
        let mut out = vec![0.0; q.len()];
        let mut scratch = Scratch::new(heads, most_keys);
        for (row, span) in spans(rows, heads) {
            let span = Span {
                past: row.past,
                ..span
            };
            let sequence = row.slot * heads.kv_heads + span.kv_head;
            span.append(k, v, strips, sequence);
            dispatch(Forward {
                span,
                q,
                strips,
                sequence,
                scratch: &mut scratch,
                out: &mut out,
            });
        }
        Ok(out)
    })?;
    Tensor::from_vec(out, (tokens, heads.heads * head_dim), &Device::Cpu)
}

/// Every row with each of its key-value heads, without a past.
fn spans(rows: &[Row], heads: Heads) -> impl Iterator<Item = (&Row, Span)> {
    let starts = rows.iter().scan(0, |next, row| {
        let first = *next;
        *next += row.len;
        Some((row, first))
    });
    starts.flat_map(move |(row, first)| {
        (0..heads.kv_heads).map(move |kv_head| {
            let span = Span {
                heads,
                kv_head,
                first,
                len: row.len,
                past: 0,
            };
            (row, span)
        })
    })
}

struct Attention {
    rows: Vec<Row>,
}

impl Attention {
    fn longest(&self) -> usize {
        self.rows.iter().map(|row| row.len).max().unwrap_or(0)
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (tokens, heads, head_dim) = q_layout.shape().dims3()?;
        let heads = heads_of(heads, head_dim, k_layout.shape(), v_layout.shape())?;
        if self.rows.iter().map(|row| row.len).sum::<usize>() != tokens {
            bail!("attention: the rows do not add up to {tokens} tokens");
        }
        let (q, k, v) = (
            values(q, q_layout)?,
            values(k, k_layout)?,
            values(v, v_layout)?,
        );
        let mut out = vec![0.0; q.len()];
        let mut strips = KvStrips::new(1, self.longest(), head_dim);
        let mut scratch = Scratch::new(heads, self.longest());
        for (_, span) in spans(&self.rows, heads) {
            span.append(k, v, &mut strips, 0);
            dispatch(Forward {
                span,
                q,
                strips: &strips,
                sequence: 0,
                scratch: &mut scratch,
                out: &mut out,
            });
        }
        Ok((
            CpuStorage::F32(out),
            (tokens, heads.heads * head_dim).into(),
        ))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        out: &Tensor,
        dout: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (_, heads, head_dim) = q.dims3()?;
        let heads = heads_of(heads, head_dim, k.shape(), v.shape())?;
        let [dq, dk, dv] = read([q, k, v, out, dout], |[q, k, v, out, dout]| {
            let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.len()]);
            let longest = self.longest();
            let mut keys_values = KvStrips::new(1, longest, head_dim);
            let mut values_keys = KvStrips::new(1, longest, head_dim);
            let mut scratch = BackwardScratch::new(heads, longest);
            for (_, span) in spans(&self.rows, heads) {
                span.append(k, v, &mut keys_values, 0);
                span.append(v, k, &mut values_keys, 0);
                dispatch(Backward {
                    span,
                    q,
                    out,
                    dout,
                    keys_values: &keys_values,
                    values_keys: &values_keys,
                    scratch: &mut scratch,
                    dq: &mut dq,
                    dk: &mut dk,
                    dv: &mut dv,
                });
            }
            Ok([dq, dk, dv])
        })?;
        let gradient = |d, x: &Tensor| Tensor::from_vec(d, x.shape(), &Device::Cpu).map(Some);
        Ok((gradient(dq, q)?, gradient(dk, k)?, gradient(dv, v)?))
    }
}

fn heads_of(heads: usize, head_dim: usize, k: &Shape, v: &Shape) -> Result<Heads> {
    let (_, kv_heads, key_dim) = k.dims3()?;
    if k != v || key_dim != head_dim || !heads.is_multiple_of(kv_heads) {
        bail!("attention: {heads} heads of {head_dim} do not fit keys {k:?} and values {v:?}");
    }
    Ok(Heads {
        heads,
        kv_heads,
        head_dim,
    })
}
