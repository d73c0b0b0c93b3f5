//! Transfer of large byte strings in chunks: splitting them, and putting them together again.
//!
//! gRPC messages are limited in size, so weights, checkpoints and gradients travel as runs of
//! [`CHUNK_BYTES`]. Snapshots ([`crate::Snapshot`]) and the streams between ranks wrap the chunks
//! in messages of their own.

use bytes::Bytes;

/// The largest chunk in bytes; well below gRPC's default limit of 4 MiB for a message.
pub const CHUNK_BYTES: usize = 1 << 20;

/// The receiver reserves at most this much before the bytes arrive, whatever size the sender
/// announces, unless it has received as much before.
const MAX_RESERVED_BYTES: u64 = 256 << 20;

/// Splits `bytes` into chunks, each with its offset. Copies nothing. An empty string is one empty
/// chunk, so that the receiver sees its end.
pub fn split(bytes: &Bytes) -> impl Iterator<Item = (u64, Bytes)> + use<> {
    let bytes = bytes.clone();
    (0..bytes.len().max(1))
        .step_by(CHUNK_BYTES)
        .map(move |start| {
            let end = bytes.len().min(start + CHUNK_BYTES);
            (start as u64, bytes.slice(start..end))
        })
}

/// A byte string that arrives in chunks.
#[derive(Debug)]
pub struct Assembly {
    size_bytes: u64,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Begins a byte string of `size_bytes`.
    pub fn new(size_bytes: u64) -> Self {
        Self::after(size_bytes, 0)
    }

    /// Begins a byte string of `size_bytes` after one of `last_bytes`, which were all received: as
    /// much is reserved at once, so that nothing is copied while it grows.
    pub fn after(size_bytes: u64, last_bytes: u64) -> Self {
        let reserved = size_bytes.min(MAX_RESERVED_BYTES.max(last_bytes));
        Self {
            size_bytes,
            bytes: Vec::with_capacity(reserved as usize),
        }
    }

    /// Appends the chunk that begins at byte `offset`.
    ///
    /// # Errors
    /// Says that the chunk is out of order, or that there are more bytes than announced.
    pub fn push(&mut self, offset: u64, data: &[u8]) -> Result<(), String> {
        let expected = self.bytes.len() as u64;
        if offset != expected {
            return Err(format!(
                "a chunk is out of order: it begins at byte {offset} in place of byte {expected}"
            ));
        }
        if expected + data.len() as u64 > self.size_bytes {
            return Err(format!(
                "its chunks have more than the {} bytes that were announced",
                self.size_bytes
            ));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Returns whether all bytes announced are there.
    pub fn is_complete(&self) -> bool {
        self.bytes.len() as u64 == self.size_bytes
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up_to_the_bytes() {
        for size in [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1] {
            let bytes: Bytes = (0..size).map(|i| (i % 251) as u8).collect();
            let mut assembly = Assembly::new(size as u64);
            for (offset, data) in split(&bytes) {
                assert!(data.len() <= CHUNK_BYTES);
                assembly.push(offset, &data).unwrap();
            }
            assert!(assembly.is_complete());
            assert_eq!(assembly.into_bytes(), bytes);
        }
    }

    #[test]
    fn memory_is_reserved_for_what_was_received_before_and_not_for_what_is_announced() {
        let reserved = |assembly: Assembly| assembly.bytes.capacity() as u64;
        assert_eq!(reserved(Assembly::new(u64::MAX)), MAX_RESERVED_BYTES);
        let known = MAX_RESERVED_BYTES + 10;
        assert_eq!(reserved(Assembly::after(known, known)), known);
        assert_eq!(reserved(Assembly::after(u64::MAX, known)), known);
        assert_eq!(reserved(Assembly::after(7, known)), 7);
    }

    #[test]
    fn chunks_that_do_not_follow_are_refused() {
        let mut assembly = Assembly::new(3);
        let fault = assembly.push(1, b"b").unwrap_err();
        assert!(fault.contains("byte 1 in place of byte 0"), "{fault}");
        assembly.push(0, b"ab").unwrap();
        let fault = assembly.push(2, b"cd").unwrap_err();
        assert!(fault.contains("more than the 3 bytes"), "{fault}");
        assert!(!assembly.is_complete());
    }
}
