//! Tests the page's parsers for the texts of observations.

use env_node::EnvNodeSettings;
use serde_json::{Value, json};

use crate::{browser::Browser, common::served::Served};

#[tokio::test]
async fn a_text_with_two_readings_stays_text() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    browser.open(&format!("http://{}/web/", site.address)).await;
    browser.wait("document.querySelector('.questions a')").await;
    for (text, expected) in [
        (
            "1. a | 2\n2. NULL | 3",
            json!({"rows": [["a", "2"], ["NULL", "3"]], "note": null}),
        ),
        (
            "1. a\n... (first 1 row shown, there are more)",
            json!({"rows": [["a"]], "note": "... (first 1 row shown, there are more)"}),
        ),
        ("1. ", json!({"rows": [[""]], "note": null})),
        ("1. a\nb\n2. c", Value::Null),
        ("1. a | b\n2. c", Value::Null),
        ("2. a", Value::Null),
        ("(no rows)", Value::Null),
        ("", Value::Null),
    ] {
        let read = format!(
            "import('/web/texts.js').then(({{ readRows }}) => readRows({}))",
            json!(text)
        );
        assert_eq!(browser.value(&read).await, expected, "{text}");
    }
    for (texts, expected) in [
        (json!([""]), json!([])),
        (
            json!(["Available tables:\n- a b\n- c\nTable 'c' columns:\n- x: y: TEXT"]),
            json!([
                ["a b", {"columns": null, "rowCount": null}],
                ["c", {"columns": [["x: y", "TEXT"]], "rowCount": null}],
            ]),
        ),
        (
            json!([
                "Available tables:\n- it's",
                "Table 'it's' columns:\n- id: INTEGER\nRow count: 3"
            ]),
            json!([["it's", {"columns": [["id", "INTEGER"]], "rowCount": 3}]]),
        ),
    ] {
        let read =
            format!("import('/web/texts.js').then(({{ readSchema }}) => [...readSchema({texts})])");
        assert_eq!(browser.value(&read).await, expected, "{texts}");
    }
}
