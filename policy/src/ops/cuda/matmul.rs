//! Products of linear layers: y [M, N] = x [M, K] Wᵀ, with W [N, K] (`matmul.cu`).

use candle_core::DType::{self, BF16, F32};
use candle_core::{Result, Tensor, bail};

use super::launch::{ABSENT, Argument, Launch, address, int, uninitialised};

/// Values of K of one step.
const DEPTH: usize = 64;
/// The most weights of one launch.
const MOST_WEIGHTS: usize = 3;

/// A tile of the kernel.
#[derive(Debug, PartialEq)]
struct Tile {
    rows: usize,
    columns: usize,
    threads: usize,
    /// Steps of K whose copies are under way.
    stages: usize,
}

const fn tile(rows: usize, columns: usize, threads: usize, stages: usize) -> Tile {
    Tile {
        rows,
        columns,
        threads,
        stages,
    }
}

/// For up to 16 rows.
const FEW_ROWS: Tile = tile(16, 16, 32, 12);
/// For up to 64 rows, and for more. The larger a tile, the less is read more than once.
const SOME_ROWS: [Tile; 3] = [
    tile(64, 64, 128, 5),
    tile(64, 32, 128, 6),
    tile(64, 16, 128, 8),
];
const MANY_ROWS: Tile = tile(128, 128, 256, 3);

impl Tile {
    /// Returns the tile for products of M rows and `columns` columns in all. Bits do not depend on
    /// it.
    fn fitting(rows: usize, columns: usize) -> &'static Self {
        // Fewer blocks leave much of a GPU idle (measured on an H100, which has 132 processors).
        const ENOUGH_BLOCKS: usize = 96;
        if rows <= FEW_ROWS.rows {
            return &FEW_ROWS;
        }
        let is_enough = |tile: &&Self| {
            rows.div_ceil(tile.rows) * columns.div_ceil(tile.columns) >= ENOUGH_BLOCKS
        };
        let many = (rows > SOME_ROWS[0].rows).then_some(&MANY_ROWS);
        let mut tiles = many.into_iter().chain(&SOME_ROWS);
        tiles.find(is_enough).unwrap_or(&SOME_ROWS[2])
    }

    fn kernel(&self, dtype: DType) -> String {
        let output = if dtype == F32 { "f32" } else { "bf16" };
        format!("matmul_{}x{}_{output}", self.rows, self.columns)
    }
}

/// Computes x Wᵀ for up to three weights that read the same x, in bf16.
pub(crate) fn linears(x: &Tensor, weights: &[&Tensor]) -> Result<Vec<Tensor>> {
    products(x, weights, BF16)
}

/// Computes x Wᵀ without the last rounding, in f32.
pub(crate) fn linears_unrounded(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(products(x, &[weight], F32)?.remove(0))
}

fn products(x: &Tensor, weights: &[&Tensor], dtype: DType) -> Result<Vec<Tensor>> {
    let x = x.contiguous()?;
    let ((m, k), device) = (x.dims2()?, x.device());
    let mut columns = Vec::with_capacity(weights.len());
    for weight in weights {
        let (n, in_features) = weight.dims2()?;
        if in_features != k || weights.len() > MOST_WEIGHTS {
            bail!(
                "linear: {x:?} for {weight:?}, one of {} weights",
                weights.len()
            );
        }
        columns.push(n);
    }
    let new = |&n: &usize| uninitialised((m, n), dtype, device);
    let outputs: Vec<Tensor> = columns.iter().map(new).collect::<Result<_>>()?;
    let tile = Tile::fitting(m, columns.iter().sum());
    let across = columns.iter().map(|n| n.div_ceil(tile.columns)).sum();
    let kernel = tile.kernel(dtype);
    let launch = Launch {
        module: "matmul",
        kernel: &kernel,
        grid: (across, m.div_ceil(tile.rows)),
        threads: tile.threads,
        shared_bytes: (tile.rows + tile.columns) * DEPTH * 2 * tile.stages,
    };
    // The kernel's parameters are x, the weights, the outputs, their columns, and the rest.
    let mut arguments = vec![ABSENT; 1 + 2 * MOST_WEIGHTS];
    arguments[0] = address(&x, BF16)?;
    arguments.resize(1 + 3 * MOST_WEIGHTS, Argument::Int(0));
    for (at, (weight, output)) in weights.iter().zip(&outputs).enumerate() {
        arguments[1 + at] = address(weight, BF16)?;
        arguments[1 + MOST_WEIGHTS + at] = address(output, dtype)?;
        arguments[1 + 2 * MOST_WEIGHTS + at] = int(columns[at])?;
    }
    arguments.extend([int(m)?, int(k)?]);
    launch.run(device, &arguments)?;
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_as_large_as_keeps_a_gpu_busy() {
        for (rows, columns, expected) in [
            (1, 1024, (16, 16)),
            (16, 151_936, (16, 16)),
            (17, 1024, (64, 16)),
            (64, 1024, (64, 16)),
            (64, 4096, (64, 32)),
            (64, 6144, (64, 64)),
            (256, 1024, (64, 32)),
            (256, 6144, (128, 128)),
            (2048, 1024, (128, 128)),
        ] {
            let tile = Tile::fitting(rows, columns);
            assert_eq!((tile.rows, tile.columns), expected, "{rows} x {columns}");
        }
    }
}
