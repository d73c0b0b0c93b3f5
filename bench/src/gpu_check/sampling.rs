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

/// Rows of logits, and how each is sampled.
struct Case {
    name: &'static str,
    settings: SamplingSettings,
    allowed: Option<TokenSet>,
    /// [ROWS * COLUMNS].
    logits: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let value = |at: usize| ((at * at * 13 + at) as f64 * 1e-3).sin() as f32 * 6.0;
    let logits: Vec<f32> = (0..ROWS * COLUMNS).map(value).collect();
    let mut beside_padding = logits.clone();
    for row in beside_padding.chunks_mut(COLUMNS) {
        row[VOCABULARY..].fill(30.0);
    }
    let mut broken = logits.clone();
    (broken[7], broken[COLUMNS + 9]) = (f32::NAN, f32::INFINITY);
    broken[2 * COLUMNS..3 * COLUMNS].fill(f32::NEG_INFINITY);
    let default = SamplingSettings::default();
    let cold = SamplingSettings {
        temperature: 1e-6,
        ..default
    };
    let filtered = SamplingSettings {
        temperature: 0.8,
        top_k: 50,
        top_p: 0.9,
        min_p: 0.01,
    };
    let few = TokenSet::new(&[0x00f0_0810; COLUMNS.div_ceil(64)]);
    let case = |name, settings, logits: &[f32]| Case {
        name,
        settings,
        allowed: None,
        logits: logits.to_vec(),
    };
    vec![
        case("without filters", default, &logits),
        case("greedy", SamplingSettings::greedy(), &logits),
        case("at a temperature of 1e-6", cold, &logits),
        case("with filters", filtered, &logits),
        Case {
            allowed: Some(few),
            ..case("of a set", default, &logits)
        },
        case("beside large padding", default, &beside_padding),
        case("of broken logits", default, &broken),
    ]
}

impl Case {
    fn sample(&self, device: &Device, dtype: DType) -> Result<Vec<Sampled>> {
        let backend = Backend::of(device, dtype);
        let logits = Tensor::from_slice(&self.logits, (ROWS, COLUMNS), device)?;
        let logits = backend.restrict_rows(&logits, &vec![self.allowed.clone(); ROWS])?;
        let row = |row: usize| {
            let coordinates = Coordinates {
                group: row as u64,
                ..Coordinates::default()
            };
            (self.settings, coordinates)
        };
        let rows: Vec<_> = (0..ROWS).map(row).collect();
        Ok(sample_rows(backend, &logits, VOCABULARY, &rows)?)
    }
}

/// Compares the samples of each case.
pub(super) fn sampling(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for case in cases() {
        // The CPU's backends sample by one kernel, from logits in f32.
        let found = case.sample(&target.device, DType::BF16)?;
        let expected = case.sample(&Device::Cpu, DType::F32)?;
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
        let name = format!("{}: tokens that differ", case.name);
        measurements.push(Measurement::within(0.0, name, other as f64));
        let name = format!("{}: largest difference of log-probabilities", case.name);
        measurements.push(Measurement::within(EXACT, name, largest));
    }
    Ok(measurements)
}
