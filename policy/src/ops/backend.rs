//! The backend of a decoder: what computes its operations.
//!
//! Invariant: the backend is chosen once, when the decoder is built. Each one has a backward pass
//! for every operation, which belongs to its forward pass. The files of the operations hold the
//! implementations for the CPU and those by tensor operations side by side; `cuda/` has the
//! kernels for NVIDIA GPUs.

use candle_core::{DType, Device};

use crate::config::DecoderConfig;

/// What computes the operations of a decoder, forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Kernels in f32 on the CPU. Every reduction has one fixed order, so bits do not depend on the
    /// other rows of the batch, on chunking, on the KV cache, on threads or on the instruction set.
    CpuF32,
    /// bf16 on the CPU. Products, also those of attention, have kernels of their own
    /// (`matmul_bf16`). The other operations run in the kernels of f32 on widened values and round
    /// once. Gradients of weights are f32.
    CpuBf16,
    /// bf16 on an NVIDIA GPU, by kernels of this crate (`cuda/`). As on the CPU, a row's bits in a
    /// forward pass do not depend on the other rows, on chunking or on the KV cache.
    #[cfg(feature = "cuda")]
    CudaBf16,
    /// candle's tensor operations (`*_tensor_ops`), for other devices and dtypes, and for shapes
    /// that the kernels for GPUs do not have.
    TensorOps,
}

impl Backend {
    /// Returns the backend for weights on this device and in this dtype.
    pub fn of(device: &Device, dtype: DType) -> Self {
        match (device.is_cpu(), dtype) {
            (true, DType::F32) => Self::CpuF32,
            (true, DType::BF16) => Self::CpuBf16,
            #[cfg(feature = "cuda")]
            (false, DType::BF16) if device.is_cuda() => Self::CudaBf16,
            _ => Self::TensorOps,
        }
    }

    /// Returns the backend for a decoder of this shape: kernels for a GPU support some only.
    pub(crate) fn for_shape(self, config: &DecoderConfig) -> Self {
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 && !super::cuda::supports(config) {
            tracing::warn!(
                "the CUDA kernels need heads of 32, 64 or 128 values, at most 16 for a key-value \
                 head, and other widths that are multiples of 8; this model runs slower"
            );
            return Self::TensorOps;
        }
        let _ = config;
        self
    }

    /// Returns whether the kernels of the CPU compute.
    pub(crate) fn is_cpu(self) -> bool {
        matches!(self, Self::CpuF32 | Self::CpuBf16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_and_dtype_decide() {
        for (dtype, backend) in [
            (DType::F32, Backend::CpuF32),
            (DType::BF16, Backend::CpuBf16),
            (DType::F64, Backend::TensorOps),
            (DType::F16, Backend::TensorOps),
        ] {
            assert_eq!(Backend::of(&Device::Cpu, dtype), backend);
        }
    }
}
