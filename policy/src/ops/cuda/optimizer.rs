//! Launches of the optimizer's kernels (`optimizer.cu`).

use candle_core::DType::{F32, F64};
use candle_core::{Result, Tensor, bail};

use super::launch::{Argument, Launch, address, int, uninitialised};
use crate::ops::AdamWConstants;

/// Threads of a block, as `sums_of_squares` expects.
const THREADS: usize = 256;
/// Values whose squares one block sums.
const STRIP: usize = 1 << 13;

fn over(kernel: &str, blocks: usize) -> Launch<'_> {
    Launch {
        module: "optimizer",
        kernel,
        grid: (blocks, 1),
        threads: THREADS,
        shared_bytes: 0,
    }
}

/// Returns the value and the moments after one update; all tensors are f32, of one shape, on one
/// GPU.
pub(crate) fn adamw(
    value: &Tensor,
    gradient: &Tensor,
    [first, second]: [&Tensor; 2],
    constants: &AdamWConstants,
) -> Result<[Tensor; 3]> {
    let read = [
        value.contiguous()?,
        gradient.contiguous()?,
        first.contiguous()?,
        second.contiguous()?,
    ];
    let (shape, device) = (read[0].shape(), read[0].device());
    if let Some(other) = read.iter().find(|tensor| tensor.shape() != shape) {
        bail!("adamw: a tensor {other:?} for a value {:?}", read[0]);
    }
    let written = [
        uninitialised(shape, F32, device)?,
        uninitialised(shape, F32, device)?,
        uninitialised(shape, F32, device)?,
    ];
    let addresses = read.iter().chain(&written).map(|it| address(it, F32));
    let mut arguments = addresses.collect::<Result<Vec<_>>>()?;
    let count = shape.elem_count();
    arguments.push(Argument::Size(count as u64));
    arguments.extend(constants.in_order().map(Argument::Float));
    over("adamw", count.div_ceil(THREADS)).run(device, &arguments)?;
    Ok(written)
}

/// Returns the sum of the squares of all values of f32 tensors on one GPU. It waits for the GPU.
pub(crate) fn sum_of_squares(tensors: &[&Tensor]) -> Result<f64> {
    let Some(device) = tensors.first().map(|tensor| tensor.device()) else {
        return Ok(0.0);
    };
    let blocks = |tensor: &Tensor| tensor.elem_count().div_ceil(STRIP);
    let total = tensors.iter().map(|tensor| blocks(tensor)).sum::<usize>();
    let partial = uninitialised(total, F64, device)?;
    let mut offset = 0;
    for tensor in tensors {
        let tensor = tensor.contiguous()?;
        let arguments = [
            address(&tensor, F32)?,
            address(&partial, F64)?,
            Argument::Size(tensor.elem_count() as u64),
            int(STRIP)?,
            int(offset)?,
        ];
        over("sums_of_squares", blocks(&tensor)).run(device, &arguments)?;
        offset += blocks(&tensor);
    }
    let partial = partial.to_vec1::<f64>()?;
    Ok(partial.iter().sum())
}
