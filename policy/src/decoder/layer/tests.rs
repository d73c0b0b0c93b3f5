//! Tests that the bytes of activations are counted as they are kept.

use candle_core::Device;

use super::*;
use crate::{Decoder, DecoderMode, PackedRows, Weights, ops};

impl Activations {
    fn tensors(&self) -> Vec<&Tensor> {
        let AttentionActivations {
            qk_before_norm,
            q,
            k,
            v,
            attended,
        } = &self.attention;
        let mut all = vec![
            &self.input,
            &self.attention_input,
            &self.residual,
            &self.mlp_input,
        ];
        all.extend([&self.gate, &self.up, &self.mlp_hidden, q, k, v, attended]);
        all.extend(qk_before_norm.iter().flat_map(|(q, k)| [q, k]));
        all
    }
}

#[test]
fn a_tokens_bytes_are_those_that_a_pass_keeps() {
    for family in ["qwen3", "qwen2", "llama"] {
        let text = format!(
            r#"{{"model_type": "{family}", "hidden_size": 48, "intermediate_size": 80,
                "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
                "vocab_size": 101, "num_hidden_layers": 1}}"#
        );
        let config = DecoderConfig::from_json(&text).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let weights = Weights::random(&config, 1).unwrap();
            let weights = weights.to(&Device::Cpu, dtype).unwrap();
            let decoder = Decoder::new(&config, &weights, DecoderMode::Train).unwrap();
            let mut batch = PackedRows::default();
            batch.push(&[1, 2, 3, 4, 5]);
            let inputs = decoder.pass_inputs(&batch).unwrap();
            let x = ops::select_rows(&decoder.embedding, &batch.tokens).unwrap();
            let (_, kept) = decoder.layers[0].forward(x, &inputs, None).unwrap();
            let bytes = |x: &Tensor| x.elem_count() * x.dtype().size_in_bytes();
            let bytes: usize = kept.tensors().into_iter().map(bytes).sum();
            assert_eq!(
                bytes,
                5 * Activations::token_bytes(&config, dtype),
                "{family}"
            );
        }
    }
}
