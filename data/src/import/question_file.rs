//! Reads the records of a question file: CSV with a header, a JSON array, JSON lines, or a JSON
//! object that holds one list.

use std::path::Path;

use serde_json::{Map, Value};

use super::csv_text::{CsvReader, check_delimiter, check_different, delimiter_of};
use crate::{DataError, text};

/// The largest question file, which is read at once.
const MAX_BYTES: u64 = 1 << 30;

/// A record of a question file, by field.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FileRecord {
    /// The first record of a file has index 0.
    pub(crate) index: usize,
    /// The line on which it begins, if records have lines.
    pub(crate) line: Option<u64>,
    pub(crate) fields: Map<String, Value>,
    /// Whether all fields are text, so that lists and numbers are written in it.
    pub(crate) is_csv: bool,
}

/// Reads all records of a file.
///
/// # Errors
/// The file cannot be read or has no known form. The error names the line or the record.
pub(crate) fn read(path: &Path) -> Result<Vec<FileRecord>, DataError> {
    check_size(path)?;
    let extension = path.extension().unwrap_or_default();
    let is = |name: &str| extension.eq_ignore_ascii_case(name);
    let refuse = |problem: String| DataError::format(path, problem);
    let records = if let Some(delimiter) = delimiter_of(path) {
        let bytes = std::fs::read(path).map_err(DataError::io(path, "read"))?;
        of_csv(&bytes, delimiter)
    } else if is("json") || is("jsonl") || is("ndjson") {
        of_json(&text::read(path)?)
    } else {
        let problem = "has none of the extensions .csv, .tsv, .json and .jsonl; rename it after \
                       what it holds";
        Err(problem.to_owned())
    };
    let records = records.map_err(refuse)?;
    match records.is_empty() {
        true => Err(refuse(
            "holds no record; write one for each question".to_owned(),
        )),
        false => Ok(records),
    }
}

fn check_size(path: &Path) -> Result<(), DataError> {
    let metadata = path.metadata().map_err(DataError::io(path, "read"))?;
    if !metadata.is_file() {
        return Err(DataError::format(
            path,
            "is not a file; give one with questions",
        ));
    }
    match metadata.len() {
        0..=MAX_BYTES => Ok(()),
        bytes => Err(DataError::format(
            path,
            format!("has {bytes} bytes, more than {MAX_BYTES}; divide it into several files"),
        )),
    }
}

fn of_csv(bytes: &[u8], delimiter: u8) -> Result<Vec<FileRecord>, String> {
    let mut reader = CsvReader::new(bytes, delimiter);
    let header = reader.next_record()?;
    let header = header.ok_or("is empty; write a first line with the names of the fields")?;
    let names: Vec<String> = header.cells.into_iter().map(|it| it.text).collect();
    check_delimiter(&names)?;
    check_different(&names)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        if record.is_blank() {
            continue;
        }
        if record.cells.len() != names.len() {
            return Err(format!(
                "line {}: {} cells, but the header has {}; quote cells that hold the delimiter, as \
                 SQL often does",
                record.line,
                record.cells.len(),
                names.len()
            ));
        }
        let cells = names.iter().zip(record.cells);
        let filled = cells.filter(|(_, cell)| !cell.text.is_empty());
        let fields = filled.map(|(name, cell)| (name.clone(), Value::String(cell.text)));
        records.push(FileRecord {
            index: records.len(),
            line: Some(record.line),
            fields: fields.collect(),
            is_csv: true,
        });
    }
    Ok(records)
}

fn of_json(text: &str) -> Result<Vec<FileRecord>, String> {
    let whole: Result<Value, serde_json::Error> = serde_json::from_str(text);
    match whole {
        Ok(Value::Array(values)) => records(values.into_iter().map(|value| (None, value))),
        Ok(Value::Object(object)) => {
            let lists: Vec<&String> = object
                .iter()
                .filter(|(_, value)| value.is_array())
                .map(|(name, _)| name)
                .collect();
            match lists.as_slice() {
                [name] if is_list_of_objects(&object[*name]) => {
                    let list = object[*name].as_array().cloned().unwrap_or_default();
                    records(list.into_iter().map(|value| (None, value)))
                }
                // A file of JSON lines may have one line.
                _ if !object.values().any(is_list_of_objects) => {
                    records([(Some(1), Value::Object(object))].into_iter())
                }
                _ => Err(format!(
                    "is an object with the lists {}; keep the one that holds the records",
                    lists
                        .iter()
                        .map(|it| format!("`{it}`"))
                        .collect::<Vec<_>>()
                        .join(", ")
                )),
            }
        }
        Ok(_) => Err("holds a single JSON value; write an array of records".to_owned()),
        Err(error) => of_json_lines(text).map_err(|problem| match problem {
            Some(problem) => problem,
            None => format!("not JSON: {error}; write an array of records, or one on each line"),
        }),
    }
}

fn is_list_of_objects(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_object))
}

/// Reads one record from each line. Without an error text the file has no JSON lines at all.
fn of_json_lines(text: &str) -> Result<Vec<FileRecord>, Option<String>> {
    let mut values = Vec::new();
    for (line, text) in (1_u64..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => values.push((Some(line), value)),
            _ if values.is_empty() => return Err(None),
            Ok(_) => {
                return Err(Some(format!(
                    "line {line}: not an object; write one on each line"
                )));
            }
            Err(error) => {
                return Err(Some(format!(
                    "line {line}: not JSON: {error}; correct the line"
                )));
            }
        }
    }
    records(values.into_iter()).map_err(Some)
}

fn records(values: impl Iterator<Item = (Option<u64>, Value)>) -> Result<Vec<FileRecord>, String> {
    let record = |(index, (line, value))| match value {
        Value::Object(fields) => Ok(FileRecord {
            index,
            line,
            fields,
            is_csv: false,
        }),
        other => Err(format!(
            "index {index}: `{}` is not an object; write the fields of a question",
            other.to_string().chars().take(40).collect::<String>()
        )),
    };
    values.enumerate().map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(name: &str, content: &str) -> Result<Vec<FileRecord>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_gives_the_same_records() {
        let record = json!({"question": "How many?", "sql": "SELECT 1, 2"});
        let list = json!([record, record]);
        for (name, content) in [
            ("a.json", list.to_string()),
            ("a.json", format!("\u{feff}{list}")),
            (
                "a.json",
                json!({"version": 1, "questions": list}).to_string(),
            ),
            ("a.jsonl", format!("{record}\n\n{record}\n")),
            ("a.json", format!("{record}\r\n{record}")),
            (
                "a.CSV",
                "question,sql\r\nHow many?,\"SELECT 1, 2\"\r\n\r\nHow many?,\"SELECT 1, 2\""
                    .to_owned(),
            ),
            (
                "a.tsv",
                "question\tsql\nHow many?\tSELECT 1, 2\nHow many?\tSELECT 1, 2\n".to_owned(),
            ),
        ] {
            let records = written(name, &content).unwrap();
            assert_eq!(records.len(), 2, "{content}");
            for (index, read) in records.iter().enumerate() {
                assert_eq!(read.index, index);
                assert_eq!(Value::Object(read.fields.clone()), record, "{content}");
            }
        }
        let one = written("a.jsonl", "{\"question\": \"?\", \"tables\": [\"a\"]}\n").unwrap();
        assert_eq!(one.len(), 1, "one line");
    }

    #[test]
    fn files_of_no_form_are_named_with_a_remedy() {
        for (name, content, part) in [
            ("a.csv", "", "is empty"),
            ("a.csv", "question,sql\n", "holds no record"),
            ("a.csv", "question,sql\na,SELECT 1, 2\n", "line 2: 3 cells"),
            (
                "a.csv",
                "question;sql\na;SELECT 1, 2\n",
                "line 1: one column, whose name holds ';'; save the file with commas",
            ),
            ("a.tsv", "question,sql\na,SELECT 1\n", "holds ','"),
            (
                "a.csv",
                "question,sql,SQL\na,SELECT 1,SELECT 2\n",
                "line 1: two columns are named `sql` and `SQL`",
            ),
            (
                "a.csv",
                "question,sql\na,\"SELECT 1\nb,c\n",
                "line 2: a quote is never closed",
            ),
            ("a.json", "[]", "holds no record"),
            ("a.json", "3", "single JSON value"),
            ("a.json", "[1]", "index 0: `1` is not an object"),
            ("a.json", "[{\"a\": 1},\n{]", "not JSON"),
            ("a.jsonl", "{\"a\": 1}\n{\"a\": }\n", "line 2: not JSON"),
            ("a.jsonl", "{\"a\": 1}\n[2]\n", "line 2: not an object"),
            ("a.json", "{\"a\": [{}], \"b\": [{}]}", "the lists `a`, `b`"),
            ("a.xlsx", "PK", "extensions"),
        ] {
            let error = written(name, content).unwrap_err();
            assert!(error.contains(part) && error.contains(name), "{error}");
        }
    }
}
