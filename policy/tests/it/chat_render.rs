//! Compares chat templates with Python's jinja2, byte for byte: 391 renderings made by transformers
//! 5.23.0 (`golden/chat/render.json`).

use policy::chat_template::ChatTemplate;

use crate::common::{golden, golden_text, render_context};

#[test]
fn templates_render_as_in_python() {
    let (file, tools) = (golden("chat/render.json"), golden("chat/tools.json"));
    let cases = file["cases"].as_array().unwrap();
    for case in cases {
        let template = case["template"].as_str().unwrap();
        let source = golden_text(&format!("chat/templates/{template}.jinja"));
        let template = ChatTemplate::new(&source).unwrap();
        let found = template.render(&render_context(case, &tools));
        match case["expected"]["text"].as_str() {
            Some(text) => assert_eq!(found.unwrap(), text, "{}", case["id"]),
            None => assert!(
                found.is_err(),
                "{}: renders {found:?} where Python raises",
                case["id"]
            ),
        }
    }
    assert_eq!(cases.len(), 391);
}
