//! Values in Python's format: `str()`, `repr()` and `json.dumps`, as chat templates print them.
//!
//! Pure. A template value becomes text; numbers have Python's shortest form (`1e+20`, `1.0`).
//! Bytes, dates and keys of JSON objects other than strings and numbers are not supported, since
//! chat templates do not print them.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

/// The options of `json.dumps` that templates use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JsonLayout {
    /// Whether characters outside of ASCII are escaped.
    pub(crate) ensure_ascii: bool,
    /// Spaces per level; `None` means one line with ", " and ": ".
    pub(crate) indent: Option<usize>,
}

/// Returns `json.dumps(value, ensure_ascii=False)` of a value that came from JSON.
pub(crate) fn to_json(value: &Value) -> String {
    let mut text = String::new();
    write_json(&mut text, value, JsonLayout::default()).expect("JSON is JSON: this is a bug");
    text
}

/// Writes `json.dumps(value)` in a layout.
pub(crate) fn write_json(out: &mut String, value: &Value, layout: JsonLayout) -> Result<(), Error> {
    json(out, value, layout, 0)
}

/// Writes `str(value)`; undefined is empty.
pub(crate) fn write_str(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(&value.to_string()),
        _ => write_repr(out, value)?,
    }
    Ok(())
}

fn json(out: &mut String, value: &Value, layout: JsonLayout, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ["NaN", "Infinity", "-Infinity"])?),
        ValueKind::String => json_string(out, &value.to_string(), layout.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| (None, item));
            json_items(out, items, ['[', ']'], layout, depth)?;
        }
        ValueKind::Map => {
            let items = entries(value)?
                .into_iter()
                .map(|(key, item)| (Some(key), item));
            json_items(out, items, ['{', '}'], layout, depth)?;
        }
        kind => {
            let detail = format!("tojson: a value of kind {kind} is not JSON");
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
    }
    Ok(())
}

fn json_items(
    out: &mut String,
    items: impl Iterator<Item = (Option<Value>, Value)>,
    brackets: [char; 2],
    layout: JsonLayout,
    depth: usize,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = layout.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let mut empty = true;
    out.push(brackets[0]);
    for (key, item) in items {
        if !empty {
            out.push_str(if layout.indent.is_some() { "," } else { ", " });
        }
        empty = false;
        new_line(out, depth + 1);
        if let Some(key) = key {
            json_string(out, &key.to_string(), layout.ensure_ascii);
            out.push_str(": ");
        }
        json(out, &item, layout, depth + 1)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(brackets[1]);
    Ok(())
}

fn json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    // Without `ensure_ascii`, serde_json escapes as Python does.
    for c in Json::from(text).to_string().chars() {
        if ensure_ascii && c > '~' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
}

fn write_repr(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, ["nan", "inf", "-inf"])?),
        ValueKind::String => repr_string(out, &value.to_string()),
        ValueKind::Seq => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &item)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, (key, item)) in entries(value)?.into_iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &key)?;
                out.push_str(": ");
                write_repr(out, &item)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn repr_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let _ = match c as u32 {
                    code @ ..0x100 => write!(out, "\\x{code:02x}"),
                    code @ ..0x1_0000 => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Returns whether a character is printable by Python's definition: no control, format, private or
/// unassigned character, and no separator but the blank. Rust escapes the same ones.
fn is_printable(c: char) -> bool {
    // Rust escapes quotes as well, and combining marks where they are the first character.
    c.is_ascii_graphic() || String::from_iter([' ', c]).escape_debug().count() == 2
}

fn entries(map: &Value) -> Result<Vec<(Value, Value)>, Error> {
    map.try_iter()?
        .map(|key| map.get_item(&key).map(|item| (key, item)))
        .collect()
}

fn number(value: &Value, [nan, infinity, minus_infinity]: [&str; 3]) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let number = f64::try_from(value.clone())?;
    Ok(match number {
        n if n.is_nan() => nan.to_string(),
        f64::INFINITY => infinity.to_string(),
        f64::NEG_INFINITY => minus_infinity.to_string(),
        n => float(n),
    })
}

/// Formats like Python's `repr(float)`. Rust's `{:?}` has the same digits and switches to an
/// exponent at the same sizes; only the exponent is written differently (1e-5 for 1e-05).
fn float(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let exponent: i32 = exponent.parse().expect("an exponent: this is a bug");
            format!("{digits}e{exponent:+03}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(json: serde_json::Value) -> Value {
        Value::from_serialize(json)
    }

    /// Expected texts from CPython 3.11: `json.dumps(x)`.
    #[test]
    fn floats_are_spelled_as_in_python() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (100.0, "100.0"),
            (1e15, "1000000000000000.0"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e20, "1e+20"),
            (f64::MAX, "1.7976931348623157e+308"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (-2.5e-10, "-2.5e-10"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(to_json(&Value::from(number)), text);
        }
        assert_eq!(to_json(&Value::from(f64::NAN)), "NaN");
        assert_eq!(to_json(&Value::from(f64::NEG_INFINITY)), "-Infinity");
    }

    /// As above, with `ensure_ascii` off and on.
    #[test]
    fn strings_are_escaped_as_in_python() {
        let text = "\"\\/\u{8}\u{c}\n\r\t\u{1}\u{7f}é漢🙂<>&'";
        assert_eq!(
            to_json(&Value::from(text)),
            "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\u{7f}é漢🙂<>&'\""
        );
        let mut ascii = String::new();
        let layout = JsonLayout {
            ensure_ascii: true,
            indent: None,
        };
        write_json(&mut ascii, &Value::from("\u{7f}é🙂<"), layout).unwrap();
        assert_eq!(ascii, "\"\\u007f\\u00e9\\ud83d\\ude42<\"");
    }

    #[test]
    fn containers_are_laid_out_as_in_python() {
        let nested = value(json!({"a": [1, {"b": []}], "c": {}}));
        assert_eq!(to_json(&nested), r#"{"a": [1, {"b": []}], "c": {}}"#);
        let mut indented = String::new();
        let layout = JsonLayout {
            ensure_ascii: false,
            indent: Some(4),
        };
        write_json(&mut indented, &nested, layout).unwrap();
        let expected = "{\n    \"a\": [\n        1,\n        {\n            \"b\": []\n        }\n    ],\n    \"c\": {}\n}";
        assert_eq!(indented, expected);
    }

    /// As above: `str(x)`.
    #[test]
    fn values_print_as_in_python() {
        let list = json!([null, true, 1.0, "it's", "a\"b", "both'\"", "\n\u{1}"]);
        for (value, text) in [
            (
                value(list),
                r#"[None, True, 1.0, "it's", 'a"b', 'both\'"', '\n\x01']"#,
            ),
            (
                value(json!([
                    "\u{a0}\u{ad}",
                    "\u{200b}\u{2028}é",
                    "\u{e0001}漢🙂e\u{301}"
                ])),
                "['\\xa0\\xad', '\\u200b\\u2028é', '\\U000e0001漢🙂e\u{301}']",
            ),
            (value(json!({"k": [1]})), "{'k': [1]}"),
            (value(json!("it's")), "it's"),
            (value(json!(null)), "None"),
            (Value::UNDEFINED, ""),
        ] {
            let mut out = String::new();
            write_str(&mut out, &value).unwrap();
            assert_eq!(out, text);
        }
    }
}
