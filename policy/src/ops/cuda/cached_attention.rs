//! Attention with keys and values from a KV cache in pages (`attention.cu`).

use candle_core::DType::BF16;
use candle_core::{Result, Tensor};

use super::attention::{Kernel, Keys, Shape, forward};
use super::attention_lists::{Lists, UploadedLists, row_numbers, tile_numbers};
use super::launch::{Launch, address, int};
use crate::ops::kv_pages::slot_mapping;
use crate::ops::{PAGE, TensorPages};
use crate::packed_rows::PackedRow;

/// The rows of one pass through a KV cache, for all layers (vLLM's attention metadata).
pub(crate) struct CachedBatch {
    lists: UploadedLists,
    kernel: Kernel,
    rows: usize,
    tiles: usize,
    tile_count: usize,
    tables: usize,
    slot_mapping: usize,
}

impl CachedBatch {
    /// Lists the rows, whose block table `table` gives by slot, for layers like `pages` and
    /// `heads` query heads.
    pub(crate) fn new<'a>(
        rows: &[PackedRow],
        table: impl Fn(usize) -> &'a [u32],
        pages: &TensorPages,
        heads: usize,
    ) -> Result<Self> {
        let (keys, _) = pages.keys_values();
        let group = heads / keys.dim(0)?;
        let kernel = Kernel::fitting(rows, group);
        let (mut tables, mut starts) = (Vec::new(), Vec::new());
        for row in rows {
            let of_row = table(row.slot);
            starts.push(tables.len());
            tables.extend(&of_row[..(row.past + row.len).div_ceil(PAGE)]);
        }
        let mut lists = Lists::default();
        let row_list = lists.push(row_numbers(rows, |row| starts[row]));
        let tiles = tile_numbers(rows, kernel.tokens(group));
        let tile_count = tiles.len() / 2;
        Ok(Self {
            kernel,
            rows: row_list,
            tiles: lists.push(tiles),
            tile_count,
            tables: lists.push(tables),
            slot_mapping: lists.push(slot_mapping(rows, &table)),
            lists: lists.upload(keys.device())?,
        })
    }

    /// Writes k and v [T, K, D] to their slots and attends with q [T, H, D] → [T, H * D].
    pub(crate) fn attend(&self, [q, k, v]: [&Tensor; 3], pages: &TensorPages) -> Result<Tensor> {
        let shape = Shape::of(q, k, v)?;
        let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
        let (keys, values) = pages.keys_values();
        let (_, slots, d) = keys.dims3()?;
        let chunks = k.elem_count() / 8;
        // Written first, because the new tokens attend to their own keys and values as well.
        let append = Launch {
            module: "rows",
            kernel: "append_to_pages",
            grid: (chunks.div_ceil(128), 1),
            threads: 128,
            shared_bytes: 0,
        };
        let arguments = [
            address(&k, BF16)?,
            address(&v, BF16)?,
            self.lists.address(self.slot_mapping)?,
            address(keys, BF16)?,
            address(values, BF16)?,
            int(shape.tokens)?,
            int(shape.kv_heads)?,
            int(d)?,
            int(slots)?,
        ];
        append.run(q.device(), &arguments)?;
        let keys = Keys {
            keys,
            values,
            tables: self.lists.address(self.tables)?,
            head_stride: slots * d,
            slot_stride: d,
        };
        let lists = (
            self.lists.address(self.rows)?,
            self.lists.address(self.tiles)?,
            self.tile_count,
        );
        forward(&q, shape, &keys, lists, (self.kernel, None))
    }
}
