//! NVIDIA's libraries, and which function belongs to which.

use serde::Serialize;

/// One of NVIDIA's libraries that a program with CUDA calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// The driver's library. The others come with CUDA, or as wheels beside torch.
    Driver,
    /// Called by kernels of candle that the decoder does not use.
    Runtime,
    /// Matrix products.
    Cublas,
    /// Matrix products with epilogues.
    CublasLt,
    /// Random numbers; candle asks for it with every device.
    Curand,
    /// Compiles kernels at run time.
    Nvrtc,
    /// Collectives of several GPUs.
    Nccl,
}

impl Library {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Driver,
        Self::Runtime,
        Self::Cublas,
        Self::CublasLt,
        Self::Curand,
        Self::Nvrtc,
        Self::Nccl,
    ];

    /// Returns the file that the loader opens: CUDA 13's, as the program is compiled against its
    /// headers.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.1",
            Self::Runtime => "libcudart.so.13",
            Self::Cublas => "libcublas.so.13",
            Self::CublasLt => "libcublasLt.so.13",
            Self::Curand => "libcurand.so.10",
            Self::Nvrtc => "libnvrtc.so.13",
            Self::Nccl => "libnccl.so.2",
        }
    }

    /// Returns whether candle needs the library for any tensor on a device.
    #[must_use]
    pub fn is_required(self) -> bool {
        matches!(
            self,
            Self::Driver | Self::Cublas | Self::CublasLt | Self::Curand
        )
    }

    /// Returns the library of a function, by its prefix.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn of(function: &str) -> Self {
        let prefixes = [
            ("cublasLt", Self::CublasLt),
            ("cublas", Self::Cublas),
            ("curand", Self::Curand),
            ("nvrtc", Self::Nvrtc),
            ("nccl", Self::Nccl),
            ("cuda", Self::Runtime),
            ("__cuda", Self::Runtime),
        ];
        let found = prefixes
            .into_iter()
            .find(|(prefix, _)| function.starts_with(prefix));
        found.map_or(Self::Driver, |(_, library)| library)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_tells_the_library() {
        let cases = [
            ("cuInit", Library::Driver),
            ("cuCtxSetCurrent", Library::Driver),
            ("cudaLaunchKernel", Library::Runtime),
            ("__cudaRegisterFatBinary", Library::Runtime),
            ("cublasGemmEx", Library::Cublas),
            ("cublasLtMatmul", Library::CublasLt),
            ("curandGenerate", Library::Curand),
            ("nvrtcGetPTX", Library::Nvrtc),
            ("ncclAllReduce", Library::Nccl),
        ];
        for (function, library) in cases {
            assert_eq!(Library::of(function), library, "{function}");
        }
    }

    #[test]
    fn all_lists_them_in_their_order() {
        for (index, library) in Library::ALL.into_iter().enumerate() {
            assert_eq!(library as usize, index);
        }
    }
}
