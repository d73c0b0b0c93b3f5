//! Attention in bf16 against f32, and the same bits by all instructions.

use std::io::Write as _;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use crate::ops::Backend;
use crate::ops::matmul_bf16::with_each;
use crate::packed_rows::PackedRow;

/// Heads, key-value heads and the head size. The last two have partial panels, blocks and tiles.
const SHAPES: [(usize, usize, usize); 3] = [(9, 3, 64), (6, 2, 24), (4, 1, 80)];

/// A prompt of 70 tokens, a row of 45 that continues it, one of 1, and a row of its own.
fn rows() -> Vec<PackedRow> {
    let row = |len, past, slot| PackedRow { len, past, slot };
    vec![row(70, 0, 0), row(45, 70, 0), row(1, 70, 0), row(9, 0, 3)]
}

fn values(heads: usize, head_dim: usize, seed: u64) -> Tensor {
    let tokens: usize = rows().iter().map(|row| row.len).sum();
    let value = |at: usize| {
        let mixed = (at as u64 + (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        bf16::from_f32(mixed as f32 / (1 << 22) as f32 - 2.0)
    };
    let values: Vec<bf16> = (0..tokens * heads * head_dim).map(value).collect();
    Tensor::from_vec(values, (tokens, heads, head_dim), &Device::Cpu).unwrap()
}

struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
}

impl Case {
    fn new((heads, kv_heads, head_dim): (usize, usize, usize)) -> Self {
        Self {
            q: values(heads, head_dim, 1),
            k: values(kv_heads, head_dim, 2),
            v: values(kv_heads, head_dim, 3),
            dout: values(heads, head_dim, 4).flatten_from(1).unwrap(),
        }
    }

    /// The output and the gradients of q, k and v by the kernel.
    fn by_kernel(&self) -> Vec<Tensor> {
        self.by(Backend::CpuBf16, DType::BF16)
    }

    /// The same by tensor operations in f32.
    fn by_tensor_ops(&self) -> Vec<Tensor> {
        self.by(Backend::TensorOps, DType::F32)
    }

    fn by(&self, backend: Backend, dtype: DType) -> Vec<Tensor> {
        let [q, k, v, dout] =
            [&self.q, &self.k, &self.v, &self.dout].map(|x| x.to_dtype(dtype).unwrap());
        let out = backend.attention(&q, &k, &v, &rows()).unwrap();
        let gradients = backend.attention_backward(&q, &k, &v, &rows(), &out, &dout);
        let mut all = gradients.unwrap().to_vec();
        all.insert(0, out);
        all
    }
}

#[test]
fn the_kernel_is_near_f32() {
    for shape in SHAPES {
        let case = Case::new(shape);
        let names = ["out", "dq", "dk", "dv"];
        let both = case.by_kernel().into_iter().zip(case.by_tensor_ops());
        for (name, (found, expected)) in names.into_iter().zip(both) {
            let norm = |x: &Tensor| {
                x.sqr()
                    .unwrap()
                    .sum_all()
                    .unwrap()
                    .to_scalar::<f32>()
                    .unwrap()
            };
            let found = found.to_dtype(DType::F32).unwrap();
            let error = norm(&(found - &expected).unwrap()) / norm(&expected);
            // A rounding to bf16 has a mean relative error of 2e-3; here two or three add up.
            assert!(error.sqrt() < 6e-3, "{shape:?} {name}: {}", error.sqrt());
        }
    }
}

/// A value that is not a number stays in its own sequence.
#[test]
fn other_rows_leave_nothing_behind() {
    let (heads, kv_heads, head_dim) = SHAPES[0];
    let row = |len| PackedRow {
        len,
        past: 0,
        slot: 0,
    };
    // The first row is longer, so that the pages of the second one hold what it left.
    let rows = vec![row(20), PackedRow { slot: 1, ..row(5) }];
    let values = |heads, seed| values(heads, head_dim, seed).narrow(0, 0, 25).unwrap();
    let (q, k, v) = (values(heads, 1), values(kv_heads, 2), values(kv_heads, 3));
    let nan = Tensor::full(f32::NAN, (1, kv_heads, head_dim), &Device::Cpu).unwrap();
    let nan = nan.to_dtype(DType::BF16).unwrap();
    let broken = |x: &Tensor| {
        let parts = [
            &x.narrow(0, 0, 10).unwrap(),
            &nan,
            &x.narrow(0, 11, 14).unwrap(),
        ];
        Tensor::cat(&parts, 0).unwrap()
    };
    let (k, v) = (broken(&k), broken(&v));
    let backend = Backend::CpuBf16;
    let out = backend.attention(&q, &k, &v, &rows).unwrap();
    let dout = values(heads, 4).flatten_from(1).unwrap();
    let gradients = backend
        .attention_backward(&q, &k, &v, &rows, &out, &dout)
        .unwrap();
    for x in [&out].into_iter().chain(&gradients) {
        let second = x.narrow(0, 20, 5).unwrap().flatten_all().unwrap();
        let second = second
            .to_dtype(DType::F32)
            .unwrap()
            .to_vec1::<f32>()
            .unwrap();
        assert!(second.iter().all(|x| x.is_finite()));
    }
}

#[test]
fn all_instructions_return_the_same_bits() {
    for shape in SHAPES {
        let case = Case::new(shape);
        let bits = || {
            let flat = |x: Tensor| x.flatten_all().unwrap().to_vec1::<bf16>().unwrap();
            let values = case.by_kernel().into_iter().flat_map(flat);
            values.map(bf16::to_bits).collect::<Vec<_>>()
        };
        let results = with_each(bits);
        if results.len() == 1 {
            let _ = writeln!(std::io::stderr(), "SKIPPED: nothing to compare with lanes");
        }
        for (name, found) in &results[1..] {
            assert!(
                *found == results[0].1,
                "{shape:?}: {name} differ from lanes"
            );
        }
    }
}
