//! The fields of a JSON object, each as the text that it has in the request.
//!
//! Invariant: reading a request takes memory in proportion to its bytes. A tree of its values would
//! take 72 bytes for the two of `0,`, and hardly any of them would be used. An object therefore
//! keeps the text of each field, and a field is parsed once its type is known.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

/// The most fields of an object. No request needs near as many.
const MAX_FIELDS: usize = 1_000;

/// What a client reads whose object has more fields.
pub(super) const TOO_MANY_FIELDS: &str = "give at most 1000 fields";

/// The fields of an object, in order. Of several with one name the last counts, as in Python.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    kept: Vec<(String, &'a RawValue)>,
    is_crowded: bool,
}

impl<'a> Fields<'a> {
    /// Returns the fields of a JSON text. Returns `None` if the text is not an object.
    pub(super) fn of(json: &'a str) -> Option<Self> {
        serde_json::Deserializer::from_str(json)
            .deserialize_map(FieldsVisitor)
            .ok()
    }

    /// Returns whether the object has more fields than are kept.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.kept
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let mut fields = self.iter();
        fields.find_map(|(kept, value)| (kept == name).then_some(value))
    }

    /// Returns a field if it is a string.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }

    /// Removes a field and returns it.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let place = self.kept.iter().position(|(kept, _)| kept == name)?;
        Some(self.kept.remove(place).1)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = deserializer.deserialize_map(FieldsVisitor)?;
        match fields.is_crowded {
            false => Ok(fields),
            true => Err(D::Error::custom(TOO_MANY_FIELDS)),
        }
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields<'de>, M::Error> {
        let mut fields = Fields::default();
        let mut read = 0;
        while let Some(name) = map.next_key::<String>()? {
            // Repeated names count as well: each is searched among the others.
            read += 1;
            if read > MAX_FIELDS {
                fields.is_crowded = true;
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<&RawValue>()?;
            match fields.kept.iter_mut().find(|(kept, _)| *kept == name) {
                Some((_, earlier)) => *earlier = value,
                None => fields.kept.push((name, value)),
            }
        }
        Ok(fields)
    }
}

/// A value as it is, but a list or an object without its contents: for a field that should be
/// neither, or that is only checked. It is parsed as [`Value`] is, so the same texts are errors.
/// [`IgnoredAny`] would let numbers, escapes and depths pass that are errors in a [`Value`].
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shallow(pub(crate) Value);

impl<'de> Deserialize<'de> for Shallow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShallowVisitor).map(Self)
    }
}

struct ShallowVisitor;

impl<'de> Visitor<'de> for ShallowVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Value, S::Error> {
        while list.next_element::<Shallow>()?.is_some() {}
        Ok(Value::Array(Vec::new()))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Value, M::Error> {
        while map.next_entry::<Shallow, Shallow>()?.is_some() {}
        Ok(Value::Object(Map::new()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_keep_their_text_and_the_last_of_a_name_counts() {
        let mut fields = Fields::of(r#" {"a": [1,  {}], "b": "\u00e9", "a": null} "#).unwrap();
        let texts = fields.iter().map(|(name, value)| (name, value.get()));
        let texts: Vec<_> = texts.collect();
        assert_eq!(texts, [("a", "null"), ("b", r#""\u00e9""#)]);
        assert_eq!(fields.text("b").as_deref(), Some("é"));
        assert_eq!((fields.text("a"), fields.text("c")), (None, None));
        assert_eq!(fields.take("a").map(RawValue::get), Some("null"));
        assert!(fields.get("a").is_none());
        for text in ["[1]", "null", "\"{}\"", "5"] {
            assert!(Fields::of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_crowd_of_fields_is_not_kept() {
        let crowd = |count: usize| {
            let fields: Vec<String> = (0..count).map(|name| format!("\"{name}\":[]")).collect();
            format!("{{{}}}", fields.join(","))
        };
        for (count, is_crowded) in [(MAX_FIELDS, false), (MAX_FIELDS + 9, true)] {
            let text = crowd(count);
            let fields = Fields::of(&text).unwrap();
            assert_eq!(fields.kept.len(), MAX_FIELDS);
            assert_eq!(fields.is_crowded(), is_crowded);
            let within = serde_json::from_str::<Fields<'_>>(&text);
            assert_eq!(within.is_err(), is_crowded);
        }
        assert!(TOO_MANY_FIELDS.contains(&MAX_FIELDS.to_string()));
    }

    #[test]
    fn a_shallow_value_has_no_contents() {
        for (text, value) in [
            (r#"[1, [2]]"#, json!([])),
            (r#"{"a": {"b": 1}}"#, json!({})),
            ("-7", json!(-7)),
            ("7", json!(7)),
            ("7.5", json!(7.5)),
            ("true", json!(true)),
            ("null", json!(null)),
            (r#""a\n""#, json!("a\n")),
        ] {
            let read: Shallow = serde_json::from_str(text).unwrap();
            assert_eq!(read.0, value, "{text}");
        }
    }
}
