//! Reading the fields of a JSON object, and the faults that pydantic would find in them.
//!
//! Invariant: faults come in the order of the reads, unknown fields last, with pydantic's type, message and context; a
//! read that fails gives a default, so that one pass finds every fault. Source: pydantic 2.14 in its lax mode.

use serde_json::{Map, Value, json};

use super::python_repr;

/// Characters of an input that a fault's text shows.
const SHOWN_INPUT_CHARS: usize = 50;

/// One thing that is wrong with an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    kind: &'static str,
    location: Vec<Value>,
    message: String,
    input: Value,
    context: Option<Value>,
}

impl Fault {
    pub(super) fn new(kind: &'static str, message: impl Into<String>, input: &Value) -> Self {
        Self {
            kind,
            location: Vec::new(),
            message: message.into(),
            input: input.clone(),
            context: None,
        }
    }

    pub(super) fn missing(input: &Value) -> Self {
        Self::new("missing", "Field required", input)
    }

    fn dict_type(input: &Value) -> Self {
        Self::new("dict_type", "Input should be a valid dictionary", input)
    }

    fn string_type(input: &Value) -> Self {
        Self::new("string_type", "Input should be a valid string", input)
    }

    pub(super) fn at(mut self, location: impl IntoIterator<Item = impl Into<Value>>) -> Self {
        self.location = location.into_iter().map(Into::into).collect();
        self
    }

    pub(super) fn because(mut self, context: Value) -> Self {
        self.context = Some(context);
        self
    }

    /// As FastAPI lists it: without pydantic's link.
    pub(super) fn plain(&self) -> Value {
        let mut fault = json!({
            "type": self.kind,
            "loc": self.location,
            "msg": self.message,
            "input": self.input,
        });
        if let Some(context) = &self.context {
            fault["ctx"] = context.clone();
        }
        fault
    }

    /// As pydantic lists it: with a link to what it means.
    pub(super) fn linked(&self) -> Value {
        let mut fault = self.plain();
        fault["url"] = self.link().into();
        fault
    }

    fn link(&self) -> String {
        format!("https://errors.pydantic.dev/2.14/v/{}", self.kind)
    }

    fn text(&self) -> String {
        let location: Vec<String> = self.location.iter().map(python_repr::str).collect();
        format!(
            "{}\n  {} [type={}, input_value={}, input_type={}]\n    For further information visit {}",
            location.join("."),
            self.message,
            self.kind,
            cut_in_the_middle(&python_repr::repr(&self.input)),
            python_repr::type_name(&self.input),
            self.link(),
        )
    }
}

/// `str()` of pydantic's error for a model of this name.
pub(super) fn text(faults: &[Fault], model: &str) -> String {
    let plural = if faults.len() == 1 { "" } else { "s" };
    let faults_text: Vec<String> = faults.iter().map(Fault::text).collect();
    format!(
        "{} validation error{plural} for {model}\n{}",
        faults.len(),
        faults_text.join("\n")
    )
}

fn cut_in_the_middle(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= SHOWN_INPUT_CHARS {
        return text.to_owned();
    }
    let half = SHOWN_INPUT_CHARS / 2;
    let head: String = characters[..half].iter().collect();
    let tail: String = characters[characters.len() - half + 1..].iter().collect();
    format!("{head}...{tail}")
}

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
        for (name, value) in self.object {
            if !self.known.contains(&name.as_str()) {
                let fault = Fault::new("extra_forbidden", "Extra inputs are not permitted", value);
                let location = self.within.iter().copied().chain([name.as_str()]);
                self.faults.push(fault.at(location));
            }
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
            let fault = Fault::missing(&Value::Object(self.object.clone()));
            self.fault(name, fault);
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

    #[test]
    fn long_inputs_are_cut_in_the_middle() {
        assert_eq!(cut_in_the_middle(&"é".repeat(50)), "é".repeat(50));
        let cut = cut_in_the_middle(&"é".repeat(51));
        assert_eq!(cut, format!("{}...{}", "é".repeat(25), "é".repeat(24)));
    }
}
