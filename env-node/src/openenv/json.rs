//! Parses JSON as Python's `json` module does.
//!
//! Invariant: a text that `serde_json` accepts gives the value that `serde_json` reads. Python also
//! writes and reads some texts that are not JSON. They are read as the nearest JSON value: `NaN`,
//! infinities and numbers too large for a float as `null`, lone surrogates as U+FFFD.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use super::fields::{Fields, Shallow};

/// Words that Python reads as numbers. The longest comes first, since one ends with another.
const PYTHON_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Why a text has no fields to read.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// It is not JSON.
    Syntax(serde_json::Error),
    /// It is JSON, but not an object.
    NotAnObject,
}

/// Parses `text`, which should be an object, and returns what `read` makes of its fields.
pub(super) fn read_object<T>(
    text: &str,
    read: impl FnOnce(Fields<'_>) -> T,
) -> Result<T, Unreadable> {
    let json = checked(text).map_err(Unreadable::Syntax)?;
    Fields::of(&json).map(read).ok_or(Unreadable::NotAnObject)
}

/// Returns `text`, or the JSON that it stands for in Python.
///
/// # Errors
/// `text` is neither JSON nor what Python writes in its place, or it is nested deeper than
/// `serde_json` allows (127 levels).
fn checked(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    let check = |text: &str| serde_json::from_str::<Shallow>(text).map(drop);
    // Nearly every text is JSON, so only one that is not is rewritten.
    let Err(error) = check(text) else {
        return Ok(text.into());
    };
    let json = to_json(text);
    match check(&json) {
        Ok(()) => Ok(json.into()),
        Err(_) => Err(error),
    }
}

/// Replaces everything that Python reads beyond JSON. Leaves every other character as it is, so
/// that a text that Python refuses stays a text that `serde_json` refuses.
fn to_json(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_in_string = false;
    while let Some(first) = rest.chars().next() {
        let (length, replacement) = if is_in_string && first == '\\' {
            escape(rest)
        } else if is_in_string {
            (first.len_utf8(), None)
        } else {
            number(rest, first)
        };
        is_in_string ^= first == '"';
        let (token, after) = rest.split_at(length);
        json.push_str(replacement.unwrap_or(token));
        rest = after;
    }
    json
}

/// The length of the escape sequence at the start of `rest`, and its replacement.
fn escape(rest: &str) -> (usize, Option<&'static str>) {
    match code_unit(rest) {
        // A pair of surrogates is one character.
        Some(0xd800..0xdc00) if matches!(code_unit(&rest[6..]), Some(0xdc00..0xe000)) => (12, None),
        Some(0xd800..0xe000) => (6, Some(r"\ufffd")),
        // The escaped character is skipped too: an escaped quote does not end the string.
        _ => (rest.chars().take(2).map(char::len_utf8).sum(), None),
    }
}

/// The UTF-16 code unit of a `\uXXXX` escape at the start of `text`.
fn code_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix(r"\u")?.get(..4)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u16::from_str_radix(digits, 16).ok())?
}

/// The length of the token at the start of `rest`, outside of strings, and its replacement.
fn number(rest: &str, first: char) -> (usize, Option<&'static str>) {
    if let Some(word) = PYTHON_NUMBERS
        .into_iter()
        .find(|word| rest.starts_with(word))
    {
        return (word.len(), Some("null"));
    }
    if first != '-' && !first.is_ascii_digit() {
        return (first.len_utf8(), None);
    }
    let is_part = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    let length = rest.bytes().take_while(|&byte| is_part(byte)).count();
    let token = &rest[..length];
    let is_json = serde_json::from_str::<IgnoredAny>(token).is_ok();
    let is_too_large = is_json && token.parse().is_ok_and(f64::is_infinite);
    (length, is_too_large.then_some("null"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn parse(text: &str) -> Result<Value, serde_json::Error> {
        checked(text).and_then(|json| serde_json::from_str(&json))
    }

    /// Pairs of a text and the JSON that reads the same.
    #[test]
    fn python_numbers_and_lone_surrogates_are_read() {
        for (text, same) in [
            ("NaN", "null"),
            ("[Infinity, -Infinity,NaN]", "[null,null,null]"),
            (
                r#"{"seed": 1, "weight": NaN}"#,
                r#"{"seed":1,"weight":null}"#,
            ),
            ("[1e999, -1e999, 1e-999]", "[null,null,0.0]"),
            (
                r#"["NaN", NaN, "-Infinity", "\"NaN"]"#,
                r#"["NaN",null,"-Infinity","\"NaN"]"#,
            ),
            (
                r#"{"NaN": NaN, "NaN, NaN": 1}"#,
                r#"{"NaN":null,"NaN, NaN":1}"#,
            ),
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""a\uDE00b""#, r#""a\ufffdb""#),
            (r#""\ud83d\ude00""#, r#""😀""#),
            (r#""\ud83d\ud83d\ude00\ude00""#, r#""\ufffd😀\ufffd""#),
            (
                r#""\ud83d\u0041\ud83d\n\ud83d""#,
                r#""\ufffdA\ufffd\n\ufffd""#,
            ),
            (r#"["\\ud83d", NaN]"#, r#"["\\ud83d",null]"#),
            (
                r#"{"\udead": ["é", "\ud83d"]}"#,
                r#"{"\ufffd":["é","\ufffd"]}"#,
            ),
        ] {
            let same: Value = serde_json::from_str(same).unwrap();
            assert_eq!(parse(text).unwrap(), same, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "notjson",
            "nan",
            "-Infinit",
            "+Infinity",
            "{NaN: 1}",
            "NaNNaN",
            "[NaN,]",
            "[01e999]",
            "[1.e999]",
            "[+1e999]",
            r#""\ud83d\ud8""#,
            r#"[NaN, "\ud83d", x]"#,
            r#""\ud83d"#,
            "\"\\",
            "\u{feff}{}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(checked(&deep(127)).is_ok());
        for text in [deep(128), deep(10_000), format!("[NaN,{}]", deep(127))] {
            assert!(checked(&text).is_err());
        }
        for text in ["[".repeat(10_000), format!("[NaN,{}", "[".repeat(10_000))] {
            assert!(checked(&text).is_err());
        }
    }

    #[test]
    fn only_an_object_has_fields() {
        let name = |text: &str| read_object(text, |fields| fields.text("name"));
        assert_eq!(
            name(r#"{"name": "a", "n": NaN}"#).unwrap().as_deref(),
            Some("a")
        );
        assert_eq!(name("{}").unwrap(), None);
        assert!(matches!(name("[1]"), Err(Unreadable::NotAnObject)));
        assert!(matches!(name("{"), Err(Unreadable::Syntax(_))));
    }

    /// Values with the text that Python writes for each.
    fn written() -> impl Strategy<Value = (String, Value)> {
        let lone = prop::sample::select(vec!["\\ud83d", "\\ud800\\ud800", "\\udfff"]);
        let string = ("[a-zN\"\\\\é😀 ]{0,6}", prop::option::of(lone)).prop_map(|(text, lone)| {
            let quoted = Value::from(text.clone()).to_string();
            let lone = lone.unwrap_or_default();
            let replaced = "\u{fffd}".repeat(lone.len() / 6);
            let written = format!("{}{lone}\"", &quoted[..quoted.len() - 1]);
            (written, Value::from(text + &replaced))
        });
        let leaf = prop_oneof![
            prop::sample::select(PYTHON_NUMBERS.to_vec())
                .prop_map(|word| (word.to_owned(), Value::Null)),
            any::<i64>().prop_map(|number| (number.to_string(), number.into())),
            string,
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop::collection::vec(inner, 0..4).prop_map(|items| {
                let (texts, values): (Vec<String>, Vec<Value>) = items.into_iter().unzip();
                (format!("[{}]", texts.join(", ")), values.into())
            })
        })
    }

    proptest! {
        #[test]
        fn what_python_writes_is_read((text, value) in written()) {
            prop_assert_eq!(parse(&text).unwrap(), value);
        }

        /// The check keeps nothing, and finds what building a value would find.
        #[test]
        fn any_text_is_read_or_refused_as_a_value_is(
            text in r#"[\[\]{}:,"\\ude089+.tNan \n\u{e9}-]{0,30}"#,
        ) {
            let as_value = serde_json::from_str::<Value>(&text).map(drop);
            let as_nothing = serde_json::from_str::<Shallow>(&text).map(drop);
            let message = |result: Result<(), serde_json::Error>| {
                result.err().map(|error| error.to_string())
            };
            prop_assert_eq!(message(as_nothing), message(as_value));
            let _ = parse(&text);
        }
    }
}
