//! Reads text files that people write. A byte order mark at the start is dropped.

use std::path::Path;

use crate::DataError;

/// The character that some editors write at the start of a file.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads a UTF-8 file.
///
/// # Errors
/// The file cannot be read, or has another encoding.
pub(crate) fn read(path: &Path) -> Result<String, DataError> {
    let bytes = std::fs::read(path).map_err(DataError::io(path, "read"))?;
    decode(bytes).map_err(|problem| DataError::format(path, problem))
}

/// Decodes the bytes of a text file.
///
/// # Errors
/// Says which line is not UTF-8, and what to do.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(
            "begins with the byte order mark of UTF-16; save the file as UTF-8 instead".to_owned(),
        );
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
        format!("line {line}: not UTF-8; save the file as UTF-8 instead")
    })?;
    match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => Ok(rest.to_owned()),
        None => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        for (bytes, expected) in [
            (&b"a\nb"[..], Ok("a\nb")),
            ("\u{feff}a".as_bytes(), Ok("a")),
            (b"", Ok("")),
            (b"\xff\xfea\0", Err("UTF-16")),
            (b"\xfe\xff\0a", Err("UTF-16")),
            (b"a\nb\xe9\n", Err("line 2: not UTF-8")),
        ] {
            let decoded = decode(bytes.to_vec());
            match expected {
                Ok(text) => assert_eq!(decoded.as_deref(), Ok(text)),
                Err(part) => assert!(decoded.unwrap_err().contains(part), "{part}"),
            }
        }
    }
}
