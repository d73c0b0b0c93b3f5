//! Tests of `config.json`: what is read, what is written, and what is refused.

use super::*;

const SMALL: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
    "vocab_size": 400"#;
/// Without a family, and without the fields that some families need.
const LEAST: &str = r#""hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 400"#;

fn parse(more: &str) -> Result<DecoderConfig> {
    DecoderConfig::from_json(&format!("{SMALL}{more}}}"))
}

fn of_family(family: &str, more: &str) -> Result<DecoderConfig> {
    DecoderConfig::from_json(&format!(r#"{{"model_type": "{family}", {LEAST}{more}}}"#))
}

#[test]
fn defaults_follow_hugging_face() {
    for config in [
        of_family("llama", "").unwrap(),
        of_family("qwen2", r#", "num_key_value_heads": 4"#).unwrap(),
        of_family("qwen3", r#", "num_key_value_heads": null, "head_dim": 16"#).unwrap(),
    ] {
        let is_qwen2 = config.family == Family::Qwen2;
        assert_eq!((config.kv_heads, config.head_dim), (4, 16));
        assert_eq!((config.rope_theta, config.rms_norm_eps), (10_000.0, 1e-6));
        assert!(!config.tie_word_embeddings && !config.output_bias);
        assert_eq!(config.qkv_bias, is_qwen2);
        let most_positions = match config.family {
            Family::Llama => 2_048,
            Family::Qwen2 | Family::Qwen3 => 32_768,
        };
        assert_eq!(config.max_positions, most_positions);
    }
}

/// transformers' defaults are those of the largest model of the family.
#[test]
fn sizes_that_do_not_follow_from_others_are_required() {
    for (family, more, missing) in [
        ("qwen2", "", "num_key_value_heads"),
        ("qwen3", r#", "head_dim": 16"#, "num_key_value_heads"),
        ("qwen3", r#", "num_key_value_heads": 4"#, "head_dim"),
    ] {
        let refusal = of_family(family, more).unwrap_err().to_string();
        assert!(
            refusal.contains(missing) && refusal.contains("missing"),
            "{refusal}"
        );
    }
}

#[test]
fn both_layouts_of_the_rotary_settings_are_read() {
    let old = parse(r#", "rope_theta": 1000000.0, "rope_scaling": null"#).unwrap();
    let new = r#", "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}"#;
    assert_eq!(old, parse(new).unwrap());
}

/// A user's own scaling stands beside the settings of a folder that transformers 5 wrote.
#[test]
fn a_scaling_takes_the_place_of_the_other_rotary_settings() {
    let parameters = r#", "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}"#;
    let with = |scaling: &str| parse(&format!(r#"{parameters}, "rope_scaling": {scaling}"#));
    let yarn = r#"{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}"#;
    let refusal = with(yarn).unwrap_err().to_string();
    assert!(
        refusal.contains("rope_type") && refusal.contains("yarn"),
        "{refusal}"
    );
    for none in ["null", "{}"] {
        assert_eq!(with(none).unwrap(), parse(parameters).unwrap());
    }
    // As in transformers, the other settings do not count at all then.
    let other = with(r#"{"rope_type": "default", "rope_theta": 500000.0}"#).unwrap();
    assert_eq!(other.rope_theta, 500_000.0);
    let other = with(r#"{"rope_type": "default"}"#).unwrap();
    assert_eq!(other.rope_theta, 10_000.0);
}

#[test]
fn what_is_written_is_read_back() {
    let llama3 = r#", "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#;
    for more in [
        "",
        llama3,
        r#", "tie_word_embeddings": true, "attention_bias": true"#,
    ] {
        let config = parse(more).unwrap();
        assert_eq!(DecoderConfig::from_json(&config.to_json()).unwrap(), config);
    }
}

#[test]
fn an_error_names_the_field_and_what_is_supported() {
    let cases = [
        (r#", "hidden_act": "gelu""#, "hidden_act", "silu"),
        (
            r#", "num_key_value_heads": 3"#,
            "num_key_value_heads",
            "divisor",
        ),
        (r#", "head_dim": 15"#, "head_dim", "even"),
        (
            r#", "use_sliding_window": true"#,
            "use_sliding_window",
            "false",
        ),
        (r#", "mlp_bias": true"#, "mlp_bias", "false"),
        (
            r#", "rope_scaling": {"type": "yarn"}"#,
            "rope_type",
            "llama3",
        ),
        (
            r#", "rope_scaling": {"type": "llama3"}"#,
            "factor",
            "number",
        ),
        (r#", "model_type": "gpt2""#, "model_type", "qwen3"),
        (r#", "vocab_size": "many""#, "vocab_size", "whole number"),
        (r#", "rms_norm_eps": -1e-6"#, "rms_norm_eps", "above 0"),
        (r#", "rope_theta": 0"#, "rope_theta", "from 1"),
        (r#", "head_dim": 2000000"#, "head_dim", "for all heads"),
        (
            r#", "max_position_embeddings": 0"#,
            "max_position_embeddings",
            "at least 1",
        ),
        (
            r#", "rope_scaling": {"type": "llama3", "factor": 0, "low_freq_factor": 1,
                "high_freq_factor": 4, "original_max_position_embeddings": 8192}"#,
            "factor",
            "from 1",
        ),
        (
            r#", "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                "high_freq_factor": 4, "original_max_position_embeddings": 8192}"#,
            "high_freq_factor",
            "above",
        ),
    ];
    for (more, field, remedy) in cases {
        let message = parse(more).unwrap_err().to_string();
        assert!(
            message.contains(field) && message.contains(remedy),
            "{message}"
        );
    }
}

/// The next thing that is done with a config is to list its weights.
#[test]
fn sizes_that_no_model_has_are_refused_at_once() {
    for name in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
    ] {
        for size in ["0", "1000000000", "18446744073709551615"] {
            let mut json: serde_json::Value = serde_json::from_str(&format!("{SMALL}}}")).unwrap();
            json[name] = serde_json::from_str(size).unwrap();
            let refusal = DecoderConfig::from_json(&json.to_string()).unwrap_err();
            let refusal = refusal.to_string();
            assert!(
                refusal.contains(name) && refusal.contains(size),
                "{refusal}"
            );
        }
    }
}

proptest::proptest! {
    /// Whatever a config says, it is an error or describes weights that can be listed.
    #[test]
    fn any_config_is_an_error_or_a_bounded_model(
        sizes in proptest::collection::vec(proptest::num::u64::ANY, 7),
        bits in proptest::collection::vec(0_u32..64, 7),
        numbers in proptest::collection::vec(proptest::num::f64::ANY, 3),
    ) {
        let size = |i: usize| sizes[i] >> bits[i];
        let json = serde_json::json!({
            "model_type": "llama", "hidden_size": size(0), "intermediate_size": size(1),
            "num_hidden_layers": size(2), "num_attention_heads": size(3),
            "num_key_value_heads": size(4), "head_dim": size(5), "vocab_size": size(6),
            "rope_theta": numbers[0], "rms_norm_eps": numbers[1],
        });
        if let Ok(config) = DecoderConfig::from_json(&json.to_string()) {
            proptest::prop_assert!(config.shapes().len() <= 11 * MOST_LAYERS + 3);
            proptest::prop_assert!(config.parameters() > 0);
        }
    }

    #[test]
    fn any_text_is_a_config_or_an_error(text in ".{0,200}") {
        proptest::prop_assert!(DecoderConfig::from_json(&text).is_err());
    }
}

/// Values of transformers' rule, computed by hand: theta 10000, D = 4, so frequencies 1 and
/// 0.01; context 8192, factors 1 and 4: wavelengths 6.28 (kept) and 628.3 (kept), with context
/// 512: 628.3 > 512 (scaled by 8).
#[test]
fn llama3_slows_the_long_waves_only() {
    let scaling = |context| RopeScaling {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: context,
    };
    assert_eq!(scaling(8192).scale(0.01), 0.01);
    assert_eq!(scaling(512).scale(0.01), 0.01 / 8.0);
    let blended = scaling(1024).scale(0.01);
    let blend = (1024.0 / 628.318_53 - 1.0) / 3.0;
    assert!((f64::from(blended) - (0.01 / 8.0 * (1.0 - blend) + 0.01 * blend)).abs() < 1e-9);
}
