//! Attention over keys and values in pages of tensors, from candle's operations: for any device and dtype.
//!
//! Queries come in blocks of [`QUERY_BLOCK`] tokens of one row and see [`key_block_size`] keys at a time, in order of position, as in
//! FlashAttention (Dao et al., 2022): the largest score, the sum of weights and the weighted sum go from block to block.
//!
//! Invariant: every product has one shape, and every sum one order by position, so that a query's bits depend on its row
//! alone: whether its keys come from a cache or from the batch, in one piece, in chunks or one by one. What pads weighs
//! exactly nothing. The number of operations depends on the longest row and the number of query blocks that share a piece,
//! never on single rows. A fused kernel may stand in for [`TensorPages::read`]; it would read pages through the table.

use candle_core::{D, DType, Device, Result, Tensor};

use super::at_least_f32;
use super::attention::causal_mask;
use super::fixed_shape::product_of_matrices;
use super::kv_pages::PAGE;
use crate::PackedRow;

/// Queries of a block, padded where a row has fewer.
const QUERY_BLOCK: usize = 16;

/// Whole pages. On a GPU each block costs launches, on the CPU what pads costs time.
fn key_block_size(device: &Device) -> usize {
    PAGE * if device.is_cpu() { 4 } else { 16 }
}

/// The pages of one layer.
pub(crate) struct TensorPages {
    /// [kv_heads, pages * PAGE, D], heads first, so that gathered pages need no turning round.
    keys: Tensor,
    values: Tensor,
}

/// Where the tokens of one pass are slot_mapping and what its rows read; every layer's are the same.
pub(crate) struct AttentionMetadata {
    /// [kv_heads, T, D]: for each number, the token's place in its layer.
    slot_mapping: Tensor,
    query_blocks: QueryBlocks,
}

/// What the query blocks of a batch read.
struct QueryBlocks {
    /// Query blocks.
    count: usize,
    /// Numbers of their tokens in the batch, [count * QUERY_BLOCK]; a row's first pads.
    tokens: Tensor,
    /// Of each token of the batch, where it lies in them, [T].
    token_order: Tensor,
    /// The blocks of keys, in order of position.
    blocks: Vec<KeyBlock>,
}

struct KeyBlock {
    /// The query blocks' pages, [count * pages of a block]; a row's first page pads.
    pages: Tensor,
    /// [count, 1, QUERY_BLOCK, keys of a block], see [`causal_mask`].
    causal_mask: Tensor,
}

/// Attention of rows of the batch over their own keys and those of the rows that they continue ([`PackedRow::slot`]): q [T, heads, D],
/// k and v [T, kv_heads, D] → [T, heads * D].
pub(super) fn attention_in_pages(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rows: &[PackedRow],
) -> Result<Tensor> {
    let paged = PagedBatch::new(rows);
    let tokens = Tensor::new(paged.tokens, q.device())?;
    let lay = |x: &Tensor| x.index_select(&tokens, 0)?.transpose(0, 1)?.contiguous();
    let pages = TensorPages {
        keys: lay(k)?,
        values: lay(v)?,
    };
    let table = |row: usize| paged.tables[row].as_slice();
    let query_blocks = QueryBlocks::new(rows, table, super::compute_dtype(q.dtype()), q.device())?;
    pages.attention_over_pages(q, &query_blocks)
}

/// The rows of a batch without a cache, in pages.
struct PagedBatch {
    /// For each place of the pages, a token of the batch; its first pads.
    tokens: Vec<u32>,
    /// Each row's pages.
    tables: Vec<Vec<u32>>,
}

impl PagedBatch {
    fn new(rows: &[PackedRow]) -> Self {
        let row_offsets: Vec<u32> = rows
            .iter()
            .scan(0, |next, row| {
                let first = *next;
                *next += row.len as u32;
                Some(first)
            })
            .collect();
        let (mut tokens, mut tables) = (Vec::new(), Vec::new());
        for (row, &first) in rows.iter().zip(&row_offsets) {
            let begun = tokens.len();
            if row.past > 0 {
                tokens.extend(row_offsets[row.slot]..row_offsets[row.slot] + row.past as u32);
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
        places: &AttentionMetadata,
    ) -> Result<Tensor> {
        for (all, new) in [(&self.keys, k), (&self.values, v)] {
            let new = new.transpose(0, 1)?.contiguous()?;
            all.scatter_set(&places.slot_mapping, &new, 1)?;
        }
        self.attention_over_pages(q, &places.query_blocks)
    }

    /// Attends with q [T, heads, D] → [T, heads * D]. Half precision is widened to f32 inside, so that scores, softmax and
    /// weights are never rounded to it.
    fn attention_over_pages(&self, q: &Tensor, query_blocks: &QueryBlocks) -> Result<Tensor> {
        let (kv_heads, _, head_dim) = self.keys.dims3()?;
        let group = q.dim(1)? / kv_heads;
        let queries = query_blocks.queries(q, kv_heads)?;
        let mut seen: Option<OnlineSoftmax> = None;
        for block in &query_blocks.blocks {
            let keys = block.gather(&self.keys)?.transpose(1, 2)?.contiguous()?;
            let scores = product_of_matrices(&queries, &keys)?;
            let scores = scores.reshape((kv_heads, query_blocks.count, group, QUERY_BLOCK, ()))?;
            let scores = scores.broadcast_add(&block.causal_mask)?;
            let scores =
                scores.reshape((kv_heads * query_blocks.count, group * QUERY_BLOCK, ()))?;
            seen = Some(OnlineSoftmax::update(
                seen,
                &scores,
                &block.gather(&self.values)?,
            )?);
        }
        let out = seen.expect("a block of keys: this is a bug").finish()?;
        let out = out.reshape((kv_heads, query_blocks.count, group, QUERY_BLOCK, head_dim))?;
        out.permute((1, 3, 0, 2, 4))?
            .reshape((
                query_blocks.count * QUERY_BLOCK,
                kv_heads * group * head_dim,
            ))?
            .to_dtype(q.dtype())?
            .index_select(&query_blocks.token_order, 0)
    }
}

/// What queries have seen of their keys so far; P matrices of M queries.
struct OnlineSoftmax {
    /// The largest score, [P, M, 1].
    max: Tensor,
    /// The sum of e^(score - max), [P, M, 1], and the values weighted by it, [P, M, D].
    sum: Tensor,
    weighted: Tensor,
}

impl OnlineSoftmax {
    /// And so many keys more, by scores [P, M, keys] and values [P, keys, D].
    fn update(before: Option<Self>, scores: &Tensor, values: &Tensor) -> Result<Self> {
        let max = scores.max_keepdim(D::Minus1)?;
        let max = match &before {
            Some(before) => before.max.maximum(&max)?,
            None => max,
        };
        let weights = scores.broadcast_sub(&max)?.exp()?;
        let sum = weights.sum_keepdim(D::Minus1)?;
        let weighted = product_of_matrices(&weights, values)?;
        let Some(before) = before else {
            return Ok(Self { max, sum, weighted });
        };
        let rescale = (before.max - &max)?.exp()?;
        Ok(Self {
            max,
            sum: ((before.sum * &rescale)? + sum)?,
            weighted: (before.weighted.broadcast_mul(&rescale)? + weighted)?,
        })
    }

    fn finish(&self) -> Result<Tensor> {
        self.weighted.broadcast_div(&self.sum)
    }
}

impl AttentionMetadata {
    /// The places of rows whose pages `table` gives by slot, in a layer of `kv_heads` heads of `head_dim`; scores will be in
    /// `scores`.
    pub(crate) fn new<'a>(
        rows: &[PackedRow],
        table: impl Fn(usize) -> &'a [u32],
        (kv_heads, head_dim): (usize, usize),
        scores: DType,
        device: &Device,
    ) -> Result<Self> {
        let mut slot_mapping = Vec::new();
        for row in rows {
            let pages = table(row.slot);
            let place = |at: usize| pages[at / PAGE] * PAGE as u32 + (at % PAGE) as u32;
            slot_mapping.extend((row.past..row.past + row.len).map(place));
        }
        let tokens = slot_mapping.len();
        let slot_mapping = Tensor::from_vec(slot_mapping, (1, tokens, 1), device)?;
        Ok(Self {
            slot_mapping: slot_mapping
                .broadcast_as((kv_heads, tokens, head_dim))?
                .contiguous()?,
            query_blocks: QueryBlocks::new(rows, |row| table(rows[row].slot), scores, device)?,
        })
    }
}

impl QueryBlocks {
    /// Of rows whose pages `table` gives by their number.
    fn new<'a>(
        rows: &[PackedRow],
        table: impl Fn(usize) -> &'a [u32],
        scores: DType,
        device: &Device,
    ) -> Result<Self> {
        let (mut tokens, mut positions, mut token_order) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first, mut row_of_block) = (0, Vec::new());
        for (number, row) in rows.iter().enumerate() {
            let begun = tokens.len() as u32;
            let padded = row.len.next_multiple_of(QUERY_BLOCK);
            let padding = padded - row.len;
            token_order.extend(begun..begun + row.len as u32);
            tokens.extend(first..first + row.len as u32);
            tokens.extend(std::iter::repeat_n(first, padding));
            positions.extend(row.past..row.past + row.len);
            positions.extend(std::iter::repeat_n(row.past, padding));
            row_of_block.extend(std::iter::repeat_n(number, padded / QUERY_BLOCK));
            first += row.len as u32;
        }
        let count = row_of_block.len();
        let longest = rows.iter().map(|row| row.past + row.len).max().unwrap_or(1);
        let keys = key_block_size(device);
        let blocks = longest.div_ceil(keys);
        let causal_mask = causal_mask(
            positions.into_iter(),
            (count, QUERY_BLOCK, blocks * keys),
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
                causal_mask: causal_mask.narrow(3, block * keys, keys)?,
            })
        };
        Ok(Self {
            count,
            tokens: Tensor::new(tokens, device)?,
            token_order: Tensor::new(token_order, device)?,
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
        })
    }

    /// The blocks of q [T, heads, D], widened and scaled: [kv_heads * count, heads / kv_heads * QUERY_BLOCK, D].
    fn queries(&self, q: &Tensor, kv_heads: usize) -> Result<Tensor> {
        let (_, heads, head_dim) = q.dims3()?;
        let q = at_least_f32(&q.index_select(&self.tokens, 0)?)?;
        let q = q.reshape((
            self.count,
            QUERY_BLOCK,
            kv_heads,
            heads / kv_heads,
            head_dim,
        ))?;
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
        at_least_f32(&gathered.reshape(((), self.causal_mask.dim(3)?, head_dim))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rows of these lengths after 7 tokens read, each in a slot with four pages of its own.
    fn query_blocks(lens: &[usize]) -> QueryBlocks {
        let tables: Vec<[u32; 4]> = (0..lens.len() as u32)
            .map(|slot| [0, 1, 2, 3].map(|page| 4 * slot + page))
            .collect();
        let row = |(slot, &len)| PackedRow { len, past: 7, slot };
        let rows: Vec<PackedRow> = lens.iter().enumerate().map(row).collect();
        let table = |row: usize| tables[row].as_slice();
        QueryBlocks::new(&rows, table, DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_row_has_as_many_query_blocks_as_it_fills() {
        for (lens, count) in [(vec![1; 40], 40), (vec![QUERY_BLOCK, QUERY_BLOCK + 1], 3)] {
            assert_eq!(query_blocks(&lens).count, count);
        }
    }

    #[test]
    fn outputs_of_blocks_go_back_to_their_tokens() {
        let query_blocks = query_blocks(&[3, 1, 20, 1, 2]);
        let restored = query_blocks
            .tokens
            .index_select(&query_blocks.token_order, 0)
            .unwrap();
        assert_eq!(
            restored.to_vec1::<u32>().unwrap(),
            (0..27).collect::<Vec<u32>>()
        );
    }

    #[test]
    fn a_query_sees_keys_up_to_its_own_position() {
        let causal_mask = &query_blocks(&[2]).blocks[0].causal_mask;
        let keys = key_block_size(&Device::Cpu);
        assert_eq!(causal_mask.dims(), [1, 1, QUERY_BLOCK, keys]);
        let rows = causal_mask.flatten_to(2).unwrap().to_vec2::<f32>().unwrap();
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
