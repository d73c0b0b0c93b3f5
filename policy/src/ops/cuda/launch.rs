//! Launches of the kernels on tensors.

use candle_core::cuda_backend::cudarc::driver::{
    DevicePtr as _, LaunchConfig, PushKernelArg as _, sys::CUfunction_attribute,
};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{DType, Device, Error, Result, Shape, Storage, Tensor, bail};
use half::bf16;

use super::ptx;

/// Dynamic shared memory that a block may use without asking for it. The limit of 48 KiB includes
/// the static shared memory of the kernel.
const USUAL_SHARED_BYTES: u32 = 32 << 10;

/// A kernel's argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument<'a> {
    /// An address on the device and the tensor that it lies in; 0 where an optional tensor is
    /// absent. The tensor is borrowed, because memory that is freed before the launch may be
    /// another tensor's when the kernel runs.
    Address(u64, Option<&'a Tensor>),
    Int(i32),
    Size(u64),
    Float(f32),
}

pub(super) const ABSENT: Argument<'static> = Argument::Address(0, None);

/// A launch of a kernel.
pub(super) struct Launch<'a> {
    /// The module, a `.cu` file, and the kernel in it.
    pub(super) module: &'static str,
    pub(super) kernel: &'a str,
    /// Blocks across and down.
    pub(super) grid: (usize, usize),
    /// Threads of a block.
    pub(super) threads: usize,
    /// Dynamic shared memory of a block in bytes.
    pub(super) shared_bytes: usize,
}

impl Launch<'_> {
    /// Launches the kernel on the stream of the device. Whoever launches must have checked that the
    /// arguments are those of the kernel and that the tensors behind addresses have the sizes that
    /// it reads and writes.
    ///
    /// # Errors
    /// A tensor is on another device, or was opened with another stream, or the driver refuses the
    /// launch.
    pub(super) fn run(self, device: &Device, arguments: &[Argument<'_>]) -> Result<()> {
        let tensors = arguments.iter().filter_map(|argument| match argument {
            Argument::Address(_, tensor) => *tensor,
            _ => None,
        });
        let mut elsewhere = tensors.filter(|tensor| !tensor.device().same_device(device));
        if let Some(other) = elsewhere.next() {
            bail!("{}: {other:?} is not on {device:?}", self.kernel);
        }
        let Device::Cuda(device) = device else {
            bail!("a CUDA kernel was given a tensor of another device: this is a bug");
        };
        // A grid without blocks is an error to the driver.
        if self.grid.0 == 0 || self.grid.1 == 0 {
            return Ok(());
        }
        let text = ptx::text(self.module);
        let function = device.get_or_load_custom_func(self.kernel, self.module, text)?;
        let shared_mem_bytes = self.shared_bytes as u32;
        if shared_mem_bytes > USUAL_SHARED_BYTES {
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let set = function.set_attribute(most, self.shared_bytes as i32);
            set.map_err(Error::wrap)?;
        }
        let mut builder = function.builder();
        for argument in arguments {
            match argument {
                Argument::Address(value, _) | Argument::Size(value) => builder.arg(value),
                Argument::Int(value) => builder.arg(value),
                Argument::Float(value) => builder.arg(value),
            };
        }
        let config = LaunchConfig {
            grid_dim: (self.grid.0 as u32, self.grid.1 as u32, 1),
            block_dim: (self.threads as u32, 1, 1),
            shared_mem_bytes,
        };
        // SAFETY: the arguments are the kernel's and fit each other (see above). The tensors live
        // now, and their memory is freed on the same stream, so after the kernel.
        unsafe { builder.launch(config) }.map_err(Error::wrap)?;
        Ok(())
    }
}

/// Returns a tensor whose values a kernel will write.
pub(super) fn uninitialised(
    shape: impl Into<Shape>,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    // SAFETY: every caller launches a kernel that writes every value, before anything reads it.
    unsafe { Tensor::empty(shape, dtype, device) }
}

/// Returns the address of the first value of a contiguous tensor of this dtype on a GPU.
///
/// # Errors
/// The tensor is another one.
pub(super) fn address(tensor: &Tensor, dtype: DType) -> Result<Argument<'_>> {
    if tensor.dtype() != dtype {
        bail!("a CUDA kernel for {dtype:?} was given {tensor:?}");
    }
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        bail!("a CUDA kernel was given a tensor of another device: this is a bug");
    };
    let Some((start, _)) = layout.contiguous_offsets() else {
        bail!("a CUDA kernel was given a strided tensor: this is a bug");
    };
    let begin = match dtype {
        DType::BF16 => begin::<bf16>(storage),
        DType::F32 => begin::<f32>(storage),
        DType::F64 => begin::<f64>(storage),
        DType::U32 => begin::<u32>(storage),
        other => bail!("a CUDA kernel was given {other:?}: this is a bug"),
    }?;
    let bytes = start * dtype.size_in_bytes();
    Ok(Argument::Address(begin + bytes as u64, Some(tensor)))
}

fn begin<T: CudaDType>(storage: &CudaStorage) -> Result<u64> {
    use candle_core::backend::BackendStorage as _;
    let stream = storage.device().cuda_stream();
    let (begin, _order) = storage.as_cuda_slice::<T>()?.device_ptr(&stream);
    Ok(begin)
}

/// Returns a number as a kernel's argument.
///
/// # Errors
/// It has more than 31 bits.
pub(super) fn int(number: usize) -> Result<Argument<'static>> {
    match i32::try_from(number) {
        Ok(number) => Ok(Argument::Int(number)),
        Err(_) => bail!("{number} values are too many for a CUDA kernel"),
    }
}

/// Copies numbers to the device.
pub(super) fn upload(numbers: Vec<u32>, device: &Device) -> Result<Tensor> {
    let count = numbers.len();
    Tensor::from_vec(numbers, count, device)
}
