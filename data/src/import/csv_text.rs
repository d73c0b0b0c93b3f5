//! Reads CSV as RFC 4180 defines it, a record at a time.
//!
//! Invariant: nothing is guessed. A quote that is never closed, text after a closing quote and a
//! quote within an unquoted cell are errors that name the line, since to go on would join or divide
//! records.

use std::io::{BufRead, Read as _};
use std::path::Path;

/// The longest record. A quote that is never closed would otherwise take the rest of the file.
const MAX_RECORD_BYTES: usize = 64 << 20;
/// The length of a byte order mark of UTF-8.
const MARK_BYTES: u64 = 3;

/// One cell of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CsvCell {
    pub(crate) text: String,
    /// Whether the cell was in quotes. An empty cell without quotes is NULL.
    pub(crate) is_quoted: bool,
}

impl CsvCell {
    /// Whether there is nothing between the delimiters.
    pub(crate) fn is_absent(&self) -> bool {
        self.text.is_empty() && !self.is_quoted
    }
}

/// One record, and the line on which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CsvRecord {
    pub(crate) line: u64,
    pub(crate) cells: Vec<CsvCell>,
}

impl CsvRecord {
    /// Whether the record is an empty line.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self.cells.as_slice(), [cell] if cell.is_absent())
    }
}

/// Refuses a header of one name that holds another delimiter than the file should have.
///
/// # Errors
/// Names the delimiter, and says how to save the file.
pub(crate) fn check_delimiter(names: &[String]) -> Result<(), String> {
    let [name] = names else { return Ok(()) };
    let mut delimiters = [';', '\t', '|', ','].into_iter();
    match delimiters.find(|it| name.contains(*it)) {
        Some(delimiter) => Err(format!(
            "line 1: one column, whose name holds {delimiter:?}; save the file with commas, or as \
             .tsv with tabs, between the cells"
        )),
        None => Ok(()),
    }
}

/// Refuses a header in which two names differ in no more than case. Columns may lack a name.
///
/// # Errors
/// Names both.
pub(crate) fn check_different(names: &[String]) -> Result<(), String> {
    for (index, name) in names.iter().enumerate() {
        let same = |it: &&String| !name.is_empty() && it.eq_ignore_ascii_case(name);
        if let Some(first) = names[..index].iter().find(same) {
            return Err(format!(
                "line 1: two columns are named `{first}` and `{name}`, and the case of letters \
                 does not count; rename one"
            ));
        }
    }
    Ok(())
}

/// Returns what separates the cells of a file with this extension, if it is one of CSV files.
pub(crate) fn delimiter_of(path: &Path) -> Option<u8> {
    let extension = path.extension()?;
    let is = |name: &str| extension.eq_ignore_ascii_case(name);
    match (is("csv"), is("tsv")) {
        (true, _) => Some(b','),
        (_, true) => Some(b'\t'),
        _ => None,
    }
}

/// A reader of records.
pub(crate) struct CsvReader<R> {
    input: R,
    delimiter: u8,
    /// The number of lines that were read.
    line: u64,
    buffer: Vec<u8>,
}

/// Where the reader is in a cell.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    Unquoted,
    Quoted,
    AfterQuote,
}

impl<R: BufRead> CsvReader<R> {
    pub(crate) fn new(input: R, delimiter: u8) -> Self {
        Self {
            input,
            delimiter,
            line: 0,
            buffer: Vec::new(),
        }
    }

    /// Reads the next record.
    ///
    /// # Errors
    /// Says what is wrong on which line, and what to do.
    pub(crate) fn next_record(&mut self) -> Result<Option<CsvRecord>, String> {
        if !self.read_line()? {
            return Ok(None);
        }
        let first_line = self.line;
        let mut builder = RecordBuilder::default();
        let mut bytes = 0;
        loop {
            bytes += self.buffer.len();
            if bytes > MAX_RECORD_BYTES {
                return Err(format!(
                    "line {first_line}: a record has more than {MAX_RECORD_BYTES} bytes; close \
                     its quotes, or leave it out"
                ));
            }
            let line = self.line;
            builder
                .push_line(&self.buffer, self.delimiter)
                .map_err(|problem| format!("line {line}: {problem}"))?;
            if builder.place != Place::Quoted {
                return builder.finish(first_line).map(Some);
            }
            if !self.read_line()? {
                return Err(format!(
                    "line {first_line}: a quote is never closed; close it, and double each quote \
                     within a quoted cell"
                ));
            }
        }
    }

    /// Reads a line with its end into the buffer. Returns whether there is one.
    fn read_line(&mut self) -> Result<bool, String> {
        self.buffer.clear();
        let line = self.line + 1;
        // A line that is longer than a record may be ends here, and is refused.
        let mut input = self
            .input
            .by_ref()
            .take(MAX_RECORD_BYTES as u64 + 1 + MARK_BYTES);
        let read = input.read_until(b'\n', &mut self.buffer);
        read.map_err(|error| format!("line {line}: cannot be read: {error}"))?;
        if line == 1 {
            if self.buffer.starts_with(&[0xff, 0xfe]) || self.buffer.starts_with(&[0xfe, 0xff]) {
                return Err(
                    "begins with the byte order mark of UTF-16; save the file as UTF-8 instead"
                        .to_owned(),
                );
            }
            if self.buffer.starts_with(&[0xef, 0xbb, 0xbf]) {
                self.buffer.drain(..3);
            }
        }
        self.line = line;
        Ok(!self.buffer.is_empty())
    }
}

/// The cells of a record whose end is not read yet.
#[derive(Default)]
struct RecordBuilder {
    cells: Vec<(Vec<u8>, bool)>,
    cell: Vec<u8>,
    is_quoted: bool,
    place: Place,
}

impl RecordBuilder {
    fn push_line(&mut self, line: &[u8], delimiter: u8) -> Result<(), &'static str> {
        let content = match line {
            [content @ .., b'\r', b'\n'] | [content @ .., b'\n'] => content,
            content => content,
        };
        for &byte in content {
            self.push(byte, delimiter)?;
        }
        if self.place == Place::Quoted {
            // The line end belongs to the cell.
            self.cell.extend_from_slice(&line[content.len()..]);
        }
        Ok(())
    }

    fn push(&mut self, byte: u8, delimiter: u8) -> Result<(), &'static str> {
        if byte == 0 {
            return Err("a NUL byte; save the file as UTF-8 text");
        }
        match (self.place, byte) {
            (Place::Quoted, b'"') => self.place = Place::AfterQuote,
            (Place::Quoted, byte) => self.cell.push(byte),
            (Place::AfterQuote, b'"') => {
                self.cell.push(byte);
                self.place = Place::Quoted;
            }
            (_, byte) if byte == delimiter => self.end_cell(),
            (Place::AfterQuote, _) => {
                return Err("text after a closing quote; double each quote within a quoted cell");
            }
            (Place::Start, b'"') => {
                self.is_quoted = true;
                self.place = Place::Quoted;
            }
            (_, b'"') => {
                return Err(
                    "a quote within an unquoted cell; quote the cell and double its quotes",
                );
            }
            (_, b'\r') => return Err("a carriage return within a line; quote the cell"),
            (_, byte) => {
                self.cell.push(byte);
                self.place = Place::Unquoted;
            }
        }
        Ok(())
    }

    fn end_cell(&mut self) {
        let is_quoted = std::mem::take(&mut self.is_quoted);
        let bytes = std::mem::take(&mut self.cell);
        self.cells.push((bytes, is_quoted));
        self.place = Place::Start;
    }

    fn finish(mut self, line: u64) -> Result<CsvRecord, String> {
        self.end_cell();
        let cell = |(bytes, is_quoted)| {
            let text = String::from_utf8(bytes);
            let text = text
                .map_err(|_| format!("line {line}: not UTF-8; save the file as UTF-8 instead"))?;
            Ok(CsvCell { text, is_quoted })
        };
        let cells = self
            .cells
            .into_iter()
            .map(cell)
            .collect::<Result<_, String>>()?;
        Ok(CsvRecord { line, cells })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<Vec<CsvRecord>, String> {
        let mut reader = CsvReader::new(text, b',');
        std::iter::from_fn(|| reader.next_record().transpose()).collect()
    }

    fn texts(text: &str) -> Vec<Vec<String>> {
        let records = read(text.as_bytes()).unwrap().into_iter();
        let cells = records.map(|it| it.cells.into_iter().map(|it| it.text).collect());
        cells.collect()
    }

    #[test]
    fn records_and_cells() {
        assert_eq!(
            texts("a,b\r\n1,\"x, \"\"y\"\"\"\n"),
            [["a", "b"], ["1", "x, \"y\""]]
        );
        assert_eq!(
            texts("\u{feff}a\nb"),
            [["a"], ["b"]],
            "a mark and no last line end"
        );
        assert_eq!(texts("a,\"1\r\n2\"\nb,"), [["a", "1\r\n2"], ["b", ""]]);
        assert_eq!(texts("a\n\nb\n"), [["a"], [""], ["b"]]);
        let records = read(b"\"\",\na,\"b\nc\"\n\nd").unwrap();
        let lines: Vec<u64> = records.iter().map(|it| it.line).collect();
        assert_eq!(lines, [1, 2, 4, 5]);
        let absent: Vec<bool> = records[0].cells.iter().map(CsvCell::is_absent).collect();
        assert_eq!(absent, [false, true], "an empty cell in quotes is text");
        assert!(records[2].is_blank() && !records[0].is_blank());
    }

    #[test]
    fn malformed_text_is_named_with_its_line() {
        for (text, part) in [
            (&b"a\nb,\"c\nd\ne"[..], "line 2: a quote is never closed"),
            (b"a\n\"b\"c\n", "line 2: text after a closing quote"),
            (b"a\nb\"c\n", "line 2: a quote within an unquoted cell"),
            (b"a\nb\rc\n", "line 2: a carriage return"),
            (b"a\nb\xe9\n", "line 2: not UTF-8"),
            (b"a\nb\0\n", "line 2: a NUL byte"),
            (b"\xff\xfea\0", "UTF-16"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_read_whole() {
        let endless = std::io::Read::take(std::io::repeat(b'a'), 2 * MAX_RECORD_BYTES as u64);
        let mut input = std::io::BufReader::new(endless);
        let problem = CsvReader::new(&mut input, b',').next_record().unwrap_err();
        assert!(
            problem.contains("line 1: a record has more than"),
            "{problem}"
        );
        assert!(input.into_inner().limit() > 0, "some of it is left");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            rows in proptest::collection::vec(proptest::collection::vec("[a,\"\r\n é]{0,4}", 1..4), 0..5),
        ) {
            let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
            let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
            prop_assert_eq!(texts(&rows.iter().map(line).collect::<String>()), rows);
        }

        #[test]
        fn it_is_total(text in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = read(&text);
        }
    }
}
