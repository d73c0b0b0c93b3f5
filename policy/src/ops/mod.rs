//! The decoder's operations. Each file holds the forward pass, the backward pass, and the reference
//! implementation by tensor operations.
//!
//! There are two implementations of every operation:
//!
//! * A **kernel**, hand-written for f32 on the CPU. Every reduction of a kernel has one fixed
//!   order. Its bits do not depend on the other rows of the batch, on chunking, on the KV cache, on
//!   threads or on the instruction set.
//! * The same operation by candle's **tensor operations** (`*_tensor_ops`), for other devices and
//!   dtypes. candle differentiates it, and the tests hold the kernels to it. candle's fused norms,
//!   softmax and rotary embeddings are not used, because they drop their gradient without an error.
//!
//! **Rounding plan** for bf16, the same for sampling and training:
//!
//! * Held in bf16: weights, inputs and outputs of linear layers, the residual stream, queries, keys
//!   and values (so the KV cache).
//! * Computed in f32 and rounded once at the end: matrix products (their sums), norms with their
//!   weight, rotary embeddings, attention (scores, softmax and weighted sum, from q, k and v as
//!   they are held), SwiGLU, and sums of gradients by row.
//! * Never rounded: logits, their softmax, log-probabilities and entropies, and the sampling of a
//!   token.
//!
//! On the CPU, bf16 products, attention and log-probabilities run in the f32 kernels on widened
//! values, so sampling equals training bit for bit there too. On other devices all products of a
//! layer have one shape whatever the batch (`fixed_shape`), and attention visits blocks of keys in
//! order of position (`paged_attention`). A library that sums the rows of one shape in one order
//! then keeps the bits equal; `tests/decoder_tensor_ops.rs` shows this for candle on the CPU.

mod attention;
mod attention_kernel;
mod draw;
mod draw_tensor_ops;
mod embedding;
mod fixed_shape;
mod kv_pages;
mod linear;
mod logprobs;
mod logprobs_tensor_ops;
mod math;
mod matmul;
mod norm;
mod paged_attention;
mod rope;
mod simd;
mod swiglu;

pub use attention::{attention, attention_backward, attention_tensor_ops};
pub use draw::draw_token;
pub use draw_tensor_ops::{Filters, RowSampling, draw_rows, filtered_weights};
pub use embedding::{add_rows, select_rows};
pub use linear::{
    LinearWeight, linear, linear_input_gradient, linear_tensor_ops, linear_unrounded,
    linear_weight_gradient,
};
pub use logprobs::{
    LogprobGradients, TokenLogprobs, log_softmax_at, token_logprobs, token_logprobs_backward,
};
pub use norm::{rms_norm, rms_norm_backward, rms_norm_tensor_ops};
pub use rope::{RopeTable, rope, rope_backward, rope_tensor_ops};
pub use simd::{InstructionSet, with_instruction_set};
pub use swiglu::{swiglu, swiglu_backward, swiglu_tensor_ops};

pub(crate) use attention::cached_attention;
pub(crate) use kv_pages::{KvPages, PAGE};
pub(crate) use paged_attention::{AttentionMetadata, TensorPages};

use std::cell::Cell;

use candle_core::{DType, Device, Result, Shape, Storage, Tensor, Var, bail};

thread_local! {
    static TENSOR_OPS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with tensor operations in place of kernels on this thread, as on another device. For
/// tests. Decoders and caches that `f` uses must be built inside of it.
pub fn with_tensor_ops<T>(f: impl FnOnce() -> T) -> T {
    let before = TENSOR_OPS.replace(true);
    let value = f();
    TENSOR_OPS.set(before);
    value
}

/// Returns whether kernels compute products and attention for this device and dtype: f32 on the
/// CPU, and half precision that is widened to it.
pub(crate) fn kernels_support(device: &Device, dtype: DType) -> bool {
    device.is_cpu() && compute_dtype(dtype) == DType::F32 && !TENSOR_OPS.get()
}

/// Returns whether all kernels take this tensor: f32 on the CPU.
pub(crate) fn uses_kernels(x: &Tensor) -> bool {
    x.dtype() == DType::F32 && kernels_support(x.device(), x.dtype())
}

/// Returns whether kernels take this tensor after it is widened to f32.
fn widens_for_kernels(x: &Tensor) -> bool {
    x.dtype() != DType::F32 && kernels_support(x.device(), x.dtype())
}

/// Returns the dtype that values of `dtype` are computed in: f32 for half precision, else `dtype`.
pub(crate) fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::BF16 | DType::F16 => DType::F32,
        _ => dtype,
    }
}

/// Widens half-precision tensors to f32 and leaves others as they are.
fn at_least_f32(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(compute_dtype(x.dtype()))
}

/// Calls `f` with the values of f32 CPU tensors. Only strided tensors are copied.
fn read<T, const N: usize>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> Result<T>,
) -> Result<T> {
    let mut contiguous = Vec::with_capacity(N);
    for tensor in tensors {
        contiguous.push(tensor.contiguous()?);
    }
    let guards: Vec<_> = contiguous.iter().map(Tensor::storage_and_layout).collect();
    let mut slices: [&[f32]; N] = [&[]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        let Storage::Cpu(storage) = &**storage else {
            bail!("a CPU kernel was given a tensor of another device: this is a bug");
        };
        *slice = match layout.contiguous_offsets() {
            Some((start, end)) => &storage.as_slice::<f32>()?[start..end],
            None => bail!("a kernel was given a strided tensor: this is a bug"),
        };
    }
    f(slices)
}

/// Wraps the output of a kernel as a CPU tensor.
fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)
}

/// Returns an error if the gradient `dy` has another shape than `y`: a kernel would silently skip
/// rows.
fn check_same_shape(op: &str, y: &Tensor, dy: &Tensor) -> Result<()> {
    if y.shape() != dy.shape() {
        bail!("{op}: a gradient {:?} for {:?}", dy.shape(), y.shape());
    }
    Ok(())
}

/// Returns the gradients of `inputs` by candle's autograd, for `f` made of tensor operations and
/// `dy` the gradient of its result.
fn autograd_backward<const N: usize>(
    inputs: [&Tensor; N],
    dy: &Tensor,
    f: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
) -> Result<[Tensor; N]> {
    let mut vars = Vec::with_capacity(N);
    for input in inputs {
        vars.push(Var::from_tensor(input)?);
    }
    let y = f(std::array::from_fn(|i| vars[i].as_tensor()))?;
    let mut store = (y * dy)?.sum_all()?.backward()?;
    let mut gradients = inputs.map(Tensor::clone);
    for (gradient, var) in gradients.iter_mut().zip(&vars) {
        *gradient = match store.remove(var) {
            Some(gradient) => gradient,
            None => bail!("tensor operations dropped a gradient: this is a bug"),
        };
    }
    Ok(gradients)
}
