//! Paged attention by tensor operations, for any device and dtype.
//!
//! Queries come in blocks of [`QUERY_BLOCK`] tokens of one row and visit [`key_block_size`] keys at
//! a time, in order of position. As in FlashAttention (Dao et al., arXiv:2205.14135), an online
//! softmax carries the largest score, the sum of weights and the weighted sum of values from block
//! to block. Pages and block tables are those of PagedAttention (Kwon et al., arXiv:2309.06180).
//!
//! Invariant: every product has one shape, and every sum runs in order of position. So a query's
//! bits depend on its row alone, whether its keys come from a cache or from the batch, in one
//! piece, in chunks or one by one. Padding has a weight of exactly zero. The number of operations
//! depends on the longest row and the number of query blocks, never on single rows. A fused kernel
//! may replace [`TensorPages::attention_over_pages`]; it would read pages through the block table.
//!
//! Shapes: T packed tokens, H query heads, K key-value heads, D head size, N query blocks.

use candle_core::{D, DType, Device, Result, Tensor};

use super::at_least_f32;
use super::fixed_shape::product_of_matrices;
use super::kv_pages::{PAGE, slot_mapping};
use crate::packed_rows::{PackedRow, row_offsets};

/// Queries of a block. A row with fewer is padded.
const QUERY_BLOCK: usize = 16;

/// Returns the keys of a block, whole pages. Larger blocks save launches on a GPU; smaller ones
/// save padding, which costs time on the CPU.
fn key_block_size(device: &Device) -> usize {
    PAGE * if device.is_cpu() { 4 } else { 16 }
}

/// The keys and values of one layer, in pages.
pub(crate) struct TensorPages {
    /// [K, pages * PAGE, D]. Heads come first, so that gathered pages need no transposition.
    keys: Tensor,
    values: Tensor,
}

/// Where the tokens of one pass are written and what its rows read, shared by all layers (vLLM's
/// attention metadata).
pub(crate) struct AttentionMetadata {
    /// The slot mapping [K, T, D]: for each value, the token's slot in the layer's pages.
    slot_mapping: Tensor,
    query_blocks: QueryBlocks,
}

/// The query blocks of a batch and the pages that they read.
struct QueryBlocks {
    /// N, the number of query blocks.
    count: usize,
    /// The packed tokens of the blocks, [N * QUERY_BLOCK]. A row's first token is the padding.
    tokens: Tensor,
    /// For each packed token, its index in `tokens`, `[T]`.
    token_order: Tensor,
    /// The blocks of keys, in order of position.
    blocks: Vec<KeyBlock>,
}

struct KeyBlock {
    /// The pages of each query block, [N * pages of a block]. A row's first page is the padding.
    pages: Tensor,
    /// The causal mask [N, 1, QUERY_BLOCK, keys of a block], see [`causal_mask`].
    causal_mask: Tensor,
}

/// Attends with rows of the batch to their own keys and to those of the rows that they continue
/// ([`PackedRow::slot`]): q [T, H, D], k and v [T, K, D] → [T, H * D].
pub(super) fn attention_in_pages(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rows: &[PackedRow],
) -> Result<Tensor> {
    let (tokens, tables) = in_pages(rows);
    let tokens = Tensor::new(tokens, q.device())?;
    let lay = |x: &Tensor| x.index_select(&tokens, 0)?.transpose(0, 1)?.contiguous();
    let pages = TensorPages {
        keys: lay(k)?,
        values: lay(v)?,
    };
    let table = |row: usize| tables[row].as_slice();
    let query_blocks = QueryBlocks::new(rows, table, super::compute_dtype(q.dtype()), q.device())?;
    pages.attention_over_pages(q, &query_blocks)
}

/// Lays out the rows of a batch without a cache in pages, so that one implementation serves both.
/// Returns a packed token for each slot of the pages, where token 0 is the padding, and each row's
/// block table.
fn in_pages(rows: &[PackedRow]) -> (Vec<u32>, Vec<Vec<u32>>) {
    let row_offsets = row_offsets(rows);
    let (mut tokens, mut tables) = (Vec::new(), Vec::new());
    for (row, &first) in rows.iter().zip(&row_offsets) {
        let begun = tokens.len();
        // A row that continues another one gets a copy of the prefix, because a page belongs to one
        // row here and the prefix rarely ends with a page.
        if row.past > 0 {
            let prefix = row_offsets[row.slot] as u32;
            tokens.extend(prefix..prefix + row.past as u32);
        }
        tokens.extend(first as u32..(first + row.len) as u32);
        tokens.resize(tokens.len().next_multiple_of(PAGE), 0);
        tables.push(((begun / PAGE) as u32..(tokens.len() / PAGE) as u32).collect());
    }
    (tokens, tables)
}

impl TensorPages {
    /// Allocates `pages` pages.
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

    /// Returns the bytes that the key and the value of one token take in one head.
    pub(crate) fn token_bytes(head_dim: usize, dtype: DType) -> usize {
        2 * head_dim * dtype.size_in_bytes()
    }

    /// Returns all keys and all values, [K, pages * PAGE, D].
    #[cfg(feature = "cuda")]
    pub(crate) fn keys_values(&self) -> (&Tensor, &Tensor) {
        (&self.keys, &self.values)
    }

    /// Copies one page over another.
    pub(crate) fn copy(&self, from: u32, to: u32) -> Result<()> {
        for all in [&self.keys, &self.values] {
            let page = all.narrow(1, from as usize * PAGE, PAGE)?;
            all.slice_set(&page.force_contiguous()?, 1, to as usize * PAGE)?;
        }
        Ok(())
    }

    /// Writes k and v [T, K, D] to their slots and attends with q [T, H, D] → [T, H * D].
    pub(crate) fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        metadata: &AttentionMetadata,
    ) -> Result<Tensor> {
        // Written first, because the new tokens attend to their own keys and values as well.
        for (all, new) in [(&self.keys, k), (&self.values, v)] {
            let new = new.transpose(0, 1)?.contiguous()?;
            all.scatter_set(&metadata.slot_mapping, &new, 1)?;
        }
        self.attention_over_pages(q, &metadata.query_blocks)
    }

    /// Attends with q [T, H, D] → [T, H * D]. Half precision is widened to f32 inside, so that
    /// scores, softmax and weights are never rounded to it.
    fn attention_over_pages(&self, q: &Tensor, query_blocks: &QueryBlocks) -> Result<Tensor> {
        let (kv_heads, _, head_dim) = self.keys.dims3()?;
        let group = q.dim(1)? / kv_heads;
        let queries = query_blocks.queries(q, kv_heads)?;
        let mut softmax: Option<OnlineSoftmax> = None;
        for block in &query_blocks.blocks {
            let keys = block.gather(&self.keys)?.transpose(1, 2)?.contiguous()?;
            let scores = product_of_matrices(&queries, &keys)?;
            let scores = scores.reshape((kv_heads, query_blocks.count, group, QUERY_BLOCK, ()))?;
            let scores = scores.broadcast_add(&block.causal_mask)?;
            let scores =
                scores.reshape((kv_heads * query_blocks.count, group * QUERY_BLOCK, ()))?;
            softmax = Some(OnlineSoftmax::update(
                softmax,
                &scores,
                &block.gather(&self.values)?,
            )?);
        }
        let softmax = softmax.expect("a block of keys: this is a bug");
        let out = softmax.weighted.broadcast_div(&softmax.sum)?;
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

/// The state of an online softmax over P matrices of M queries each.
struct OnlineSoftmax {
    /// The largest score so far, [P, M, 1].
    max: Tensor,
    /// The sum of e^(score - max), [P, M, 1], and the values weighted by it, [P, M, D].
    sum: Tensor,
    weighted: Tensor,
}

impl OnlineSoftmax {
    /// Adds a block of keys, by scores [P, M, keys] and values [P, keys, D].
    fn update(before: Option<Self>, scores: &Tensor, values: &Tensor) -> Result<Self> {
        // It cancels in the quotient, so it needs no gradient.
        let max = scores.max_keepdim(D::Minus1)?.detach();
        let max = match &before {
            Some(before) => before.max.maximum(&max)?,
            None => max,
        };
        let weights = scores.broadcast_sub(&max)?.exp()?;
        let sum = weights.sum_keepdim(D::Minus1)?;
        let weighted = product_of_matrices(&weights, values)?;
        // The first block needs no rescaling: max starts at its own maximum, so there is no
        // e^(-inf).
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
}

impl AttentionMetadata {
    /// Builds the metadata of rows whose block table `table` gives by slot, for pages of the shape,
    /// dtype and device of `pages`.
    pub(crate) fn new<'a>(
        rows: &[PackedRow],
        table: impl Fn(usize) -> &'a [u32],
        pages: &TensorPages,
    ) -> Result<Self> {
        let ((kv_heads, _, head_dim), device) = (pages.keys.dims3()?, pages.keys.device());
        let scores = super::compute_dtype(pages.keys.dtype());
        let slot_mapping = slot_mapping(rows, &table);
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
    /// Builds the query blocks of rows whose block table `table` gives by row number.
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
            // Padding repeats the row's first query, which sees at least one key. Nothing reads its
            // output, because `token_order` leaves it out.
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
                // Beyond the end of a row any page serves: the causal mask gives its keys no
                // weight.
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

    /// Gathers q [T, H, D] into query blocks, widened and scaled: [K * N, H / K * QUERY_BLOCK, D].
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
    /// Gathers the query blocks' pages of [K, pages * PAGE, D], widened: [K * N, keys, D].
    fn gather(&self, all: &Tensor) -> Result<Tensor> {
        let (kv_heads, _, head_dim) = all.dims3()?;
        let pages = all.reshape((kv_heads, (), PAGE * head_dim))?;
        let gathered = pages.index_select(&self.pages, 1)?;
        at_least_f32(&gathered.reshape(((), self.causal_mask.dim(3)?, head_dim))?)
    }
}

/// Returns the causal mask [R, 1, len, keys] that is added to the scores of R rows of `len` queries
/// at `positions`.
///
/// It is 0 up to a query's own position and -1e30 beyond, so that the softmax weight is an exact
/// zero there. The value is finite because a row of minus infinities would have no gradient.
fn causal_mask(
    positions: impl Iterator<Item = usize>,
    (rows, len, keys): (usize, usize, usize),
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    const LOWEST: f64 = -1e30;
    let positions: Vec<u32> = positions.map(|position| position as u32).collect();
    let positions = Tensor::from_vec(positions, (rows, 1, len, 1), device)?;
    let keys = Tensor::arange(0, keys as u32, device)?;
    let beyond = positions.broadcast_lt(&keys)?;
    beyond.to_dtype(dtype)? * LOWEST
}
