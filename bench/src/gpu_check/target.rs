//! The device that is checked.

use std::fmt;

use candle_core::{DType, Device};
use policy::DeviceChoice;

use super::args::GpuCheckArgs;
use crate::{ModelShape, diagnosis::Diagnosis};

/// What is checked, and how.
pub(super) struct CheckTarget<'a> {
    pub(super) args: &'a GpuCheckArgs,
    pub(super) diagnosis: &'a Diagnosis,
    pub(super) device: Device,
    pub(super) shape: ModelShape,
}

impl CheckTarget<'_> {
    /// Returns the dtype that is compared with f32 on the CPU. On the CPU itself it is f64: f32 is
    /// the reference there.
    pub(super) fn exact(&self) -> DType {
        if self.device.is_cpu() {
            DType::F64
        } else {
            DType::F32
        }
    }

    /// Names the memory whose peak is measured.
    pub(super) fn memory(&self) -> &'static str {
        if self.device.is_cpu() {
            "main memory"
        } else {
            "the device's memory"
        }
    }
}

/// Why a check could not run. As an error it marks the check as skipped.
#[derive(Debug)]
pub(super) struct Skipped(pub(super) String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Resolves `auto` to the device that it stands for.
pub(super) fn named(choice: DeviceChoice, diagnosis: &Diagnosis) -> DeviceChoice {
    let first = || diagnosis.cuda.as_ref()?.first_usable().ok();
    match choice {
        DeviceChoice::Auto => DeviceChoice::Cuda(first().unwrap_or(0)),
        choice => choice,
    }
}

/// Opens the device of `choice` and never another one.
pub(super) fn open(choice: DeviceChoice, diagnosis: &Diagnosis) -> Result<Device, String> {
    if let Some(ordinal) = ordinal(choice) {
        diagnosis.device(ordinal)?;
    }
    choice.open().map_err(|error| error.to_string())
}

/// Returns the number of a CUDA device.
pub(super) fn ordinal(choice: DeviceChoice) -> Option<usize> {
    match choice {
        DeviceChoice::Cpu | DeviceChoice::Auto => None,
        DeviceChoice::Cuda(ordinal) => Some(ordinal),
    }
}
