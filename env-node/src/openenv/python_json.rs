//! JSON as Python's `json` module reads it: the values of `serde_json`, the complaints of Python.
//!
//! Invariant: whatever `serde_json` accepts is accepted; for the rest the message and the position, counted in
//! characters, are those of `json.loads`. Leaves out what Python accepts beyond JSON: `NaN`, `Infinity`, lone surrogates
//! and nesting deeper than `serde_json`'s limit are refused.

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
    serde_json::from_str(text).map_err(|_| {
        let complaint = Scanner { text, at: 0 }.document().err();
        let (message, at) = complaint.unwrap_or((EXPECTING_VALUE, 0));
        let before = &text[..at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        JsonFault {
            message,
            position: before.chars().count(),
            line: 1 + before.matches('\n').count(),
            column: 1 + before[line_start..].chars().count(),
        }
    })
}

const EXPECTING_VALUE: &str = "Expecting value";
const EXPECTING_NAME: &str = "Expecting property name enclosed in double quotes";

/// A message and the byte it is about.
type Complaint = (&'static str, usize);

/// Walks a text and stops where Python would.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
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
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{') if depth < MAX_DEPTH => self.object(depth),
            Some(b'[') if depth < MAX_DEPTH => self.array(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let rest = &self.text[start..];
                let word = ["null", "true", "false"]
                    .into_iter()
                    .find(|word| rest.starts_with(word));
                self.at += word.ok_or((EXPECTING_VALUE, start))?.len();
                Ok(())
            }
        }
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

    /// Python takes the longest prefix that is a number and leaves the rest as extra data.
    fn number(&mut self) -> Result<(), Complaint> {
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
                let hex = self.text.as_bytes().get(self.at + 1..self.at + 5);
                if !hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(("Invalid \\uXXXX escape", self.at));
                }
                self.at += 5;
            }
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            _ => return Err(("Invalid \\escape", backslash)),
        }
        Ok(())
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

    #[test]
    fn refuses_what_only_python_reads() {
        let deep = "[".repeat(10_000);
        for text in ["NaN", "[Infinity]", r#""\ud800""#, "1e999", &deep] {
            assert_eq!(parse(text).unwrap_err().message, EXPECTING_VALUE);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in r#"[\[\]{}:,"\\ue0-9+.tn \n\u{e9}-]{0,30}"#) {
            if let Err(fault) = parse(&text) {
                prop_assert!(fault.position <= text.chars().count());
            }
        }
    }
}
