//! One Muon update of one matrix: momentum whose singular values are brought near 1, so that rare
//! directions learn as fast as frequent ones (Keller Jordan, kellerjordan.github.io/posts/muon).
//!
//! Pure. The semantics are those of `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`
//! (arXiv:2502.16982): an update has the size of one of AdamW, so both share a learning rate and a
//! weight decay. torch orthogonalizes in bf16; this file does it in the dtype of the master copy.
//! Products are those of the decoder's layers, whose bits are the same on every machine.

use candle_core::Tensor;
use policy::ops::{Backend, LinearWeight};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::norm;
use crate::{bounds::below_one, error::Result};

/// Coefficients of the quintic iteration, chosen to bring small singular values up fast.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const ITERATIONS: usize = 5;
/// Keeps the first division finite.
const EPSILON: f64 = 1e-7;
/// The root mean square of a typical AdamW update, relative to the learning rate.
const ADAMW_UPDATE: f64 = 0.2;

/// Settings of Muon. The learning rate and the weight decay are AdamW's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct MuonSettings {
    /// Decay of the momentum.
    #[default(0.95)]
    pub momentum: f64,
}

impl MuonSettings {
    pub(super) fn validate(self) -> Result<()> {
        below_one("optimizer.muon.momentum", self.momentum)
    }
}

/// Returns whether Muon updates a parameter: the matrices of the layers. Embeddings and the output
/// layer have a row per token, most of which have no gradient in a step.
pub(super) fn applies_to(name: &str, value: &Tensor) -> bool {
    value.rank() == 2 && name.contains(".layers.")
}

/// The rates of one update.
#[derive(Clone, Copy)]
pub(super) struct MuonUpdate {
    /// Factor of the gradient, from clipping.
    pub(super) factor: f64,
    pub(super) momentum: f64,
    pub(super) learning_rate: f64,
    pub(super) weight_decay: f64,
}

impl MuonUpdate {
    /// Returns the value and the momentum after the update.
    pub(super) fn run(
        self,
        value: &Tensor,
        gradient: &Tensor,
        momentum: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let gradient = gradient.affine(self.factor, 0.0)?;
        let momentum = mean(momentum, &gradient, 1.0 - self.momentum)?;
        // Nesterov: as if the momentum of the next update were known.
        let update = orthogonalized(&mean(&gradient, &momentum, self.momentum)?)?;
        let (rows, columns) = value.dims2()?;
        let rate = self.learning_rate * ADAMW_UPDATE * (rows.max(columns) as f64).sqrt();
        let kept = value.affine(1.0 - self.learning_rate * self.weight_decay, 0.0)?;
        Ok(((kept - update.affine(rate, 0.0)?)?, momentum))
    }
}

/// Returns a + share (b - a).
fn mean(a: &Tensor, b: &Tensor, share: f64) -> Result<Tensor> {
    Ok((a + (b - a)?.affine(share, 0.0)?)?)
}

/// Returns the matrix with its singular values brought near 1, by a Newton-Schulz iteration.
fn orthogonalized(matrix: &Tensor) -> Result<Tensor> {
    let (rows, columns) = matrix.dims2()?;
    // The products are smallest if there are fewer rows than columns.
    let is_tall = rows > columns;
    let wide = if is_tall {
        matrix.t()?.contiguous()?
    } else {
        matrix.clone()
    };
    let [a, b, c] = COEFFICIENTS;
    let mut x = wide.affine(1.0 / (norm([matrix])? + EPSILON), 0.0)?;
    for _ in 0..ITERATIONS {
        let gram = times_transposed(&x, &x)?;
        // The Gram matrix is symmetric, so this is its square.
        let square = times_transposed(&gram, &gram)?;
        let polynomial = (gram.affine(b, 0.0)? + square.affine(c, 0.0)?)?;
        x = (x.affine(a, 0.0)? + times_transposed(&polynomial, &x.t()?.contiguous()?)?)?;
    }
    Ok(if is_tall { x.t()?.contiguous()? } else { x })
}

/// Returns x yᵀ.
fn times_transposed(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let backend = Backend::of(x.device(), x.dtype());
    Ok(backend.linear(x, &LinearWeight::Tensor(y.clone()))?)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn matrix(rows: usize, columns: usize) -> Tensor {
        let value = |at: usize| ((at * at * 13 + at * 7 + 1) as f64).sin();
        let values: Vec<f64> = (0..rows * columns).map(value).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    /// The iteration leaves singular values between about 0.7 and 1.2.
    #[test]
    fn rows_of_an_orthogonalized_matrix_are_nearly_orthonormal() {
        for (rows, columns) in [(5, 40), (40, 5)] {
            let x = orthogonalized(&matrix(rows, columns)).unwrap();
            assert_eq!(x.dims(), [rows, columns]);
            let wide = if rows > columns {
                x.t().unwrap().contiguous().unwrap()
            } else {
                x
            };
            let gram = times_transposed(&wide, &wide)
                .unwrap()
                .to_vec2::<f64>()
                .unwrap();
            for (i, row) in gram.iter().enumerate() {
                for (j, value) in row.iter().enumerate() {
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!((value - expected).abs() < 0.55, "{i},{j}: {value}");
                }
            }
        }
    }

    #[test]
    fn an_update_has_the_size_of_one_of_adamw() {
        let (value, gradient) = (matrix(30, 60), matrix(30, 60).affine(3.0, 0.1).unwrap());
        let update = MuonUpdate {
            factor: 1.0,
            momentum: 0.95,
            learning_rate: 0.01,
            weight_decay: 0.0,
        };
        let zeros = value.zeros_like().unwrap();
        let (after, momentum) = update.run(&value, &gradient, &zeros).unwrap();
        let change = norm([&(after - &value).unwrap()]).unwrap();
        let size = change / (30.0_f64 * 60.0).sqrt() / 0.01;
        assert!((0.1..0.3).contains(&size), "{size}");
        let kept = norm([&(momentum - gradient.affine(0.05, 0.0).unwrap()).unwrap()]).unwrap();
        assert!(kept < 1e-9, "{kept}");
    }

    #[test]
    fn muon_updates_the_matrices_of_layers_only() {
        let cases = [
            ("model.layers.0.mlp.up_proj.weight", 2, true),
            ("model.embed_tokens.weight", 2, false),
            ("lm_head.weight", 2, false),
            ("model.layers.0.input_layernorm.weight", 1, false),
        ];
        for (name, rank, expected) in cases {
            let value = Tensor::zeros(vec![2; rank], DType::F32, &Device::Cpu).unwrap();
            assert_eq!(applies_to(name, &value), expected, "{name}");
        }
    }
}
