//! Compares chat templates with Python's jinja2, byte for byte: 391 renderings made by transformers
//! 5.23.0 (`golden/chat/render.json`).

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use policy::chat_template::ChatTemplate;
use serde_json::{Map, Value};

#[test]
fn templates_render_as_in_python() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat");
    let read = |name: &str| std::fs::read_to_string(format!("{golden}/{name}")).unwrap();
    let file: Value = serde_json::from_str(&read("render.json")).unwrap();
    let tools: Value = serde_json::from_str(&read("tools.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    for case in cases {
        let mut context: Map<String, Value> = case["kwargs"].as_object().unwrap().clone();
        context.insert("messages".into(), messages(case));
        if let Some(key) = case["tools"].as_str() {
            context.insert("tools".into(), tools["tools"][key].clone());
        }
        let source = read(&format!(
            "templates/{}.jinja",
            case["template"].as_str().unwrap()
        ));
        let got = ChatTemplate::new(&source).unwrap().render(&context);
        match case["expected"]["text"].as_str() {
            Some(text) => assert_eq!(got.unwrap(), text, "{}", case["id"]),
            None => assert!(
                got.is_err(),
                "{}: renders {got:?} where Python raises",
                case["id"]
            ),
        }
    }
    assert_eq!(cases.len(), 391);
}

/// transformers hands templates a message's `reasoning` as `reasoning_content` too.
fn messages(case: &Value) -> Value {
    let mut messages = case["messages"].clone();
    for message in messages.as_array_mut().unwrap() {
        if let Some(reasoning) = message.get("reasoning").cloned() {
            message["reasoning_content"] = reasoning;
        }
    }
    messages
}
