//! What a reply repeats of its request: enough to know it again.
//!
//! Invariant: an excerpt is bounded, has its value's type, and says by `…` that something is missing; a value that fits
//! is repeated whole.

use std::borrow::Cow;

use env::truncated;
use serde_json::{Map, Value};

/// Bytes of a request that a reply repeats in one place.
const BYTES: usize = 1 << 10;
/// What a number, or the frame of a list, counts.
const SCALAR_BYTES: usize = 8;
/// Stands for what is missing.
const MORE: &str = "…";

/// The start of a text.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    truncated(text, BYTES)
}

/// The start of a value.
pub(super) fn value(value: &Value) -> Value {
    Room(BYTES).value(value)
}

/// The first fields of an object.
pub(super) fn object(fields: &Map<String, Value>) -> Value {
    Room(BYTES).object(fields)
}

/// Bytes that are left.
struct Room(usize);

impl Room {
    fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(items) => self.array(items),
            Value::Object(fields) => self.object(fields),
            scalar => {
                self.take(SCALAR_BYTES);
                scalar.clone()
            }
        }
    }

    fn text(&mut self, text: &str) -> String {
        let kept = truncated(text, self.0).into_owned();
        self.take(text.len());
        kept
    }

    fn array(&mut self, items: &[Value]) -> Value {
        self.take(SCALAR_BYTES);
        let mut kept = Vec::new();
        for item in items {
            if self.0 == 0 {
                kept.push(MORE.into());
                break;
            }
            kept.push(self.value(item));
        }
        kept.into()
    }

    fn object(&mut self, fields: &Map<String, Value>) -> Value {
        self.take(SCALAR_BYTES);
        let mut kept = Map::new();
        for (name, value) in fields {
            if self.0 == 0 {
                kept.insert(MORE.to_owned(), MORE.into());
                break;
            }
            let name = self.text(name);
            kept.insert(name, self.value(value));
        }
        kept.into()
    }

    fn take(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_fits_is_whole() {
        for whole in [
            json!(null),
            json!("é".repeat(BYTES / 2)),
            json!({"a": [1, {}, "b"], "c": null}),
        ] {
            assert_eq!(value(&whole), whole);
        }
    }

    #[test]
    fn what_does_not_fit_is_cut_and_says_so() {
        let long = "x".repeat(2 * BYTES);
        let start = format!("{}…", &long[..BYTES]);
        assert_eq!(text(&long), start);
        assert_eq!(value(&json!(long)), json!(start));
        let first = format!("{}…", &long[..BYTES - SCALAR_BYTES]);
        assert_eq!(value(&json!([long, 1, 2])), json!([first, "…"]));
        let kept = value(&json!({"a": {"b": &long}, "c": 1}));
        assert_eq!(kept["a"]["b"].as_str().map(str::len), Some(BYTES - 18 + 3));
        assert_eq!(kept["…"], "…");
        assert!(kept.get("c").is_none());
    }

    #[test]
    fn many_small_parts_are_few() {
        let fields: Map<String, Value> = (0..100_000)
            .map(|number| (number.to_string(), json!([[], {}, 0])))
            .collect();
        let kept = object(&fields).to_string();
        assert!(kept.len() < 2 * BYTES, "{} bytes", kept.len());
    }
}
