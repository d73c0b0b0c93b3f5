//! Attention of a ragged batch over keys and values in pages of tensors, from candle's operations: for any device and dtype.
//!
//! Invariant: the number of operations depends on how many lengths the rows have, never on how many rows: tokens are written
//! by one scatter, and rows of one length are attended to together, padded to the pages of the longest past. What pads never
//! weighs. As with the kernels, which pages are whose is the caller's. A fused kernel may stand in for
//! [`TensorPages::attend`]: it would read pages through the table rather than gather them.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor};

use super::attention::{Grouped, attend, hidden};
use super::kv_pages::PAGE;
use crate::Row;

/// The pages of one layer.
pub(crate) struct TensorPages {
    /// [kv_heads, pages * PAGE, D], heads first, so that gathered pages need no turning round.
    keys: Tensor,
    values: Tensor,
}

/// Where the tokens of one pass are written and what its rows read; every layer's are the same.
pub(crate) struct Places {
    /// [kv_heads, T, D]: for each number, the token's place in its layer.
    written: Tensor,
    buckets: Vec<Bucket>,
    /// Token numbers of the buckets' outputs laid end to end, in the batch's order; none where they are in order.
    order: Option<Tensor>,
}

/// Rows of one length.
struct Bucket {
    rows: usize,
    len: usize,
    /// Numbers of their tokens in the batch, [rows * len].
    tokens: Tensor,
    /// Their pages, [rows * pages of the longest]; a shorter row's first page pads.
    pages: Tensor,
    /// [rows, 1, len, keys], see [`hidden`].
    hidden: Tensor,
}

impl TensorPages {
    /// Room for `pages` pages.
    pub(crate) fn new(
        pages: usize,
        kv_heads: usize,
        head_dim: usize,
        device: &Device,
        dtype: DType,
    ) -> Result<Self> {
        let shape = (kv_heads, pages * PAGE, head_dim);
        Ok(Self {
            keys: Tensor::zeros(shape, dtype, device)?,
            values: Tensor::zeros(shape, dtype, device)?,
        })
    }

    /// Copies one page over another.
    pub(crate) fn copy(&self, from: u32, to: u32) -> Result<()> {
        for all in [&self.keys, &self.values] {
            let page = all.narrow(1, from as usize * PAGE, PAGE)?;
            all.slice_set(&page.force_contiguous()?, 1, to as usize * PAGE)?;
        }
        Ok(())
    }

    /// Writes k and v [T, kv_heads, D] to their places and attends with q [T, heads, D] → [T, heads * D].
    pub(crate) fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        places: &Places,
    ) -> Result<Tensor> {
        for (all, new) in [(&self.keys, k), (&self.values, v)] {
            let new = new.transpose(0, 1)?.contiguous()?;
            all.scatter_set(&places.written, &new, 1)?;
        }
        let outputs = places.buckets.iter().map(|bucket| {
            let q = q.index_select(&bucket.tokens, 0)?;
            let q = q.reshape((bucket.rows, bucket.len, (), q.dim(2)?))?;
            let (keys, values) = (bucket.gather(&self.keys)?, bucket.gather(&self.values)?);
            attend(
                &Grouped::new(&q, keys.dim(0)?)?,
                &keys,
                &values,
                &bucket.hidden,
            )?
            .flatten_to(1)
        });
        let outputs = Tensor::cat(&outputs.collect::<Result<Vec<_>>>()?, 0)?;
        match &places.order {
            Some(order) => outputs.index_select(order, 0),
            None => Ok(outputs),
        }
    }
}

impl Places {
    /// The places of rows whose pages `table` gives by slot, in a layer of `kv_heads` heads of `head_dim`; scores will be in
    /// `scores`.
    pub(crate) fn new<'a>(
        rows: &[Row],
        table: impl Fn(usize) -> &'a [u32],
        (kv_heads, head_dim): (usize, usize),
        scores: DType,
        device: &Device,
    ) -> Result<Self> {
        let mut written = Vec::new();
        let mut by_len: BTreeMap<usize, Vec<(u32, Row)>> = BTreeMap::new();
        for row in rows {
            by_len
                .entry(row.len)
                .or_default()
                .push((written.len() as u32, *row));
            let pages = table(row.slot);
            let place = |at: usize| pages[at / PAGE] * PAGE as u32 + (at % PAGE) as u32;
            written.extend((row.past..row.past + row.len).map(place));
        }
        let tokens = written.len();
        let written = Tensor::from_vec(written, (1, tokens, 1), device)?;
        let buckets: Vec<Vec<(u32, Row)>> = by_len.into_values().collect();
        Ok(Self {
            written: written
                .broadcast_as((kv_heads, tokens, head_dim))?
                .contiguous()?,
            order: (buckets.len() > 1)
                .then(|| order(&buckets, device))
                .transpose()?,
            buckets: buckets
                .iter()
                .map(|rows| Bucket::new(rows, &table, scores, device))
                .collect::<Result<_>>()?,
        })
    }
}

/// Numbers of the tokens of a row that begins at `first`.
fn numbers(&(first, row): &(u32, Row)) -> std::ops::Range<u32> {
    first..first + row.len as u32
}

/// For each token of the batch, where it lies when the buckets lie end to end.
fn order(buckets: &[Vec<(u32, Row)>], device: &Device) -> Result<Tensor> {
    let laid: Vec<u32> = buckets.iter().flatten().flat_map(numbers).collect();
    let mut order = vec![0_u32; laid.len()];
    for (at, token) in (0..).zip(laid) {
        order[token as usize] = at;
    }
    Tensor::new(order, device)
}

impl Bucket {
    fn new<'a>(
        rows: &[(u32, Row)],
        table: impl Fn(usize) -> &'a [u32],
        scores: DType,
        device: &Device,
    ) -> Result<Self> {
        let len = rows[0].1.len;
        let tables = || rows.iter().map(|(_, row)| table(row.slot));
        let most = tables().map(<[u32]>::len).max().unwrap_or(0);
        let padded =
            |pages: &'a [u32]| (0..most).map(|at| pages.get(at).copied().unwrap_or(pages[0]));
        let pages: Vec<u32> = tables().flat_map(padded).collect();
        let positions = rows
            .iter()
            .flat_map(|(_, row)| row.past..row.past + row.len);
        Ok(Self {
            rows: rows.len(),
            len,
            tokens: Tensor::new(rows.iter().flat_map(numbers).collect::<Vec<_>>(), device)?,
            pages: Tensor::new(pages, device)?,
            hidden: hidden(positions, (rows.len(), len, most * PAGE), scores, device)?,
        })
    }

    /// The rows' pages of [kv_heads, pages * PAGE, D] as [kv_heads, rows, keys, D].
    fn gather(&self, all: &Tensor) -> Result<Tensor> {
        let (kv_heads, _, head_dim) = all.dims3()?;
        let pages = all.reshape((kv_heads, (), PAGE * head_dim))?;
        let gathered = pages.index_select(&self.pages, 1)?;
        gathered.reshape((kv_heads, self.rows, (), head_dim))
    }
}
