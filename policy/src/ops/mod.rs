//! The decoder's operations, as methods of the [`Backend`] that computes them. Each file holds the
//! forward and the backward pass of an operation, by hand-written kernels for the CPU and by
//! candle's tensor operations (`*_tensor_ops`) for other devices; `cuda/` has kernels for bf16 on
//! NVIDIA GPUs. Tests hold the kernels to the tensor operations, those for GPUs through
//! `sqlenv gpu-check`. candle's fused norms, softmax and rotary embeddings are not used, because
//! they drop their gradient without an error.
//!
//! **Rounding plan** for bf16, the same for sampling and training:
//!
//! * Held in bf16: weights, inputs and outputs of linear layers, the residual stream, queries, keys
//!   and values, the KV cache, and the gradients of all these but the weights.
//! * Computed in f32 and rounded once at the end: matrix products (their sums), norms with their
//!   weight, rotary embeddings, attention (scores, softmax and weighted sum, from q, k and v as
//!   they are held), SwiGLU, residual sums, and sums of gradients by row. On the CPU this includes
//!   the gradient of an input that several linear layers read; elsewhere each layer's product is
//!   rounded, and then each sum. Kernels also round the softmax weights and the gradients of scores
//!   before they are multiplied.
//! * Never rounded: logits, their softmax, log-probabilities and entropies, the sampling of a
//!   token, and on the CPU the gradients of weights.
//!
//! In kernels every sum has one order (`matmul`, `matmul_bf16`, `cuda/matmul.cu`), so sampling
//! equals training bit for bit. With tensor operations all products of a layer have one shape
//! whatever the batch (`fixed_shape`), and attention visits blocks of keys in order of position
//! (`attention_tensor_ops`). A library that sums the rows of one shape in one order then keeps the
//! bits equal; `tests/it/decoder_tensor_ops.rs` shows this for candle on the CPU, and `gpu-check`
//! for cuBLAS in f32.

mod aligned;
mod amx_permission;
mod attention;
mod attention_kernel;
mod attention_tensor_ops;
mod backend;
mod bf16_values;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
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
mod matmul_bf16;
mod norm;
mod optimizer;
mod rope;
mod rowwise;
mod simd;
mod swiglu;
mod token_set;

pub use backend::Backend;
pub use draw_tensor_ops::{Filters, RowSampling, draw_rows, filtered_weights};
pub use embedding::select_rows;
pub use linear::LinearWeight;
pub use logprobs::{LogprobGradients, Targets, TokenLogprobs, log_softmax_at};
pub use optimizer::{AdamWConstants, adamw_on_gpu, sum_of_squares_on_gpu};
pub use rope::RopeTable;
pub use simd::{InstructionSet, with_instruction_set};
pub use token_set::TokenSet;

pub(crate) use attention::cached_attention;
pub(crate) use attention_tensor_ops::{AttentionMetadata, TensorPages};
pub(crate) use draw::draw_token;
pub(crate) use kv_pages::{KvPages, PAGE};

use candle_core::{DType, Device, Result, Shape, Storage, Tensor, Var, WithDType, bail};

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

/// Calls `f` with the values of CPU tensors, whose dtype is that of `V`. Only strided tensors are
/// copied.
pub(crate) fn read<V: WithDType, T, const N: usize>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[V]; N]) -> Result<T>,
) -> Result<T> {
    read_all(&tensors, |slices| {
        let slices = slices.try_into();
        f(slices.expect("each tensor has its values: this is a bug"))
    })
}

/// [`read`] for any number of tensors.
pub(crate) fn read_all<V: WithDType, T>(
    tensors: &[&Tensor],
    f: impl FnOnce(&[&[V]]) -> Result<T>,
) -> Result<T> {
    let mut contiguous = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        contiguous.push(tensor.contiguous()?);
    }
    let guards: Vec<_> = contiguous.iter().map(Tensor::storage_and_layout).collect();
    let mut slices: Vec<&[V]> = Vec::with_capacity(tensors.len());
    for (storage, layout) in &guards {
        let Storage::Cpu(storage) = &**storage else {
            bail!("a CPU kernel was given a tensor of another device: this is a bug");
        };
        slices.push(match layout.contiguous_offsets() {
            Some((start, end)) => &storage.as_slice::<V>()?[start..end],
            None => bail!("a kernel was given a strided tensor: this is a bug"),
        });
    }
    f(&slices)
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
