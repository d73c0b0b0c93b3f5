//! The safetensors files of a model folder: which they are, and what their headers say.
//!
//! Invariant: nothing is allocated for a tensor before the headers of all files agree with the
//! config and with the sizes of the files. So a folder costs memory in proportion to the model that
//! it holds, whatever its files claim.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use candle_core::{CpuStorage, Storage, Tensor};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};
use crate::regular_file;

/// The file of a model that is not sharded.
pub(crate) const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The most bytes of an index or of a header. A model with a thousand weights has 0.1 MB.
const MOST_HEADER_BYTES: u64 = 16 << 20;
/// Bytes before a header: its length.
const LENGTH_BYTES: u64 = 8;

/// Returns the files that hold the weights of a folder, after a check of their headers.
///
/// # Errors
/// [`PolicyError::File`] names the file that is missing or damaged, or the folder that lacks a
/// weight of `config` or has another one.
pub(crate) fn checked(dir: &Path, config: &DecoderConfig) -> Result<Vec<PathBuf>> {
    let files = listed(dir)?;
    let mut found = BTreeMap::new();
    for path in &files {
        let header = header(path)?;
        for (name, info) in header.tensors() {
            if !matches!(
                info.dtype,
                Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16
            ) {
                let reason = format!(
                    "has the dtype {}; supported: F32, BF16, F16 and F64. Use a folder whose \
                     weights are not quantized",
                    info.dtype
                );
                return Err(PolicyError::file(path, PolicyError::tensor(&name, reason)));
            }
            if found.insert(name.clone(), info.shape.clone()).is_some() {
                let reason = "is in two files; download the model again";
                return Err(PolicyError::file(path, PolicyError::tensor(&name, reason)));
            }
        }
    }
    let named = if let [only] = &files[..] { only } else { dir };
    config
        .check_shapes(&found)
        .map_err(|error| PolicyError::file(named, error))?;
    Ok(files)
}

/// Checks that no value of a tensor on the CPU is NaN or infinite. One such weight makes every
/// logit NaN.
///
/// # Errors
/// [`PolicyError::Tensor`] names the tensor.
pub(crate) fn check_finite(name: &str, tensor: &Tensor) -> Result<()> {
    /// Without an early exit inside of a block, the comparison takes several values at once.
    const BLOCK: usize = 4096;
    macro_rules! all_finite {
        ($values:expr) => {
            $values
                .chunks(BLOCK)
                .all(|block| block.iter().fold(true, |all, x| all & x.is_finite()))
        };
    }
    let (storage, _) = tensor.storage_and_layout();
    let is_finite = match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => all_finite!(values),
        Storage::Cpu(CpuStorage::BF16(values)) => all_finite!(values),
        Storage::Cpu(CpuStorage::F16(values)) => all_finite!(values),
        Storage::Cpu(CpuStorage::F64(values)) => all_finite!(values),
        _ => true,
    };
    if is_finite {
        return Ok(());
    }
    let reason = "holds a value that is NaN or infinite, so the model computes nothing; the file \
                  is damaged or its training diverged: take an earlier one";
    Err(PolicyError::tensor(name, reason))
}

fn listed(dir: &Path) -> Result<Vec<PathBuf>> {
    if dir.join(FILE).symlink_metadata().is_ok() {
        return Ok(vec![inside(dir, FILE)?]);
    }
    if dir.join(INDEX).symlink_metadata().is_err() {
        let reason = format!("holds neither {FILE} nor {INDEX}; give a Hugging Face model folder");
        return Err(PolicyError::file(dir, reason));
    }
    let index = inside(dir, INDEX)?;
    let text = regular_file::read(&index, MOST_HEADER_BYTES)
        .map_err(|error| PolicyError::file(&index, error))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| PolicyError::file(&index, error))?;
    let map = value["weight_map"]
        .as_object()
        .ok_or_else(|| PolicyError::file(&index, "has no object weight_map"))?;
    let mut files: Vec<&str> = map.values().filter_map(|file| file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    let has_folder = |file: &&&str| Path::new(file).file_name() != Some(file.as_ref());
    if let Some(file) = files.iter().find(has_folder) {
        let reason = format!("weight_map names {file:?}; a shard is a file of this folder");
        return Err(PolicyError::file(&index, reason));
    }
    files.iter().map(|file| inside(dir, file)).collect()
}

/// Returns the path of a file of the folder, which may be a link but not to a file elsewhere.
fn inside(dir: &Path, name: &str) -> Result<PathBuf> {
    regular_file::inside(dir, name).map_err(|error| PolicyError::file(dir.join(name), error))?;
    Ok(dir.join(name))
}

fn header(path: &Path) -> Result<Metadata> {
    let fault = |error: std::io::Error| PolicyError::file(path, error);
    let damaged = |reason: &str| {
        let reason = format!("not a safetensors file: {reason}; download it again");
        PolicyError::file(path, reason)
    };
    let (mut file, size) = regular_file::open(path).map_err(fault)?;
    let mut length = [0; LENGTH_BYTES as usize];
    if size < LENGTH_BYTES {
        return Err(damaged("it is too short"));
    }
    file.read_exact(&mut length).map_err(fault)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER_BYTES || length > size - LENGTH_BYTES {
        return Err(damaged("its header does not fit"));
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).map_err(fault)?;
    let header: Metadata =
        serde_json::from_slice(&json).map_err(|error| damaged(&error.to_string()))?;
    let bytes = header.data_len() as u64;
    if size - LENGTH_BYTES - length != bytes {
        let found = size - LENGTH_BYTES - length;
        let reason = format!("its header describes {bytes} bytes, but {found} follow");
        return Err(damaged(&reason));
    }
    Ok(header)
}

#[cfg(test)]
mod tests;
