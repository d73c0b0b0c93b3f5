//! JSON values as Python prints them: OpenEnv's messages quote them.

use serde_json::Value;

/// The name of the type that `json.loads` makes of `value`.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// `str(value)`.
pub(super) fn str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => repr(other),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", list(items.iter().map(repr).collect())),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{}: {}", quoted(name), repr(value)));
            format!("{{{}}}", list(fields.collect()))
        }
    }
}

/// A string in single quotes, or in double ones where it holds single ones only.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut shown = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            '\0'..=' ' if character != ' ' => {
                shown.push_str(&format!("\\x{:02x}", character as u32));
            }
            '\x7f'..='\u{a0}' => shown.push_str(&format!("\\x{:02x}", character as u32)),
            _ if character == quote => {
                shown.push('\\');
                shown.push(character);
            }
            _ => shown.push(character),
        }
    }
    shown.push(quote);
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prints_as_python_does() {
        for (value, shown) in [
            (json!(null), "None"),
            (
                json!([true, 1, 1.0, -2.5, "a"]),
                "[True, 1, 1.0, -2.5, 'a']",
            ),
            (json!({"a": {}, "b": []}), "{'a': {}, 'b': []}"),
            (json!("it's"), r#""it's""#),
            (json!("both ' and \""), r#"'both \' and "'"#),
            (json!("a\\b\n\u{1}\u{e9}"), r"'a\\b\n\x01é'"),
        ] {
            assert_eq!(repr(&value), shown);
        }
        assert_eq!(str(&json!("it's")), "it's");
        assert_eq!(str(&json!(["x"])), "['x']");
    }
}
