//! Tensors as the writer of safetensors reads them. Those on the CPU are not copied.

use std::borrow::Cow;
use std::ops::Deref;

use bytemuck::cast_slice;
use candle_core::{CpuStorage, Storage, Tensor};
use safetensors::{Dtype, View};

/// A tensor whose values stay readable while it is written. `S` is candle's lock on the storage.
pub(super) struct FileView<'a, S> {
    tensor: &'a Tensor,
    storage: S,
    /// Where the values are in the storage, if they are in one piece.
    values: Option<(usize, usize)>,
}

/// Returns the view of a tensor.
pub(super) fn view(tensor: &Tensor) -> FileView<'_, impl Deref<Target = Storage>> {
    let (storage, layout) = tensor.storage_and_layout();
    FileView {
        tensor,
        storage,
        values: layout.contiguous_offsets(),
    }
}

impl<S: Deref<Target = Storage>> FileView<'_, S> {
    /// Returns the bytes of the common dtypes where they are.
    fn bytes(&self) -> Option<&[u8]> {
        let (start, end) = self.values?;
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(values)) => Some(cast_slice(&values[start..end])),
            Storage::Cpu(CpuStorage::BF16(values)) => Some(cast_slice(&values[start..end])),
            Storage::Cpu(CpuStorage::F16(values)) => Some(cast_slice(&values[start..end])),
            _ => None,
        }
    }
}

impl<S: Deref<Target = Storage>> View for FileView<'_, S> {
    fn dtype(&self) -> Dtype {
        View::dtype(&self.tensor)
    }

    fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.bytes() {
            Some(bytes) => Cow::Borrowed(bytes),
            None => View::data(&self.tensor).into_owned().into(),
        }
    }

    fn data_len(&self) -> usize {
        View::data_len(&self.tensor)
    }
}
