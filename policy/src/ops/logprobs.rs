//! Per-token log-probability and entropy of chosen tokens, without ever holding the logits [N, V]
//! of a large batch.
//!
//! Invariant: the log-probability of a row of logits has one definition, `SoftmaxReduction`.
//! Sampling reads it through [`log_softmax_at`] and training through [`token_logprobs`], so the two
//! agree bit for bit. Small logits are kept for the backward pass. Large ones are computed for a
//! few rows at a time, and again in the backward pass (as in the chunked or fused linear
//! cross-entropy of TRL and Liger).
//!
//! Shapes: N tokens, V vocabulary, hidden width W.

use candle_core::{Result, Tensor, bail};

use super::logprobs_tensor_ops::LmHead;
use super::math::exp;
use super::matmul::{Right, View, WriteMode, multiply, product};
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::{at_least_f32, read, tensor, uses_kernels, widens_for_kernels};

/// The most logits that are saved for the backward pass (64 MiB).
const MAX_SAVED_LOGITS: usize = 1 << 24;
/// The logits of a chunk where they are not saved (16 MiB), but at least [`MIN_CHUNK_ROWS`] rows.
const CHUNK_LOGITS: usize = 1 << 22;
const MIN_CHUNK_ROWS: usize = 48;
/// The lowest shifted logit. Its exponential is zero, and zero times it is zero, where zero times
/// minus infinity would be NaN.
const LOWEST: f32 = -1e4;

/// Scores of the chosen tokens, both `[N]`.
#[derive(Clone, Debug)]
pub struct TokenLogprobs {
    /// log softmax(logits / temperature) at the target.
    pub logprobs: Tensor,
    /// Entropy in nats of softmax(logits / temperature).
    pub entropies: Tensor,
    pub(super) saved: SavedForBackward,
}

/// What is saved for the backward pass, to spare it a product.
#[derive(Clone, Debug)]
pub(super) enum SavedForBackward {
    Nothing,
    /// [N, V].
    Logits(Vec<f32>),
    /// Log-probabilities of all tokens, [N, V].
    Logprobs(Tensor),
}

/// The derivatives of the loss by the scores of each token.
#[derive(Clone, Debug)]
pub struct LogprobGradients {
    /// By the log-probabilities, `[N]`.
    pub logprobs: Vec<f64>,
    /// By the entropies, `[N]`, if they enter the loss.
    pub entropies: Option<Vec<f64>>,
}

/// Returns log softmax(logits / temperature) at `token`: the log-probability that is recorded when
/// the token is sampled.
///
/// # Panics
/// If `token` is not a column.
pub fn log_softmax_at(logits: &[f32], token: usize, temperature: f32) -> f32 {
    let statistics = dispatch(SoftmaxReduction::of(logits, temperature.recip()));
    statistics.logprob(logits[token])
}

/// Scores `targets` `[N]` after hidden states `[N, W]`, by the LM head's weight `[V, W]`, at a
/// temperature.
///
/// # Errors
/// If the number of targets is not N, or a target is outside of the vocabulary.
pub fn token_logprobs(
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    temperature: f32,
) -> Result<TokenLogprobs> {
    let (rows, vocabulary) = (hidden.dim(0)?, head.dim(0)?);
    if targets.len() != rows {
        bail!("token_logprobs: {} targets for {rows} rows", targets.len());
    }
    if let Some(target) = targets.iter().find(|&&t| t as usize >= vocabulary) {
        bail!("token_logprobs: target {target} is outside of the vocabulary of {vocabulary}");
    }
    if widens_for_kernels(hidden) {
        let (hidden, head) = (at_least_f32(hidden)?, at_least_f32(head)?);
        return token_logprobs(&hidden, &head, targets, temperature);
    }
    if !uses_kernels(hidden) {
        return LmHead::new(hidden, head, targets, temperature)?.forward();
    }
    let (mut logprobs, mut entropies) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let mut score = |first: usize, logits: &[f32]| {
        let rows = logits.chunks_exact(vocabulary).zip(&targets[first..]);
        for (logits, &target) in rows {
            let row = dispatch(SoftmaxReduction::of(logits, temperature.recip()));
            logprobs.push(row.logprob(logits[target as usize]));
            entropies.push(row.entropy());
        }
    };
    // Both branches compute a row's logits by the same product and the same reduction, so the bits
    // do not depend on the number of rows.
    let saved = if rows * vocabulary <= MAX_SAVED_LOGITS {
        let logits = all_logits(hidden, head)?;
        score(0, &logits);
        SavedForBackward::Logits(logits)
    } else {
        for_chunks(hidden, head, |first, logits, _, _| score(first, logits))?;
        SavedForBackward::Nothing
    };
    Ok(TokenLogprobs {
        logprobs: tensor(logprobs, rows)?,
        entropies: tensor(entropies, rows)?,
        saved,
    })
}

/// Returns the gradients of hidden states and LM head, from the result of [`token_logprobs`] for
/// the same arguments.
pub fn token_logprobs_backward(
    forward: TokenLogprobs,
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    temperature: f32,
    gradients: &LogprobGradients,
) -> Result<(Tensor, Tensor)> {
    let counts = [
        gradients.logprobs.len(),
        gradients.entropies.as_ref().map_or(targets.len(), Vec::len),
    ];
    if counts != [targets.len(); 2] {
        bail!(
            "token_logprobs: {counts:?} derivatives for {} targets",
            targets.len()
        );
    }
    if widens_for_kernels(hidden) {
        let (wide_hidden, wide_head) = (at_least_f32(hidden)?, at_least_f32(head)?);
        let (dhidden, dhead) = token_logprobs_backward(
            forward,
            &wide_hidden,
            &wide_head,
            targets,
            temperature,
            gradients,
        )?;
        return Ok((
            dhidden.to_dtype(hidden.dtype())?,
            dhead.to_dtype(head.dtype())?,
        ));
    }
    if !uses_kernels(hidden) {
        let head = LmHead::new(hidden, head, targets, temperature)?;
        return head.backward(&forward.saved, gradients);
    }
    backward_by_kernels(forward.saved, hidden, head, targets, temperature, gradients)
}

/// Computes [`token_logprobs_backward`] by kernels, in f32 and in the memory of the logits.
fn backward_by_kernels(
    saved: SavedForBackward,
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    temperature: f32,
    gradients: &LogprobGradients,
) -> Result<(Tensor, Tensor)> {
    let (vocabulary, width) = head.dims2()?;
    let entropies = gradients.entropies.as_ref();
    let mut dhidden = vec![0.0; hidden.elem_count()];
    let mut dhead = vec![0.0; head.elem_count()];
    let mut add = |first: usize, logits: &mut [f32], hidden: &[f32], head: View<'_>| {
        let rows = logits.len() / vocabulary;
        for (i, logits) in logits.chunks_exact_mut(vocabulary).enumerate() {
            dispatch(LogitGradient {
                row: dispatch(SoftmaxReduction::of(logits, temperature.recip())),
                target: targets[first + i] as usize,
                dlogprob: gradients.logprobs[first + i] as f32,
                dentropy: entropies.map_or(0.0, |d| d[first + i] as f32),
                logits,
            });
        }
        let dlogits = View::new(logits, rows, vocabulary, vocabulary);
        let into = &mut dhidden[first * width..];
        multiply(
            dlogits,
            Right::Plain(head),
            into,
            width,
            WriteMode::Overwrite,
        );
        let hidden = Right::Plain(View::new(hidden, rows, width, width));
        multiply(
            dlogits.transposed(),
            hidden,
            &mut dhead,
            width,
            WriteMode::Accumulate,
        );
    };
    match saved {
        SavedForBackward::Logits(mut logits) => read([hidden, head], |[hidden, head]| {
            let head = View::new(head, vocabulary, width, width);
            add(0, &mut logits, hidden, head);
            Ok(())
        })?,
        _ => for_chunks(hidden, head, add)?,
    }
    Ok((
        tensor(dhidden, hidden.shape())?,
        tensor(dhead, head.shape())?,
    ))
}

/// Returns the logits [N, V] of all rows.
fn all_logits(hidden: &Tensor, head: &Tensor) -> Result<Vec<f32>> {
    let ((rows, width), vocabulary) = (hidden.dims2()?, head.dim(0)?);
    read([hidden, head], |[hidden, head]| {
        let head = View::new(head, vocabulary, width, width).transposed();
        Ok(product(
            View::new(hidden, rows, width, width),
            Right::Plain(head),
        ))
    })
}

/// Calls `f` for each chunk of rows with its first row, its logits, its hidden states and the LM
/// head.
fn for_chunks(
    hidden: &Tensor,
    head: &Tensor,
    mut f: impl FnMut(usize, &mut [f32], &[f32], View<'_>),
) -> Result<()> {
    let ((rows, width), vocabulary) = (hidden.dims2()?, head.dim(0)?);
    let chunk = (CHUNK_LOGITS / vocabulary).max(MIN_CHUNK_ROWS).min(rows);
    read([hidden, head], |[hidden, head]| {
        let head = View::new(head, vocabulary, width, width);
        let mut logits = vec![0.0; chunk * vocabulary];
        for first in (0..rows).step_by(chunk.max(1)) {
            let count = chunk.min(rows - first);
            let hidden = &hidden[first * width..][..count * width];
            let logits = &mut logits[..count * vocabulary];
            let left = View::new(hidden, count, width, width);
            let right = Right::Plain(head.transposed());
            multiply(left, right, logits, vocabulary, WriteMode::Overwrite);
            f(first, logits, hidden, head);
        }
        Ok(())
    })
}

/// The statistics of softmax over one row of logits.
#[derive(Clone, Copy)]
struct SoftmaxStatistics {
    inverse_temperature: f32,
    /// The maximum of the scaled logits z.
    max: f32,
    /// The sum of e^(z - max), and its logarithm.
    sum: f32,
    log_sum: f32,
    /// The sum of e^(z - max) (z - max), for the entropy.
    weighted: f32,
}

impl SoftmaxStatistics {
    fn logprob(&self, logit: f32) -> f32 {
        (logit * self.inverse_temperature - self.max) - self.log_sum
    }

    fn entropy(&self) -> f32 {
        self.log_sum - self.weighted / self.sum
    }
}

struct SoftmaxReduction<'a> {
    logits: &'a [f32],
    inverse_temperature: f32,
}

impl<'a> SoftmaxReduction<'a> {
    fn of(logits: &'a [f32], inverse_temperature: f32) -> Self {
        Self {
            logits,
            inverse_temperature,
        }
    }
}

impl Kernel for SoftmaxReduction<'_> {
    type Output = SoftmaxStatistics;

    #[inline(always)]
    fn run<S: Simd>(self) -> SoftmaxStatistics {
        let chunks = || {
            self.logits
                .chunks(LANES)
                .map(|x| S::load_some(x, f32::NEG_INFINITY))
        };
        let scale = S::splat(self.inverse_temperature);
        // Overflow-safe softmax in two passes: the maximum first, so that every exponent is at most
        // 0.
        let mut max = S::splat(f32::NEG_INFINITY);
        for logits in chunks() {
            max = max.max(logits.mul(scale));
        }
        let max = max.max_lane();
        let (mut sum, mut weighted) = (S::splat(0.0), S::splat(0.0));
        for logits in chunks() {
            let shifted = S::splat(LOWEST).max(logits.mul(scale).sub(S::splat(max)));
            let weight = exp(shifted);
            sum = sum.add(weight);
            weighted = weight.fma(shifted, weighted);
        }
        let sum = sum.sum_lanes();
        SoftmaxStatistics {
            inverse_temperature: self.inverse_temperature,
            max,
            sum,
            // One logarithm a row, so the pure-Rust libm in f64 costs little. Its bits are the same
            // on every machine.
            log_sum: libm::log(f64::from(sum)) as f32,
            weighted: weighted.sum_lanes(),
        }
    }
}

/// Turns a row of logits into their gradient, in place.
struct LogitGradient<'a> {
    row: SoftmaxStatistics,
    target: usize,
    dlogprob: f32,
    dentropy: f32,
    logits: &'a mut [f32],
}

impl Kernel for LogitGradient<'_> {
    type Output = ();

    /// `d logit = (dlogprob (1[target] - p) - dentropy p (log p + entropy)) / temperature`.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let row = self.row;
        let scale = S::splat(row.inverse_temperature);
        let (max, inverse_sum) = (S::splat(row.max), S::splat(row.sum.recip()));
        let dlogprob = S::splat(self.dlogprob);
        let dentropy = S::splat(self.dentropy);
        let offset = S::splat(row.entropy() - row.log_sum);
        for logits in self.logits.chunks_mut(LANES) {
            let scaled = S::load_some(logits, 0.0).mul(scale);
            let shifted = S::splat(LOWEST).max(scaled.sub(max));
            let p = exp(shifted).mul(inverse_sum);
            let pull = dentropy.fma(shifted.add(offset), dlogprob);
            S::splat(0.0).sub(p.mul(pull).mul(scale)).store_some(logits);
        }
        // The term 1[target] is added last, so that the loop over the vocabulary has no branch.
        self.logits[self.target] += self.dlogprob * row.inverse_temperature;
    }
}
