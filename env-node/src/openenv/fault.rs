//! What is wrong with a JSON object, in the words of pydantic and in both its forms: as a list and as a text.
//!
//! Invariant: type, message, place, input and context are pydantic 2.14's, but for long inputs, which are cut. Leaves out
//! finding faults: that is `fields.rs`.

use serde_json::{Map, Value, json};

use super::{excerpt, python_repr};

/// Characters of an input that a fault's text shows.
const SHOWN_INPUT_CHARS: usize = 50;

/// One thing that is wrong with an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) kind: &'static str,
    pub(super) location: Vec<Value>,
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
            input: excerpt::value(input),
            context: None,
        }
    }

    pub(super) fn missing(input: &Value) -> Self {
        Self::new("missing", "Field required", input)
    }

    /// A field that `object` lacks.
    pub(super) fn missing_in(object: &Map<String, Value>) -> Self {
        Self {
            input: excerpt::object(object),
            ..Self::missing(&Value::Null)
        }
    }

    pub(super) fn dict_type(input: &Value) -> Self {
        Self::new("dict_type", "Input should be a valid dictionary", input)
    }

    pub(super) fn string_type(input: &Value) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_inputs_are_cut_in_the_middle() {
        assert_eq!(cut_in_the_middle(&"é".repeat(50)), "é".repeat(50));
        let cut = cut_in_the_middle(&"é".repeat(51));
        assert_eq!(cut, format!("{}...{}", "é".repeat(25), "é".repeat(24)));
    }
}
