//! JSON as Python's `json` module reads it: the values of `serde_json`, the complaints of Python.
//!
//! Invariant: whatever `serde_json` accepts is read as it reads it. What Python writes and reads beyond JSON is read as
//! the nearest that JSON has: `NaN`, infinities and numbers too large for a float as `null`, lone surrogates as U+FFFD.
//! For the rest the message and the position, counted in characters, are those of `json.loads`. Leaves out nesting deeper
//! than `serde_json`'s limit: that is refused.

use serde_json::Value;

/// Nesting at which `serde_json` stops.
const MAX_DEPTH: usize = 127;

/// Why a text is not JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonFault {
    /// Python's message, without the position.
    pub(super) message: &'static str,
    /// Characters before the fault.
    pub(super) position: usize,
    line: usize,
    column: usize,
}

impl std::fmt::Display for JsonFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            message,
            position,
            line,
            column,
        } = self;
        write!(
            f,
            "{message}: line {line} column {column} (char {position})"
        )
    }
}

/// The value that `text` writes.
pub(super) fn parse(text: &str) -> Result<Value, JsonFault> {
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    let mut scanner = Scanner::new(text);
    let complaint = match scanner.document() {
        Err(complaint) => complaint,
        Ok(()) => match serde_json::from_str(&scanner.into_json()) {
            Ok(value) => return Ok(value),
            Err(_) => (EXPECTING_VALUE, 0),
        },
    };
    Err(JsonFault::new(text, complaint))
}

impl JsonFault {
    fn new(text: &str, (message, at): Complaint) -> Self {
        let before = &text[..at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            message,
            position: before.chars().count(),
            line: 1 + before.matches('\n').count(),
            column: 1 + before[line_start..].chars().count(),
        }
    }
}

const EXPECTING_VALUE: &str = "Expecting value";
const EXPECTING_NAME: &str = "Expecting property name enclosed in double quotes";

/// A message and the byte it is about.
type Complaint = (&'static str, usize);

/// What Python reads as a number and JSON does not have.
const NO_NUMBERS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// Walks a text and stops where Python would.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// The text up to the last part that only Python reads, with what stands for such parts in JSON.
    json: String,
    /// Where the rest of the text begins.
    rest: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            json: String::new(),
            rest: 0,
        }
    }

    /// The text, once it was walked, as `serde_json` reads it.
    fn into_json(self) -> String {
        self.json + &self.text[self.rest..]
    }

    /// Notes that JSON does not have what was read since `start`.
    fn replace(&mut self, start: usize, stand_in: &str) {
        self.json.push_str(&self.text[self.rest..start]);
        self.json.push_str(stand_in);
        self.rest = self.at;
    }

    fn document(&mut self) -> Result<(), Complaint> {
        if self.text.starts_with('\u{feff}') {
            return Err(("Unexpected UTF-8 BOM (decode using utf-8-sig)", 0));
        }
        self.blank();
        self.value(0)?;
        self.blank();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(("Extra data", self.at)),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `byte` if it is next.
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<(), Complaint> {
        let start = self.at;
        if NO_NUMBERS.into_iter().any(|word| self.word(word)) {
            self.replace(start, "null");
            return Ok(());
        }
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{') if depth < MAX_DEPTH => self.object(depth),
            Some(b'[') if depth < MAX_DEPTH => self.array(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let words = ["null", "true", "false"];
                match words.into_iter().any(|word| self.word(word)) {
                    true => Ok(()),
                    false => Err((EXPECTING_VALUE, self.at)),
                }
            }
        }
    }

    /// Takes `word` if it is next.
    fn word(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn object(&mut self, depth: usize) -> Result<(), Complaint> {
        self.at += 1;
        self.blank();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err((EXPECTING_NAME, self.at));
            }
            self.string()?;
            self.blank();
            if !self.take(b':') {
                return Err(("Expecting ':' delimiter", self.at));
            }
            self.blank();
            self.value(depth + 1)?;
            if self.ends_with(b'}')? {
                return Ok(());
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), Complaint> {
        self.at += 1;
        self.blank();
        if self.take(b']') {
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            if self.ends_with(b']')? {
                return Ok(());
            }
        }
    }

    /// After a member: whether `close` ends the collection; else a comma must follow.
    fn ends_with(&mut self, close: u8) -> Result<bool, Complaint> {
        self.blank();
        if self.take(close) {
            return Ok(true);
        }
        if !self.take(b',') {
            return Err(("Expecting ',' delimiter", self.at));
        }
        self.blank();
        Ok(false)
    }

    fn number(&mut self) -> Result<(), Complaint> {
        let start = self.at;
        self.digits_of_number()?;
        let number = self.text[start..self.at].parse();
        if number.is_ok_and(f64::is_infinite) {
            self.replace(start, "null");
        }
        Ok(())
    }

    /// Python takes the longest prefix that is a number and leaves the rest as extra data.
    fn digits_of_number(&mut self) -> Result<(), Complaint> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') && self.digits() == 0 {
            return Err((EXPECTING_VALUE, start));
        }
        let whole = self.at;
        if self.take(b'.') && self.digits() == 0 {
            self.at = whole;
            return Ok(());
        }
        let mantissa = self.at;
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            if self.digits() == 0 {
                self.at = mantissa;
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn string(&mut self) -> Result<(), Complaint> {
        let start = self.at;
        let unterminated = ("Unterminated string starting at", start);
        self.at += 1;
        loop {
            match self.peek().ok_or(unterminated)? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => self.escape(unterminated)?,
                0..=0x1f => return Err(("Invalid control character at", self.at)),
                _ => self.at += 1,
            }
        }
    }

    fn escape(&mut self, unterminated: Complaint) -> Result<(), Complaint> {
        let backslash = self.at;
        self.at += 1;
        match self.peek().ok_or(unterminated)? {
            b'u' => {
                let unit = self.code_unit(self.at)?;
                self.at += 5;
                match unit {
                    0xd800..0xdc00 if self.low_surrogate_follows() => self.at += 6,
                    0xd800..0xe000 => self.replace(backslash, r"\ufffd"),
                    _ => {}
                }
            }
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            _ => return Err(("Invalid \\escape", backslash)),
        }
        Ok(())
    }

    /// The UTF-16 unit that four digits after the `u` at this byte write.
    fn code_unit(&self, u: usize) -> Result<u16, Complaint> {
        let digits = self.text.get(u + 1..u + 5);
        digits
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|digits| u16::from_str_radix(digits, 16).ok())
            .ok_or(("Invalid \\uXXXX escape", u))
    }

    fn low_surrogate_follows(&self) -> bool {
        let unit = || self.code_unit(self.at + 1);
        self.text[self.at..].starts_with(r"\u") && matches!(unit(), Ok(0xdc00..0xe000))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each line of the table: a JSON text, written as JSON, and what `json.loads` of Python 3.11 says of it.
    #[test]
    fn complains_as_python_does() {
        let table = include_str!("python_json.txt");
        assert!(table.lines().count() > 50);
        for line in table.lines() {
            let (text, complaint) = line.split_once('\t').unwrap();
            let text: String = serde_json::from_str(text).unwrap();
            let said = parse(&text).map_err(|fault| fault.to_string());
            assert_eq!(said.unwrap_err(), complaint, "{text:?}");
        }
    }

    /// A JSON text and the one that reads the same.
    #[test]
    fn reads_what_only_python_writes() {
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
    fn the_place_of_a_fault_is_right_after_what_only_python_writes() {
        for (text, position) in [
            (r#"[NaN, "\ud83d", x]"#, 16),
            (r#""\ud83d\ud8""#, 8),
            ("[NaN, nan]", 6),
            ("-Infinit", 0),
        ] {
            assert_eq!(parse(text).unwrap_err().position, position, "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        for text in ["[".repeat(10_000), format!("[NaN,{}", "[".repeat(10_000))] {
            assert_eq!(parse(&text).unwrap_err().message, EXPECTING_VALUE);
        }
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
            prop::sample::select(NO_NUMBERS.to_vec())
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
            prop_assert_eq!(parse(&text), Ok(value));
        }

        #[test]
        fn any_text_is_read_or_refused(text in r#"[\[\]{}:,"\\ude089+.tNan \n\u{e9}-]{0,30}"#) {
            if let Err(fault) = parse(&text) {
                prop_assert!(fault.position <= text.chars().count());
            }
        }
    }
}
