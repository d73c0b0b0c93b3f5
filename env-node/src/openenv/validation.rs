//! Deserializes request objects, and describes what does not fit in FastAPI's form.
//!
//! A request is refused for the first field that does not fit. OpenEnv's clients read that there is
//! an error; its location and message are for people.

use std::str::FromStr;

use env::{MAX_EPISODE_ID_CHARS, truncated};
use serde::{Deserialize, de::value::MapDeserializer};
use serde_json::{Value, json};
use serde_path_to_error::Segment;

use super::fields::{Fields, Shallow, TOO_MANY_FIELDS};

/// Bytes of a request that a reply repeats in one place.
const EXCERPT_BYTES: usize = 1 << 10;

/// Why a request cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Invalid {
    /// One of pydantic's error types: `missing`, `extra_forbidden`, `json_invalid` or, for all
    /// else, `value_error`.
    kind: &'static str,
    /// The path to the field, from the outermost object inwards.
    location: Vec<String>,
    message: String,
}

impl Invalid {
    pub(super) fn syntax(error: &serde_json::Error) -> Self {
        Self::new("json_invalid", &error.to_string())
    }

    pub(super) fn value(message: &str) -> Self {
        Self::new("value_error", message)
    }

    fn new(kind: &'static str, message: &str) -> Self {
        Self {
            kind,
            location: Vec::new(),
            message: excerpt(message).into_owned(),
        }
    }

    /// Adds the name of the part of the request in which the invalid object lies.
    pub(super) fn within(mut self, part: &str) -> Self {
        self.location.insert(0, part.to_owned());
        self
    }

    /// Returns the one entry of FastAPI's `detail` and OpenEnv's `errors`.
    pub(super) fn to_list(&self) -> Value {
        json!([{"type": self.kind, "loc": self.location, "msg": self.message}])
    }
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.location.is_empty() {
            write!(f, "{}: ", self.location.join("."))?;
        }
        f.write_str(&self.message)
    }
}

/// Deserializes an object.
///
/// # Errors
/// A field is missing, unknown or of another type, or there are too many. The error names the path
/// to it.
pub(super) fn read<'de, T: Deserialize<'de>>(fields: &Fields<'de>) -> Result<T, Invalid> {
    let object = MapDeserializer::<_, serde_json::Error>::new(fields.iter());
    let read = serde_path_to_error::deserialize(object).map_err(|error| {
        let names = error.path().iter().filter_map(|segment| match segment {
            // The key of an unknown field is the client's text.
            Segment::Map { key } => Some(excerpt(key).into_owned()),
            _ => None,
        });
        let mut location: Vec<String> = names.collect();
        let message = without_place(&error.into_inner());
        let missing = missing_field(&message);
        location.extend(missing.map(str::to_owned));
        let kind = match missing {
            Some(_) => "missing",
            None if message.starts_with("unknown field `") => "extra_forbidden",
            None => "value_error",
        };
        Invalid {
            location,
            ..Invalid::new(kind, &message)
        }
    })?;
    match fields.is_crowded() {
        false => Ok(read),
        true => Err(Invalid::value(TOO_MANY_FIELDS)),
    }
}

/// Returns the name of the field that serde misses. The path to it ends at its object.
fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Returns the message of an error without its line and column: they count from the start of the
/// field, whose path says more.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match message.strip_suffix(&place) {
        Some(message) => message.to_owned(),
        None => message,
    }
}

/// Cuts a text of the request to what a reply may repeat.
pub(super) fn excerpt(text: &str) -> std::borrow::Cow<'_, str> {
    truncated(text, EXCERPT_BYTES)
}

/// An integer as pydantic's lax mode reads it: also a whole float, a boolean, or digits in a
/// string.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "Shallow")]
pub(super) struct Integer(pub(super) i64);

/// An integer of at least 0. One beyond 64 bits is folded into them, as a seed may have any size.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "Shallow")]
pub(super) struct Unsigned(pub(super) u64);

/// A number above 0.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "Shallow")]
pub(super) struct Positive;

/// A client's name for an episode or a request, of at most [`MAX_EPISODE_ID_CHARS`] characters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Id(pub(super) String);

impl TryFrom<Shallow> for Integer {
    type Error = &'static str;

    fn try_from(Shallow(value): Shallow) -> Result<Self, Self::Error> {
        match (value.as_i64().or_else(|| digits(&value)), integer(&value)) {
            (Some(exact), _) => Ok(Self(exact)),
            (None, Some(number)) => Ok(Self(number as i64)),
            (None, None) => Err("give an integer"),
        }
    }
}

impl TryFrom<Shallow> for Unsigned {
    type Error = &'static str;

    fn try_from(Shallow(value): Shallow) -> Result<Self, Self::Error> {
        match (value.as_u64().or_else(|| digits(&value)), integer(&value)) {
            (Some(exact), _) => Ok(Self(exact)),
            (None, Some(number)) if number >= 2.0_f64.powi(64) => Ok(Self(number.to_bits())),
            (None, Some(number)) if number >= 0.0 => Ok(Self(number as u64)),
            _ => Err("give an integer of at least 0"),
        }
    }
}

impl TryFrom<Shallow> for Positive {
    type Error = &'static str;

    fn try_from(Shallow(value): Shallow) -> Result<Self, Self::Error> {
        match number(&value) {
            Some(number) if number > 0.0 => Ok(Self),
            _ => Err("give a number above 0"),
        }
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(id: String) -> Result<Self, Self::Error> {
        match id.chars().count() {
            0..=MAX_EPISODE_ID_CHARS => Ok(Self(id)),
            count => Err(format!(
                "has {count} characters; give at most {MAX_EPISODE_ID_CHARS}"
            )),
        }
    }
}

/// Returns the integer in a string. As a float it would be rounded above 2^53.
fn digits<T: FromStr>(value: &Value) -> Option<T> {
    value.as_str()?.trim().parse().ok()
}

fn integer(value: &Value) -> Option<f64> {
    number(value).filter(|number| number.fract() == 0.0)
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        seed: Option<Unsigned>,
    }

    fn read_request(text: &str) -> Result<Request, Invalid> {
        read(&Fields::of(text).unwrap())
    }

    fn read_seed(seed: &Value) -> Result<Option<u64>, Invalid> {
        let request = read_request(&json!({"seed": seed}).to_string());
        request.map(|request| request.seed.map(|seed| seed.0))
    }

    #[test]
    fn integers_are_read_as_pydantic_reads_them() {
        for (value, expected) in [
            (json!(u64::MAX), u64::MAX),
            (json!(7), 7),
            (json!(7.0), 7),
            (json!(" 42 "), 42),
            (json!("42.0"), 42),
            (json!("9007199254740993"), 9_007_199_254_740_993),
            (json!(true), 1),
            (json!(1e25), 1e25_f64.to_bits()),
        ] {
            assert_eq!(read_seed(&value), Ok(Some(expected)), "{value}");
        }
        assert_eq!(read_seed(&json!(null)), Ok(None));
    }

    #[test]
    fn an_error_names_the_field_and_is_short() {
        for value in [json!(-1), json!("-1"), json!("a"), json!(0.5), json!({})] {
            let invalid = read_seed(&value).unwrap_err().within("body");
            assert_eq!(
                invalid.to_list(),
                json!([{"type": "value_error", "loc": ["body", "seed"], "msg": "give an integer of at least 0"}])
            );
        }
        let long = format!("{{\"{}\": 1}}", "x".repeat(1 << 20));
        let message = read_request(&long).unwrap_err().to_string();
        assert!(message.contains("unknown field `x"), "{message:.80}");
        assert!(message.len() < 3 * EXCERPT_BYTES);
    }
}
