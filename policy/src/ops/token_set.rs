//! Sets of tokens that may be sampled, and the logits of the others.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};

use super::{Backend, tensor};

/// The logit of a token that may not be sampled. Its exponential is zero beside any other logit of
/// a network, and products with zero stay zero, where minus infinity would give NaN.
const EXCLUDED: f32 = -1e9;

/// A set of tokens. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenSet(Arc<[u32]>);

impl TokenSet {
    /// Returns the set of the tokens whose bits are set: bit i of word w is token 32 w + i.
    pub fn new(words: &[u32]) -> Self {
        Self(words.into())
    }

    /// Returns whether it has a token.
    pub fn contains(&self, token: u32) -> bool {
        let word = self.0.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Excludes all other tokens from a row of logits.
    pub(crate) fn restrict(&self, logits: &mut [f32]) {
        for (at, logits) in logits.chunks_mut(32).enumerate() {
            let word = self.0.get(at).copied().unwrap_or(0);
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = EXCLUDED;
                }
            }
        }
    }
}

impl Backend {
    /// Returns logits [N, V] in which each row with a set has only the tokens of the set.
    ///
    /// # Errors
    /// The number of sets is not N.
    pub fn restrict_rows(self, logits: &Tensor, allowed: &[Option<TokenSet>]) -> Result<Tensor> {
        let (rows, columns) = logits.dims2()?;
        if allowed.len() != rows {
            bail!("restrict_rows: {} sets for {rows} rows", allowed.len());
        }
        if self.is_cpu() {
            let mut values = logits.flatten_all()?.to_vec1()?;
            for (logits, allowed) in values.chunks_mut(columns).zip(allowed) {
                if let Some(allowed) = allowed {
                    allowed.restrict(logits);
                }
            }
            return tensor(values, (rows, columns));
        }
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 {
            let logits = logits.copy()?.contiguous()?;
            restrict_in_place(&logits, allowed)?;
            return Ok(logits);
        }
        let mut kept = vec![1_u8; rows * columns];
        for (kept, allowed) in kept.chunks_mut(columns).zip(allowed) {
            if let Some(allowed) = allowed {
                for (token, kept) in (0..).zip(kept) {
                    *kept = allowed.contains(token).into();
                }
            }
        }
        let kept = Tensor::from_vec(kept, (rows, columns), logits.device())?;
        let excluded = Tensor::new(EXCLUDED, logits.device())?.to_dtype(logits.dtype())?;
        kept.where_cond(logits, &excluded.broadcast_as((rows, columns))?)
    }
}

/// [`Backend::restrict_rows`] for contiguous logits on a GPU, in their memory.
#[cfg(feature = "cuda")]
pub(super) fn restrict_in_place(logits: &Tensor, allowed: &[Option<TokenSet>]) -> Result<()> {
    let (rows, columns) = logits.dims2()?;
    let row_words = columns.div_ceil(32);
    let mut words = vec![u32::MAX; rows * row_words];
    for (words, allowed) in words.chunks_mut(row_words).zip(allowed) {
        if let Some(TokenSet(allowed)) = allowed {
            let known = allowed.len().min(row_words);
            words[..known].copy_from_slice(&allowed[..known]);
            words[known..].fill(0);
        }
    }
    super::cuda::restrict(logits, words, EXCLUDED)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn other_tokens_are_excluded_from_the_rows_that_have_a_set() {
        let logits: Vec<f32> = (0..80).map(|at| at as f32 * 0.5 - 7.0).collect();
        let logits = Tensor::from_vec(logits, (2, 40), &Device::Cpu).unwrap();
        let set = TokenSet::new(&[1 << 31, 1 << 2]);
        let members: Vec<u32> = (0..64).filter(|&token| set.contains(token)).collect();
        assert_eq!(members, [31, 34]);
        for backend in [Backend::CpuF32, Backend::TensorOps] {
            let found = backend
                .restrict_rows(&logits, &[None, Some(set.clone())])
                .unwrap();
            let (before, found): (Vec<Vec<f32>>, Vec<Vec<f32>>) =
                (logits.to_vec2().unwrap(), found.to_vec2().unwrap());
            assert_eq!(found[0], before[0]);
            for token in 0..40 {
                let expected = match set.contains(token as u32) {
                    true => before[1][token],
                    false => EXCLUDED,
                };
                assert_eq!(found[1][token], expected, "{token}");
            }
            assert!(backend.restrict_rows(&logits, &[None]).is_err());
        }
    }
}
