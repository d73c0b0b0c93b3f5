//! Speed of matrix products and of attention on one CPU thread. `sqlenv bench policy` measures
//! sampling and training.
//!
//! `CANDLE_NUM_THREADS=1 cargo run --release -p policy --example kernel_speed` prints the speed of
//! one core. Without the variable, candle's additions of large tensors wait for its own pool of
//! threads. An argument selects a part: `products`, `training` or `attention`.

use std::sync::LazyLock;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use policy::ops::{Backend, InstructionSet, LinearWeight, with_instruction_set};
use policy::{PackedRow, Result};

/// As in the `sqlenv` binary: the system's allocator returns large tensors to the kernel after
/// every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let selected = std::env::args().nth(1);
    let is_selected = |part: &str| selected.as_ref().is_none_or(|selected| selected == part);
    if is_selected("products") {
        for set in InstructionSet::available() {
            if set != InstructionSet::Portable {
                with_instruction_set(set, || products(set)).transpose()?;
            }
        }
    }
    for (backend, dtype) in [
        (Backend::CpuF32, DType::F32),
        (Backend::CpuBf16, DType::BF16),
    ] {
        if is_selected("training") {
            training_products(backend, dtype)?;
        }
        if is_selected("attention") {
            attention(backend, dtype)?;
        }
    }
    Ok(())
}

/// Returns the mean seconds of one call of `f`, over at least a quarter of a second.
fn seconds(mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    f()?;
    let mut calls = 1_u32;
    loop {
        let start = now_seconds();
        for _ in 0..calls {
            f()?;
        }
        let spent = now_seconds() - start;
        if spent > 0.25 {
            return Ok(spent / f64::from(calls));
        }
        calls *= 2;
    }
}

/// Returns the CPU time of this thread in seconds, so that other work on the machine disturbs
/// little; wall-clock time if the system does not provide it.
fn now_seconds() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "this program measures time")]
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let on_core = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = on_core.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| START.elapsed().as_secs_f64(), |ns| ns * 1e-9)
}

fn products(set: InstructionSet) -> Result<()> {
    println!("{set:?}: GFLOP/s of x [m, k] times a weight [n, k]: plain, packed, packed in bf16");
    // The last three are SmolLM2-135M's.
    for (k, n) in [
        (192, 512),
        (192, 1024),
        (512, 512),
        (512, 1024),
        (576, 1536),
        (1536, 576),
        (576, 8192),
    ] {
        for m in [1, 2, 3, 4, 8, 16, 64, 512] {
            let x = Tensor::rand(-1f32, 1.0, (m, k), &Device::Cpu)?;
            let weight = Tensor::rand(-1f32, 1.0, (n, k), &Device::Cpu)?;
            let speed = |backend: Backend, x: &Tensor, weight: &LinearWeight| -> Result<f64> {
                let seconds = seconds(|| Ok(backend.linears(x, [weight]).map(drop)?))?;
                Ok(2e-9 * (m * k * n) as f64 / seconds)
            };
            let packed = |backend: Backend, dtype| {
                let (x, weight) = (x.to_dtype(dtype)?, weight.to_dtype(dtype)?);
                speed(backend, &x, &backend.sampling_weight(&weight)?)
            };
            let plain = LinearWeight::Tensor(weight.clone());
            println!(
                "  {m:4} x {k:4} x {n:5}: {:6.1} {:6.1} {:6.1}",
                speed(Backend::CpuF32, &x, &plain)?,
                packed(Backend::CpuF32, DType::F32)?,
                packed(Backend::CpuBf16, DType::BF16)?
            );
        }
    }
    Ok(())
}

/// The three products of a trained weight: y = x Wᵀ, dx = dy W, dW = dyᵀ x.
fn training_products(backend: Backend, dtype: DType) -> Result<()> {
    println!("GFLOP/s of x [m, k] times a weight [n, k] in training, {dtype:?}: y, dx, dW");
    let m = 1536;
    for (k, n) in [(256, 256), (256, 768), (768, 256), (256, 4096), (576, 1536)] {
        let values = |shape| Tensor::rand(-1f32, 1.0, shape, &Device::Cpu)?.to_dtype(dtype);
        let (x, weight, dy) = (values((m, k))?, values((n, k))?, values((m, n))?);
        let weight = backend.training_weight(&weight)?;
        let speed = |f: &dyn Fn() -> candle_core::Result<()>| -> Result<f64> {
            Ok(2e-9 * (m * k * n) as f64 / seconds(|| Ok(f()?))?)
        };
        println!(
            "  {m:4} x {k} x {n:4}: {:6.1} {:6.1} {:6.1}",
            speed(&|| backend.linears(&x, [&weight]).map(drop))?,
            speed(&|| backend.linear_input_gradient(&[(&dy, &weight)]).map(drop))?,
            speed(&|| backend.linear_weight_gradients(&x, &[&dy]).map(drop))?,
        );
    }
    Ok(())
}

/// Attention in SmolLM2-135M's shape: eight rows that continue a prompt, as in a group, forward and
/// backward.
fn attention(backend: Backend, dtype: DType) -> Result<()> {
    println!(
        "GFLOP/s of attention, 8 rows after a prompt of 640 tokens, {dtype:?}: forward, backward"
    );
    let (heads, kv_heads, head_dim, prompt) = (9, 3, 64, 640);
    for len in [1, 32, 300] {
        let mut rows = vec![PackedRow {
            len: prompt,
            past: 0,
            slot: 0,
        }];
        rows.extend(
            [PackedRow {
                len,
                past: prompt,
                slot: 0,
            }; 8],
        );
        let tokens = prompt + 8 * len;
        let values = |heads| {
            let values = Tensor::rand(-1f32, 1.0, (tokens, heads, head_dim), &Device::Cpu)?;
            values.to_dtype(dtype)
        };
        let (q, k, v) = (values(heads)?, values(kv_heads)?, values(kv_heads)?);
        let out = backend.attention(&q, &k, &v, &rows)?;
        let seen = |row: &PackedRow| row.len * row.past + row.len * (row.len + 1) / 2;
        let pairs: usize = rows.iter().map(seen).sum();
        let forward = 4e-9 * (pairs * heads * head_dim) as f64;
        let dout = values(heads)?.reshape(out.shape())?;
        println!(
            "  {len:4} tokens each: {:6.1} {:6.1}",
            forward / seconds(|| Ok(backend.attention(&q, &k, &v, &rows).map(drop)?))?,
            2.5 * forward
                / seconds(|| {
                    let gradients = backend.attention_backward(&q, &k, &v, &rows, &out, &dout);
                    Ok(gradients.map(drop)?)
                })?,
        );
    }
    Ok(())
}
