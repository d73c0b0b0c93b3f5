//! The backward pass of attention (`attention_backward.cu`).
//!
//! Shapes: T packed tokens, H query heads, K key-value heads, D head size.

use candle_core::DType::{BF16, F32};
use candle_core::{Result, Tensor, bail};

use super::attention::{KEYS, OwnKeys, Shape, VALUE_BYTES, WARP_QUERIES, WARPS};
use super::attention_lists::{Lists, continuing_rows, tile_numbers};
use super::launch::{Argument, Launch, address, int, uninitialised};
use crate::ops::check_same_shape;
use crate::packed_rows::PackedRow;

/// Queries of a tile of the gradient of queries.
const TILE_QUERIES: usize = WARPS * WARP_QUERIES;
/// Queries of a tile of the gradients of keys and values.
const KEY_TILE_QUERIES: usize = 32;

/// Returns the gradients of q [T, H, D], and of k and v [T, K, D], from the output `out` and its
/// gradient `dout`.
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
    let mut tiles = |tiles: Vec<u32>| Tiles {
        count: tiles.len() / 2,
        list: lists.push(tiles),
    };
    let query_tiles = tiles(tile_numbers(rows, TILE_QUERIES / shape.group()));
    let key_tiles = tiles(tile_numbers(rows, KEYS));
    let (starts, continued) = continuing_rows(rows);
    let continuing_rows = [lists.push(starts), lists.push(continued)];
    let batch = OwnKeys::new([q, k, v], rows, lists)?;
    // Scores are computed again, and with them what a query's softmax was divided by.
    let count = shape.tokens * shape.heads;
    let log_sums = uninitialised(count, F32, q.device())?;
    batch.forward(Some(&log_sums))?;
    let dout = dout.contiguous()?;
    let pass = BackwardPass {
        log_sums,
        deltas: deltas(out, &dout, shape)?,
        dout,
        batch,
    };
    let dq = pass.query_gradient(&query_tiles)?;
    let [dk, dv] = pass.key_gradients(&key_tiles, continuing_rows)?;
    Ok([dq, dk, dv])
}

/// A list of tiles.
struct Tiles {
    count: usize,
    list: usize,
}

/// What both kernels of gradients read.
struct BackwardPass {
    batch: OwnKeys,
    dout: Tensor,
    /// The logarithms of the softmax sums, and the sums of out * dout, [T * H].
    log_sums: Tensor,
    deltas: Tensor,
}

impl BackwardPass {
    fn query_gradient(&self, tiles: &Tiles) -> Result<Tensor> {
        let dq = uninitialised(self.batch.q.shape(), BF16, self.batch.q.device())?;
        let mut arguments = self.inputs(tiles)?;
        arguments.extend(self.output_gradients()?);
        arguments.push(address(&dq, BF16)?);
        self.run("query_gradient", tiles, TILE_QUERIES, arguments)?;
        Ok(dq)
    }

    fn key_gradients(&self, tiles: &Tiles, continuing_rows: [usize; 2]) -> Result<[Tensor; 2]> {
        let (k, device) = (&self.batch.k, self.batch.q.device());
        let dk = uninitialised(k.shape(), BF16, device)?;
        let dv = uninitialised(k.shape(), BF16, device)?;
        let mut arguments = self.inputs(tiles)?;
        for list in continuing_rows {
            arguments.push(self.batch.lists.address(list)?);
        }
        arguments.extend(self.output_gradients()?);
        arguments.extend([address(&dk, BF16)?, address(&dv, BF16)?]);
        self.run("key_gradient", tiles, KEY_TILE_QUERIES, arguments)?;
        Ok([dk, dv])
    }

    fn inputs(&self, tiles: &Tiles) -> Result<Vec<Argument<'_>>> {
        let OwnKeys {
            q,
            k,
            v,
            lists,
            rows,
            ..
        } = &self.batch;
        Ok(vec![
            address(q, BF16)?,
            address(k, BF16)?,
            address(v, BF16)?,
            lists.address(*rows)?,
            lists.address(tiles.list)?,
        ])
    }

    fn output_gradients(&self) -> Result<[Argument<'_>; 3]> {
        Ok([
            address(&self.dout, BF16)?,
            address(&self.log_sums, F32)?,
            address(&self.deltas, F32)?,
        ])
    }

    /// Launches a kernel whose last arguments are the numbers of heads.
    fn run(
        &self,
        kernel: &str,
        tiles: &Tiles,
        tile_queries: usize,
        mut arguments: Vec<Argument<'_>>,
    ) -> Result<()> {
        let shape = self.batch.shape;
        arguments.extend([int(shape.heads)?, int(shape.kv_heads)?]);
        let launch = Launch {
            module: "attention_backward",
            kernel: &format!("attention_{kernel}_{}", shape.head_dim),
            grid: (tiles.count, shape.kv_heads),
            threads: 32 * WARPS,
            shared_bytes: (2 * KEYS + 2 * tile_queries) * shape.head_dim * VALUE_BYTES,
        };
        launch.run(self.batch.q.device(), &arguments)
    }
}

/// Returns the sum of out * dout of each query and head, [T * H].
fn deltas(out: &Tensor, dout: &Tensor, shape: Shape) -> Result<Tensor> {
    let out = out.contiguous()?;
    let count = shape.tokens * shape.heads;
    let deltas = uninitialised(count, F32, out.device())?;
    // A warp for each.
    let launch = Launch {
        module: "attention_backward",
        kernel: &format!("attention_delta_{}", shape.head_dim),
        grid: (count.div_ceil(WARPS), 1),
        threads: 32 * WARPS,
        shared_bytes: 0,
    };
    let arguments = [
        address(&out, BF16)?,
        address(dout, BF16)?,
        address(&deltas, F32)?,
        int(count)?,
    ];
    launch.run(out.device(), &arguments)?;
    Ok(deltas)
}
