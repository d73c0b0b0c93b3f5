//! The decoder's operations, each with its backward pass beside it and with the same bits wherever it runs.
//!
//! Invariant: on the CPU in f32 an operation is a kernel of ours whose every reduction has one fixed order: its bits do
//! not depend on the batch around a row, on chunking, on the cache, on threads or on the instruction set. On any other
//! device, and in other dtypes but for what the rounding plan says, it is a tensor operations of candle's differentiable
//! operations (`*_tensor_ops`), which is also its oracle in the tests; its backward pass is then candle's (for log-probabilities
//! a tensor operations, too). Candle's fused norms, softmax and rotary embeddings are left out: they
//! drop their gradient without a word.
//!
//! **Rounding plan** for bf16, one for sampling and training. Held in bf16: weights, what a linear product reads and
//! returns, the residual stream, queries, keys and values (so the KV cache). Computed in f32 and rounded once, at the
//! end: products (their sums), norms with their weight, rotary embeddings, attention (scores, softmax and weighted sum,
//! from q, k and v as they are held), the gated activation, sums of gradients by row. Never rounded: logits, their
//! softmax, log-probabilities and entropies, the draw.
//!
//! On the CPU products, attention and log-probabilities are the kernels on widened values, so that in bf16, too, sampling
//! equals training bit for bit. Elsewhere products have one shape, whatever the batch (`fixed_shape`), and attention goes over
//! blocks of keys in order (`paged_attention`): a library that sums the rows of one shape in one order keeps them equal, too, as
//! the CPU's does in `tests/decoder_tensor_ops.rs`.

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
pub use draw_tensor_ops::{RowSampling, draw_rows, filtered_weights};
pub use embedding::{add_rows, select_rows};
pub use linear::{
    LinearWeight, linear, linear_input_gradient, linear_tensor_ops, linear_unrounded,
    linear_weight_gradient,
};
pub use logprobs::{
    LogprobGradients, TokenLogprobs, log_softmax_at, token_logprobs, token_logprobs_backward,
};
pub use logprobs_tensor_ops::token_logprobs_tensor_ops;
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

/// Runs `f` with tensor operations in place of kernels on this thread, as another device would (for tests). Decoders and caches
/// that it uses are to be made in it.
pub fn with_tensor_ops<T>(f: impl FnOnce() -> T) -> T {
    let before = TENSOR_OPS.replace(true);
    let value = f();
    TENSOR_OPS.set(before);
    value
}

/// Whether kernels compute products and attention for this device and dtype: f32 on the CPU, and half precision widened
/// to it.
pub(crate) fn kernels_support(device: &Device, dtype: DType) -> bool {
    device.is_cpu() && compute_dtype(dtype) == DType::F32 && !TENSOR_OPS.get()
}

/// Whether all kernels serve this tensor: f32 on the CPU.
pub(crate) fn uses_kernels(x: &Tensor) -> bool {
    x.dtype() == DType::F32 && kernels_support(x.device(), x.dtype())
}

/// Whether kernels serve this tensor once it is widened.
fn widens_for_kernels(x: &Tensor) -> bool {
    x.dtype() != DType::F32 && kernels_support(x.device(), x.dtype())
}

/// The dtype of what is computed from half precision: f32; others are their own.
pub(crate) fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::BF16 | DType::F16 => DType::F32,
        _ => dtype,
    }
}

/// Half-precision tensors as f32; others as they are.
fn at_least_f32(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(compute_dtype(x.dtype()))
}

/// Lends the values of f32 CPU tensors to `f`, copying only those that are strided.
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

/// What a kernel returns.
fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)
}

/// Refuses a gradient that is not of the shape of what it is the gradient of: a kernel would leave rows out.
fn check_same_shape(op: &str, y: &Tensor, dy: &Tensor) -> Result<()> {
    if y.shape() != dy.shape() {
        bail!("{op}: a gradient {:?} for {:?}", dy.shape(), y.shape());
    }
    Ok(())
}

/// The gradients of `inputs` where `f` is a tensor operations of candle's operations and `dy` the gradient of its result.
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
            None => bail!("a tensor operations dropped a gradient: this is a bug"),
        };
    }
    Ok(gradients)
}
