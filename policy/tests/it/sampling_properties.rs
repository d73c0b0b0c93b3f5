//! Tests properties of every sampled token: it passes the filters, depends on its coordinates
//! alone, and records the learner's log-probability.

use policy::sampling::{Filters, sample};
use policy::{Coordinates, SamplingSettings, ops};
use proptest::prelude::*;

fn settings() -> impl Strategy<Value = SamplingSettings> {
    (0.05f32..3.0, 0u32..12, 0.05f32..=1.0, 0.0f32..=1.0).prop_map(
        |(temperature, top_k, top_p, min_p)| SamplingSettings {
            temperature,
            top_k,
            top_p,
            min_p,
        },
    )
}

fn coordinates() -> impl Strategy<Value = Coordinates> {
    any::<(u64, u64, u32, u32, u32)>().prop_map(|(run_seed, group, member, turn, position)| {
        Coordinates {
            run_seed,
            group,
            member,
            turn,
            position,
        }
    })
}

proptest! {
    #[test]
    fn draws_stay_inside_of_the_filters(
        logits in prop::collection::vec(-20.0f32..20.0, 1..80), settings in settings(), place in coordinates(), padding in 0usize..20,
    ) {
        let vocabulary_size = logits.len().saturating_sub(padding).max(1);
        let drawn = sample(&logits, vocabulary_size, &settings, &place);
        let kept = Filters::from(&settings).apply(logits[..vocabulary_size].iter().map(|&logit| f64::from(logit)));
        prop_assert!(kept.iter().any(|&(token, probability)| token == drawn.token && probability > 0.0));
        prop_assert!((kept.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-12);
        prop_assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));

        let learners = ops::log_softmax_at(&logits, drawn.token as usize, settings.temperature);
        prop_assert_eq!(drawn.logprob.to_bits(), learners.to_bits());
        prop_assert_eq!(drawn, sample(&logits, vocabulary_size, &settings, &place));
    }

    #[test]
    fn greedy_takes_a_maximum_at_temperature_one(logits in prop::collection::vec(-20.0f32..20.0, 1..80), place in coordinates()) {
        let drawn = sample(&logits, logits.len(), &SamplingSettings::greedy(), &place);
        prop_assert!(logits.iter().all(|&logit| logit <= logits[drawn.token as usize]));
        prop_assert_eq!(drawn.logprob.to_bits(), ops::log_softmax_at(&logits, drawn.token as usize, 1.0).to_bits());
    }
}

/// The frequencies of 20,000 samples at consecutive positions match the distribution within five
/// standard deviations. The random numbers are fixed, so the test is deterministic.
#[test]
fn frequencies_follow_the_distribution() {
    const DRAWS: u32 = 20_000;
    let logits = [0.5, -1.0, 2.0, 0.0, 1.0];
    let settings = SamplingSettings {
        temperature: 0.8,
        top_k: 4,
        ..SamplingSettings::default()
    };
    let mut counts = [0u32; 5];
    for position in 0..DRAWS {
        let drawn = sample(&logits, 5, &settings, &Coordinates::default().at(position));
        counts[drawn.token as usize] += 1;
    }
    let kept = Filters::from(&settings).apply(logits.iter().map(|&logit| f64::from(logit)));
    assert_eq!((kept.len(), counts[1]), (4, 0));
    for (token, probability) in kept {
        let expected = probability * f64::from(DRAWS);
        let deviation = (expected * (1.0 - probability)).sqrt();
        let count = f64::from(counts[token as usize]);
        assert!(
            (count - expected).abs() < 5.0 * deviation,
            "token {token}: {count} for {expected}"
        );
    }
}
