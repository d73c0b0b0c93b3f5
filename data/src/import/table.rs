//! Fills a table of a SQLite file from a CSV file.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, ErrorCode, params_from_iter};

use super::column_type::{ColumnGuess, ColumnType};
use super::csv_text::{CsvReader, CsvRecord, check_delimiter, check_different};
use crate::sql::MAX_COLUMNS;
use crate::sql_text::quoted;
use crate::{DataError, is_reserved_table};

/// A table to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableSpec {
    pub(crate) name: String,
    pub(crate) csv: PathBuf,
    pub(crate) delimiter: u8,
    /// The types of all columns by the database that wrote the file. Without them they are
    /// inferred.
    pub(crate) columns: Option<Vec<ColumnSpec>>,
    pub(crate) primary_key: Vec<String>,
    pub(crate) foreign_keys: Vec<ForeignKeySpec>,
}

/// A column whose type another database declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnSpec {
    pub(crate) name: String,
    pub(crate) kind: ColumnKind,
}

/// The type of a column in another database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// It has an equal.
    Exactly(ColumnType),
    /// It has numbers that SQLite may not hold: whole numbers if all are, else real ones, and text
    /// if a whole number is too large.
    Number,
}

/// A foreign key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignKeySpec {
    pub(crate) columns: Vec<String>,
    pub(crate) parent: String,
    pub(crate) parent_columns: Vec<String>,
}

/// What is not in a table as its file has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FilledTable {
    /// The number of cells that are NULL because SQLite has no such number: NaN, infinity.
    pub(crate) lost_numbers: u64,
    /// The columns of text that are mostly numbers, a sentence each.
    pub(crate) notes: Vec<String>,
}

/// Creates the table in the database at `made` and inserts all rows of its file.
///
/// # Errors
/// The error names file, line and column, or `made` if that cannot be written.
pub(crate) fn fill(
    connection: &mut Connection,
    made: &Path,
    spec: &TableSpec,
) -> Result<FilledTable, DataError> {
    let mut rows = CsvRows::open(spec)?;
    let names = rows.header.clone();
    let mut guesses = vec![ColumnGuess::default(); names.len()];
    while let Some(record) = rows.next()? {
        let cells = guesses.iter_mut().zip(&record.cells);
        cells.for_each(|(guess, cell)| guess.see(cell, record.line));
    }
    let types = column_types(spec, &names, &guesses)?;
    let refused = |error: rusqlite::Error, line: &str, remedy: &str| {
        if is_of_disk(&error) {
            return DataError::sqlite(made)(error);
        }
        let problem = format!("{line}table `{}`: {error}{remedy}", spec.name);
        DataError::format(&spec.csv, problem)
    };
    let failed = |error: rusqlite::Error| refused(error, "", "; rename or correct it");
    let transaction = connection.transaction().map_err(failed)?;
    transaction
        .execute_batch(&create(spec, &names, &types))
        .map_err(failed)?;
    let mut lost_numbers = 0;
    let marks = vec!["?"; names.len()].join(", ");
    let insert = format!("INSERT INTO {} VALUES ({marks})", quoted(&spec.name));
    let mut insert = transaction.prepare(&insert).map_err(failed)?;
    let mut rows = CsvRows::open(spec)?;
    while let Some(record) = rows.next()? {
        let line = record.line;
        let values = values(&spec.name, record, &names, &types, &mut lost_numbers)
            .map_err(|problem| DataError::format(&spec.csv, problem))?;
        let inserted = insert.execute(params_from_iter(values));
        inserted.map_err(|error| refused(error, &format!("line {line}: "), ""))?;
    }
    drop(insert);
    transaction.commit().map_err(failed)?;
    Ok(FilledTable {
        lost_numbers,
        notes: notes(spec, &names, &guesses),
    })
}

/// Returns whether an error is about the disk of the new database and not about the rows.
fn is_of_disk(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure)
    )
}

/// Returns a note for each column whose type was inferred and that is text although most of its
/// cells are numbers.
fn notes(spec: &TableSpec, names: &[String], guesses: &[ColumnGuess]) -> Vec<String> {
    if spec.columns.is_some() {
        return Vec::new();
    }
    let columns = names.iter().zip(guesses);
    let note =
        |(name, guess): (&String, &ColumnGuess)| guess.note(&format!("{}.{name}", spec.name));
    columns.filter_map(note).collect()
}

fn values(
    table: &str,
    record: CsvRecord,
    names: &[String],
    types: &[ColumnType],
    lost_numbers: &mut u64,
) -> Result<Vec<SqlValue>, String> {
    let line = record.line;
    let mut values = Vec::with_capacity(types.len());
    for ((cell, column_type), name) in record.cells.into_iter().zip(types).zip(names) {
        let has_text = !cell.text.is_empty();
        let value = column_type.value(cell).map_err(|problem| {
            format!("line {line}: column `{name}` of `{table}`: {problem}; export the table again")
        })?;
        *lost_numbers += u64::from(has_text && value == SqlValue::Null);
        values.push(value);
    }
    Ok(values)
}

fn column_types(
    spec: &TableSpec,
    names: &[String],
    guesses: &[ColumnGuess],
) -> Result<Vec<ColumnType>, DataError> {
    let Some(columns) = &spec.columns else {
        return Ok(guesses.iter().map(ColumnGuess::column_type).collect());
    };
    if !columns.iter().map(|it| &it.name).eq(names) {
        let problem = "the columns changed while the table was copied; import again";
        return Err(DataError::format(&spec.csv, problem));
    }
    let column_type = |(column, guess): (&ColumnSpec, &ColumnGuess)| match column.kind {
        ColumnKind::Exactly(column_type) => column_type,
        ColumnKind::Number => guess.number_type(),
    };
    Ok(columns.iter().zip(guesses).map(column_type).collect())
}

/// The rows of a CSV file after its header.
struct CsvRows<'a> {
    spec: &'a TableSpec,
    reader: CsvReader<BufReader<File>>,
    header: Vec<String>,
}

impl<'a> CsvRows<'a> {
    fn open(spec: &'a TableSpec) -> Result<Self, DataError> {
        let file = File::open(&spec.csv).map_err(DataError::io(&spec.csv, "read"))?;
        let mut reader = CsvReader::new(BufReader::new(file), spec.delimiter);
        let refuse = |problem: String| DataError::format(&spec.csv, problem);
        let record = reader.next_record().map_err(refuse)?.ok_or_else(|| {
            refuse("is empty; write a first line with the names of the columns".to_owned())
        })?;
        let header = header(&record, spec).map_err(refuse)?;
        Ok(Self {
            spec,
            reader,
            header,
        })
    }

    /// Reads the next row. Empty lines are no rows, unless another database has exported a single
    /// column, which is NULL there.
    fn next(&mut self) -> Result<Option<CsvRecord>, DataError> {
        let refuse = |problem: String| DataError::format(&self.spec.csv, problem);
        loop {
            let Some(record) = self.reader.next_record().map_err(refuse)? else {
                return Ok(None);
            };
            if record.is_blank() && (self.header.len() > 1 || self.spec.columns.is_none()) {
                continue;
            }
            if record.cells.len() != self.header.len() {
                return Err(refuse(format!(
                    "line {}: {} cells, but the header has {}; correct the line, or quote cells \
                     that hold the delimiter",
                    record.line,
                    record.cells.len(),
                    self.header.len()
                )));
            }
            return Ok(Some(record));
        }
    }
}

fn header(record: &CsvRecord, spec: &TableSpec) -> Result<Vec<String>, String> {
    let texts = record.cells.iter().map(|cell| match &spec.columns {
        // Another database may have names with blanks around them.
        Some(_) => cell.text.clone(),
        None => cell.text.trim().to_owned(),
    });
    let names: Vec<String> = texts.collect();
    if let Some(index) = names.iter().position(String::is_empty) {
        return Err(format!(
            "line 1: column {} has no name; write one",
            index + 1
        ));
    }
    if names.len() > usize::from(MAX_COLUMNS) {
        return Err(format!(
            "line 1: {} columns, and a table that agents can query has at most {MAX_COLUMNS}; \
             divide it",
            names.len()
        ));
    }
    if spec.columns.is_none() {
        check_delimiter(&names)?;
    }
    check_different(&names)?;
    Ok(names)
}

fn create(spec: &TableSpec, names: &[String], types: &[ColumnType]) -> String {
    // With this exact declaration, the key is the row id.
    let is_row_id = |name: &String, column_type: ColumnType| {
        spec.primary_key == [name.as_str()] && column_type == ColumnType::Integer
    };
    let mut has_row_id = false;
    let mut lines: Vec<String> = Vec::new();
    for (name, &column_type) in names.iter().zip(types) {
        let suffix = match is_row_id(name, column_type) {
            true => " PRIMARY KEY",
            false => "",
        };
        has_row_id |= !suffix.is_empty();
        lines.push(format!(
            "{} {}{suffix}",
            quoted(name),
            column_type.declared()
        ));
    }
    if !has_row_id && !spec.primary_key.is_empty() {
        lines.push(format!("PRIMARY KEY ({})", list(&spec.primary_key)));
    }
    for key in &spec.foreign_keys {
        let parent = match key.parent_columns.is_empty() {
            true => quoted(&key.parent),
            false => format!("{} ({})", quoted(&key.parent), list(&key.parent_columns)),
        };
        let columns = list(&key.columns);
        lines.push(format!("FOREIGN KEY ({columns}) REFERENCES {parent}"));
    }
    format!(
        "CREATE TABLE {} (\n  {}\n)",
        quoted(&spec.name),
        lines.join(",\n  ")
    )
}

fn list(names: &[String]) -> String {
    names
        .iter()
        .map(|it| quoted(it))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Refuses names of tables that SQLite cannot create, or would take for the same.
pub(crate) fn check_names<'a>(
    place: &Path,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), DataError> {
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        let problem = if name.trim().is_empty() {
            Some("a table has no name".to_owned())
        } else if is_reserved_table(name) {
            Some(format!("`{name}`: SQLite reserves names with sqlite_"))
        } else {
            let same = seen.iter().find(|it| it.eq_ignore_ascii_case(name));
            same.map(|first| {
                format!(
                    "two tables are named `{first}` and `{name}`, which SQL does not tell apart"
                )
            })
        };
        if let Some(problem) = problem {
            return Err(DataError::format(place, format!("{problem}; rename it")));
        }
        seen.push(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_of_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let csv = dir.path().join("shop.csv");
        std::fs::write(&csv, format!("name\n{}", "cup\n".repeat(10_000))).unwrap();
        let spec = TableSpec {
            name: "shop".to_owned(),
            csv,
            delimiter: b',',
            columns: None,
            primary_key: Vec::new(),
            foreign_keys: Vec::new(),
        };
        let mut connection = Connection::open_in_memory().unwrap();
        // SQLite fails at its own limit as it does on a full disk.
        let limit = "PRAGMA page_size = 4096; PRAGMA max_page_count = 8";
        connection.execute_batch(limit).unwrap();
        let filled = fill(&mut connection, Path::new("out/new.sqlite"), &spec);
        let error = filled.unwrap_err().to_string();
        assert!(
            error.starts_with("out/new.sqlite: SQLite: ") && error.contains("free space"),
            "{error}"
        );
    }
}
