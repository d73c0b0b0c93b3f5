//! CUDA as this program finds it: NVIDIA's libraries, the driver and the devices.
//!
//! Invariant: detection never fails and never ends the process; what is missing is part of the
//! findings.

mod compatibility;
#[cfg(feature = "cuda")]
mod cubins;
#[cfg(feature = "cuda")]
mod functions;
#[cfg(feature = "cuda")]
mod lazy;
mod library;
#[cfg(feature = "cuda")]
pub(crate) mod pool;
#[cfg(feature = "cuda")]
mod probe;

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

pub use library::Library;

/// What a program that is compiled with CUDA finds on its machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// The compute capability that the kernels are compiled for, e.g. `90`; unknown in a build that
    /// did not set it.
    pub compiled_for: Option<String>,
    /// NVIDIA's libraries.
    pub libraries: Vec<FoundLibrary>,
    /// The newest CUDA version that the driver supports, as (major, minor).
    pub driver_version: Option<(u32, u32)>,
    /// The devices, by ordinal.
    pub devices: Vec<FoundDevice>,
    /// Why there are no devices, or why the driver cannot list them.
    pub fault: Option<String>,
}

/// One of NVIDIA's libraries, as the dynamic loader finds it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FoundLibrary {
    /// The library.
    pub library: Library,
    /// The path, or why the loader cannot open it; serialised as `path` or `reason`.
    #[serde(flatten, serialize_with = "path_or_reason")]
    pub path: Result<PathBuf, String>,
    /// Functions that the program may call and that the library lacks because it is too old.
    pub missing_functions: Vec<&'static str>,
}

fn path_or_reason<S: Serializer>(
    path: &Result<PathBuf, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    enum Opened<'a> {
        Path(&'a Path),
        Reason(&'a str),
    }
    let opened = match path {
        Ok(path) => Opened::Path(path),
        Err(reason) => Opened::Reason(reason),
    };
    opened.serialize(serializer)
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FoundDevice {
    /// The driver's name for it.
    pub name: String,
    /// The compute capability, as (major, minor).
    pub compute_capability: (u32, u32),
    /// In bytes.
    pub total_memory: u64,
    /// In bytes; unknown if it was not queried or no context could be created, as on a device in
    /// exclusive use by another process.
    pub free_memory: Option<u64>,
}

/// Detects libraries and devices. Returns `None` in a program that is compiled without CUDA.
#[must_use]
pub fn findings() -> Option<Findings> {
    #[cfg(feature = "cuda")]
    return Some(probe::findings(probe::MemoryQuery::Ask));
    #[cfg(not(feature = "cuda"))]
    None
}

/// Checks that this program can compute on the device of this number.
///
/// # Errors
/// The reason, and the remedy.
#[cfg(feature = "cuda")]
pub(crate) fn usable(ordinal: usize) -> Result<(), String> {
    probe::findings(probe::MemoryQuery::Skip).usable(ordinal)
}

/// Returns the first device that this program can compute on.
///
/// # Errors
/// The reason that there is none, and the remedy.
#[cfg(feature = "cuda")]
pub(crate) fn first_usable() -> Result<usize, String> {
    probe::findings(probe::MemoryQuery::Skip).first_usable()
}

/// Returns how many modules of GPU kernels this process has loaded: as machine code that the
/// program carries, and as PTX that the driver compiled first.
#[must_use]
pub fn modules() -> (u32, u32) {
    #[cfg(feature = "cuda")]
    return cubins::loaded();
    #[cfg(not(feature = "cuda"))]
    (0, 0)
}
