//! Tests that completions that TRL 1.16.0's `parse_response` parsed
//! (`../policy/tests/golden/chat/parse.json`) give the same calls here.
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

use actor::tool_call;
use proto::v1::Action;
use serde_json::Value;

#[test]
fn calls_are_those_of_trl() {
    let file = include_str!("../../policy/tests/golden/chat/parse.json");
    let file: Value = serde_json::from_str(file).unwrap();
    let cases = file["cases"].as_array().unwrap();
    let mut calls = 0;
    for case in cases {
        let text = case["completion_text"].as_str().unwrap();
        let found = tool_call::parse(text);
        let call = &case["expected"]["tool_calls"][0]["function"];
        // TRL ends a call at the first closing tag, and finds none if its argument contains one.
        if call.is_null() && !found.malformed {
            let argument = &found.action.argument;
            let is_cut = argument.contains("</tool_call>") && is_in_a_json_string(text, argument);
            assert!(is_cut, "{}", case["id"]);
            continue;
        }
        assert_eq!(found.malformed, call.is_null(), "{}", case["id"]);
        if !found.malformed {
            assert_eq!(found.action, action(call), "{}", case["id"]);
            calls += 1;
        }
    }
    assert!(0 < calls && calls < cases.len());
}

/// Returns whether `text` contains the argument as JSON writes it.
fn is_in_a_json_string(text: &str, argument: &str) -> bool {
    text.contains(&Value::from(argument).to_string())
}

/// Returns the action of a call that TRL parsed. TRL passes arguments that are no object on to the
/// tool, which fails; here the text in them is the argument.
fn action(call: &Value) -> Action {
    let (name, arguments) = (call["name"].as_str().unwrap(), &call["arguments"]);
    let parameter = match name {
        "query" => "sql",
        "answer" => "value",
        _ => "table_name",
    };
    let inner = arguments
        .as_str()
        .map(|text| serde_json::from_str(text).unwrap());
    let arguments: &Value = inner.as_ref().unwrap_or(arguments);
    let argument = match &arguments[parameter] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Action {
        action_type: name.to_uppercase(),
        argument,
    }
}
