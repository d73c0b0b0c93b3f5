//! A first look at the header of a GGUF file, which allocates nothing but names.
//!
//! Invariant: what passes costs memory in proportion to the file when candle reads it. candle keeps
//! 32 bytes for each element of an array, divides by the alignment without a check, and keeps the
//! last of two tensors with one name.

use std::{collections::HashSet, ops::RangeInclusive};

use super::invalid_key;
use crate::error::{PolicyError, Result};

/// Elements of all arrays. A tokenizer has four arrays, of at most 0.3 million elements.
const MOST_ELEMENTS: u64 = 1 << 22;
/// As in ggml.
const MOST_DIMENSIONS: u32 = 4;
const ALIGNMENT: &str = "general.alignment";

/// The versions of the format that candle reads.
const VERSIONS: RangeInclusive<u32> = 1..=3;

const U32: u32 = 4;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Checks the header of a file.
///
/// # Errors
/// [`PolicyError`] names the key or the tensor.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let mut header = Header {
        rest: bytes,
        has_short_lengths: false,
        elements_left: MOST_ELEMENTS,
    };
    if !bytes.starts_with(b"GGUF") {
        return Err(PolicyError::Usage("not a GGUF file".to_owned()));
    }
    header.u32()?;
    let version = header.u32()?;
    if !VERSIONS.contains(&version) {
        return Err(PolicyError::Usage(format!(
            "version {version} of GGUF is not supported; give a file of version 1, 2 or 3"
        )));
    }
    header.has_short_lengths = version == 1;
    let (tensors, keys) = (header.length()?, header.length()?);
    let mut known = HashSet::new();
    for _ in 0..keys {
        let key = header.text()?;
        header.value(&key)?;
        if let Some(key) = known.replace(key) {
            return Err(invalid_key(&key, "is there twice; download the file again"));
        }
    }
    known.clear();
    for _ in 0..tensors {
        let name = header.tensor()?;
        if let Some(name) = known.replace(name) {
            let reason = "is in the GGUF file twice; download the file again";
            return Err(PolicyError::tensor(name, reason));
        }
    }
    Ok(())
}

/// Returns whether candle reads tensors of a type. It knows two more, in which no file is stored.
fn is_readable(kind: u32) -> bool {
    matches!(kind, 0..=3 | 6..=8 | 10..=14 | 30)
}

/// What is left of a header.
struct Header<'a> {
    rest: &'a [u8],
    /// As in the first version of the format.
    has_short_lengths: bool,
    elements_left: u64,
}

impl<'a> Header<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| {
            PolicyError::Usage("not a complete GGUF file: its header ends early".to_owned())
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn length(&mut self) -> Result<u64> {
        if self.has_short_lengths {
            return Ok(self.u32()?.into());
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a text as candle does, so that two names are equal here if they are there.
    fn text(&mut self) -> Result<String> {
        let length = self.length()?;
        let text = self.take(length)?;
        let end = text.iter().rposition(|&byte| byte != 0);
        Ok(String::from_utf8_lossy(&text[..end.map_or(0, |end| end + 1)]).into_owned())
    }

    fn value(&mut self, key: &str) -> Result<()> {
        let kind = self.u32()?;
        if key == ALIGNMENT {
            let is_sound = kind == U32 && self.u32()? > 0;
            let reason = "is not a number above 0";
            return if is_sound {
                Ok(())
            } else {
                Err(invalid_key(key, reason))
            };
        }
        if kind != ARRAY {
            return self.skip(key, kind);
        }
        let (kind, count) = (self.u32()?, self.length()?);
        self.elements_left = self.elements_left.checked_sub(count).ok_or_else(|| {
            let reason = format!(
                "has {count} elements, more than a tokenizer has (all arrays together: \
                 {MOST_ELEMENTS}); use the Hugging Face folder"
            );
            invalid_key(key, reason)
        })?;
        (0..count).try_for_each(|_| self.skip(key, kind))
    }

    fn skip(&mut self, key: &str, kind: u32) -> Result<()> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            U32 | 5 | 6 => 4,
            10..=12 => 8,
            TEXT => self.length()?,
            _ => {
                let reason = format!("has values of the type {kind}, which is not supported");
                return Err(invalid_key(key, reason));
            }
        };
        self.take(size).map(drop)
    }

    fn tensor(&mut self) -> Result<String> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if dimensions > MOST_DIMENSIONS {
            let reason = format!("has {dimensions} dimensions; supported: {MOST_DIMENSIONS}");
            return Err(PolicyError::tensor(name, reason));
        }
        for _ in 0..dimensions {
            self.length()?;
        }
        let kind = self.u32()?;
        if !is_readable(kind) {
            let reason = format!(
                "is stored as type {kind} of ggml, which is not supported; use a file in F16, \
                 BF16, Q8_0, Q4_0 to Q5_1 or Q2_K to Q6_K, or the Hugging Face folder"
            );
            return Err(PolicyError::tensor(name, reason));
        }
        // The place.
        self.take(8)?;
        Ok(name)
    }
}
