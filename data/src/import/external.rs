//! What copying from DuckDB and PostgreSQL has in common: tables are written as CSV files by the
//! program that comes with the database, and their types and keys are kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::column_type::ColumnType;
use super::table::{self, ColumnKind, ColumnSpec, ForeignKeySpec, TableSpec};
use crate::DataError;
use crate::sql_text::quoted;

/// The characters of a program's complaint that an error repeats.
const MAX_COMPLAINT_CHARS: usize = 2000;

/// What a database says about its tables.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ExternalSchema {
    /// All columns, by table and position.
    pub(super) columns: Vec<ExternalColumn>,
    /// The keys of these tables.
    pub(super) keys: Vec<ExternalKey>,
    /// The names of views and other relations, which are not copied.
    pub(super) others: Vec<String>,
}

/// A column.
#[derive(Debug, Deserialize)]
pub(super) struct ExternalColumn {
    schema: String,
    table: String,
    column: String,
    data_type: String,
}

/// A primary or foreign key.
#[derive(Debug, Deserialize)]
pub(super) struct ExternalKey {
    schema: String,
    table: String,
    columns: Vec<String>,
    /// The schema, table and columns that a foreign key refers to.
    parent: Option<(String, String, Vec<String>)>,
}

/// How the cells of a column are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExportAs {
    /// As the database writes text of the column.
    Text(ColumnKind),
    /// Bytes, in hexadecimal digits.
    Hex,
    /// A moment, as the date and time in UTC.
    Utc,
    /// A nested value, as JSON.
    Json,
}

impl ExportAs {
    pub(super) fn exactly(column_type: ColumnType) -> Self {
        Self::Text(ColumnKind::Exactly(column_type))
    }

    fn kind(self) -> ColumnKind {
        match self {
            Self::Text(kind) => kind,
            Self::Hex => ColumnKind::Exactly(ColumnType::Blob),
            Self::Utc => ColumnKind::Exactly(ColumnType::Datetime),
            Self::Json => ColumnKind::Exactly(ColumnType::Text),
        }
    }
}

/// A table to export.
pub(super) struct ExternalTable {
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) columns: Vec<(String, ExportAs)>,
    pub(super) spec: TableSpec,
}

impl ExternalTable {
    /// Returns the columns of a `SELECT` that writes each cell as text. `written` makes the text of
    /// a quoted name.
    pub(super) fn select_list(&self, written: impl Fn(&str, ExportAs) -> String) -> String {
        let column = |(name, export): &(String, ExportAs)| {
            let name = quoted(name);
            format!("{} AS {name}", written(&name, *export))
        };
        let columns: Vec<String> = self.columns.iter().map(column).collect();
        columns.join(", ")
    }

    /// Returns the quoted name of the table in its database.
    pub(super) fn quoted_name(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.table))
    }

    /// Returns the path of the CSV file as a script can name it.
    ///
    /// # Errors
    /// The path is not UTF-8, or has a control character.
    pub(super) fn csv_path(&self) -> Result<&str, DataError> {
        let csv = &self.spec.csv;
        let text = csv.to_str().filter(|it| !it.contains(char::is_control));
        text.ok_or_else(|| {
            let problem = "the path is not UTF-8 or has a control character; choose another folder";
            DataError::format(csv, problem)
        })
    }
}

/// Gives each table a name in SQLite and a CSV file in `folder`. A table of `main_schema` keeps its
/// name, and another becomes `schema_table`.
///
/// # Errors
/// Names that SQLite or the programs cannot take.
pub(super) fn tables(
    schema: &ExternalSchema,
    main_schema: &str,
    export_as: fn(&str) -> ExportAs,
    (place, folder): (&Path, &Path),
) -> Result<Vec<ExternalTable>, DataError> {
    let name = |schema: &str, table: &str| match schema == main_schema {
        true => table.to_owned(),
        false => format!("{schema}_{table}"),
    };
    let mut tables: Vec<ExternalTable> = Vec::new();
    let mut places: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for column in &schema.columns {
        check_printable(column, place)?;
        let index = *places
            .entry((&column.schema, &column.table))
            .or_insert_with(|| {
                let csv = folder.join(format!("{}.csv", tables.len()));
                tables.push(ExternalTable {
                    schema: column.schema.clone(),
                    table: column.table.clone(),
                    columns: Vec::new(),
                    spec: TableSpec {
                        name: name(&column.schema, &column.table),
                        csv,
                        delimiter: b',',
                        columns: None,
                        primary_key: Vec::new(),
                        foreign_keys: Vec::new(),
                    },
                });
                tables.len() - 1
            });
        let export = export_as(&column.data_type);
        let table = &mut tables[index];
        table.columns.push((column.column.clone(), export));
        let columns = table.spec.columns.get_or_insert_default();
        columns.push(ColumnSpec {
            name: column.column.clone(),
            kind: export.kind(),
        });
    }
    add_keys(&schema.keys, &places, &mut tables, &name);
    if tables.is_empty() {
        return Err(DataError::format(
            place,
            "the database has no table that you may read; check its name and your rights",
        ));
    }
    table::check_names(place, tables.iter().map(|it| it.spec.name.as_str()))?;
    Ok(tables)
}

fn check_printable(column: &ExternalColumn, place: &Path) -> Result<(), DataError> {
    let names = [&column.schema, &column.table, &column.column];
    match names.iter().find(|it| it.contains(char::is_control)) {
        Some(name) => {
            let problem = format!("the name {name:?} holds a control character; rename it");
            Err(DataError::format(place, problem))
        }
        None => Ok(()),
    }
}

fn add_keys(
    keys: &[ExternalKey],
    places: &BTreeMap<(&str, &str), usize>,
    tables: &mut [ExternalTable],
    name: &impl Fn(&str, &str) -> String,
) {
    for key in keys {
        let Some(&index) = places.get(&(key.schema.as_str(), key.table.as_str())) else {
            continue;
        };
        let spec = &mut tables[index].spec;
        match &key.parent {
            None => spec.primary_key.clone_from(&key.columns),
            Some((parent_schema, parent, parent_columns)) => {
                spec.foreign_keys.push(ForeignKeySpec {
                    columns: key.columns.clone(),
                    parent: name(parent_schema, parent),
                    parent_columns: parent_columns.clone(),
                });
            }
        }
    }
}

/// Runs a program and returns its standard output. `place` is what errors name.
///
/// # Errors
/// The program is missing or fails; the error has what the program said.
pub(super) fn output(command: &mut Command, place: &Path) -> Result<String, DataError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "; install it, put it on PATH, or export the tables as CSV files and give their \
                 folder"
            }
            _ => "",
        };
        let problem = format!("the program `{program}`, which reads it, cannot run: {error}");
        DataError::format(place, problem + remedy)
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.trim().chars().take(MAX_COMPLAINT_CHARS).collect();
        let problem = format!("`{program}` failed ({}): {said}", output.status);
        return Err(DataError::format(place, problem));
    }
    String::from_utf8(output.stdout).map_err(|_| {
        DataError::format(
            place,
            format!("`{program}` answered text that is not UTF-8"),
        )
    })
}

/// Parses what a program answered.
pub(super) fn parse<T: for<'a> Deserialize<'a>>(text: &str, place: &Path) -> Result<T, DataError> {
    serde_json::from_str(text).map_err(|error| {
        let problem = format!(
            "the answer about its tables cannot be read ({error}); use a newer version of the \
             program, or export the tables as CSV files and give their folder"
        );
        DataError::format(place, problem)
    })
}
