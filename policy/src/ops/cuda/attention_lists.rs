//! The lists of numbers that the kernels of attention read: rows, tiles, and rows that continue
//! others (`attention.cuh`).

use candle_core::DType::U32;
use candle_core::{Device, Result, Tensor};

use super::launch::{Argument, address, upload};
use crate::packed_rows::{PackedRow, row_offsets};

/// Lists of numbers that the kernels read, copied to the device at once.
#[derive(Default)]
pub(super) struct Lists {
    numbers: Vec<u32>,
    starts: Vec<usize>,
}

impl Lists {
    /// Adds a list and returns its number.
    pub(super) fn push(&mut self, list: impl IntoIterator<Item = u32>) -> usize {
        self.starts.push(self.numbers.len());
        self.numbers.extend(list);
        // Lists of pairs must begin at a multiple of 8 bytes.
        self.numbers
            .resize(self.numbers.len().next_multiple_of(2), 0);
        self.starts.len() - 1
    }

    pub(super) fn upload(mut self, device: &Device) -> Result<UploadedLists> {
        // An empty tensor has no address.
        self.numbers.push(0);
        Ok(UploadedLists {
            numbers: upload(self.numbers, device)?,
            starts: self.starts,
        })
    }
}

/// Lists on the device.
pub(super) struct UploadedLists {
    numbers: Tensor,
    starts: Vec<usize>,
}

impl UploadedLists {
    /// Returns the address of a list.
    pub(super) fn address(&self, list: usize) -> Result<Argument<'_>> {
        match address(&self.numbers, U32)? {
            Argument::Address(begin, tensor) => {
                let bytes = 4 * self.starts[list] as u64;
                Ok(Argument::Address(begin + bytes, tensor))
            }
            other => Ok(other),
        }
    }
}

/// Returns the rows as the kernels read them (`Row` in `attention.cuh`), with the number `prefix`
/// of each.
pub(super) fn row_numbers(rows: &[PackedRow], prefix: impl Fn(usize) -> usize) -> Vec<u32> {
    let numbers = |(index, (row, first)): (usize, (&PackedRow, usize))| {
        [first, row.len, row.past, prefix(index)].map(|number| number as u32)
    };
    let rows = rows.iter().zip(row_offsets(rows)).enumerate();
    rows.flat_map(numbers).collect()
}

/// Returns the tiles of rows: a row's number and the first token in it, every `step` tokens.
pub(super) fn tile_numbers(rows: &[PackedRow], step: usize) -> Vec<u32> {
    let of_row = |(number, row): (usize, &PackedRow)| {
        let firsts = (0..row.len).step_by(step);
        firsts.flat_map(move |first| [number as u32, first as u32])
    };
    rows.iter().enumerate().flat_map(of_row).collect()
}

/// Returns the rows that continue each row, one list after the other, and where each list starts
/// (one start more than rows).
pub(super) fn continuing_rows(rows: &[PackedRow]) -> (Vec<u32>, Vec<u32>) {
    let mut lists = vec![Vec::new(); rows.len()];
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| row.past > 0) {
        lists[row.slot].push(number as u32);
    }
    let mut starts = vec![0];
    for list in &lists {
        starts.push(starts[starts.len() - 1] + list.len() as u32);
    }
    (starts, lists.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn row(len: usize, past: usize, slot: usize) -> PackedRow {
        PackedRow { len, past, slot }
    }

    #[test]
    fn rows_are_cut_into_tiles() {
        let rows = [row(5, 0, 0), row(1, 3, 0)];
        assert_eq!(tile_numbers(&rows, 2), [0, 0, 0, 2, 0, 4, 1, 0]);
        assert_eq!(row_numbers(&rows, |row| 7 + row), [0, 5, 0, 7, 5, 1, 3, 8]);
    }

    #[test]
    fn each_row_knows_those_that_continue_it() {
        let rows = [
            row(9, 0, 0),
            row(4, 6, 0),
            row(8, 0, 0),
            row(2, 8, 2),
            row(1, 9, 0),
        ];
        let (starts, continued) = continuing_rows(&rows);
        assert_eq!(starts, [0, 2, 2, 3, 3, 3]);
        assert_eq!(continued, [1, 4, 3]);
    }

    #[test]
    fn lists_of_pairs_begin_at_eight_bytes() {
        let mut lists = Lists::default();
        let numbers = [lists.push([1, 2, 3]), lists.push([]), lists.push([4])];
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(lists.starts, [0, 4, 4]);
        assert_eq!(lists.numbers, [1, 2, 3, 0, 4, 0]);
    }
}
