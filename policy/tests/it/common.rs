//! Golden files, values and comparisons that the tests share.

use std::{fs, path::Path};

use candle_core::{DType, Tensor};
use policy::sampling::Filters;
use policy::{Chat, ChatRole, Message};
use serde_json::{Map, Value};

/// Reads a golden file as text.
pub(crate) fn golden_text(name: &str) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::read_to_string(golden.join(name)).unwrap()
}

/// Reads a golden file of JSON.
pub(crate) fn golden(name: &str) -> Value {
    serde_json::from_str(&golden_text(name)).unwrap()
}

/// The schemas of the environment's four tools, as prompts print them.
pub(crate) fn sqlenv_tools() -> Vec<Value> {
    let tools = golden("chat/tools.json");
    tools["tools"]["std"].as_array().unwrap().clone()
}

/// Returns what transformers hands a template for a case of `render.json`: a message's `reasoning`
/// is there as `reasoning_content` too.
pub(crate) fn render_context(case: &Value, tools: &Value) -> Map<String, Value> {
    let mut context = case["kwargs"].as_object().unwrap().clone();
    let mut messages = case["messages"].clone();
    for message in messages.as_array_mut().unwrap() {
        if let Some(reasoning) = message.get("reasoning").cloned() {
            message["reasoning_content"] = reasoning;
        }
    }
    context.insert("messages".into(), messages);
    if let Some(key) = case["tools"].as_str() {
        context.insert("tools".into(), tools["tools"][key].clone());
    }
    context
}

/// Returns whether the template prints an assistant's turn the same with and without a tool result
/// after it. If not, a conversation that is rendered again differs from the one that was sampled.
pub(crate) fn is_prefix_preserving(chat: &Chat) -> bool {
    const TURN: &str = "qzxassistantturnxzq";
    let before_turn = |results: &[Message]| {
        let mut messages = vec![
            Message::new(ChatRole::User, "x"),
            Message::new(ChatRole::Assistant, TURN),
        ];
        messages.extend_from_slice(results);
        let text = chat.render(&messages, &[], !results.is_empty()).unwrap();
        text.split_once(TURN).unwrap().0.to_owned()
    };
    before_turn(&[]) == before_turn(&[Message::new(ChatRole::Tool, "1. 1")])
}

/// Returns the numbers of a list, or of lists in a list.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

/// Returns the filters of a result of `filters.json`.
pub(crate) fn filters(options: &Value) -> Filters {
    Filters {
        temperature: options["temperature"].as_f64().unwrap(),
        top_k: options["top_k"].as_u64().unwrap() as usize,
        top_p: options["top_p"].as_f64().unwrap(),
        min_p: options["min_p"].as_f64().unwrap_or(0.0),
    }
}

/// Returns `len` tokens that depend on `seed`.
pub(crate) fn tokens(seed: usize, len: usize, vocabulary: usize) -> Vec<u32> {
    (0..len)
        .map(|i| ((i * i * 31 + i * 17 + seed * 101 + 7) % vocabulary) as u32)
        .collect()
}

/// Returns all values of a tensor.
pub(crate) fn flat(x: &Tensor) -> Vec<f64> {
    let flat = x.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
    flat.to_vec1().unwrap()
}

/// Checks that values are equal up to `tolerance`, measured by the largest value or 1.
pub(crate) fn assert_near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0_f64, |max, x| max.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= tolerance * scale,
            "{what}[{i}]: {found} instead of {expected}"
        );
    }
}
