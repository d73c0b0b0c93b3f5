//! A filled schema as an SQLite database, in memory and as a file with always the same bytes.

use std::path::Path;

use rusqlite::{Connection, params_from_iter};

use super::domain::Holds;
use super::rows::Rows;
use super::schema::{Column, Schema, Table};
use crate::DataError;

/// Creates the tables and inserts the rows, in memory.
pub(crate) fn in_memory(schema: &Schema, rows: &Rows) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch("PRAGMA page_size = 4096; PRAGMA encoding = 'UTF-8';")?;
    let transaction = connection.transaction()?;
    for (table, rows) in schema.tables.iter().zip(rows) {
        transaction.execute_batch(&create(schema, table))?;
        let marks = vec!["?"; table.columns.len()].join(", ");
        let mut insert =
            transaction.prepare(&format!("INSERT INTO {} VALUES ({marks})", table.name))?;
        for row in rows {
            insert.execute(params_from_iter(row))?;
        }
    }
    transaction.commit()?;
    Ok(connection)
}

/// Writes a database to a new file. The bytes depend on the content and on SQLite's version alone.
pub(crate) fn write(connection: &Connection, path: &Path) -> Result<(), DataError> {
    let target = path
        .to_str()
        .ok_or_else(|| DataError::format(path, "the path is not UTF-8; choose another folder"))?;
    connection
        .execute("VACUUM INTO ?1", [target])
        .map(|_| ())
        .map_err(DataError::sqlite(path))
}

fn create(schema: &Schema, table: &Table) -> String {
    let mut lines: Vec<String> = table
        .columns
        .iter()
        .map(|column| column_definition(table, column))
        .collect();
    if table.key.len() > 1 {
        let key: Vec<&str> = table
            .key
            .iter()
            .map(|column| table.columns[*column].name.as_str())
            .collect();
        lines.push(format!("PRIMARY KEY ({})", key.join(", ")));
    }
    for column in &table.columns {
        if let Some(parent) = column.parent.map(|parent| &schema.tables[parent]) {
            let key = &parent.columns[parent.key[0]].name;
            lines.push(format!(
                "FOREIGN KEY ({}) REFERENCES {} ({key})",
                column.name, parent.name
            ));
        }
    }
    format!(
        "CREATE TABLE {} (\n  {}\n)",
        table.name,
        lines.join(",\n  ")
    )
}

fn column_definition(table: &Table, column: &Column) -> String {
    let kind = match column.spec.holds {
        Holds::Key | Holds::Parent(_) | Holds::Integer(_) | Holds::Year(_) => "INTEGER",
        Holds::Decimal(_) => "REAL",
        Holds::Label(_)
        | Holds::Words(_)
        | Holds::OneOf(_)
        | Holds::TextInteger(_)
        | Holds::Date(_) => "TEXT",
    };
    let is_key = table.key.len() == 1 && column.spec.holds == Holds::Key;
    let suffix = if is_key {
        " PRIMARY KEY"
    } else if column.spec.nulls == 0 {
        " NOT NULL"
    } else {
        ""
    };
    format!("{} {kind}{suffix}", column.name)
}
