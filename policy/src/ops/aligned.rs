//! Memory that begins at a cache line.

/// Bytes of a cache line. A row of a tile that lies in two of them takes two loads.
const CACHE_LINE: usize = 64;

/// Values that begin at a cache line.
pub(super) struct Aligned<T> {
    data: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// Returns `len` zeros.
    pub(super) fn new(len: usize) -> Self {
        let data = vec![T::default(); len + CACHE_LINE / size_of::<T>()];
        let start = data.as_ptr().align_offset(CACHE_LINE);
        Self { data, start, len }
    }

    /// Holds `len` values from now on. They are zeros or older values.
    pub(super) fn resize(&mut self, len: usize) {
        if self.start + len <= self.data.len() {
            self.len = len;
        } else {
            *self = Self::new(len);
        }
    }

    pub(super) fn read(&self) -> &[T] {
        &self.data[self.start..][..self.len]
    }

    pub(super) fn values(&mut self) -> &mut [T] {
        &mut self.data[self.start..][..self.len]
    }
}
