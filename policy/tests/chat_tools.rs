//! The tools' schemas against transformers 5.23.0 (`get_json_schema`; `golden/chat/tools.json`).

use serde_json::Value;

#[test]
fn schemas_agree_with_transformers() {
    let golden: Value = serde_json::from_str(include_str!("golden/chat/tools.json")).unwrap();
    let expected = golden["tools"]["std"].as_array().unwrap();
    let tools = policy::sqlenv_tools();
    assert_eq!(&tools, expected);
    // Prompts print them, so the order of the keys counts too.
    assert_eq!(
        serde_json::to_string(&tools).unwrap(),
        serde_json::to_string(expected).unwrap()
    );
}
