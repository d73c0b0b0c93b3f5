//! Compares the tools' schemas with transformers 5.23.0's `get_json_schema`, and with the grammar
//! of constrained completions.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;

const GOLDEN: &str = include_str!("../../policy/tests/golden/chat/tools.json");

#[test]
fn schemas_agree_with_transformers() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let expected = golden["tools"]["std"].as_array().unwrap();
    let tools = actor::tool_schemas();
    assert_eq!(&tools, expected);
    // Prompts print the schemas, so the order of the keys counts too.
    assert_eq!(
        serde_json::to_string(&tools).unwrap(),
        serde_json::to_string(expected).unwrap()
    );
}

#[test]
fn constrained_completions_call_the_same_tools() {
    let tools = proto::TOOLS.iter().map(|tool| (tool.name, tool.parameter));
    assert!(policy::Constrainer::tools().eq(tools));
}
