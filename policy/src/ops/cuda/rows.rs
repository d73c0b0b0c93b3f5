//! Operations on rows and elements: RMSNorm, rotary embedding, SwiGLU (`rows.cu`).

use candle_core::DType::{BF16, F32, U32};
use candle_core::{Result, Tensor, bail};

use super::launch::{ABSENT, Argument, Launch, address, int, uninitialised, upload};
use crate::ops::check_same_shape;

/// Threads of a block.
const THREADS: usize = 128;
/// Rows whose part of a norm's weight gradient one block sums.
const STRIP: usize = 64;

fn over(kernel: &str, elements: usize) -> Launch<'_> {
    Launch {
        module: "rows",
        kernel,
        grid: (elements.div_ceil(THREADS), 1),
        threads: THREADS,
        shared_bytes: 0,
    }
}

/// A launch with a warp for each row.
fn over_rows(kernel: &str, rows: usize) -> Launch<'_> {
    over(kernel, 32 * rows)
}

/// Returns x `[.., W]` / sqrt(mean(x²) + eps) * weight `[W]`.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (rows, width) = rows_of(&x, weight)?;
    let y = uninitialised(x.shape(), BF16, x.device())?;
    let arguments = [
        address(&x, BF16)?,
        address(weight, BF16)?,
        address(&y, BF16)?,
        ABSENT,
        int(rows)?,
        int(width)?,
        Argument::Float(eps as f32),
    ];
    over_rows("rms_norm", rows).run(x.device(), &arguments)?;
    Ok(y)
}

/// Returns x + y and its norm.
pub(crate) fn add_and_norm(
    x: &Tensor,
    y: &Tensor,
    weight: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    check_same_shape("add-and-norm", x, y)?;
    let (x, y) = (x.contiguous()?, y.contiguous()?);
    let ((rows, width), device) = (rows_of(&x, weight)?, x.device());
    let sum = uninitialised(x.shape(), BF16, device)?;
    let normed = uninitialised(x.shape(), BF16, device)?;
    let arguments = [
        address(&x, BF16)?,
        address(&y, BF16)?,
        address(weight, BF16)?,
        address(&sum, BF16)?,
        address(&normed, BF16)?,
        int(rows)?,
        int(width)?,
        Argument::Float(eps as f32),
    ];
    over_rows("add_and_norm", rows).run(device, &arguments)?;
    Ok((sum, normed))
}

/// Norms the heads of q [T, H, D] and k [T, K, D], if weights are given, and rotates them by the
/// cos/sin rows `[T, D]` of their tokens' positions.
pub(crate) fn norm_and_rope(
    q: &Tensor,
    k: &Tensor,
    norms: Option<(&Tensor, &Tensor)>,
    eps: f64,
    cos_sin: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (q, k) = (q.contiguous()?, k.contiguous()?);
    let ((tokens, heads, width), (k_tokens, kv_heads, k_width)) = (q.dims3()?, k.dims3()?);
    let fits = (k_tokens, k_width) == (tokens, width) && cos_sin.dims() == [tokens, width];
    if !fits || !matches!(width, 32 | 64 | 128) {
        bail!("rope: q {q:?} and k {k:?} against cos_sin {cos_sin:?}");
    }
    let mut weights = [ABSENT; 2];
    if let Some((of_q, of_k)) = norms {
        rows_of(&q, of_q)?;
        rows_of(&k, of_k)?;
        weights = [address(of_q, BF16)?, address(of_k, BF16)?];
    }
    let device = q.device();
    let rotated_q = uninitialised(q.shape(), BF16, device)?;
    let rotated_k = uninitialised(k.shape(), BF16, device)?;
    let arguments = [
        address(&q, BF16)?,
        address(&k, BF16)?,
        weights[0],
        weights[1],
        address(cos_sin, F32)?,
        address(&rotated_q, BF16)?,
        address(&rotated_k, BF16)?,
        int(tokens)?,
        int(heads)?,
        int(kv_heads)?,
        int(width)?,
        Argument::Float(eps as f32),
    ];
    over_rows("norm_and_rope", tokens * (heads + kv_heads)).run(device, &arguments)?;
    Ok((rotated_q, rotated_k))
}

/// Returns the gradients of x, with that of the residual connection added, and of the weight.
pub(crate) fn rms_norm_backward(
    x: &Tensor,
    weight: &Tensor,
    eps: f64,
    dy: &Tensor,
    residual: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    check_same_shape("rms-norm", x, dy)?;
    check_same_shape("rms-norm", x, residual.unwrap_or(x))?;
    let (x, dy) = (x.contiguous()?, dy.contiguous()?);
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let ((rows, width), device) = (rows_of(&x, weight)?, x.device());
    let dx = uninitialised(x.shape(), BF16, device)?;
    let inverses = uninitialised(rows, F32, device)?;
    let arguments = [
        address(&x, BF16)?,
        address(weight, BF16)?,
        address(&dy, BF16)?,
        residual
            .as_ref()
            .map_or(Ok(ABSENT), |it| address(it, BF16))?,
        address(&dx, BF16)?,
        address(&inverses, F32)?,
        int(rows)?,
        int(width)?,
        Argument::Float(eps as f32),
    ];
    over_rows("rms_norm_backward", rows).run(device, &arguments)?;

    let strips = rows.div_ceil(STRIP);
    let partial = uninitialised((strips, width), F32, device)?;
    let launch = Launch {
        grid: (strips, width.div_ceil(THREADS)),
        ..over("rms_norm_weight_gradient", width)
    };
    let arguments = [
        address(&x, BF16)?,
        address(&dy, BF16)?,
        address(&inverses, F32)?,
        address(&partial, F32)?,
        int(rows)?,
        int(width)?,
        int(STRIP)?,
    ];
    launch.run(device, &arguments)?;
    Ok((dx, partial.sum(0)?.to_dtype(weight.dtype())?))
}

fn rows_of(x: &Tensor, weight: &Tensor) -> Result<(usize, usize)> {
    let width = weight.elem_count();
    if x.dims().last() != Some(&width) || !width.is_multiple_of(8) {
        bail!("rms-norm: {x:?} against a weight {weight:?}");
    }
    Ok((x.elem_count() / width, width))
}

/// Rotates x `[T, H, D]` by the cos/sin rows `[T, D]` of its tokens' positions, or back.
pub(crate) fn rotate(x: &Tensor, cos_sin: &Tensor, inverse: bool) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (tokens, heads, width) = x.dims3()?;
    if cos_sin.dims() != [tokens, width] {
        bail!("rope: {x:?} against cos_sin {cos_sin:?}");
    }
    let y = uninitialised(x.shape(), BF16, x.device())?;
    // The kernel numbers the elements.
    int(x.elem_count())?;
    let arguments = [
        address(&x, BF16)?,
        address(cos_sin, F32)?,
        address(&y, BF16)?,
        int(tokens)?,
        int(heads)?,
        int(width)?,
        Argument::Float(if inverse { -1.0 } else { 1.0 }),
    ];
    over("rope", x.elem_count() / 2).run(x.device(), &arguments)?;
    Ok(y)
}

/// Adds the rows of x [N, W] to the chosen rows of a contiguous `sum` [R, W], in place. The
/// additions of one row are in the order of `rows` and are rounded once.
pub(crate) fn add_rows(sum: &Tensor, rows: &[u32], x: &Tensor) -> Result<()> {
    let x = x.contiguous()?;
    let ((count, width), device) = (sum.dims2()?, x.device());
    let fits = x.dims() == [rows.len(), width] && rows.iter().all(|&row| (row as usize) < count);
    if !fits || !width.is_multiple_of(8) {
        bail!("add-rows: {x:?} do not fit {sum:?}");
    }
    if rows.is_empty() {
        return Ok(());
    }
    let grouped = GroupedRows::new(rows);
    let launch = Launch {
        grid: (grouped.targets.len(), 1),
        ..over("add_rows", 1)
    };
    let [targets, starts, order] = [grouped.targets, grouped.starts, grouped.order];
    let lists = [
        upload(targets, device)?,
        upload(starts, device)?,
        upload(order, device)?,
    ];
    let arguments = [
        address(sum, BF16)?,
        address(&x, BF16)?,
        address(&lists[0], U32)?,
        address(&lists[1], U32)?,
        address(&lists[2], U32)?,
        int(width)?,
    ];
    launch.run(device, &arguments)
}

/// Rows by the row that they are added to.
struct GroupedRows {
    /// The rows that something is added to.
    targets: Vec<u32>,
    /// Where the list of each begins in `order`, and the end of the last.
    starts: Vec<u32>,
    /// The rows that are added.
    order: Vec<u32>,
}

impl GroupedRows {
    fn new(rows: &[u32]) -> Self {
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        order.sort_by_key(|&at| rows[at as usize]);
        let (mut targets, mut starts) = (Vec::new(), Vec::new());
        for (place, &at) in (0..).zip(&order) {
            let target = rows[at as usize];
            if targets.last() != Some(&target) {
                targets.push(target);
                starts.push(place);
            }
        }
        starts.push(order.len() as u32);
        Self {
            targets,
            starts,
            order,
        }
    }
}

/// Returns silu(gate) * up.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let ([gate, up], elements) = elements([gate, up])?;
    let out = uninitialised(gate.shape(), BF16, gate.device())?;
    let arguments = [
        address(&gate, BF16)?,
        address(&up, BF16)?,
        address(&out, BF16)?,
        int(elements)?,
    ];
    over("swiglu", elements / 8).run(gate.device(), &arguments)?;
    Ok(out)
}

/// Returns the gradients of gate and up.
pub(crate) fn swiglu_backward(gate: &Tensor, up: &Tensor, dout: &Tensor) -> Result<[Tensor; 2]> {
    let ([gate, up, dout], elements) = elements([gate, up, dout])?;
    let device = gate.device();
    let dgate = uninitialised(gate.shape(), BF16, device)?;
    let dup = uninitialised(gate.shape(), BF16, device)?;
    let arguments = [
        address(&gate, BF16)?,
        address(&up, BF16)?,
        address(&dout, BF16)?,
        address(&dgate, BF16)?,
        address(&dup, BF16)?,
        int(elements)?,
    ];
    over("swiglu_backward", elements / 8).run(device, &arguments)?;
    Ok([dgate, dup])
}

/// Returns contiguous tensors of one shape and the number of their elements, a multiple of 8.
fn elements<const N: usize>(tensors: [&Tensor; N]) -> Result<([Tensor; N], usize)> {
    let (shape, elements) = (tensors[0].shape(), tensors[0].elem_count());
    if !elements.is_multiple_of(8) || tensors.iter().any(|tensor| tensor.shape() != shape) {
        bail!("swiglu: {tensors:?}");
    }
    let mut contiguous = tensors.map(Tensor::clone);
    for tensor in &mut contiguous {
        *tensor = tensor.contiguous()?;
    }
    Ok((contiguous, elements))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_target_in_their_order() {
        let grouped = GroupedRows::new(&[7, 3, 7, 0, 3, 7]);
        assert_eq!(grouped.targets, [0, 3, 7]);
        assert_eq!(grouped.starts, [0, 1, 3, 6]);
        assert_eq!(grouped.order, [3, 1, 4, 0, 2, 5]);
        let none = GroupedRows::new(&[]);
        assert_eq!((none.targets.len(), none.starts), (0, vec![0]));
    }
}
