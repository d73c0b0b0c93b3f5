//! A database on disk: its identity and its schema.
//!
//! Invariant: a [`Database`] exists only for a file whose SHA-256 was checked, and the file is taken as immutable from
//! then on. Leaves out what agents run against it: that is `sandbox.rs`.

use std::{fs::File, io, path::Path};

use data::DatabaseFile;
use rusqlite::{Connection, OpenFlags, types::ValueRef};
use sha2::{Digest, Sha256};

use crate::{
    config::ResultLimits,
    error::EnvError,
    rows::{Cell, Rows},
    schema::{Schema, Table},
};

/// Rows that SAMPLE shows.
const SAMPLE_ROWS: usize = 5;

/// A verified database.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) file: DatabaseFile,
    pub(crate) schema: Schema,
}

impl Database {
    /// Checks the file's hash and reads its schema, row counts and sample rows.
    pub(crate) fn open(file: &DatabaseFile, limits: &ResultLimits) -> Result<Self, EnvError> {
        let refuse = |reason: String| EnvError::Database {
            name: file.name.clone(),
            path: file.path.clone(),
            reason,
        };
        let sha256 = sha256_of(&file.path)
            .map_err(|error| refuse(format!("cannot be read: {error}; check the path")))?;
        if sha256 != file.sha256 {
            return Err(refuse(format!(
                "has SHA-256 {sha256}, the dataset says {}; the file was changed, build or copy the dataset again",
                file.sha256
            )));
        }
        let schema = connect(&file.path)
            .and_then(|connection| read_schema(&connection, limits))
            .map_err(|error| {
                refuse(format!(
                    "is not a readable SQLite database: {error}; build or copy it again"
                ))
            })?;
        if schema.tables.is_empty() {
            return Err(refuse("has no tables; build or copy it again".to_owned()));
        }
        Ok(Self {
            file: file.clone(),
            schema,
        })
    }
}

/// Opens a file read-only and immutable: no locks, no journal, nothing written beside it.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(immutable_uri(path), flags)
}

fn immutable_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?mode=ro&immutable=1"
}

fn sha256_of(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hex::encode(hasher.finalize())),
            count => hasher.update(&buffer[..count]),
        }
    }
}

fn read_schema(connection: &Connection, limits: &ResultLimits) -> rusqlite::Result<Schema> {
    let names: Vec<String> = connection
        .prepare(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
             ORDER BY rowid",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let tables = names
        .iter()
        .map(|name| read_table(connection, name, limits))
        .collect::<Result<_, _>>()?;
    Ok(Schema { tables })
}

fn read_table(
    connection: &Connection,
    name: &str,
    limits: &ResultLimits,
) -> rusqlite::Result<Table> {
    let columns: Vec<(String, String)> = connection
        .prepare("SELECT name, type FROM pragma_table_info(?1)")?
        .query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let row_count: i64 =
        connection.query_row(&format!("SELECT count(*) FROM {quoted}"), [], |row| {
            row.get(0)
        })?;
    let mut statement =
        connection.prepare(&format!("SELECT * FROM {quoted} LIMIT {SAMPLE_ROWS}"))?;
    let sample = read_rows(&mut statement, SAMPLE_ROWS)?;
    Ok(Table::new(
        name,
        &columns,
        row_count.unsigned_abs(),
        sample.render(limits),
    ))
}

/// Runs a statement and reads at most `limit` rows.
pub(crate) fn read_rows(
    statement: &mut rusqlite::Statement<'_>,
    limit: usize,
) -> rusqlite::Result<Rows> {
    let width = statement.column_count();
    let mut source = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = source.next()? {
        if rows.len() == limit {
            return Ok(Rows {
                rows,
                complete: false,
            });
        }
        let cells = (0..width).map(|column| row.get_ref(column).map(Cell::from));
        rows.push(cells.collect::<Result<_, _>>()?);
    }
    Ok(Rows {
        rows,
        complete: true,
    })
}

impl From<ValueRef<'_>> for Cell {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(bytes) => Self::Text(String::from_utf8_lossy(bytes).into_owned()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_in_uris() {
        assert_eq!(
            immutable_uri(Path::new("/data/a b/100%?#.sqlite")),
            "file:/data/a%20b/100%25%3F%23.sqlite?mode=ro&immutable=1"
        );
    }

    #[test]
    fn a_changed_missing_or_broken_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.sqlite");
        let file = |sha256: &str| DatabaseFile {
            name: "broken".to_owned(),
            path: path.clone(),
            sha256: sha256.to_owned(),
            size_bytes: 4,
        };
        let message = |sha256: &str| {
            Database::open(&file(sha256), &ResultLimits::default())
                .unwrap_err()
                .to_string()
        };
        assert!(
            message("00").contains("cannot be read"),
            "{}",
            message("00")
        );
        std::fs::write(&path, "text").unwrap();
        assert!(
            message("00").contains("the dataset says 00"),
            "{}",
            message("00")
        );
        let text_sha256 = hex::encode(Sha256::digest("text"));
        let broken = message(&text_sha256);
        assert!(
            broken.contains("broken.sqlite") && broken.contains("not a readable SQLite database"),
            "{broken}"
        );
    }
}
