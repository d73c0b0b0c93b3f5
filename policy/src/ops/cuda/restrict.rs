//! Logits of tokens that may not be chosen (`logprobs.cu`).

use candle_core::DType::{F32, U32};
use candle_core::{Result, Tensor, bail};

use super::launch::{Argument, Launch, address, int, upload};
use super::over_logits;

const THREADS: usize = 256;

/// Replaces by `excluded`, in place, the logits [R, V] in f32 whose bit of `words` is 0. A row has
/// the same number of words; bit i of its word w is column 32 w + i.
pub(crate) fn restrict(logits: &Tensor, words: Vec<u32>, excluded: f32) -> Result<()> {
    let ((rows, columns), device) = (logits.dims2()?, logits.device());
    let row_words = columns.div_ceil(32);
    if words.len() != rows * row_words {
        bail!("restrict: {} words for {logits:?}", words.len());
    }
    let words = upload(words, device)?;
    let launch = Launch {
        grid: (rows, columns.div_ceil(THREADS)),
        threads: THREADS,
        ..over_logits("restrict_tokens", rows)
    };
    let arguments = [
        address(logits, F32)?,
        address(&words, U32)?,
        int(columns)?,
        int(row_words)?,
        Argument::Float(excluded),
    ];
    launch.run(device, &arguments)
}
