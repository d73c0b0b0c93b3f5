//! Checks the samples of tokens on the device against those of the CPU, from the same logits.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use policy::{
    Coordinates, SamplingSettings,
    ops::{Backend, TokenSet},
    sampling::{Sampled, sample_rows},
};

use super::{report::Measurement, target::CheckTarget};

const ROWS: usize = 64;
/// No multiple of what a kernel computes at a time.
const COLUMNS: usize = 5_003;
/// Columns from here on are padding of the embedding and are never sampled.
const VOCABULARY: usize = 4_999;
/// Largest difference of a log-probability.
const EXACT: f64 = 1e-4;

/// Samples without filters, greedily, with filters, and of a few tokens only.
pub(super) fn sampling(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let value = |at: usize| ((at * at * 13 + at) as f64 * 1e-3).sin() as f32 * 6.0;
    let logits: Vec<f32> = (0..ROWS * COLUMNS).map(value).collect();
    let mut under_padding = logits.clone();
    for row in under_padding.chunks_mut(COLUMNS) {
        row[VOCABULARY..].fill(30.0);
    }
    let mut broken = logits.clone();
    (broken[7], broken[COLUMNS + 9]) = (f32::NAN, f32::INFINITY);
    broken[2 * COLUMNS..3 * COLUMNS].fill(f32::NEG_INFINITY);
    let few = TokenSet::new(&[0x00f0_0810; COLUMNS.div_ceil(64)]);
    let filtered = SamplingSettings {
        temperature: 0.8,
        top_k: 50,
        top_p: 0.9,
        min_p: 0.01,
    };
    let default = SamplingSettings::default();
    let mut measurements = Vec::new();
    let cold = SamplingSettings {
        temperature: 1e-6,
        ..default
    };
    for (what, settings, allowed, logits) in [
        ("without filters", default, None, &logits),
        ("greedy", SamplingSettings::greedy(), None, &logits),
        ("at a temperature of 1e-6", cold, None, &logits),
        ("with filters", filtered, None, &logits),
        ("of a set", default, Some(few), &logits),
        ("beside large padding", default, None, &under_padding),
        ("of broken logits", default, None, &broken),
    ] {
        let on = |device: &Device, dtype| -> Result<Vec<Sampled>> {
            let backend = Backend::of(device, dtype);
            let logits = Tensor::from_slice(logits, (ROWS, COLUMNS), device)?;
            let logits = backend.restrict_rows(&logits, &vec![allowed.clone(); ROWS])?;
            let row = |row: usize| {
                let group = row as u64;
                let coordinates = Coordinates {
                    group,
                    ..Coordinates::default()
                };
                (settings, coordinates)
            };
            let rows: Vec<_> = (0..ROWS).map(row).collect();
            Ok(sample_rows(backend, &logits, VOCABULARY, &rows)?)
        };
        // The CPU's backends sample by one kernel, from logits in f32.
        let found = on(&target.device, DType::BF16)?;
        let expected = on(&Device::Cpu, DType::F32)?;
        // The token of a row whose log-probability is NaN means nothing.
        let pairs = || found.iter().zip(&expected);
        let differs = |a: &Sampled, b: &Sampled| match (a.logprob.is_nan(), b.logprob.is_nan()) {
            (true, true) => false,
            (false, false) => a.token != b.token,
            _ => true,
        };
        let other = pairs().filter(|(a, b)| differs(a, b)).count();
        let valid = pairs().filter(|(_, b)| !b.logprob.is_nan());
        let differences = valid.map(|(a, b)| f64::from((a.logprob - b.logprob).abs()));
        let largest = differences.max_by(f64::total_cmp).unwrap_or(f64::NAN);
        let name = format!("{what}: tokens that differ");
        measurements.push(Measurement::within(0.0, name, other as f64));
        let name = format!("{what}: largest difference of log-probabilities");
        measurements.push(Measurement::within(EXACT, name, largest));
    }
    Ok(measurements)
}
