//! Causal grouped-query attention, forward (`attention.cu`) and backward (`attention_backward.cu`).
//!
//! Shapes: T packed tokens, H query heads, K key-value heads, D head size.

use candle_core::DType::{BF16, F32, U32};
use candle_core::{Device, Result, Tensor, bail};

use super::launch::{ABSENT, Argument, Launch, address, int, uninitialised, upload};
use crate::ops::attention::row_offsets;
use crate::ops::{PAGE, TensorPages, check_same_shape};
use crate::packed_rows::PackedRow;

/// Keys of a tile, and queries of one warp.
const KEYS: usize = 64;
const WARP_QUERIES: usize = 16;
/// Warps of a block.
const WARPS: usize = 4;
/// Queries of a tile of the keys' gradient.
const GRADIENT_QUERIES: usize = 32;
const VALUE_BYTES: usize = 2;

// `attention.cuh` has the same number.
const _: () = assert!(PAGE == 32);

/// Heads and head size.
#[derive(Clone, Copy)]
struct Shape {
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Shape {
    fn of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Self> {
        let ((tokens, heads, head_dim), (kv_tokens, kv_heads, _)) = (q.dims3()?, k.dims3()?);
        let fits = k.dims() == [tokens, kv_heads, head_dim] && k.shape() == v.shape();
        let is_bf16 = [q, k, v].iter().all(|x| x.dtype() == BF16);
        if !fits || !is_bf16 || kv_tokens != tokens || !heads.is_multiple_of(kv_heads) {
            bail!("attention: q {q:?}, k {k:?}, v {v:?}");
        }
        Ok(Self {
            tokens,
            heads,
            kv_heads,
            head_dim,
        })
    }

    /// Returns the query heads that share a key-value head.
    fn group(self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Lists of numbers that the kernels read, copied to the device at once.
#[derive(Default)]
struct Lists {
    numbers: Vec<u32>,
    starts: Vec<usize>,
}

impl Lists {
    /// Adds a list and returns its number.
    fn push(&mut self, list: impl IntoIterator<Item = u32>) -> usize {
        self.starts.push(self.numbers.len());
        self.numbers.extend(list);
        // Lists of pairs must begin at a multiple of 8 bytes.
        self.numbers
            .resize(self.numbers.len().next_multiple_of(2), 0);
        self.starts.len() - 1
    }

    fn upload(mut self, device: &Device) -> Result<UploadedLists> {
        // An empty tensor has no address.
        self.numbers.push(0);
        Ok(UploadedLists {
            numbers: upload(self.numbers, device)?,
            starts: self.starts,
        })
    }
}

struct UploadedLists {
    numbers: Tensor,
    starts: Vec<usize>,
}

impl UploadedLists {
    fn address(&self, list: usize) -> Result<Argument<'_>> {
        match address(&self.numbers, U32)? {
            Argument::Address(begin, tensor) => {
                let bytes = 4 * self.starts[list] as u64;
                Ok(Argument::Address(begin + bytes, tensor))
            }
            other => Ok(other),
        }
    }
}

/// Returns the rows as the kernels read them (`Row` in `attention.cuh`), with the number `prefix`
/// of each.
fn row_numbers(rows: &[PackedRow], prefix: impl Fn(usize) -> usize) -> Vec<u32> {
    let numbers = |(index, (row, first)): (usize, (&PackedRow, usize))| {
        [first, row.len, row.past, prefix(index)].map(|number| number as u32)
    };
    let rows = rows.iter().zip(row_offsets(rows)).enumerate();
    rows.flat_map(numbers).collect()
}

/// Returns the tiles of rows: a row's number and the first token in it, every `step` tokens.
fn tile_numbers(rows: &[PackedRow], step: usize) -> Vec<u32> {
    let of_row = |(number, row): (usize, &PackedRow)| {
        let firsts = (0..row.len).step_by(step);
        firsts.flat_map(move |first| [number as u32, first as u32])
    };
    rows.iter().enumerate().flat_map(of_row).collect()
}

/// The kernel of attention's forward pass. Both give the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kernel {
    /// Four warps share a tile of 16 queries: for rows of a few tokens.
    Decode,
    /// Each of four warps has 16 queries.
    Prefill,
}

impl Kernel {
    fn fitting(rows: &[PackedRow], group: usize) -> Self {
        match rows.iter().all(|row| row.len * group <= WARP_QUERIES) {
            true => Self::Decode,
            false => Self::Prefill,
        }
    }

    fn name(self, head_dim: usize) -> String {
        match self {
            Self::Decode => format!("attention_{head_dim}_decode"),
            Self::Prefill => format!("attention_{head_dim}_prefill"),
        }
    }

    /// Returns the queries of a tile.
    fn queries(self) -> usize {
        match self {
            Self::Decode => WARP_QUERIES,
            Self::Prefill => WARPS * WARP_QUERIES,
        }
    }

    /// Returns the dynamic shared memory of a block.
    fn shared_bytes(self, head_dim: usize) -> usize {
        let tiles = (self.queries() + 2 * KEYS) * head_dim * VALUE_BYTES;
        match self {
            // The warps also share the softmax weights of a block of keys.
            Self::Decode => tiles + WARP_QUERIES * KEYS * VALUE_BYTES,
            Self::Prefill => tiles,
        }
    }

    /// Returns the tokens of a tile of queries.
    fn tokens(self, group: usize) -> usize {
        self.queries() / group
    }
}

/// Where a pass finds its keys and values.
struct Keys<'a> {
    keys: &'a Tensor,
    values: &'a Tensor,
    tables: Argument<'a>,
    head_stride: usize,
    slot_stride: usize,
}

/// Runs the forward kernel. Writes the logarithms of the softmax sums [T, H] if they are asked for.
fn forward(
    q: &Tensor,
    shape: Shape,
    keys: &Keys<'_>,
    (rows, tiles, count): (Argument<'_>, Argument<'_>, usize),
    (kernel, log_sums): (Kernel, Option<&Tensor>),
) -> Result<Tensor> {
    let d = shape.head_dim;
    let out = uninitialised((shape.tokens, shape.heads * d), BF16, q.device())?;
    let launch = Launch {
        module: "attention",
        kernel: &kernel.name(d),
        grid: (count, shape.kv_heads),
        threads: 32 * WARPS,
        shared_bytes: kernel.shared_bytes(d),
    };
    let arguments = [
        address(q, BF16)?,
        address(keys.keys, BF16)?,
        address(keys.values, BF16)?,
        rows,
        tiles,
        keys.tables,
        Argument::Size(keys.head_stride as u64),
        Argument::Size(keys.slot_stride as u64),
        address(&out, BF16)?,
        log_sums.map_or(Ok(ABSENT), |it| address(it, F32))?,
        int(shape.heads)?,
        int(shape.kv_heads)?,
    ];
    launch.run(q.device(), &arguments)?;
    Ok(out)
}

/// A batch whose keys and values are its own, with what the kernels read of its rows.
struct OwnKeys {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shape: Shape,
    lists: UploadedLists,
    kernel: Kernel,
    rows: usize,
    tiles: usize,
    tile_count: usize,
}

impl OwnKeys {
    fn new([q, k, v]: [&Tensor; 3], rows: &[PackedRow], mut lists: Lists) -> Result<Self> {
        let shape = Shape::of(q, k, v)?;
        let offsets = row_offsets(rows);
        let prefix = |row: usize| match rows[row].past {
            0 => 0,
            _ => offsets[rows[row].slot],
        };
        if rows.iter().map(|row| row.len).sum::<usize>() != shape.tokens {
            bail!("attention: the rows do not fit {} tokens", shape.tokens);
        }
        let kernel = Kernel::fitting(rows, shape.group());
        let row_list = lists.push(row_numbers(rows, prefix));
        let tiles = tile_numbers(rows, kernel.tokens(shape.group()));
        let tile_count = tiles.len() / 2;
        let tiles = lists.push(tiles);
        Ok(Self {
            q: q.contiguous()?,
            k: k.contiguous()?,
            v: v.contiguous()?,
            shape,
            lists: lists.upload(q.device())?,
            kernel,
            rows: row_list,
            tiles,
            tile_count,
        })
    }

    fn forward(&self, log_sums: Option<&Tensor>) -> Result<Tensor> {
        let keys = Keys {
            keys: &self.k,
            values: &self.v,
            tables: ABSENT,
            head_stride: self.shape.head_dim,
            slot_stride: self.shape.kv_heads * self.shape.head_dim,
        };
        let lists = (
            self.lists.address(self.rows)?,
            self.lists.address(self.tiles)?,
            self.tile_count,
        );
        forward(&self.q, self.shape, &keys, lists, (self.kernel, log_sums))
    }
}

/// Attends with q [T, H, D] to k and v [T, K, D] of packed rows → [T, H * D].
pub(crate) fn attention(q: &Tensor, k: &Tensor, v: &Tensor, rows: &[PackedRow]) -> Result<Tensor> {
    OwnKeys::new([q, k, v], rows, Lists::default())?.forward(None)
}

/// Returns the gradients of q, k and v.
pub(crate) fn attention_backward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rows: &[PackedRow],
    out: &Tensor,
    dout: &Tensor,
) -> Result<[Tensor; 3]> {
    check_same_shape("attention", out, dout)?;
    let shape = Shape::of(q, k, v)?;
    if out.elem_count() != q.elem_count() {
        bail!("attention: an output {out:?} for q {q:?}");
    }
    let mut lists = Lists::default();
    let query_tiles = tile_numbers(rows, WARPS * WARP_QUERIES / shape.group());
    let key_tiles = tile_numbers(rows, KEYS);
    let counts = [query_tiles.len() / 2, key_tiles.len() / 2];
    let (starts, continued) = continuing_rows(rows);
    let of_tiles = [lists.push(query_tiles), lists.push(key_tiles)];
    let of_rows = [lists.push(starts), lists.push(continued)];
    let batch = OwnKeys::new([q, k, v], rows, lists)?;
    let (out, dout) = (out.contiguous()?, dout.contiguous()?);
    let (device, count) = (q.device(), shape.tokens * shape.heads);
    let log_sums = uninitialised(count, F32, device)?;
    let deltas = uninitialised(count, F32, device)?;
    batch.forward(Some(&log_sums))?;

    let d = shape.head_dim;
    let launch = |kernel, count, kv_heads, tile_queries| Launch {
        module: "attention_backward",
        kernel,
        grid: (count, kv_heads),
        threads: 32 * WARPS,
        shared_bytes: (2 * KEYS + 2 * tile_queries) * d * VALUE_BYTES,
    };
    // A warp for each query and head, four in a block, without shared memory.
    let kernel = format!("attention_delta_{d}");
    let of_delta = Launch {
        shared_bytes: 0,
        ..launch(&kernel, count.div_ceil(WARPS), 1, 0)
    };
    let arguments = [
        address(&out, BF16)?,
        address(&dout, BF16)?,
        address(&deltas, F32)?,
        int(count)?,
    ];
    of_delta.run(device, &arguments)?;

    let [dq, dk, dv] =
        [&batch.q, &batch.k, &batch.v].map(|x| uninitialised(x.shape(), BF16, device));
    let (dq, dk, dv) = (dq?, dk?, dv?);
    let inputs = [
        address(&batch.q, BF16)?,
        address(&batch.k, BF16)?,
        address(&batch.v, BF16)?,
        batch.lists.address(batch.rows)?,
    ];
    let gradients = [
        address(&dout, BF16)?,
        address(&log_sums, F32)?,
        address(&deltas, F32)?,
    ];
    let heads = [int(shape.heads)?, int(shape.kv_heads)?];

    let kernel = format!("attention_query_gradient_{d}");
    let mut arguments = inputs.to_vec();
    arguments.push(batch.lists.address(of_tiles[0])?);
    arguments.extend(gradients);
    arguments.push(address(&dq, BF16)?);
    arguments.extend(heads);
    launch(&kernel, counts[0], shape.kv_heads, WARPS * WARP_QUERIES).run(device, &arguments)?;

    let kernel = format!("attention_key_gradient_{d}");
    let mut arguments = inputs.to_vec();
    arguments.push(batch.lists.address(of_tiles[1])?);
    for list in of_rows {
        arguments.push(batch.lists.address(list)?);
    }
    arguments.extend(gradients);
    arguments.extend([address(&dk, BF16)?, address(&dv, BF16)?]);
    arguments.extend(heads);
    launch(&kernel, counts[1], shape.kv_heads, GRADIENT_QUERIES).run(device, &arguments)?;
    Ok([dq, dk, dv])
}

/// Returns the rows that continue each row, one list after the other, and where each list starts
/// (one start more than rows).
fn continuing_rows(rows: &[PackedRow]) -> (Vec<u32>, Vec<u32>) {
    let mut lists = vec![Vec::new(); rows.len()];
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| row.past > 0) {
        lists[row.slot].push(number as u32);
    }
    let mut starts = vec![0];
    for list in &lists {
        starts.push(starts[starts.len() - 1] + list.len() as u32);
    }
    (starts, lists.concat())
}

/// The rows of one pass through a KV cache, for all layers (vLLM's attention metadata).
pub(crate) struct CachedBatch {
    lists: UploadedLists,
    kernel: Kernel,
    rows: usize,
    tiles: usize,
    tile_count: usize,
    tables: usize,
    slot_mapping: usize,
}

impl CachedBatch {
    /// Lists the rows, whose block table `table` gives by slot, for layers like `pages` and
    /// `heads` query heads.
    pub(crate) fn new<'a>(
        rows: &[PackedRow],
        table: impl Fn(usize) -> &'a [u32],
        pages: &TensorPages,
        heads: usize,
    ) -> Result<Self> {
        let (keys, _) = pages.keys_values();
        let group = heads / keys.dim(0)?;
        let kernel = Kernel::fitting(rows, group);
        let (mut tables, mut starts, mut slot_mapping) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let of_row = table(row.slot);
            starts.push(tables.len());
            tables.extend(&of_row[..(row.past + row.len).div_ceil(PAGE)]);
            let slot = |at: usize| of_row[at / PAGE] * PAGE as u32 + (at % PAGE) as u32;
            slot_mapping.extend((row.past..row.past + row.len).map(slot));
        }
        let mut lists = Lists::default();
        let row_list = lists.push(row_numbers(rows, |row| starts[row]));
        let tiles = tile_numbers(rows, kernel.tokens(group));
        let tile_count = tiles.len() / 2;
        Ok(Self {
            kernel,
            rows: row_list,
            tiles: lists.push(tiles),
            tile_count,
            tables: lists.push(tables),
            slot_mapping: lists.push(slot_mapping),
            lists: lists.upload(keys.device())?,
        })
    }

    /// Writes k and v [T, K, D] to their slots and attends with q [T, H, D] → [T, H * D].
    pub(crate) fn attend(&self, [q, k, v]: [&Tensor; 3], pages: &TensorPages) -> Result<Tensor> {
        let shape = Shape::of(q, k, v)?;
        let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
        let (keys, values) = pages.keys_values();
        let (_, slots, d) = keys.dims3()?;
        let chunks = k.elem_count() / 8;
        // Written first, because the new tokens attend to their own keys and values as well.
        let append = Launch {
            module: "rows",
            kernel: "append_to_pages",
            grid: (chunks.div_ceil(128), 1),
            threads: 128,
            shared_bytes: 0,
        };
        let arguments = [
            address(&k, BF16)?,
            address(&v, BF16)?,
            self.lists.address(self.slot_mapping)?,
            address(keys, BF16)?,
            address(values, BF16)?,
            int(shape.tokens)?,
            int(shape.kv_heads)?,
            int(d)?,
            int(slots)?,
        ];
        append.run(q.device(), &arguments)?;
        let keys = Keys {
            keys,
            values,
            tables: self.lists.address(self.tables)?,
            head_stride: slots * d,
            slot_stride: d,
        };
        let lists = (
            self.lists.address(self.rows)?,
            self.lists.address(self.tiles)?,
            self.tile_count,
        );
        forward(&q, shape, &keys, lists, (self.kernel, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn row(len: usize, past: usize, slot: usize) -> PackedRow {
        PackedRow { len, past, slot }
    }

    #[test]
    fn rows_are_cut_into_tiles() {
        let rows = [row(5, 0, 0), row(1, 3, 0)];
        assert_eq!(tile_numbers(&rows, 2), [0, 0, 0, 2, 0, 4, 1, 0]);
        assert_eq!(row_numbers(&rows, |row| 7 + row), [0, 5, 0, 7, 5, 1, 3, 8]);
    }

    #[test]
    fn each_row_knows_those_that_continue_it() {
        let rows = [
            row(9, 0, 0),
            row(4, 6, 0),
            row(8, 0, 0),
            row(2, 8, 2),
            row(1, 9, 0),
        ];
        let (starts, continued) = continuing_rows(&rows);
        assert_eq!(starts, [0, 2, 2, 3, 3, 3]);
        assert_eq!(continued, [1, 4, 3]);
    }

    #[test]
    fn lists_of_pairs_begin_at_eight_bytes() {
        let mut lists = Lists::default();
        let numbers = [lists.push([1, 2, 3]), lists.push([]), lists.push([4])];
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(lists.starts, [0, 4, 4]);
        assert_eq!(lists.numbers, [1, 2, 3, 0, 4, 0]);
    }

    #[test]
    fn rows_of_a_few_tokens_are_decoded() {
        assert_eq!(Kernel::fitting(&[row(8, 9, 0)], 2), Kernel::Decode);
        assert_eq!(
            Kernel::fitting(&[row(1, 9, 0), row(9, 9, 1)], 2),
            Kernel::Prefill
        );
    }
}
