//! [`super::Backend::token_logprobs`] by tensor operations, a chunk of rows at a time.
//!
//! Invariant: a tensor over rows and vocabulary has at most [`MAX_CHUNK_VALUES`] values, however
//! many rows there are. If one chunk holds all rows its log-probabilities are kept for the backward
//! pass; otherwise they are computed again there.

use std::ops::Range;

use candle_core::{D, Result, Tensor};

use super::linear::linear_tensor_ops;
use super::logprobs::{LogprobGradients, SavedForBackward, Targets, TokenLogprobs, row_chunks};
use super::{Backend, at_least_f32};

/// The most values of a tensor over rows and vocabulary (256 MiB in f32). The backward pass holds
/// five such tensors.
const MAX_CHUNK_VALUES: usize = 1 << 26;

/// The arguments of [`super::Backend::token_logprobs`], and the rows of a chunk.
pub(super) struct LmHead<'a> {
    pub(super) hidden: &'a Tensor,
    pub(super) weight: &'a Tensor,
    pub(super) targets: Targets<'a>,
    pub(super) temperature: f64,
    pub(super) rows_at_once: usize,
}

impl<'a> LmHead<'a> {
    pub(super) fn new(
        hidden: &'a Tensor,
        weight: &'a Tensor,
        targets: Targets<'a>,
        temperature: f32,
    ) -> Result<Self> {
        Ok(Self {
            hidden,
            weight,
            targets,
            temperature: f64::from(temperature),
            rows_at_once: (MAX_CHUNK_VALUES / weight.dim(0)?.max(1)).max(1),
        })
    }

    pub(super) fn forward(&self) -> Result<TokenLogprobs> {
        let weight = at_least_f32(self.weight)?;
        let (mut logprobs, mut entropies, mut all) = (Vec::new(), Vec::new(), None);
        for rows in self.chunks() {
            let of_rows = self.all_logprobs(&rows, &weight)?;
            let chosen = of_rows.gather(&self.column(&rows)?, 1)?;
            logprobs.push(chosen.squeeze(1)?);
            entropies.push(entropies_of(&of_rows)?.squeeze(1)?);
            all = (rows.len() == self.targets.ids.len()).then_some(of_rows);
        }
        Ok(TokenLogprobs {
            logprobs: Tensor::cat(&logprobs, 0)?,
            entropies: Tensor::cat(&entropies, 0)?,
            saved: all.map_or(SavedForBackward::Nothing, SavedForBackward::Logprobs),
        })
    }

    /// Returns the gradients of hidden states and weight, from the log-probabilities that
    /// [`Self::forward`] kept.
    pub(super) fn backward(
        &self,
        saved: &SavedForBackward,
        gradients: &LogprobGradients,
    ) -> Result<(Tensor, Tensor)> {
        let weight = at_least_f32(self.weight)?;
        let (mut dhidden, mut dweight) = (Vec::new(), None);
        for rows in self.chunks() {
            let logprobs = match saved {
                SavedForBackward::Logprobs(all) => all.clone(),
                _ => self.all_logprobs(&rows, &weight)?,
            };
            let dlogits = self.dlogits(&rows, &logprobs, gradients)?;
            dhidden.push(dlogits.matmul(&weight)?);
            let of_rows = dlogits.t()?.matmul(&self.hidden_of(&rows)?)?;
            dweight = Some(match dweight {
                Some(sum) => (sum + of_rows)?,
                None => of_rows,
            });
        }
        let dweight = dweight.expect("a chunk: this is a bug");
        Ok((
            Tensor::cat(&dhidden, 0)?.to_dtype(self.hidden.dtype())?,
            dweight.to_dtype(self.weight.dtype())?,
        ))
    }

    /// Returns the gradient of the logits:
    /// `d logit = (dlogprob (1[target] - p) - dentropy p (log p + entropy)) / temperature`.
    fn dlogits(
        &self,
        rows: &Range<usize>,
        logprobs: &Tensor,
        gradients: &LogprobGradients,
    ) -> Result<Tensor> {
        let column = |of_all: &[f64]| {
            let scaled: Vec<f64> = of_all[rows.clone()]
                .iter()
                .map(|derivative| derivative / self.temperature)
                .collect();
            Tensor::from_vec(scaled, (rows.len(), 1), logprobs.device())?.to_dtype(logprobs.dtype())
        };
        let dlogprobs = column(&gradients.logprobs)?;
        let p = logprobs.exp()?;
        let pushed = match &gradients.entropies {
            Some(dentropies) => {
                let surprise = logprobs.broadcast_add(&entropies_of(logprobs)?)?;
                let pull = surprise
                    .broadcast_mul(&column(dentropies)?)?
                    .broadcast_add(&dlogprobs)?;
                (p * pull)?
            }
            None => p.broadcast_mul(&dlogprobs)?,
        };
        let dlogits = pushed.neg()?;
        dlogits.scatter_add_set(&self.column(rows)?, &dlogprobs, 1)?;
        Ok(dlogits)
    }

    /// Returns the log-probabilities [rows, V] of all tokens.
    fn all_logprobs(&self, rows: &Range<usize>, weight: &Tensor) -> Result<Tensor> {
        let mut logits = linear_tensor_ops(&self.hidden_of(rows)?, weight)?;
        if let Some(allowed) = self.targets.allowed_of(rows) {
            logits = Backend::TensorOps.restrict_rows(&logits, &allowed)?;
        }
        log_softmax(&(logits / self.temperature)?)
    }

    fn hidden_of(&self, rows: &Range<usize>) -> Result<Tensor> {
        at_least_f32(&self.hidden.narrow(0, rows.start, rows.len())?)
    }

    /// Returns the targets of these rows, [rows, 1].
    fn column(&self, rows: &Range<usize>) -> Result<Tensor> {
        Tensor::new(&self.targets.ids[rows.clone()], self.hidden.device())?.unsqueeze(1)
    }

    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        row_chunks(self.targets.ids.len(), self.rows_at_once)
    }
}

/// Returns the log-probabilities [N, V] of scaled logits [N, V]: what training and
/// [`super::draw_rows`] record.
pub(super) fn log_softmax(scaled: &Tensor) -> Result<Tensor> {
    let shifted = scaled.broadcast_sub(&scaled.max_keepdim(D::Minus1)?.detach())?;
    let log_sums = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&log_sums)
}

/// Returns the entropies [N, 1] of log-probabilities [N, V].
fn entropies_of(logprobs: &Tensor) -> Result<Tensor> {
    (logprobs.exp()? * logprobs)?.sum_keepdim(D::Minus1)?.neg()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    const ROWS: usize = 7;
    const TARGETS: [u32; ROWS] = [0, 10, 3, 3, 7, 1, 10];

    fn values(rows: usize, seed: usize) -> Tensor {
        let value = |at: usize| ((seed + at * at * 13 + at) as f64).sin();
        let values: Vec<f64> = (0..rows * 5).map(value).collect();
        Tensor::from_vec(values, (rows, 5), &Device::Cpu).unwrap()
    }

    /// Returns log-probabilities, entropies and gradients for so many rows at once, and whether
    /// log-probabilities of all tokens were kept.
    fn run(dtype: DType, rows_at_once: usize) -> (Vec<Vec<f64>>, bool) {
        let tensors = [values(ROWS, 1), values(11, 2)].map(|x| x.to_dtype(dtype).unwrap());
        let [hidden, weight] = &tensors;
        let head = LmHead {
            rows_at_once,
            ..LmHead::new(hidden, weight, (&TARGETS).into(), 0.7).unwrap()
        };
        let found = head.forward().unwrap();
        let derivatives: Vec<f64> = (0..2 * ROWS).map(|at| (at as f64).cos()).collect();
        let gradients = LogprobGradients {
            logprobs: derivatives[..ROWS].to_vec(),
            entropies: Some(derivatives[ROWS..].to_vec()),
        };
        let is_kept = matches!(found.saved, SavedForBackward::Logprobs(_));
        let (dhidden, dweight) = head.backward(&found.saved, &gradients).unwrap();
        let flat = |x: Tensor| {
            assert!(matches!(x.dtype(), DType::F32) || x.dtype() == dtype);
            let x = x.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
            x.to_vec1().unwrap()
        };
        let all = [found.logprobs, found.entropies, dhidden, dweight].map(flat);
        (all.into(), is_kept)
    }

    #[test]
    fn chunks_give_what_all_rows_at_once_give() {
        for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::BF16, 1e-2)] {
            let (whole, is_kept) = run(dtype, ROWS);
            assert!(is_kept);
            for rows_at_once in [1, 3, 6] {
                let (found, is_kept) = run(dtype, rows_at_once);
                assert!(!is_kept);
                for (found, expected) in found.iter().flatten().zip(whole.iter().flatten()) {
                    let difference = (found - expected).abs();
                    assert!(difference <= tolerance, "{dtype:?} {found} {expected}");
                }
            }
        }
    }
}
