//! Samples of tokens (`logprobs.cu`).

use candle_core::DType::{F32, F64, U32};
use candle_core::{Result, Tensor, bail};

use super::launch::{ABSENT, address, int, uninitialised, upload};
use super::{MOST_COLUMNS, over_logits};
use crate::ops::{RowSampling, draw_rows};

/// Returns whether the first of the most probable tokens is taken.
fn is_greedy(draw: &RowSampling) -> bool {
    draw.filters.min_p >= 1.0 && draw.uniform == 0.0
}

/// Samples one of the first `vocabulary` columns of each row of logits [R, V] in f32, with its
/// log-probability over all columns (see [`draw_rows`]). A row's sample does not depend on the
/// other rows.
pub(crate) fn draw(
    logits: &Tensor,
    vocabulary: usize,
    draws: &[RowSampling],
) -> Result<Vec<(u32, f32)>> {
    let logits = logits.contiguous()?;
    let (rows, columns) = logits.dims2()?;
    if rows != draws.len() || columns > MOST_COLUMNS {
        bail!("sampling: {} rows of {logits:?}", draws.len());
    }
    let mut drawn = draw_unfiltered(&logits, vocabulary, draws)?;
    // The kernel's inverse transform is all that the other rows need.
    let is_filtered = |row: &usize| !draws[*row].filters.are_off() && !is_greedy(&draws[*row]);
    let filtered: Vec<usize> = (0..rows).filter(is_filtered).collect();
    if filtered.is_empty() {
        return Ok(drawn);
    }
    // Tensor operations find these tokens, and the kernel scores them as it scores the others.
    let numbers: Vec<u32> = filtered.iter().map(|&row| row as u32).collect();
    let numbers = upload(numbers, logits.device())?;
    let logits = logits.index_select(&numbers, 0)?;
    let draws: Vec<RowSampling> = filtered.iter().map(|&row| draws[row]).collect();
    let tokens = draw_rows(&logits, vocabulary, &draws)?;
    let tokens: Vec<u32> = tokens.into_iter().map(|(token, _)| token).collect();
    let logprobs = logprobs_at(&logits, &tokens, &draws)?;
    for ((row, token), logprob) in filtered.into_iter().zip(tokens).zip(logprobs) {
        drawn[row] = (token, logprob);
    }
    Ok(drawn)
}

/// [`draw`] as if no row had a filter.
fn draw_unfiltered(
    logits: &Tensor,
    vocabulary: usize,
    draws: &[RowSampling],
) -> Result<Vec<(u32, f32)>> {
    let ((rows, columns), device) = (logits.dims2()?, logits.device());
    let scales = scales(draws, logits)?;
    let uniform = |draw: &RowSampling| if is_greedy(draw) { -1.0 } else { draw.uniform };
    let uniforms: Vec<f64> = draws.iter().map(uniform).collect();
    let uniforms = Tensor::from_vec(uniforms, rows, device)?;
    // Tokens, and then the bits of the log-probabilities.
    let results = uninitialised(2 * rows, U32, device)?;
    let logprobs = results.narrow(0, rows, rows)?;
    let arguments = [
        address(logits, F32)?,
        address(&scales, F32)?,
        address(&uniforms, F64)?,
        address(&results, U32)?,
        address(&logprobs, U32)?,
        int(columns)?,
        int(vocabulary.min(columns))?,
    ];
    over_logits("draw_tokens", rows).run(device, &arguments)?;
    let results = results.to_vec1::<u32>()?;
    let (tokens, logprobs) = results.split_at(rows);
    let pairs = tokens.iter().zip(logprobs);
    Ok(pairs
        .map(|(&token, &bits)| (token, f32::from_bits(bits)))
        .collect())
}

fn logprobs_at(logits: &Tensor, tokens: &[u32], draws: &[RowSampling]) -> Result<Vec<f32>> {
    let device = logits.device();
    let (targets, scales) = (Tensor::new(tokens, device)?, scales(draws, logits)?);
    let logprobs = uninitialised(tokens.len(), F32, device)?;
    let arguments = [
        address(logits, F32)?,
        address(&targets, U32)?,
        address(&scales, F32)?,
        address(&logprobs, F32)?,
        ABSENT,
        int(logits.dim(1)?)?,
    ];
    over_logits("token_logprobs", tokens.len()).run(device, &arguments)?;
    logprobs.to_vec1()
}

/// Returns what the logits of each row are multiplied by.
fn scales(draws: &[RowSampling], logits: &Tensor) -> Result<Tensor> {
    // As training divides: in f32.
    let scale = |draw: &RowSampling| (draw.filters.temperature as f32).recip();
    let scales: Vec<f32> = draws.iter().map(scale).collect();
    Tensor::from_vec(scales, draws.len(), logits.device())
}
