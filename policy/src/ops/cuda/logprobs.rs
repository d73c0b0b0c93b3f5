//! Log-probabilities, their gradients, and samples of tokens (`logprobs.cu`).
//!
//! Shapes: N tokens, V vocabulary, hidden width W.

use std::ops::Range;

use candle_core::DType::{BF16, F32, F64, U32};
use candle_core::{Result, Tensor, bail};

use super::launch::{ABSENT, Argument, Launch, address, int, uninitialised, upload};
use super::matmul::linears_unrounded;
use crate::ops::logprobs::{LogprobGradients, SavedForBackward, Targets, TokenLogprobs};
use crate::ops::token_set::EXCLUDED;
use crate::ops::{RowSampling, TokenSet, draw_rows};

/// The most columns of a row of logits.
pub(super) const MOST_COLUMNS: usize = 1 << 19;
/// The most logits that are held at a time (2 GiB).
const MAX_CHUNK_LOGITS: usize = 1 << 29;
const THREADS: usize = 1024;

fn over_rows(kernel: &str, rows: usize) -> Launch<'_> {
    Launch {
        module: "logprobs",
        kernel,
        grid: (rows, 1),
        threads: THREADS,
        shared_bytes: 0,
    }
}

/// The tokens to score, and how.
#[derive(Clone, Copy)]
struct Scored<'a> {
    hidden: &'a Tensor,
    head: &'a Tensor,
    targets: Targets<'a>,
    temperature: f32,
}

/// [`Backend::token_logprobs`].
pub(crate) fn token_logprobs(
    hidden: &Tensor,
    head: &Tensor,
    targets: Targets<'_>,
    temperature: f32,
) -> Result<TokenLogprobs> {
    let scored = Scored {
        hidden,
        head,
        targets,
        temperature,
    };
    let (rows, device) = (targets.ids.len(), hidden.device());
    let logprobs = uninitialised(rows, F32, device)?;
    let entropies = uninitialised(rows, F32, device)?;
    let mut saved = SavedForBackward::Nothing;
    for chunk in scored.chunks()? {
        let logits = scored.logits(&chunk)?;
        let (targets, scales) = (scored.targets(&chunk)?, scored.scales(&chunk)?);
        let of_chunk = |all: &Tensor| all.narrow(0, chunk.start, chunk.len());
        let (logprobs, entropies) = (of_chunk(&logprobs)?, of_chunk(&entropies)?);
        let arguments = [
            address(&logits, F32)?,
            address(&targets, U32)?,
            address(&scales, F32)?,
            address(&logprobs, F32)?,
            address(&entropies, F32)?,
            int(logits.dim(1)?)?,
        ];
        over_rows("token_logprobs", chunk.len()).run(device, &arguments)?;
        if chunk.len() == rows {
            saved = SavedForBackward::LogitsTensor(logits);
        }
    }
    Ok(TokenLogprobs {
        logprobs,
        entropies,
        saved,
    })
}

/// [`Backend::token_logprobs_backward`].
pub(crate) fn token_logprobs_backward(
    saved: &SavedForBackward,
    hidden: &Tensor,
    head: &Tensor,
    targets: Targets<'_>,
    temperature: f32,
    gradients: &LogprobGradients,
) -> Result<(Tensor, Tensor)> {
    let scored = Scored {
        hidden,
        head,
        targets,
        temperature,
    };
    let (mut dhidden, mut dhead) = (Vec::new(), None);
    for chunk in scored.chunks()? {
        let logits = match saved {
            SavedForBackward::LogitsTensor(logits) => logits.clone(),
            _ => scored.logits(&chunk)?,
        };
        let dlogits = scored.dlogits(&chunk, &logits, gradients)?;
        dhidden.push(dlogits.matmul(head)?);
        let hidden = hidden.narrow(0, chunk.start, chunk.len())?;
        let of_chunk = dlogits.t()?.matmul(&hidden)?;
        // The products of several chunks are summed in f32.
        dhead = Some(match dhead {
            Some(sum) => (sum + of_chunk.to_dtype(F32)?)?,
            None if chunk.len() == targets.ids.len() => of_chunk,
            None => of_chunk.to_dtype(F32)?,
        });
    }
    let dhead = match dhead {
        Some(dhead) => dhead.to_dtype(head.dtype())?,
        None => head.zeros_like()?,
    };
    match &dhidden[..] {
        [] => Ok((hidden.zeros_like()?, dhead)),
        chunks => Ok((Tensor::cat(chunks, 0)?, dhead)),
    }
}

impl Scored<'_> {
    /// Returns the rows of each chunk. The logits of a chunk are held at once.
    fn chunks(&self) -> Result<impl Iterator<Item = Range<usize>> + use<>> {
        let (vocabulary, _) = self.head.dims2()?;
        if vocabulary > MOST_COLUMNS {
            bail!("a vocabulary of {vocabulary} is too large for the CUDA kernels: this is a bug");
        }
        let (rows, at_once) = (self.targets.ids.len(), MAX_CHUNK_LOGITS / vocabulary);
        let firsts = (0..rows).step_by(at_once);
        Ok(firsts.map(move |first| first..rows.min(first + at_once)))
    }

    /// Returns the logits [rows, V], without those of tokens that could not be chosen.
    fn logits(&self, rows: &Range<usize>) -> Result<Tensor> {
        let hidden = self.hidden.narrow(0, rows.start, rows.len())?;
        let logits = linears_unrounded(&hidden, self.head)?;
        let Some(allowed) = self.targets.allowed else {
            return Ok(logits);
        };
        let allowed: Vec<Option<TokenSet>> =
            allowed[rows.clone()].iter().cloned().map(Some).collect();
        restrict_rows(&logits, &allowed)?;
        Ok(logits)
    }

    fn targets(&self, rows: &Range<usize>) -> Result<Tensor> {
        Tensor::new(&self.targets.ids[rows.clone()], self.hidden.device())
    }

    fn scales(&self, rows: &Range<usize>) -> Result<Tensor> {
        let scales = vec![self.temperature.recip(); rows.len()];
        Tensor::from_vec(scales, rows.len(), self.hidden.device())
    }

    /// Returns the gradient of the logits [rows, V] in bf16.
    fn dlogits(
        &self,
        rows: &Range<usize>,
        logits: &Tensor,
        gradients: &LogprobGradients,
    ) -> Result<Tensor> {
        let device = logits.device();
        let column = |of_all: &[f64]| {
            let values: Vec<f32> = of_all[rows.clone()].iter().map(|&it| it as f32).collect();
            Tensor::from_vec(values, rows.len(), device)
        };
        let dlogprobs = column(&gradients.logprobs)?;
        let dentropies = gradients.entropies.as_ref().map(|all| column(all));
        let dentropies = dentropies.transpose()?;
        let (targets, scales) = (self.targets(rows)?, self.scales(rows)?);
        let dlogits = uninitialised(logits.shape(), BF16, device)?;
        let arguments = [
            address(logits, F32)?,
            address(&targets, U32)?,
            address(&scales, F32)?,
            address(&dlogprobs, F32)?,
            dentropies
                .as_ref()
                .map_or(Ok(ABSENT), |it| address(it, F32))?,
            address(&dlogits, BF16)?,
            int(logits.dim(1)?)?,
        ];
        over_rows("token_logprobs_backward", rows.len()).run(device, &arguments)?;
        Ok(dlogits)
    }
}

/// Replaces, in place, the logits [R, V] in f32 that are not of the set of a row that has one.
pub(crate) fn restrict_rows(logits: &Tensor, allowed: &[Option<TokenSet>]) -> Result<()> {
    let ((rows, columns), device) = (logits.dims2()?, logits.device());
    let row_words = columns.div_ceil(32);
    let mut words = vec![u32::MAX; rows * row_words];
    for (words, allowed) in words.chunks_mut(row_words).zip(allowed) {
        if let Some(allowed) = allowed {
            let of_set = allowed.words();
            let known = of_set.len().min(row_words);
            words[..known].copy_from_slice(&of_set[..known]);
            words[known..].fill(0);
        }
    }
    let words = upload(words, device)?;
    let launch = Launch {
        grid: (rows, columns.div_ceil(256)),
        threads: 256,
        ..over_rows("restrict_tokens", rows)
    };
    let arguments = [
        address(logits, F32)?,
        address(&words, U32)?,
        int(columns)?,
        int(row_words)?,
        Argument::Float(EXCLUDED),
    ];
    launch.run(device, &arguments)
}

/// Returns whether only the kernel's inverse transform is needed: no filter is on.
fn is_unfiltered(draw: &RowSampling) -> bool {
    let filters = &draw.filters;
    filters.top_k == 0 && filters.top_p >= 1.0 && filters.min_p <= 0.0
}

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
    let is_filtered = |row: &usize| !is_unfiltered(&draws[*row]) && !is_greedy(&draws[*row]);
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
    over_rows("draw_tokens", rows).run(device, &arguments)?;
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
    over_rows("token_logprobs", tokens.len()).run(device, &arguments)?;
    logprobs.to_vec1()
}

/// Returns what the logits of each row are multiplied by.
fn scales(draws: &[RowSampling], logits: &Tensor) -> Result<Tensor> {
    // As training divides: in f32.
    let scale = |draw: &RowSampling| (draw.filters.temperature as f32).recip();
    let scales: Vec<f32> = draws.iter().map(scale).collect();
    Tensor::from_vec(scales, draws.len(), logits.device())
}
