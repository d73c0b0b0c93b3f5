//! SHA-256 of files and of names. Hashes of names decide splits and seed random streams, so they
//! are the same on every machine.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Returns the hexadecimal SHA-256 and the length of a file. The file is read in blocks.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn file_sha256(path: &Path) -> std::io::Result<(String, u64)> {
    open_file_sha256(&mut File::open(path)?)
}

/// Does the same for an open file.
pub(crate) fn open_file_sha256(file: &mut File) -> std::io::Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut size_bytes = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((hex::encode(hasher.finalize()), size_bytes));
        }
        hasher.update(&buffer[..count]);
        size_bytes += count as u64;
    }
}

/// Hashes a list of parts. Each part is preceded by its length, so that the boundaries count.
pub(crate) fn name_hash(parts: &[&str]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().into()
}

/// Returns a number in `0..100` that depends only on the parts.
pub(crate) fn percentile(parts: &[&str]) -> u64 {
    let hash = name_hash(parts);
    u64::from_le_bytes(std::array::from_fn(|i| hash[i])) % 100
}
