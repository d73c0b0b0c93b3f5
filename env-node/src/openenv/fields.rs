//! Reading the fields of a JSON object as a pydantic model does.
//!
//! Invariant: faults come in the order of the reads, unknown fields last; a read that fails gives a default, so that one
//! pass finds every fault. Of the unknown fields the first are named and the others counted. Source: pydantic 2.14 in its
//! lax mode.

use serde_json::{Map, Value, json};

use super::{excerpt, fault::Fault};

/// Unknown fields that are named.
const NAMED_OTHERS: usize = 100;

/// Reads an object field by field.
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Where the object lies in the message.
    within: &'a [&'static str],
    known: Vec<&'static str>,
    faults: Vec<Fault>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(object: &'a Map<String, Value>, within: &'a [&'static str]) -> Self {
        Self {
            object,
            within,
            known: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Everything that was wrong, or nothing.
    pub(super) fn finish(self) -> Result<(), Vec<Fault>> {
        match self.faults.is_empty() {
            true => Ok(()),
            false => Err(self.faults),
        }
    }

    /// Refuses fields that were not read.
    pub(super) fn refuse_others(&mut self) {
        let known = |name: &str| self.known.contains(&name);
        let mut others = self.object.iter().filter(|(name, _)| !known(name));
        for (name, value) in others.by_ref().take(NAMED_OTHERS) {
            let fault = Fault::new("extra_forbidden", "Extra inputs are not permitted", value);
            let name = excerpt::text(name);
            let location = self.within.iter().copied().chain([&*name]);
            self.faults.push(fault.at(location));
        }
        let more = others.count();
        if more > 0 {
            let message = format!("{more} more extra inputs are not permitted");
            let fault = Fault::new("extra_forbidden", message, &Value::Null);
            self.faults.push(fault.at(self.within.iter().copied()));
        }
    }

    pub(super) fn fault(&mut self, name: &'static str, fault: Fault) {
        self.fault_at([name], fault);
    }

    /// A fault in a part of a field.
    pub(super) fn fault_at<const N: usize>(&mut self, path: [&'static str; N], fault: Fault) {
        let location = self.within.iter().copied().chain(path);
        self.faults.push(fault.at(location));
    }

    /// A field that may be absent; `null` counts as a value.
    pub(super) fn value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.object.get(name)
    }

    /// A field that must be there.
    pub(super) fn required(&mut self, name: &'static str) -> Option<&'a Value> {
        let value = self.value(name);
        if value.is_none() {
            self.fault(name, Fault::missing_in(self.object));
        }
        value
    }

    /// A field that may be absent or `null`.
    fn optional(&mut self, name: &'static str) -> Option<&'a Value> {
        self.value(name).filter(|value| !value.is_null())
    }

    pub(super) fn required_string(&mut self, name: &'static str) -> String {
        match self.required(name) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => {
                self.fault(name, Fault::string_type(other));
                String::new()
            }
            None => String::new(),
        }
    }

    pub(super) fn optional_string(&mut self, name: &'static str) -> Option<&'a str> {
        match self.optional(name)? {
            Value::String(text) => Some(text),
            other => {
                self.fault(name, Fault::string_type(other));
                None
            }
        }
    }

    /// A string of at most `max_chars` characters.
    pub(super) fn short_string(&mut self, name: &'static str, max_chars: usize) -> Option<&'a str> {
        let text = self.optional_string(name)?;
        if text.chars().count() <= max_chars {
            return Some(text);
        }
        let message = format!("String should have at most {max_chars} characters");
        let fault = Fault::new("string_too_long", message, &json!(text))
            .because(json!({"max_length": max_chars}));
        self.fault(name, fault);
        None
    }

    pub(super) fn required_int(&mut self, name: &'static str) -> Option<i64> {
        let value = self.required(name)?;
        self.read_int(name, value)
    }

    pub(super) fn optional_int(&mut self, name: &'static str) -> Option<i64> {
        let value = self.optional(name)?;
        self.read_int(name, value)
    }

    fn read_int(&mut self, name: &'static str, value: &Value) -> Option<i64> {
        match int(value) {
            Ok(number) => Some(number as i64),
            Err(why) => {
                self.fault(name, why.fault(value));
                None
            }
        }
    }

    /// An integer of at least 0, however large: beyond 64 bits it is folded into them.
    pub(super) fn unsigned(&mut self, name: &'static str) -> Option<u64> {
        let value = self.optional(name)?;
        match int(value) {
            Ok(number) if number < 0.0 => {
                let message = "Input should be greater than or equal to 0";
                let fault = Fault::new("greater_than_equal", message, value);
                self.fault(name, fault.because(json!({"ge": 0})));
                None
            }
            Ok(number) => Some(value.as_u64().unwrap_or_else(|| folded(number))),
            Err(why) => {
                self.fault(name, why.fault(value));
                None
            }
        }
    }

    /// A number above 0.
    pub(super) fn positive(&mut self, name: &'static str) {
        let Some(value) = self.optional(name) else {
            return;
        };
        match float(value) {
            Ok(number) if number > 0.0 => {}
            Ok(_) => {
                let fault = Fault::new("greater_than", "Input should be greater than 0", value);
                self.fault(name, fault.because(json!({"gt": 0.0})));
            }
            Err(why) => self.fault(name, why.fault(value)),
        }
    }

    pub(super) fn required_object(&mut self, name: &'static str) -> Option<&'a Map<String, Value>> {
        let value = self.required(name)?;
        self.read_object(name, value)
    }

    /// An object that may be absent, but not `null`.
    pub(super) fn object(&mut self, name: &'static str) -> Option<&'a Map<String, Value>> {
        let value = self.value(name)?;
        self.read_object(name, value)
    }

    fn read_object(
        &mut self,
        name: &'static str,
        value: &'a Value,
    ) -> Option<&'a Map<String, Value>> {
        if value.as_object().is_none() {
            self.fault(name, Fault::dict_type(value));
        }
        value.as_object()
    }
}

/// Why a value is no number: pydantic's type and message.
pub(super) struct NoNumber(&'static str, &'static str);

impl NoNumber {
    pub(super) fn fault(&self, input: &Value) -> Fault {
        Fault::new(self.0, self.1, input)
    }
}

/// An integer as pydantic's lax mode takes it: also a whole float, a boolean, digits in a string.
pub(super) fn int(value: &Value) -> Result<f64, NoNumber> {
    match value {
        Value::Bool(truth) => Ok(f64::from(u8::from(*truth))),
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            match number.fract() == 0.0 {
                true => Ok(number),
                false => Err(NoNumber(
                    "int_from_float",
                    "Input should be a valid integer, got a number with a fractional part",
                )),
            }
        }
        Value::String(text) => match text.trim().parse::<i128>() {
            Ok(number) => Ok(number as f64),
            Err(_) => Err(NoNumber(
                "int_parsing",
                "Input should be a valid integer, unable to parse string as an integer",
            )),
        },
        _ => Err(NoNumber("int_type", "Input should be a valid integer")),
    }
}

fn float(value: &Value) -> Result<f64, NoNumber> {
    match value {
        Value::Bool(truth) => Ok(f64::from(u8::from(*truth))),
        Value::Number(number) => Ok(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => text.trim().parse().map_err(|_| {
            NoNumber(
                "float_parsing",
                "Input should be a valid number, unable to parse string as a number",
            )
        }),
        _ => Err(NoNumber("float_type", "Input should be a valid number")),
    }
}

/// The seed as it is, where it fits; else all of its bits count, though not as a number.
fn folded(number: f64) -> u64 {
    match number < 2.0_f64.powi(64) {
        true => number as u64,
        false => number.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types of the faults that `read` finds in a field, and where.
    fn faults(value: Value, read: impl Fn(&mut Fields<'_>)) -> Vec<(&'static str, Value)> {
        let mut object = Map::new();
        object.insert("field".to_owned(), value);
        let mut fields = Fields::of(&object, &["body"]);
        read(&mut fields);
        fields.refuse_others();
        let faults = fields.finish().err().unwrap_or_default();
        let shown = |fault: Fault| (fault.kind, Value::Array(fault.location));
        faults.into_iter().map(shown).collect()
    }

    #[test]
    fn integers_are_taken_laxly() {
        let taken = |value: Value| {
            let mut object = Map::new();
            object.insert("field".to_owned(), value);
            Fields::of(&object, &[]).unsigned("field")
        };
        for (value, expected) in [
            (json!(u64::MAX), u64::MAX),
            (json!(7), 7),
            (json!(7.0), 7),
            (json!(" 42 "), 42),
            (json!(true), 1),
            (json!(1e25), 1e25_f64.to_bits()),
        ] {
            assert_eq!(taken(value.clone()), Some(expected), "{value}");
        }
        assert_eq!(taken(json!(null)), None);
    }

    #[test]
    fn unknown_fields_are_named_up_to_a_number_and_then_counted() {
        let others = |count: usize| -> Map<String, Value> {
            let names = (0..count).map(|number| number.to_string());
            names.map(|name| (name, json!(0))).collect()
        };
        for (count, last) in [
            (NAMED_OTHERS, "Extra inputs are not permitted"),
            (NAMED_OTHERS + 7, "7 more extra inputs are not permitted"),
        ] {
            let object = others(count);
            let mut fields = Fields::of(&object, &["body"]);
            fields.refuse_others();
            let faults = fields.finish().unwrap_err();
            assert_eq!(faults.len(), count.min(NAMED_OTHERS + 1));
            assert_eq!(faults[faults.len() - 1].plain()["msg"], last);
        }
    }

    #[test]
    fn a_fault_has_a_type_and_a_place() {
        let at_field = json!(["body", "field"]);
        for (value, kind) in [
            (json!(-1), "greater_than_equal"),
            (json!("-1"), "greater_than_equal"),
            (json!("a"), "int_parsing"),
            (json!(0.5), "int_from_float"),
            (json!({}), "int_type"),
        ] {
            let found = faults(value, |fields| {
                fields.unsigned("field");
            });
            assert_eq!(found, [(kind, at_field.clone())]);
        }
        assert_eq!(
            faults(json!(1), |fields| {
                fields.required_string("other");
            }),
            [
                ("missing", json!(["body", "other"])),
                ("extra_forbidden", at_field)
            ]
        );
    }
}
