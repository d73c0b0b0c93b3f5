//! The device and dtype of a policy: the settings, and the one place that opens a device.
//!
//! Invariant: a device that was requested by name is the one that is opened, or the error says what
//! is missing.

use std::{fmt, str::FromStr};

use candle_core::{DType, Device};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "cuda")]
use crate::cuda::pool::DeviceMemoryPool;
use crate::{
    config::DecoderConfig,
    error::{PolicyError, Result},
    model::Model,
    weights::Weights,
};

/// The device that computes: `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum DeviceChoice {
    /// The first usable CUDA device, if the program has CUDA compiled in; otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this number; `cuda` is number 0.
    Cuda(usize),
}

impl DeviceChoice {
    /// Opens the device.
    ///
    /// # Errors
    /// [`PolicyError::Setting`] if CUDA is requested and not compiled in, or there is no such
    /// device.
    pub fn open(self) -> Result<Device> {
        let opened = match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto => Ok(open_first()),
            Self::Cuda(number) => open_cuda(number),
        };
        opened.map_err(|reason| {
            PolicyError::setting("device", format!("{self} is requested, but {reason}"))
        })
    }
}

#[cfg(not(feature = "cuda"))]
fn open_first() -> Device {
    Device::Cpu
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: usize) -> std::result::Result<Device, String> {
    let reason = "this program is built without CUDA: build it by `make cuda`, or use cpu";
    Err(reason.to_owned())
}

/// Opens the first usable device, or the CPU.
#[cfg(feature = "cuda")]
fn open_first() -> Device {
    let opened = crate::cuda::first_usable().and_then(open_usable);
    opened.unwrap_or_else(|reason| {
        tracing::warn!(
            reason,
            "no CUDA device is usable, so the CPU computes; `sqlenv doctor` lists what it finds"
        );
        Device::Cpu
    })
}

#[cfg(feature = "cuda")]
fn open_cuda(number: usize) -> std::result::Result<Device, String> {
    crate::cuda::usable(number)
        .and_then(|()| open_usable(number))
        .map_err(|reason| format!("{reason}; `sqlenv doctor` lists what it finds; or use cpu"))
}

/// Opens a device with one stream, by which candle orders the work of all threads.
/// (`Device::new_cuda` gives each thread a stream of its own without any order between them.) One
/// stream needs no events at every launch, by which cudarc would order several.
#[cfg(feature = "cuda")]
fn open_usable(number: usize) -> std::result::Result<Device, String> {
    let device = Device::new_cuda_with_stream(number)
        .map_err(|error| format!("device {number} does not open: {error}"))?;
    if let Device::Cuda(device) = &device {
        // SAFETY: the device has one stream. Nothing else reads its tensors, except
        // `Weights::to`, which waits for it.
        unsafe { device.disable_event_tracking() };
    }
    if let Some(Err(error)) = DeviceMemoryPool::of(&device).map(|pool| pool.keep_freed()) {
        tracing::warn!(
            %error,
            "the device returns freed memory to the driver at every wait, which makes it slower"
        );
    }
    Ok(device)
}

/// Returns the bytes that can still be allocated on a device other than the CPU.
#[must_use]
pub fn free_memory(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    return DeviceMemoryPool::of(device)?.free().ok();
    #[cfg(not(feature = "cuda"))]
    none_of(device)
}

/// Runs `work`, and returns with its result the peak of allocated bytes on a device other than the
/// CPU.
pub fn peak_memory<T>(device: &Device, work: impl FnOnce() -> T) -> (T, Option<u64>) {
    #[cfg(feature = "cuda")]
    {
        let pool = DeviceMemoryPool::of(device).filter(|pool| pool.reset_peak().is_ok());
        (work(), pool.and_then(|pool| pool.peak().ok()))
    }
    #[cfg(not(feature = "cuda"))]
    (work(), none_of(device))
}

/// Returns the memory that a device other than the CPU keeps for reuse to the driver, so that other
/// processes can have it.
pub fn release_memory(device: &Device) {
    #[cfg(feature = "cuda")]
    if let Some(Err(error)) = DeviceMemoryPool::of(device).map(|pool| pool.release()) {
        tracing::warn!(%error, "cannot release the device's unused memory");
    }
    #[cfg(not(feature = "cuda"))]
    none_of(device);
}

/// Without CUDA there is no device other than the CPU.
#[cfg(not(feature = "cuda"))]
fn none_of(_: &Device) -> Option<u64> {
    None
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self> {
        let cuda = |number: &str| number.parse().ok().map(Self::Cuda);
        let choice = match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(cuda),
        };
        choice.ok_or_else(|| {
            let reason = format!("{text:?} is no device, need auto, cpu, cuda or cuda:N");
            PolicyError::setting("device", reason)
        })
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = PolicyError;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> Self {
        choice.to_string()
    }
}

/// Smaller models gain little by bf16 on a CPU.
const LEAST_PARAMETERS_IN_BF16: usize = 50_000_000;

/// The dtype of weights, activations and the KV cache. Sums run in f32, see [`crate::ops`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DTypeChoice {
    /// bf16 on a GPU. On a CPU it is bf16 for models of at least 50 million parameters, and f32 for
    /// smaller ones, on every CPU alike, so that a run continues on any machine. For an actor it is
    /// what the learner computes in.
    #[default]
    Auto,
    /// f32.
    F32,
    /// bf16: half the memory. It is faster than f32 on a GPU, on a CPU that multiplies it (AMX or
    /// AVX512-BF16), and for a few rows on any CPU.
    Bf16,
}

impl fmt::Display for DTypeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// Where a process computes: the values of its settings `device` and `dtype`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Device of weights, activations and KV cache.
    pub device: DeviceChoice,
    /// Their dtype.
    pub dtype: DTypeChoice,
}

impl Placement {
    /// Opens the device and chooses the dtype of such a model on it.
    ///
    /// # Errors
    /// See [`DeviceChoice::open`].
    pub fn open(self, config: &DecoderConfig) -> Result<(Device, DType)> {
        let device = self.device.open()?;
        let dtype = self.dtype.on(&device, config);
        Ok((device, dtype))
    }

    /// Returns `model` with its weights on the device and in the dtype.
    ///
    /// # Errors
    /// There is no such device, or it has too little memory.
    pub fn place(self, model: &Model) -> Result<Model> {
        let (device, dtype) = self.open(&model.config)?;
        model.to(&device, dtype)
    }

    /// Returns the placement with the dtype of these weights, unless a dtype was chosen.
    #[must_use]
    pub fn or_dtype_of(self, weights: &Weights) -> Self {
        let is_bf16 = weights.dtype() == Some(DType::BF16);
        let dtype = match (self.dtype, is_bf16) {
            (DTypeChoice::Auto, true) => DTypeChoice::Bf16,
            (DTypeChoice::Auto, false) => DTypeChoice::F32,
            (chosen, _) => chosen,
        };
        Self { dtype, ..self }
    }
}

impl DTypeChoice {
    /// Returns the dtype of such a model on this device.
    #[must_use]
    pub fn on(self, device: &Device, config: &DecoderConfig) -> DType {
        match self {
            Self::Auto if device.is_cpu() && config.parameters() < LEAST_PARAMETERS_IN_BF16 => {
                DType::F32
            }
            Self::F32 => DType::F32,
            Self::Auto | Self::Bf16 => DType::BF16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_written() {
        for (text, choice, written) in [
            ("auto", DeviceChoice::Auto, "auto"),
            ("cpu", DeviceChoice::Cpu, "cpu"),
            ("cuda", DeviceChoice::Cuda(0), "cuda:0"),
            ("cuda:3", DeviceChoice::Cuda(3), "cuda:3"),
        ] {
            let json = serde_json::Value::from(text);
            assert_eq!(
                serde_json::from_value::<DeviceChoice>(json).unwrap(),
                choice
            );
            assert_eq!(serde_json::to_value(choice).unwrap(), written);
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU"] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains("auto, cpu, cuda or cuda:N"), "{error}");
        }
    }

    #[test]
    fn the_cpu_computes_small_models_in_f32_and_large_ones_in_bf16_unless_told_otherwise() {
        let cpu = DeviceChoice::Cpu.open().unwrap();
        assert!(cpu.is_cpu());
        let mut config = crate::embedded::base().unwrap().config;
        for (layers, is_large, auto) in [(6, false, DType::F32), (300, true, DType::BF16)] {
            config.layers = layers;
            assert_eq!(config.parameters() > LEAST_PARAMETERS_IN_BF16, is_large);
            let dtypes = [DTypeChoice::Auto, DTypeChoice::F32, DTypeChoice::Bf16]
                .map(|choice| choice.on(&cpu, &config));
            assert_eq!(dtypes, [auto, DType::F32, DType::BF16]);
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_with_the_remedy() {
        let error = DeviceChoice::Cuda(4_000).open().unwrap_err().to_string();
        let is_built_in = candle_core::utils::cuda_is_available();
        let remedy = ["make cuda", "sqlenv doctor"][usize::from(is_built_in)];
        assert!(error.contains("cuda:4000"), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
}
