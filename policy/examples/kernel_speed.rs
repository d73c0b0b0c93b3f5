//! Speed of the CPU path on one thread: matrix multiplication, a sampling step and a training step of the tiny policy.
//!
//! `CANDLE_NUM_THREADS=1 cargo run --release -p policy --example kernel_speed [-- --only-policy]` prints figures of one core.
//! Without the variable, candle's additions of large tensors wait for its own pool of threads.

use std::sync::LazyLock;
use std::time::Instant;

use candle_core::{Device, Tensor};
use policy::ops::{
    InstructionSet, LinearWeight, LogprobGradients, linear, linear_input_gradient,
    linear_weight_gradient, with_instruction_set,
};
use policy::{
    Decoder, DecoderConfig, DecoderMode, GradientCheckpointing, KvCache, PackedRows, Result,
    ScoredTokens, TrainingPass, Weights,
};

/// As in the `sqlenv` binary: the system's allocator returns large tensors to the kernel after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let only_policy = std::env::args().any(|argument| argument == "--only-policy");
    for set in InstructionSet::available() {
        if set != InstructionSet::Portable && !only_policy {
            with_instruction_set(set, || products(set)).transpose()?;
        }
    }
    if !only_policy {
        training_products()?;
    }
    let config = tiny();
    println!("tiny policy: {} parameters", config.parameters());
    for batch in [1, 8, 64] {
        sampling(&config, batch)?;
    }
    training(&config)
}

fn tiny() -> DecoderConfig {
    DecoderConfig::from_json(
        r#"{"model_type": "qwen3", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
            "rope_theta": 10000.0, "tie_word_embeddings": true}"#,
    )
    .expect("a valid config: this is a bug")
}

/// Mean seconds of one call of `f`, over at least a quarter of a second.
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

/// Time that this thread has spent on a core, so that other work on the machine disturbs little; the clock's time where
/// the system does not tell.
fn now_seconds() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "this program measures time")]
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let on_core = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = on_core.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| START.elapsed().as_secs_f64(), |ns| ns * 1e-9)
}

fn products(set: InstructionSet) -> Result<()> {
    println!("{set:?}: GFLOP/s of x [m, k] times a weight [n, k], plain and packed");
    for (k, n) in [(192, 512), (192, 1024), (512, 512), (512, 1024)] {
        for m in [1, 16, 64, 512] {
            let x = Tensor::rand(-1f32, 1.0, (m, k), &Device::Cpu)?;
            let weight = Tensor::rand(-1f32, 1.0, (n, k), &Device::Cpu)?;
            let packed = LinearWeight::packed(&weight)?;
            let plain = LinearWeight::Tensor(weight);
            let speed = |weight: &LinearWeight| -> Result<f64> {
                let seconds = seconds(|| Ok(linear(&x, weight).map(drop)?))?;
                Ok(2e-9 * (m * k * n) as f64 / seconds)
            };
            println!(
                "  {m:4} x {k} x {n:4}: {:6.1} {:6.1}",
                speed(&plain)?,
                speed(&packed)?
            );
        }
    }
    Ok(())
}

/// The three products of a trained weight: y = x Wᵀ, dx = dy W, dW = dyᵀ x.
fn training_products() -> Result<()> {
    println!("GFLOP/s of x [m, k] times a weight [n, k] in training: y, dx, dW");
    let m = 1536;
    for (k, n) in [(256, 256), (256, 768), (768, 256), (256, 4096), (512, 1536)] {
        let x = Tensor::rand(-1f32, 1.0, (m, k), &Device::Cpu)?;
        let weight = Tensor::rand(-1f32, 1.0, (n, k), &Device::Cpu)?;
        let dy = Tensor::rand(-1f32, 1.0, (m, n), &Device::Cpu)?;
        let product = LinearWeight::Tensor(weight.clone());
        let speed = |f: &dyn Fn() -> candle_core::Result<Tensor>| -> Result<f64> {
            Ok(2e-9 * (m * k * n) as f64 / seconds(|| Ok(f().map(drop)?))?)
        };
        println!(
            "  {m:4} x {k} x {n:4}: {:6.1} {:6.1} {:6.1}",
            speed(&|| linear(&x, &product))?,
            speed(&|| linear_input_gradient(&[(&dy, &weight)]))?,
            speed(&|| linear_weight_gradient(&x, &dy))?,
        );
    }
    Ok(())
}

fn sampling(config: &DecoderConfig, slots: usize) -> Result<()> {
    let decoder = Decoder::new(config, &Weights::random(config, 1)?, DecoderMode::Sample)?;
    let mut cache = KvCache::new(config, slots, 128)?;
    let mut prompts = PackedRows::default();
    for slot in 0..slots {
        prompts.push_cached(&[7; 100], 0, slot);
    }
    decoder.forward(&prompts, Some(&mut cache))?;
    let seconds = seconds(|| {
        let mut step = PackedRows::default();
        for slot in 0..slots {
            step.push_cached(&[9], 100, slot);
        }
        let hidden = decoder.forward(&step, Some(&mut cache))?;
        decoder.logits(&hidden).map(drop)
    })?;
    println!(
        "sampling, batch {slots:2}, context 100: {:6.0} tokens/s",
        slots as f64 / seconds
    );
    Ok(())
}

fn training(config: &DecoderConfig) -> Result<()> {
    let decoder = Decoder::new(config, &Weights::random(config, 1)?, DecoderMode::Train)?;
    let mut batch = PackedRows::default();
    for row in 0..16_u32 {
        batch.push(
            &(0..128)
                .map(|i| (i * 31 + row * 77) % 1024)
                .collect::<Vec<_>>(),
        );
    }
    let predictors: Vec<u32> = (0..batch.tokens.len() as u32).collect();
    let scored = ScoredTokens {
        predictors: &predictors,
        targets: &batch.tokens,
        temperature: 1.0,
    };
    let ones = vec![1.0; predictors.len()];
    let derivatives = LogprobGradients {
        logprobs: &ones,
        entropies: None,
    };
    let forward = seconds(|| decoder.forward(&batch, None).map(drop))?;
    let tokens = batch.tokens.len() as f64;
    for keep in [GradientCheckpointing::Off, GradientCheckpointing::On] {
        let step = seconds(|| {
            let pass = TrainingPass::forward(&decoder, &batch, scored, keep)?;
            pass.backward(derivatives).map(drop)
        })?;
        println!(
            "training, {tokens} packed tokens: forward {:6.0}, with backward {:6.0} tokens/s, {keep:?} kept",
            tokens / forward,
            tokens / step
        );
    }
    Ok(())
}
