//! Embedding lookup and its gradient: rows of a matrix by index, and back.
//!
//! Invariant: [`Backend::add_rows`] adds in the order of the indices, on the CPU in one chain for
//! each element; half precision is summed in f32.

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor, bail};

use super::{Backend, at_least_f32, compute_dtype};

/// Returns the chosen rows of `x` [R, W] → [N, W].
pub fn select_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    x.index_select(&Tensor::new(rows, x.device())?, 0)
}

impl Backend {
    /// Adds the rows of `x` [N, W] to the chosen rows of `sum` [R, W]. The memory of `sum` is
    /// reused for the result, so other holders of it would see the change.
    pub fn add_rows(self, sum: Tensor, rows: &[u32], x: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 {
            let sum = sum.contiguous()?;
            super::cuda::add_rows(&sum, rows, x)?;
            return Ok(sum);
        }
        let dtype = sum.dtype();
        let sum = match compute_dtype(dtype) == dtype {
            true => sum,
            false => at_least_f32(&sum)?,
        };
        let x = at_least_f32(x)?;
        if !self.is_cpu() {
            let rows = Tensor::new(rows, x.device())?;
            return sum.index_add(&rows, &x, 0)?.to_dtype(dtype);
        }
        sum.inplace_op2(&x.contiguous()?, &AddRows { rows })?;
        sum.to_dtype(dtype)
    }
}

struct AddRows<'a> {
    rows: &'a [u32],
}

impl InplaceOp2 for AddRows<'_> {
    fn name(&self) -> &'static str {
        "add-rows"
    }

    fn cpu_fwd(
        &self,
        sum: &mut CpuStorage,
        sum_layout: &Layout,
        x: &CpuStorage,
        x_layout: &Layout,
    ) -> Result<()> {
        let (CpuStorage::F32(sum), CpuStorage::F32(x)) = (sum, x) else {
            bail!("add-rows: a kernel was given another dtype: this is a bug");
        };
        let whole = (
            sum_layout.contiguous_offsets(),
            x_layout.contiguous_offsets(),
        );
        let (Some((start, end)), Some((x_start, x_end))) = whole else {
            bail!("add-rows: a kernel was given a strided tensor: this is a bug");
        };
        let ((count, width), (added, x_width)) =
            (sum_layout.shape().dims2()?, x_layout.shape().dims2()?);
        let fits = self.rows.iter().all(|&row| (row as usize) < count);
        if !fits || added != self.rows.len() || x_width != width {
            bail!("add-rows: {added} rows of {x_width} do not fit {count} rows of {width}");
        }
        let sum = &mut sum[start..end];
        for (&row, x) in self.rows.iter().zip(x[x_start..x_end].chunks_exact(width)) {
            let sum = &mut sum[row as usize * width..][..width];
            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        }
        Ok(())
    }
}
