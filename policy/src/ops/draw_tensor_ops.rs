//! Samples tokens from rows of logits by tensor operations. Filters and sampling stay on the
//! device; two numbers a row come back.
//!
//! The definition is that of [`crate::sampling`]. Nothing is sorted: bisection finds the thresholds
//! of top-k and top-p, and the token is found by the sums of about sqrt(V) blocks and then within
//! one block. Invariant: a column without weight is never sampled.
//!
//! Sums run in the logits' dtype, at least f32, where the CPU's run in f64. In f32 the token
//! differs from the CPU's only where the random number lies within 1e-5 of the border of two
//! shares, or where a sum meets top-p within rounding. To the filters, scaled logits within 2^-23
//! of each other are ties. On an NVIDIA GPU a kernel samples the rows without filters, with sums in
//! f32 as well (`cuda/logprobs.cu`).

use candle_core::{D, DType, Device, Result, Tensor};

use super::at_least_f32;
use super::logprobs_tensor_ops::log_softmax;

/// How the token of one row is sampled.
#[derive(Clone, Copy, Debug)]
pub struct RowSampling {
    /// The random number in [0, 1).
    pub uniform: f64,
    /// The temperature and the filters.
    pub filters: Filters,
}

/// [`crate::SamplingSettings`] in the precision of the computation, for temperatures above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// Divides the logits; more than 0.
    pub temperature: f64,
    /// Only the `top_k` largest logits and ties with the last of them; 0 means off.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this probability; 1 means off.
    pub top_p: f64,
    /// Only tokens at least this fraction as probable as the most probable one; 0 means off. At 1
    /// only the most probable tokens are left.
    pub min_p: f64,
}

impl Filters {
    /// Returns whether no filter is on, so that only the temperature counts.
    pub(crate) fn are_off(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }
}

/// How far below the largest a scaled logit may lie to have weight: e^-128 is zero in f32.
const DEPTH: f64 = 128.0;
/// The number of bisections that narrow [`DEPTH`] to less than 2^-23.
const BISECTIONS: usize = 31;

/// Samples one of the first `vocabulary` columns of each row of logits [R, V] as `draws` says.
/// Returns the columns and their log softmax(logits / temperature) over all V columns. The
/// log-probability is NaN for a row with NaN or plus infinity, or without a finite value.
pub fn draw_rows(
    logits: &Tensor,
    vocabulary: usize,
    draws: &[RowSampling],
) -> Result<Vec<(u32, f32)>> {
    let logits = at_least_f32(logits)?;
    let scale = column(&logits, draws, |draw| draw.filters.temperature.recip())?;
    let scaled = logits.broadcast_mul(&scale)?;
    let drawable = scaled.narrow(1, 0, vocabulary.min(scaled.dim(1)?))?;
    let weights = filtered_weights(&drawable, draws)?;
    let tokens = inverse_cdf(&weights, &column(&logits, draws, |draw| draw.uniform)?)?;
    let logprobs = log_softmax(&scaled)?.gather(&tokens.to_dtype(DType::U32)?, 1)?;
    // One copy to the host; a column's number is exact as a float.
    let both = Tensor::cat(&[tokens, logprobs], 1)?.to_dtype(DType::F64)?;
    let rows = both.to_vec2::<f64>()?;
    Ok(rows
        .iter()
        .map(|row| (row[0] as u32, row[1] as f32))
        .collect())
}

/// Applies the filters to rows of logits [R, V] that are divided by their temperatures. Returns
/// probabilities up to a factor: the largest is 1, and 0 marks a column that a filter drops.
pub fn filtered_weights(scaled: &Tensor, draws: &[RowSampling]) -> Result<Tensor> {
    let any = |on: fn(&RowSampling) -> bool| draws.iter().any(on);
    let shifted = scaled.broadcast_sub(&scaled.max_keepdim(D::Minus1)?)?;
    let mut weights = shifted.exp()?;
    if any(|draw| draw.filters.top_k > 0) {
        let most = |draw: &RowSampling| if_on(draw.filters.top_k > 0, draw.filters.top_k as f64);
        let limit = column(scaled, draws, most)?;
        let threshold = Threshold::find(&shifted, &shifted.ones_like()?, &limit)?;
        weights = masked(&weights, &shifted.broadcast_gt(&threshold.below)?)?;
    }
    if any(|draw| draw.filters.top_p < 1.0) {
        // The most probable column always stays.
        let share =
            |draw: &RowSampling| if_on(draw.filters.top_p < 1.0, draw.filters.top_p.max(1e-9));
        let share = column(scaled, draws, share)?;
        let limit = (share * weights.sum_keepdim(D::Minus1)?)?;
        let threshold = Threshold::find(&shifted, &weights, &limit)?;
        weights = threshold.keep_in_order(&shifted, &weights, &limit)?;
    }
    if any(|draw| draw.filters.min_p > 0.0) {
        let least = column(scaled, draws, |draw| draw.filters.min_p.ln())?;
        weights = masked(&weights, &shifted.broadcast_ge(&least)?)?;
    }
    Ok(weights)
}

/// Returns `limit`, or an infinite limit for a filter that is off.
fn if_on(on: bool, limit: f64) -> f64 {
    if on { limit } else { f64::INFINITY }
}

/// Returns one number for each row, [R, 1], on the device and in the dtype of `like`.
fn column(like: &Tensor, draws: &[RowSampling], f: impl Fn(&RowSampling) -> f64) -> Result<Tensor> {
    let values: Vec<f64> = draws.iter().map(f).collect();
    let values = Tensor::from_vec(values, (draws.len(), 1), &Device::Cpu)?;
    values.to_dtype(like.dtype())?.to_device(like.device())
}

/// Returns `weights` with zeros where the mask `kept` is 0.
fn masked(weights: &Tensor, kept: &Tensor) -> Result<Tensor> {
    weights * kept.to_dtype(weights.dtype())?
}

/// The threshold at which columns reach a limit of mass in each row, both [R, 1]. Columns above
/// `above` have less than the limit together, those above `below` reach it (unless all columns have
/// less). Columns between the two are ties.
struct Threshold {
    below: Tensor,
    above: Tensor,
}

impl Threshold {
    /// Finds the threshold in `shifted` [R, V], whose largest value is 0, for columns that weigh
    /// `mass`.
    fn find(shifted: &Tensor, mass: &Tensor, limit: &Tensor) -> Result<Self> {
        let mut above = limit.zeros_like()?;
        let mut below = (limit.zeros_like()? - DEPTH)?;
        for _ in 0..BISECTIONS {
            let middle = ((&above + &below)? / 2.0)?;
            let found = masked(mass, &shifted.broadcast_gt(&middle)?)?.sum_keepdim(D::Minus1)?;
            let fits = found.lt(limit)?;
            above = fits.where_cond(&middle, &above)?;
            below = fits.where_cond(&below, &middle)?;
        }
        Ok(Self { below, above })
    }

    /// Keeps a column if those before it, in order of value and then index, have less than the
    /// limit.
    fn keep_in_order(&self, shifted: &Tensor, weights: &Tensor, limit: &Tensor) -> Result<Tensor> {
        let columns = shifted.dim(1)?;
        let numbers = Tensor::arange(0, columns as u32, shifted.device())?;
        let numbers = numbers.to_dtype(shifted.dtype())?.unsqueeze(0)?;
        let over = masked(weights, &shifted.broadcast_gt(&self.above)?)?;
        let ties = (masked(weights, &shifted.broadcast_gt(&self.below)?)? - &over)?;
        let room = (limit - over.sum_keepdim(D::Minus1)?)?;
        // The last tie that is kept lies in first..=last.
        let mut first = limit.zeros_like()?;
        let mut last = (limit.zeros_like()? + columns as f64)?;
        for _ in 0..=columns.ilog2() {
            let middle = (((&first + &last)? + 1.0)? / 2.0)?.floor()?;
            let before = masked(&ties, &numbers.broadcast_lt(&middle)?)?.sum_keepdim(D::Minus1)?;
            let fits = before.lt(&room)?;
            first = fits.where_cond(&middle, &first)?;
            last = fits.where_cond(&last, &(&middle - 1.0)?)?;
        }
        over + masked(&ties, &numbers.broadcast_le(&first)?)?
    }
}

/// Returns the column [R, 1] whose share of the cumulative weights [R, V], in index order, contains
/// `uniform` [R, 1].
fn inverse_cdf(weights: &Tensor, uniform: &Tensor) -> Result<Tensor> {
    let (rows, columns) = weights.dims2()?;
    let width = (columns as f64).sqrt().ceil() as usize;
    let blocks = columns.div_ceil(width);
    let weights = weights.pad_with_zeros(1, 0, blocks * width - columns)?;
    let weights = weights.reshape((rows, blocks, width))?;
    let cumulative = weights.sum(2)?.cumsum(1)?;
    let target = (uniform * cumulative.narrow(1, blocks - 1, 1)?)?;
    let block = first_beyond(&cumulative, &target)?;
    let number = block.to_dtype(DType::U32)?;
    let before = cumulative.pad_with_zeros(1, 1, 0)?.gather(&number, 1)?;
    let number = number.unsqueeze(2)?.broadcast_as((rows, 1, width))?;
    let within = weights.gather(&number.contiguous()?, 1)?.squeeze(1)?;
    let place = first_beyond(&within.cumsum(1)?, &(target - before)?)?;
    (block * width as f64)? + place
}

/// Returns the first column of rising rows [R, N] that exceeds `target` [R, 1], but none after the
/// one that reaches the row's end: rounding can leave the end a little below the target.
fn first_beyond(rising: &Tensor, target: &Tensor) -> Result<Tensor> {
    let end = rising.narrow(1, rising.dim(1)? - 1, 1)?;
    let count = |columns: Tensor| columns.to_dtype(rising.dtype())?.sum_keepdim(1);
    let first = count(rising.broadcast_le(target)?)?;
    first.minimum(&count(rising.broadcast_lt(&end)?)?)
}
