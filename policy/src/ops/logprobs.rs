//! Per-token log-probability and entropy of chosen tokens, holding the logits [N, V] of a part of a
//! large batch at a time.
//!
//! Invariant: the log-probability of a row of logits has one definition, `SoftmaxReduction`.
//! Sampling reads it through [`log_softmax_at`] and training through [`Backend::token_logprobs`],
//! so the two agree bit for bit. Small logits are kept for the backward pass. Large ones are
//! computed for a few rows at a time, and again in the backward pass (as in the chunked or fused
//! linear cross-entropy of TRL and Liger).
//!
//! Shapes: N tokens, V vocabulary, hidden width W.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};

use super::linear::{LinearWeight, product_with};
use super::logprobs_tensor_ops::LmHead;
use super::math::exp;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::{Backend, TokenSet, tensor};

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

/// The tokens to score.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// The token ids, `[N]`.
    pub ids: &'a [u32],
    /// The tokens that each one was chosen from, `[N]`; absent: the whole vocabulary.
    pub allowed: Option<&'a [TokenSet]>,
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for Targets<'a> {
    fn from(ids: &'a T) -> Self {
        Self {
            ids: ids.as_ref(),
            allowed: None,
        }
    }
}

impl Targets<'_> {
    /// Excludes the tokens that could not be chosen from the logits of the rows from `first` on.
    fn restrict(&self, first: usize, logits: &mut [f32], vocabulary: usize) {
        if let Some(allowed) = self.allowed {
            let rows = logits.chunks_exact_mut(vocabulary).zip(&allowed[first..]);
            rows.for_each(|(logits, allowed)| allowed.restrict(logits));
        }
    }

    /// Returns the sets of some rows as [`Backend::restrict_rows`] takes them; none if there are no
    /// sets.
    pub(super) fn allowed_of(&self, rows: &Range<usize>) -> Option<Vec<Option<TokenSet>>> {
        let of_rows = &self.allowed?[rows.clone()];
        Some(of_rows.iter().cloned().map(Some).collect())
    }
}

/// What is saved for the backward pass, to spare it a product.
#[derive(Clone, Debug)]
pub(super) enum SavedForBackward {
    Nothing,
    /// [N, V].
    Logits(Vec<f32>),
    /// Log-probabilities of all tokens, [N, V].
    Logprobs(Tensor),
    /// Logits on a GPU, [N, V].
    #[cfg(feature = "cuda")]
    LogitsTensor(Tensor),
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

impl Backend {
    /// Scores `targets` `[N]` after hidden states `[N, W]`, by the LM head's weight `[V, W]`, at a
    /// temperature.
    ///
    /// # Errors
    /// If the number of targets or of sets is not N, or a target is outside of the vocabulary.
    pub fn token_logprobs<'a>(
        self,
        hidden: &Tensor,
        head: &LinearWeight,
        targets: impl Into<Targets<'a>>,
        temperature: f32,
    ) -> Result<TokenLogprobs> {
        let targets = targets.into();
        let (rows, (vocabulary, _)) = (hidden.dim(0)?, head.shape()?);
        let sets = targets.allowed.map_or(rows, <[_]>::len);
        if (targets.ids.len(), sets) != (rows, rows) {
            let targets = targets.ids.len();
            bail!("token_logprobs: {targets} targets and {sets} sets for {rows} rows");
        }
        if let Some(target) = targets.ids.iter().find(|&&t| t as usize >= vocabulary) {
            bail!("token_logprobs: target {target} is outside of the vocabulary of {vocabulary}");
        }
        match self {
            Self::TensorOps => LmHead::new(hidden, head.tensor()?, targets, temperature)?.forward(),
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => {
                super::cuda::token_logprobs(hidden, head.tensor()?, targets, temperature)
            }
            _ => forward(hidden, head, targets, temperature),
        }
    }

    /// Returns the gradients of hidden states and LM head, from the result of
    /// [`Self::token_logprobs`] for the same arguments.
    pub fn token_logprobs_backward<'a>(
        self,
        forward: TokenLogprobs,
        hidden: &Tensor,
        head: &LinearWeight,
        targets: impl Into<Targets<'a>>,
        temperature: f32,
        gradients: &LogprobGradients,
    ) -> Result<(Tensor, Tensor)> {
        let targets = targets.into();
        let rows = targets.ids.len();
        let counts = [
            gradients.logprobs.len(),
            gradients.entropies.as_ref().map_or(rows, Vec::len),
        ];
        if counts != [rows; 2] {
            bail!("token_logprobs: {counts:?} derivatives for {rows} targets");
        }
        if self == Self::TensorOps {
            let head = LmHead::new(hidden, head.tensor()?, targets, temperature)?;
            return head.backward(&forward.saved, gradients);
        }
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 {
            let (saved, head) = (&forward.saved, head.tensor()?);
            return super::cuda::token_logprobs_backward(
                saved,
                hidden,
                head,
                targets,
                temperature,
                gradients,
            );
        }
        let pass = BackwardPass {
            backend: self,
            hidden,
            head,
            targets,
            temperature,
            gradients,
        };
        pass.run(forward.saved)
    }
}

/// Computes [`Backend::token_logprobs`] by kernels.
fn forward(
    hidden: &Tensor,
    head: &LinearWeight,
    targets: Targets<'_>,
    temperature: f32,
) -> Result<TokenLogprobs> {
    let (rows, (vocabulary, _)) = (hidden.dim(0)?, head.shape()?);
    let (mut logprobs, mut entropies) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let mut score = |first: usize, logits: &mut [f32]| {
        targets.restrict(first, logits, vocabulary);
        let rows = logits.chunks_exact(vocabulary).zip(&targets.ids[first..]);
        for (logits, &target) in rows {
            let row = dispatch(SoftmaxReduction::of(logits, temperature.recip()));
            logprobs.push(row.logprob(logits[target as usize]));
            entropies.push(row.entropy());
        }
    };
    // Both branches compute a row's logits by the same product and the same reduction, so the bits
    // do not depend on the number of rows.
    let saved = if rows * vocabulary <= MAX_SAVED_LOGITS {
        let mut logits = product_with(hidden, head)?;
        score(0, &mut logits);
        SavedForBackward::Logits(logits)
    } else {
        for chunk in chunks(rows, vocabulary) {
            let hidden = hidden.narrow(0, chunk.start, chunk.len())?;
            score(chunk.start, &mut product_with(&hidden, head)?);
        }
        SavedForBackward::Nothing
    };
    Ok(TokenLogprobs {
        logprobs: tensor(logprobs, rows)?,
        entropies: tensor(entropies, rows)?,
        saved,
    })
}

/// Returns the rows of each chunk where the logits of all rows are not held.
fn chunks(rows: usize, vocabulary: usize) -> impl Iterator<Item = Range<usize>> {
    let chunk = (CHUNK_LOGITS / vocabulary)
        .max(MIN_CHUNK_ROWS)
        .min(rows)
        .max(1);
    row_chunks(rows, chunk)
}

/// Returns the rows of each chunk of `at_once` rows, of which the last may have fewer.
pub(super) fn row_chunks(rows: usize, at_once: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows)
        .step_by(at_once)
        .map(move |first| first..rows.min(first + at_once))
}

/// Computes [`Backend::token_logprobs_backward`] by kernels, in the memory of the logits.
struct BackwardPass<'a> {
    backend: Backend,
    hidden: &'a Tensor,
    head: &'a LinearWeight,
    targets: Targets<'a>,
    temperature: f32,
    gradients: &'a LogprobGradients,
}

impl BackwardPass<'_> {
    fn run(&self, saved: SavedForBackward) -> Result<(Tensor, Tensor)> {
        let (rows, (vocabulary, width)) = (self.targets.ids.len(), self.head.shape()?);
        let mut dhead = vec![0.0; vocabulary * width];
        let dhidden = match saved {
            SavedForBackward::Logits(logits) => self.chunk(0..rows, logits, &mut dhead)?,
            _ => {
                let of_chunk = |chunk: Range<usize>| {
                    let hidden = self.hidden.narrow(0, chunk.start, chunk.len())?;
                    self.chunk(chunk, product_with(&hidden, self.head)?, &mut dhead)
                };
                let dhidden: Vec<Tensor> = chunks(rows, vocabulary)
                    .map(of_chunk)
                    .collect::<Result<_>>()?;
                Tensor::cat(&dhidden, 0)?
            }
        };
        Ok((dhidden, tensor(dhead, (vocabulary, width))?))
    }

    /// Returns the gradient of the hidden states of some rows, and adds that of the LM head.
    fn chunk(&self, rows: Range<usize>, mut logits: Vec<f32>, dhead: &mut [f32]) -> Result<Tensor> {
        let vocabulary = self.head.shape()?.0;
        self.targets.restrict(rows.start, &mut logits, vocabulary);
        let entropies = self.gradients.entropies.as_ref();
        for (row, logits) in rows.clone().zip(logits.chunks_exact_mut(vocabulary)) {
            dispatch(LogitGradient {
                row: dispatch(SoftmaxReduction::of(logits, self.temperature.recip())),
                target: self.targets.ids[row] as usize,
                dlogprob: self.gradients.logprobs[row] as f32,
                dentropy: entropies.map_or(0.0, |d| d[row] as f32),
                logits,
            });
        }
        let hidden = self.hidden.narrow(0, rows.start, rows.len())?;
        let dlogits = tensor(logits, (rows.len(), vocabulary))?.to_dtype(hidden.dtype())?;
        self.backend.add_weight_gradient(&hidden, &dlogits, dhead)?;
        self.backend.linear_input_gradient(&[(&dlogits, self.head)])
    }
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
