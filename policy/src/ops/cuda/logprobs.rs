//! Log-probabilities, entropies and their gradients (`logprobs.cu`).
//!
//! Shapes: N tokens, V vocabulary, hidden width W.

use std::ops::Range;

use candle_core::DType::{BF16, F32, U32};
use candle_core::{Result, Tensor, bail};

use super::launch::{ABSENT, address, int, uninitialised};
use super::matmul::linears_unrounded;
use super::{MOST_COLUMNS, over_logits};
use crate::ops::logprobs::{
    LogprobGradients, SavedForBackward, Targets, TokenLogprobs, row_chunks,
};
use crate::ops::token_set::restrict_in_place;

/// The most logits that are held at a time (2 GiB).
const MAX_CHUNK_LOGITS: usize = 1 << 29;
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
        over_logits("token_logprobs", chunk.len()).run(device, &arguments)?;
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
        let at_once = MAX_CHUNK_LOGITS / vocabulary;
        Ok(row_chunks(self.targets.ids.len(), at_once))
    }

    /// Returns the logits [rows, V], without those of tokens that could not be chosen.
    fn logits(&self, rows: &Range<usize>) -> Result<Tensor> {
        let hidden = self.hidden.narrow(0, rows.start, rows.len())?;
        let logits = linears_unrounded(&hidden, self.head)?;
        if let Some(allowed) = self.targets.allowed_of(rows) {
            restrict_in_place(&logits, &allowed)?;
        }
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
        over_logits("token_logprobs_backward", rows.len()).run(device, &arguments)?;
        Ok(dlogits)
    }
}
