//! Tests sampling by tensor operations, as other devices run it, on the CPU. It compares filters
//! with transformers, frequencies with probabilities, and tokens with the CPU's own sampler.

use candle_core::{DType, Device, Tensor};
use policy::ops::{Backend, RowSampling, draw_rows, filtered_weights};
use policy::random::derive_seed;
use policy::sampling::{Filters, sample, sample_rows};
use policy::{Coordinates, Sampled, SamplingSettings};
use serde_json::Value;

use crate::common::{self, golden, numbers};

const CPU: Device = Device::Cpu;
/// Probabilities too small for f32 are left out.
const DRAWABLE: f64 = 1e-50;

fn row_draw(filters: &Filters, uniform: f64) -> RowSampling {
    let filters = *filters;
    RowSampling { uniform, filters }
}

/// Returns the (column, probability) pairs that the filters keep of each row of logits, in f64.
fn kept(rows: &[Vec<f64>], filters: &[Filters]) -> Vec<Vec<(u32, f64)>> {
    let scaled = rows
        .iter()
        .zip(filters)
        .flat_map(|(row, filters)| row.iter().map(|x| x / filters.temperature));
    let scaled = Tensor::from_vec(
        scaled.collect::<Vec<f64>>(),
        (rows.len(), rows[0].len()),
        &CPU,
    )
    .unwrap();
    let draws: Vec<RowSampling> = filters
        .iter()
        .map(|filters| row_draw(filters, 0.0))
        .collect();
    let weights: Vec<Vec<f64>> = filtered_weights(&scaled, &draws)
        .unwrap()
        .to_vec2()
        .unwrap();
    let normalised = |row: &Vec<f64>| {
        let total: f64 = row.iter().sum();
        let kept = (0..).zip(row).filter(|(_, weight)| **weight > DRAWABLE);
        kept.map(|(column, weight)| (column, weight / total))
            .collect()
    };
    weights.iter().map(normalised).collect()
}

/// The golden cases of `sampling_golden.rs` without a repetition penalty, all settings of a row at
/// once.
#[test]
fn filters_agree_with_transformers() {
    let file = golden("sampling/filters.json");
    let mut checked = 0;
    for case in file["cases"].as_array().unwrap() {
        let logits = numbers(&case["logits"]);
        let results = case["results"].as_array().unwrap().iter();
        let results: Vec<&Value> = results
            .filter(|result| result["options"]["repetition_penalty"] == 1.0)
            .collect();
        let filters: Vec<Filters> = results
            .iter()
            .map(|result| common::filters(&result["options"]))
            .collect();
        let found = kept(&vec![logits.clone(); filters.len()], &filters);
        for ((result, filters), found) in results.iter().zip(&filters).zip(found) {
            let name = format!("{} {}", case["id"], result["options"]);
            // Of ties, transformers' sort keeps any; ours keeps the first, as the CPU's sampler
            // does.
            let expected = filters.apply(logits.iter().copied()).into_iter();
            let expected: Vec<(u32, f64)> = expected.filter(|kept| kept.1 > DRAWABLE).collect();
            let theirs = numbers(&result["probs"]);
            let theirs = theirs.iter().filter(|probability| **probability > DRAWABLE);
            assert_eq!(found.len(), theirs.count(), "{name}");
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.0, expected.0, "{name}");
                assert!(
                    (found.1 - expected.1).abs() < 1e-12,
                    "{name}: {found:?} for {expected:?}"
                );
            }
            checked += 1;
        }
    }
    assert!(checked >= 300, "only {checked} settings");
}

/// Logits in (-20, 20), more of them near 0; rounded to eighths if they are to have many ties.
fn logits(seed: u64, columns: usize, ties: bool) -> Vec<f32> {
    let value = |column: usize| {
        let bits = derive_seed(seed, &column.to_string()) >> 11;
        let even = bits as f64 / (1_u64 << 53) as f64 * 2.0 - 1.0;
        let value = (20.0 * even.powi(3)) as f32;
        if ties {
            (value * 8.0).round() / 8.0
        } else {
            value
        }
    };
    (0..columns).map(value).collect()
}

fn settings() -> [SamplingSettings; 6] {
    let settings = |temperature, top_k, top_p, min_p| SamplingSettings {
        temperature,
        top_k,
        top_p,
        min_p,
    };
    [
        settings(1.0, 0, 1.0, 0.0),
        settings(0.7, 0, 1.0, 0.0),
        settings(1.3, 20, 1.0, 0.0),
        settings(0.8, 0, 0.9, 0.0),
        settings(1.0, 0, 1.0, 0.05),
        settings(1.1, 30, 0.8, 0.02),
    ]
}

/// Random numbers on a grid sample each column as often as its probability says, up to the two ends
/// of its interval.
#[test]
fn each_column_takes_its_share() {
    const GRID: usize = 4_000;
    for (columns, vocabulary) in [(1, 1), (37, 37), (400, 389)] {
        let row = logits(3, columns, false);
        let all = Tensor::new(row.as_slice(), &CPU).unwrap();
        let all = all
            .broadcast_as((GRID, columns))
            .unwrap()
            .contiguous()
            .unwrap();
        for settings in settings() {
            let filters = Filters::from(&settings);
            let draws: Vec<RowSampling> = (0..GRID)
                .map(|i| row_draw(&filters, (i as f64 + 0.5) / GRID as f64))
                .collect();
            let mut counts = vec![0_i64; columns];
            for (token, _) in draw_rows(&all, vocabulary, &draws).unwrap() {
                counts[token as usize] += 1;
            }
            let mut shares = vec![0.0; columns];
            for (token, share) in filters.apply(row[..vocabulary].iter().map(|&x| x.into())) {
                shares[token as usize] = share;
            }
            for (token, (&count, share)) in counts.iter().zip(&shares).enumerate() {
                let expected = share * GRID as f64;
                assert!(
                    (count as f64 - expected).abs() < 1.1,
                    "{token}: {count} for {expected}"
                );
                assert!(*share > 0.0 || count == 0, "{token} was filtered out");
            }
        }
    }
}

fn rows(coordinates: u64, count: usize) -> Vec<(SamplingSettings, Coordinates)> {
    let place = |row: usize| Coordinates {
        run_seed: coordinates,
        group: row as u64,
        ..Coordinates::default()
    };
    let settings = settings()
        .into_iter()
        .chain([SamplingSettings::greedy()])
        .cycle();
    settings.zip((0..count).map(place)).collect()
}

/// Returns how close the random number is to a border of the column's share in the CPU's
/// distribution.
fn near_border(row: &[f32], sampled: &Sampled, settings: &SamplingSettings, uniform: f64) -> f64 {
    let (mut cumulative, mut nearest) = (0.0, f64::INFINITY);
    for (token, share) in Filters::from(settings).apply(row.iter().map(|&x| x.into())) {
        if token == sampled.token {
            nearest = f64::min(
                (uniform - cumulative).abs(),
                (uniform - cumulative - share).abs(),
            );
        }
        cumulative += share;
    }
    nearest
}

/// The same random number samples the same token as on the CPU, with and without ties, unless it
/// lies within 1e-5 of a border. Greedy rows and log-probabilities always agree.
#[test]
fn the_same_numbers_draw_the_same_tokens() {
    let (mut compared, mut differ) = (0, 0);
    for (count, columns, vocabulary, ties) in [
        (700, 1024, 1024, false),
        (700, 1000, 937, true),
        (700, 50, 50, true),
        // Qwen3's.
        (28, 151_936, 151_669, false),
    ] {
        let seed = columns as u64;
        let values: Vec<Vec<f32>> = (0..count)
            .map(|row| logits(seed * 1_000 + row as u64, columns, ties))
            .collect();
        let all = Tensor::new(values.clone(), &CPU).unwrap();
        let rows = rows(seed, count);
        let found = sample_rows(Backend::TensorOps, &all, vocabulary, &rows).unwrap();
        let expected = sample_rows(Backend::CpuF32, &all, vocabulary, &rows).unwrap();
        for (((values, (settings, place)), found), expected) in
            values.iter().zip(&rows).zip(found).zip(expected)
        {
            assert_eq!(expected, sample(values, vocabulary, settings, place));
            compared += 1;
            if found.token == expected.token {
                assert!(
                    (found.logprob - expected.logprob).abs() < 1e-5,
                    "{found:?} for {expected:?}"
                );
            } else {
                differ += 1;
                assert!(!settings.is_greedy(), "{found:?} for {expected:?}");
                let near = near_border(&values[..vocabulary], &expected, settings, place.uniform());
                assert!(
                    near < 1e-5,
                    "{found:?} for {expected:?}, {near} from a border, {settings:?}"
                );
            }
        }
    }
    println!("{differ} of {compared} tokens differ");
    assert!(
        differ * 100 < compared,
        "{differ} of {compared} tokens differ"
    );
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    let low = f32::NEG_INFINITY;
    let logits = [
        [1.0, 3.0, 3.0, 2.0],
        [1e-9, 2e-9, 0.0, 9.0],
        [low, -5.0, low, low],
    ];
    let logits = Tensor::new(&logits, &CPU).unwrap();
    let rows = [(SamplingSettings::greedy(), Coordinates::default()); 3];
    let sampled = sample_rows(Backend::TensorOps, &logits, 3, &rows).unwrap();
    assert!(
        sampled.iter().all(|sampled| sampled.token == 1),
        "{sampled:?}"
    );
}

/// Broken weights give a token of the vocabulary with a NaN log-probability.
#[test]
fn logits_that_are_no_numbers_show_in_the_logprob() {
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    let broken = [
        [nan; 4],
        [-infinite; 4],
        [nan, 1.0, 2.0, 3.0],
        [1.0, 2.0, 3.0, nan],
        [1.0, infinite, 2.0, 3.0],
    ];
    for dtype in [DType::F32, DType::BF16] {
        let logits = Tensor::new(&broken, &CPU).unwrap().to_dtype(dtype).unwrap();
        for settings in settings().into_iter().chain([SamplingSettings::greedy()]) {
            let rows = [(settings, Coordinates::default()); 5];
            let sampled = sample_rows(Backend::TensorOps, &logits, 3, &rows).unwrap();
            for sampled in sampled {
                assert!(
                    sampled.token < 3 && sampled.logprob.is_nan(),
                    "{sampled:?} under {settings:?}"
                );
            }
        }
    }
}

/// A random number that the dtype rounds to 1 still samples a column that has weight.
#[test]
fn the_largest_number_draws_the_last_column_with_weight() {
    let mut row = vec![f32::NEG_INFINITY; 600];
    (row[300], row[310]) = (1.0, 1.0);
    let logits = Tensor::new(vec![row; 2], &CPU).unwrap();
    let filters = Filters::from(&SamplingSettings::default());
    let draws = [0.0, 1.0 - f64::EPSILON].map(|uniform| row_draw(&filters, uniform));
    let tokens: Vec<u32> = draw_rows(&logits, 600, &draws)
        .unwrap()
        .into_iter()
        .map(|(token, _)| token)
        .collect();
    assert_eq!(tokens, [300, 310]);
}
