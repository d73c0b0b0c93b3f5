//! Causal grouped-query attention (`attention.cu`), with keys from the batch itself.
//!
//! Shapes: T packed tokens, H query heads, K key-value heads, D head size.

use candle_core::DType::{BF16, F32};
use candle_core::{Result, Tensor, bail};

use super::attention_lists::{Lists, UploadedLists, row_numbers, tile_numbers};
use super::launch::{ABSENT, Argument, Launch, address, int, uninitialised};
use crate::ops::PAGE;
use crate::packed_rows::{PackedRow, row_offsets};

/// Keys of a tile, and queries of one warp.
pub(super) const KEYS: usize = 64;
pub(super) const WARP_QUERIES: usize = 16;
/// Warps of a block.
pub(super) const WARPS: usize = 4;
pub(super) const VALUE_BYTES: usize = 2;

// `attention.cuh` has the same number.
const _: () = assert!(PAGE == 32);

/// Heads and head size.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) tokens: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Shape {
    pub(super) fn of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Self> {
        let ((tokens, heads, head_dim), (_, kv_heads, _)) = (q.dims3()?, k.dims3()?);
        let fits = k.dims() == [tokens, kv_heads, head_dim] && k.shape() == v.shape();
        if !fits || !heads.is_multiple_of(kv_heads) {
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
    pub(super) fn group(self) -> usize {
        self.heads / self.kv_heads
    }
}

/// The kernel of attention's forward pass. Both give the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kernel {
    /// Four warps share a tile of 16 queries: for rows of a few tokens.
    Decode,
    /// Each of four warps has 16 queries.
    Prefill,
}

impl Kernel {
    pub(super) fn fitting(rows: &[PackedRow], group: usize) -> Self {
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
    pub(super) fn tokens(self, group: usize) -> usize {
        self.queries() / group
    }
}

/// Where a pass finds its keys and values.
pub(super) struct Keys<'a> {
    pub(super) keys: &'a Tensor,
    pub(super) values: &'a Tensor,
    pub(super) tables: Argument<'a>,
    pub(super) head_stride: usize,
    pub(super) slot_stride: usize,
}

/// Runs the forward kernel. Writes the logarithms of the softmax sums [T, H] if they are asked for.
pub(super) fn forward(
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
pub(super) struct OwnKeys {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) shape: Shape,
    pub(super) lists: UploadedLists,
    /// The number of the list of rows.
    pub(super) rows: usize,
    kernel: Kernel,
    tiles: usize,
    tile_count: usize,
}

impl OwnKeys {
    /// Adds what the kernels read of the rows to `lists`, and uploads these.
    pub(super) fn new(
        [q, k, v]: [&Tensor; 3],
        rows: &[PackedRow],
        mut lists: Lists,
    ) -> Result<Self> {
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

    /// Runs the forward kernel (see [`forward`]).
    pub(super) fn forward(&self, log_sums: Option<&Tensor>) -> Result<Tensor> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_few_tokens_are_decoded() {
        let row = |len| PackedRow {
            len,
            past: 9,
            slot: 0,
        };
        assert_eq!(Kernel::fitting(&[row(8)], 2), Kernel::Decode);
        assert_eq!(Kernel::fitting(&[row(1), row(9)], 2), Kernel::Prefill);
    }
}
