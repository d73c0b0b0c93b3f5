//! Queries the loader for NVIDIA's libraries, and the driver for its devices.

use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, DriverError,
    result::{self, device},
    sys::{self, CUdevice_attribute as Attribute},
};

use super::{Findings, FoundDevice, FoundLibrary, Library, lazy};

/// Whether to query the free memory of devices. The query creates a context on each, which takes
/// some of that memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryQuery {
    Ask,
    Skip,
}

pub(super) fn findings(memory: MemoryQuery) -> Findings {
    let libraries = Library::ALL.map(|library| {
        let path = lazy::path(library);
        FoundLibrary {
            library,
            missing_functions: match path {
                Ok(_) => lazy::missing_functions(library),
                Err(_) => Vec::new(),
            },
            path,
        }
    });
    let (devices, fault) = match devices(memory) {
        Ok(devices) if devices.is_empty() => (devices, Some("the driver has no device".to_owned())),
        Ok(devices) => (devices, None),
        Err(error) => (
            Vec::new(),
            Some(format!("the driver returns {:?}", error.0)),
        ),
    };
    Findings {
        compiled_for: option_env!("CUDA_COMPUTE_CAP").map(str::to_owned),
        libraries: libraries.into(),
        driver_version: driver_version(),
        devices,
        fault,
    }
}

fn driver_version() -> Option<(u32, u32)> {
    let mut version = 0;
    // SAFETY: the driver writes one number. It may be asked before it is initialised.
    let answer = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    let version = u32::try_from(version)
        .ok()
        .filter(|_| answer.result().is_ok())?;
    Some((version / 1000, version % 1000 / 10))
}

fn devices(memory: MemoryQuery) -> Result<Vec<FoundDevice>, DriverError> {
    result::init()?;
    let found = |ordinal| found_device(ordinal, memory);
    (0..device::get_count()?).map(found).collect()
}

fn found_device(ordinal: i32, memory: MemoryQuery) -> Result<FoundDevice, DriverError> {
    let device = device::get(ordinal)?;
    let attribute = |attribute| {
        // SAFETY: the device is the driver's answer.
        let value = unsafe { device::get_attribute(device, attribute) };
        value.map(|value| value.unsigned_abs())
    };
    let free_memory = || {
        let context = CudaContext::new(ordinal.unsigned_abs() as usize).ok()?;
        let (free, _) = context.mem_get_info().ok()?;
        Some(free as u64)
    };
    Ok(FoundDevice {
        name: device::get_name(device)?,
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        total_memory: unsafe { device::total_mem(device) }? as u64,
        free_memory: (memory == MemoryQuery::Ask).then(free_memory).flatten(),
    })
}
