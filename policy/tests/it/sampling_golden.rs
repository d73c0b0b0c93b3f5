//! Compares the filters with transformers 5.23.0: `GenerationMixin._get_logits_processor` on
//! float64 logits (torch 2.15.0), 20 rows with 24 settings each (`golden/sampling/filters.json`).

use serde_json::Value;

use crate::common::{filters, golden, numbers};

const TOLERANCE: f64 = 1e-12;

#[test]
fn filters_agree_with_transformers() {
    let file = golden("sampling/filters.json");
    let mut checked = 0;
    for case in file["cases"].as_array().unwrap() {
        for result in case["results"].as_array().unwrap() {
            check(case, result);
            checked += 1;
        }
    }
    assert_eq!(checked, 480);
}

fn check(case: &Value, result: &Value) {
    let options = &result["options"];
    let got = filters(options).apply(penalised_logits(case, options).into_iter());
    let expected: Vec<(u32, f64)> = numbers(&result["kept"])
        .into_iter()
        .map(|id| id as u32)
        .zip(numbers(&result["probs"]))
        .collect();

    let name = format!("{} {options}", case["id"]);
    assert_eq!(got.len(), expected.len(), "{name}: number of tokens kept");
    let (mut got, mut expected) = (got, expected);
    if result["ambiguous_ties"] == true {
        // Which of several equal values survives depends on the sort: only the sorted probabilities
        // are defined.
        got.sort_by(|a, b| a.1.total_cmp(&b.1));
        expected.sort_by(|a, b| a.1.total_cmp(&b.1));
    }
    for (got, expected) in got.iter().zip(&expected) {
        if result["ambiguous_ties"] != true {
            assert_eq!(got.0, expected.0, "{name}: token kept");
        }
        assert!(
            (got.1 - expected.1).abs() <= TOLERANCE,
            "{name}: {got:?} for {expected:?}"
        );
    }
}

/// The reference set also varies the repetition penalty, which comes before all filters and which
/// this crate does not offer.
fn penalised_logits(case: &Value, options: &Value) -> Vec<f64> {
    let mut logits = numbers(&case["logits"]);
    let penalty = options["repetition_penalty"].as_f64().unwrap();
    let mut previous = numbers(&case["previous_ids"]);
    previous.sort_by(f64::total_cmp);
    previous.dedup();
    for id in previous {
        let logit = &mut logits[id as usize];
        *logit = if *logit < 0.0 {
            *logit * penalty
        } else {
            *logit / penalty
        };
    }
    logits
}
