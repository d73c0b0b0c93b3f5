//! Log-probability and entropy of chosen tokens, without ever holding [T, V].
//!
//! Invariant: the log-probability of a row of logits has one definition, `Statistics::of`; sampling reads it through
//! [`log_softmax_at`] and training through [`token_logprobs`], so the two agree bit for bit. The logits of a few rows at a
//! time are computed, and computed again in the backward pass.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, D, DType, Device, Layout, Result, Shape, Tensor, bail};

use super::math::exp;
use super::matmul::{Right, Store, View, multiply};
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::{at_least_f32, has_kernels, read, values};

/// Logits held at a time (16 MiB); at least [`LEAST_ROWS`] rows.
const MOST_LOGITS: usize = 1 << 22;
const LEAST_ROWS: usize = 48;
/// Stands for a shifted logit whose exponential is zero, so that zero times it is zero.
const LOWEST: f32 = -1e4;

/// Of the chosen tokens, both `[N]` and differentiable.
#[derive(Clone, Debug)]
pub struct TokenLogprobs {
    /// log softmax(logits / temperature) at the target.
    pub logprobs: Tensor,
    /// Entropy in nats of softmax(logits / temperature).
    pub entropies: Tensor,
}

impl TokenLogprobs {
    fn from_columns(both: &Tensor) -> Result<Self> {
        Ok(Self {
            logprobs: both.narrow(1, 0, 1)?.squeeze(1)?,
            entropies: both.narrow(1, 1, 1)?.squeeze(1)?,
        })
    }
}

/// log softmax(logits / temperature) at `token`: what is recorded when the token is sampled.
///
/// # Panics
/// Where `token` is not a column.
pub fn log_softmax_at(logits: &[f32], token: usize, temperature: f32) -> f32 {
    let statistics = dispatch(Statistics::of(logits, temperature.recip()));
    statistics.logprob(logits[token])
}

/// hidden `[N, H]`, head weight `[V, H]`, targets `[N]` → log-probabilities and entropies of the targets at a temperature.
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
    if !has_kernels(hidden) {
        return token_logprobs_composed(hidden, head, targets, temperature);
    }
    let op = Logprobs {
        targets: targets.into(),
        inverse_temperature: temperature.recip(),
    };
    let both = hidden.contiguous()?.apply_op2(&head.contiguous()?, op)?;
    TokenLogprobs::from_columns(&both)
}

/// The same from candle's operations, over all rows at once.
pub fn token_logprobs_composed(
    hidden: &Tensor,
    head: &Tensor,
    targets: &[u32],
    temperature: f32,
) -> Result<TokenLogprobs> {
    let logits = at_least_f32(&hidden.matmul(&head.t()?)?)?;
    let logits = (logits / f64::from(temperature))?;
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
    let log_sums = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let logprobs = shifted.broadcast_sub(&log_sums)?;
    let targets = Tensor::new(targets, hidden.device())?.to_dtype(DType::U32)?;
    Ok(TokenLogprobs {
        logprobs: logprobs.gather(&targets.unsqueeze(1)?, 1)?.squeeze(1)?,
        entropies: (logprobs.exp()? * &logprobs)?.sum(D::Minus1)?.neg()?,
    })
}

/// What a row of logits says of all its tokens.
#[derive(Clone, Copy)]
struct Row {
    inverse_temperature: f32,
    /// Of the scaled logits z.
    max: f32,
    /// Sum of e^(z - max), and its logarithm.
    sum: f32,
    log_sum: f32,
    /// Sum of e^(z - max) (z - max).
    weighted: f32,
}

impl Row {
    fn logprob(&self, logit: f32) -> f32 {
        (logit * self.inverse_temperature - self.max) - self.log_sum
    }

    fn entropy(&self) -> f32 {
        self.log_sum - self.weighted / self.sum
    }
}

struct Statistics<'a> {
    logits: &'a [f32],
    inverse_temperature: f32,
}

impl<'a> Statistics<'a> {
    fn of(logits: &'a [f32], inverse_temperature: f32) -> Self {
        Self {
            logits,
            inverse_temperature,
        }
    }
}

impl Kernel for Statistics<'_> {
    type Output = Row;

    #[inline(always)]
    fn run<S: Simd>(self) -> Row {
        let chunks = || {
            self.logits
                .chunks(LANES)
                .map(|x| S::load_some(x, f32::NEG_INFINITY))
        };
        let scale = S::splat(self.inverse_temperature);
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
        Row {
            inverse_temperature: self.inverse_temperature,
            max,
            sum,
            log_sum: libm::log(f64::from(sum)) as f32,
            weighted: weighted.sum_lanes(),
        }
    }
}

struct Logprobs {
    targets: Arc<[u32]>,
    inverse_temperature: f32,
}

impl Logprobs {
    /// Calls `f` with the first row, the number of rows and the logits of one chunk after the other.
    fn for_chunks(
        &self,
        hidden: &[f32],
        head: View<'_>,
        mut f: impl FnMut(usize, usize, &mut [f32]),
    ) {
        let (vocabulary, width) = head.shape();
        let rows = self.targets.len();
        let chunk = (MOST_LOGITS / vocabulary).max(LEAST_ROWS).min(rows);
        let mut logits = vec![0.0; chunk * vocabulary];
        for first in (0..rows).step_by(chunk.max(1)) {
            let count = chunk.min(rows - first);
            let hidden = View::new(&hidden[first * width..], count, width, width);
            let right = Right::Plain(head.transposed());
            let logits = &mut logits[..count * vocabulary];
            multiply(hidden, right, logits, vocabulary, Store::Overwrite);
            f(first, count, logits);
        }
    }
}

impl CustomOp2 for Logprobs {
    fn name(&self) -> &'static str {
        "token-logprobs"
    }

    /// [N, 2]: log-probability and entropy.
    fn cpu_fwd(
        &self,
        hidden: &CpuStorage,
        hidden_layout: &Layout,
        head: &CpuStorage,
        head_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = hidden_layout.shape().dims2()?;
        let (vocabulary, head_width) = head_layout.shape().dims2()?;
        if width != head_width {
            bail!("token_logprobs: hidden states of {width} against a head of {head_width}");
        }
        let hidden = values(hidden, hidden_layout)?;
        let head = View::new(values(head, head_layout)?, vocabulary, width, width);
        let mut both = Vec::with_capacity(rows * 2);
        self.for_chunks(hidden, head, |first, _, logits| {
            let rows = logits.chunks_exact(vocabulary).zip(&self.targets[first..]);
            for (logits, &target) in rows {
                let row = dispatch(Statistics::of(logits, self.inverse_temperature));
                both.extend([row.logprob(logits[target as usize]), row.entropy()]);
            }
        });
        Ok((CpuStorage::F32(both), (rows, 2).into()))
    }

    fn bwd(
        &self,
        hidden: &Tensor,
        head: &Tensor,
        _both: &Tensor,
        dboth: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (vocabulary, width) = head.dims2()?;
        let (dhidden, dhead) = read([hidden, head, dboth], |[hidden, head, dboth]| {
            let view = View::new(head, vocabulary, width, width);
            let mut dhidden = vec![0.0; hidden.len()];
            let mut dhead = vec![0.0; head.len()];
            self.for_chunks(hidden, view, |first, count, logits| {
                for (i, logits) in logits.chunks_exact_mut(vocabulary).enumerate() {
                    let row = dispatch(Statistics::of(logits, self.inverse_temperature));
                    dispatch(Gradient {
                        row,
                        target: self.targets[first + i] as usize,
                        dlogprob: dboth[2 * (first + i)],
                        dentropy: dboth[2 * (first + i) + 1],
                        logits,
                    });
                }
                let dlogits = View::new(logits, count, vocabulary, vocabulary);
                let into = &mut dhidden[first * width..];
                multiply(dlogits, Right::Plain(view), into, width, Store::Overwrite);
                let rows = View::new(&hidden[first * width..], count, width, width);
                let (left, right) = (dlogits.transposed(), Right::Plain(rows));
                multiply(left, right, &mut dhead, width, Store::Accumulate);
            });
            Ok((dhidden, dhead))
        })?;
        Ok((
            Some(Tensor::from_vec(dhidden, hidden.shape(), &Device::Cpu)?),
            Some(Tensor::from_vec(dhead, head.shape(), &Device::Cpu)?),
        ))
    }
}

/// Turns a row of logits into the gradient of them.
struct Gradient<'a> {
    row: Row,
    target: usize,
    dlogprob: f32,
    dentropy: f32,
    logits: &'a mut [f32],
}

impl Kernel for Gradient<'_> {
    type Output = ();

    /// d logit = (dlogprob (1[target] - p) - dentropy p (log p + entropy)) / temperature.
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
        self.logits[self.target] += self.dlogprob * row.inverse_temperature;
    }
}
