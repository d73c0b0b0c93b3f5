//! Attention over keys and values in pages of tensors, from candle's operations: for any device and dtype.
//!
//! Queries come in blocks of [`QUERIES`] tokens of one row and see [`keys_of_a_block`] keys at a time, in order of position, as in
//! FlashAttention (Dao et al., 2022): the largest score, the sum of weights and the weighted sum go from block to block.
//!
//! Invariant: every product has one shape, and every sum one order by position, so that a query's bits depend on its row
//! alone: whether its keys come from a cache or from the batch, in one piece, in chunks or one by one. What pads weighs
//! exactly nothing. The number of operations depends on the longest row and the number of query blocks that share a piece,
//! never on single rows. A fused kernel may stand in for [`TensorPages::read`]; it would read pages through the table.

use candle_core::{D, DType, Device, Result, Tensor};

use super::at_least_f32;
use super::attention::hidden;
use super::fixed_shape::product_of_matrices;
use super::kv_pages::PAGE;
use crate::Row;

/// Queries of a block, padded where a row has fewer.
const QUERIES: usize = 16;

/// Whole pages. On a GPU each block costs launches, on the CPU what pads costs time.
fn keys_of_a_block(device: &Device) -> usize {
    PAGE * if device.is_cpu() { 4 } else { 16 }
}

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
    reads: Reads,
}

/// What the query blocks of a batch read.
struct Reads {
    /// Query blocks.
    count: usize,
    /// Numbers of their tokens in the batch, [count * QUERIES]; a row's first pads.
    tokens: Tensor,
    /// Of each token of the batch, where it lies in them, [T].
    order: Tensor,
    /// The blocks of keys, in order of position.
    blocks: Vec<KeyBlock>,
}

struct KeyBlock {
    /// The query blocks' pages, [count * pages of a block]; a row's first page pads.
    pages: Tensor,
    /// [count, 1, QUERIES, keys of a block], see [`hidden`].
    hidden: Tensor,
}

/// Attention of rows of the batch over their own keys and those of the rows that they continue ([`Row::slot`]): q [T, heads, D],
/// k and v [T, kv_heads, D] → [T, heads * D].
pub(super) fn attention_in_pages(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rows: &[Row],
) -> Result<Tensor> {
    let laid = Laid::new(rows);
    let tokens = Tensor::new(laid.tokens, q.device())?;
    let lay = |x: &Tensor| x.index_select(&tokens, 0)?.transpose(0, 1)?.contiguous();
    let pages = TensorPages {
        keys: lay(k)?,
        values: lay(v)?,
    };
    let table = |row: usize| laid.tables[row].as_slice();
    let reads = Reads::new(rows, table, super::wide(q.dtype()), q.device())?;
    pages.read(q, &reads)
}

/// The rows of a batch without a cache, in pages.
struct Laid {
    /// For each place of the pages, a token of the batch; its first pads.
    tokens: Vec<u32>,
    /// Each row's pages.
    tables: Vec<Vec<u32>>,
}

impl Laid {
    fn new(rows: &[Row]) -> Self {
        let firsts: Vec<u32> = rows
            .iter()
            .scan(0, |next, row| {
                let first = *next;
                *next += row.len as u32;
                Some(first)
            })
            .collect();
        let (mut tokens, mut tables) = (Vec::new(), Vec::new());
        for (row, &first) in rows.iter().zip(&firsts) {
            let begun = tokens.len();
            if row.past > 0 {
                tokens.extend(firsts[row.slot]..firsts[row.slot] + row.past as u32);
            }
            tokens.extend(first..first + row.len as u32);
            tokens.resize(tokens.len().next_multiple_of(PAGE), 0);
            tables.push(((begun / PAGE) as u32..(tokens.len() / PAGE) as u32).collect());
        }
        Self { tokens, tables }
    }
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
        self.read(q, &places.reads)
    }

    /// Attends with q [T, heads, D] → [T, heads * D]. Half precision is widened to f32 inside, so that scores, softmax and
    /// weights are never rounded to it.
    fn read(&self, q: &Tensor, reads: &Reads) -> Result<Tensor> {
        let (kv_heads, _, head_dim) = self.keys.dims3()?;
        let group = q.dim(1)? / kv_heads;
        let queries = reads.queries(q, kv_heads)?;
        let mut seen: Option<Seen> = None;
        for block in &reads.blocks {
            let keys = block.gather(&self.keys)?.transpose(1, 2)?.contiguous()?;
            let scores = product_of_matrices(&queries, &keys)?;
            let scores = scores.reshape((kv_heads, reads.count, group, QUERIES, ()))?;
            let scores = scores.broadcast_add(&block.hidden)?;
            let scores = scores.reshape((kv_heads * reads.count, group * QUERIES, ()))?;
            seen = Some(Seen::more(seen, &scores, &block.gather(&self.values)?)?);
        }
        let out = seen.expect("a block of keys: this is a bug").mean()?;
        let out = out.reshape((kv_heads, reads.count, group, QUERIES, head_dim))?;
        out.permute((1, 3, 0, 2, 4))?
            .reshape((reads.count * QUERIES, kv_heads * group * head_dim))?
            .to_dtype(q.dtype())?
            .index_select(&reads.order, 0)
    }
}

/// What queries have seen of their keys so far; P matrices of M queries.
struct Seen {
    /// The largest score, [P, M, 1].
    most: Tensor,
    /// The sum of e^(score - most), [P, M, 1], and the values weighted by it, [P, M, D].
    sum: Tensor,
    weighted: Tensor,
}

impl Seen {
    /// And so many keys more, by scores [P, M, keys] and values [P, keys, D].
    fn more(before: Option<Self>, scores: &Tensor, values: &Tensor) -> Result<Self> {
        let most = scores.max_keepdim(D::Minus1)?;
        let most = match &before {
            Some(before) => before.most.maximum(&most)?,
            None => most,
        };
        let weights = scores.broadcast_sub(&most)?.exp()?;
        let sum = weights.sum_keepdim(D::Minus1)?;
        let weighted = product_of_matrices(&weights, values)?;
        let Some(before) = before else {
            return Ok(Self {
                most,
                sum,
                weighted,
            });
        };
        let faded = (before.most - &most)?.exp()?;
        Ok(Self {
            most,
            sum: ((before.sum * &faded)? + sum)?,
            weighted: (before.weighted.broadcast_mul(&faded)? + weighted)?,
        })
    }

    fn mean(&self) -> Result<Tensor> {
        self.weighted.broadcast_div(&self.sum)
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
        for row in rows {
            let pages = table(row.slot);
            let place = |at: usize| pages[at / PAGE] * PAGE as u32 + (at % PAGE) as u32;
            written.extend((row.past..row.past + row.len).map(place));
        }
        let tokens = written.len();
        let written = Tensor::from_vec(written, (1, tokens, 1), device)?;
        Ok(Self {
            written: written
                .broadcast_as((kv_heads, tokens, head_dim))?
                .contiguous()?,
            reads: Reads::new(rows, |row| table(rows[row].slot), scores, device)?,
        })
    }
}

impl Reads {
    /// Of rows whose pages `table` gives by their number.
    fn new<'a>(
        rows: &[Row],
        table: impl Fn(usize) -> &'a [u32],
        scores: DType,
        device: &Device,
    ) -> Result<Self> {
        let (mut tokens, mut positions, mut order) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first, mut row_of_block) = (0, Vec::new());
        for (number, row) in rows.iter().enumerate() {
            let begun = tokens.len() as u32;
            let padded = row.len.next_multiple_of(QUERIES);
            let padding = padded - row.len;
            order.extend(begun..begun + row.len as u32);
            tokens.extend(first..first + row.len as u32);
            tokens.extend(std::iter::repeat_n(first, padding));
            positions.extend(row.past..row.past + row.len);
            positions.extend(std::iter::repeat_n(row.past, padding));
            row_of_block.extend(std::iter::repeat_n(number, padded / QUERIES));
            first += row.len as u32;
        }
        let count = row_of_block.len();
        let longest = rows.iter().map(|row| row.past + row.len).max().unwrap_or(1);
        let keys = keys_of_a_block(device);
        let blocks = longest.div_ceil(keys);
        let hidden = hidden(
            positions.into_iter(),
            (count, QUERIES, blocks * keys),
            scores,
            device,
        )?;
        let block = |block: usize| {
            let numbers = block * (keys / PAGE)..(block + 1) * (keys / PAGE);
            let of_row = |&row: &usize| {
                let pages = table(row);
                numbers
                    .clone()
                    .map(|at| pages.get(at).copied().unwrap_or(pages[0]))
            };
            let pages: Vec<u32> = row_of_block.iter().flat_map(of_row).collect();
            Ok(KeyBlock {
                pages: Tensor::new(pages, device)?,
                hidden: hidden.narrow(3, block * keys, keys)?,
            })
        };
        Ok(Self {
            count,
            tokens: Tensor::new(tokens, device)?,
            order: Tensor::new(order, device)?,
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
        })
    }

    /// The blocks of q [T, heads, D], widened and scaled: [kv_heads * count, heads / kv_heads * QUERIES, D].
    fn queries(&self, q: &Tensor, kv_heads: usize) -> Result<Tensor> {
        let (_, heads, head_dim) = q.dims3()?;
        let q = at_least_f32(&q.index_select(&self.tokens, 0)?)?;
        let q = q.reshape((self.count, QUERIES, kv_heads, heads / kv_heads, head_dim))?;
        let q = q.permute((2, 0, 3, 1, 4))?.contiguous()?;
        q.reshape((kv_heads * self.count, (), head_dim))? / (head_dim as f64).sqrt()
    }
}

impl KeyBlock {
    /// The query blocks' pages of [kv_heads, pages * PAGE, D], widened: [kv_heads * count, keys, D].
    fn gather(&self, all: &Tensor) -> Result<Tensor> {
        let (kv_heads, _, head_dim) = all.dims3()?;
        let pages = all.reshape((kv_heads, (), PAGE * head_dim))?;
        let gathered = pages.index_select(&self.pages, 1)?;
        at_least_f32(&gathered.reshape(((), self.hidden.dim(3)?, head_dim))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rows of these lengths after 7 tokens read, each in a slot with four pages of its own.
    fn reads(lens: &[usize]) -> Reads {
        let tables: Vec<[u32; 4]> = (0..lens.len() as u32)
            .map(|slot| [0, 1, 2, 3].map(|page| 4 * slot + page))
            .collect();
        let row = |(slot, &len)| Row { len, past: 7, slot };
        let rows: Vec<Row> = lens.iter().enumerate().map(row).collect();
        let table = |row: usize| tables[row].as_slice();
        Reads::new(&rows, table, DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_row_has_as_many_query_blocks_as_it_fills() {
        for (lens, count) in [(vec![1; 40], 40), (vec![QUERIES, QUERIES + 1], 3)] {
            assert_eq!(reads(&lens).count, count);
        }
    }

    #[test]
    fn outputs_of_blocks_go_back_to_their_tokens() {
        let reads = reads(&[3, 1, 20, 1, 2]);
        let restored = reads.tokens.index_select(&reads.order, 0).unwrap();
        assert_eq!(
            restored.to_vec1::<u32>().unwrap(),
            (0..27).collect::<Vec<u32>>()
        );
    }

    #[test]
    fn a_query_sees_keys_up_to_its_own_position() {
        let hidden = &reads(&[2]).blocks[0].hidden;
        let keys = keys_of_a_block(&Device::Cpu);
        assert_eq!(hidden.dims(), [1, 1, QUERIES, keys]);
        let rows = hidden.flatten_to(2).unwrap().to_vec2::<f32>().unwrap();
        for (row, position) in rows.iter().zip([7, 8, 7]) {
            let seen = row.iter().take_while(|score| **score == 0.0).count();
            assert_eq!(seen, position + 1);
            assert!(
                row[seen..]
                    .iter()
                    .all(|score| score.is_finite() && *score < -1e29)
            );
        }
    }
}
