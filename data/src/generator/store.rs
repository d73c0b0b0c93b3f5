//! Stores a generated database in SQLite, in memory.

use rusqlite::{Connection, params_from_iter};

use super::domain::ColumnKind;
use super::rows::DatabaseRows;
use super::schema::{GrammarColumn, GrammarSchema, GrammarTable};

/// Creates the tables and inserts the rows, in memory.
pub(crate) fn in_memory(
    schema: &GrammarSchema,
    rows: &DatabaseRows,
) -> rusqlite::Result<Connection> {
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

fn create(schema: &GrammarSchema, table: &GrammarTable) -> String {
    let mut lines: Vec<String> = table
        .columns
        .iter()
        .map(|column| column_definition(schema, table, column))
        .collect();
    if table.key.len() > 1 {
        let name = |column: &usize| table.columns[*column].name.as_str();
        let key: Vec<&str> = table.key.iter().map(name).collect();
        lines.push(format!("PRIMARY KEY ({})", key.join(", ")));
    }
    for column in &table.columns {
        if let Some(parent) = column.parent {
            let key = &schema.column(schema.key(parent)).name;
            let (foreign, parent) = (&column.name, &schema.tables[parent].name);
            lines.push(format!(
                "FOREIGN KEY ({foreign}) REFERENCES {parent} ({key})"
            ));
        }
    }
    format!(
        "CREATE TABLE {} (\n  {}\n)",
        table.name,
        lines.join(",\n  ")
    )
}

fn column_definition(
    schema: &GrammarSchema,
    table: &GrammarTable,
    column: &GrammarColumn,
) -> String {
    let types = schema.types;
    let sql_type = match column.spec.kind {
        ColumnKind::Key | ColumnKind::Parent(_) => types.integer,
        ColumnKind::Integer(_) | ColumnKind::Year(_) => types.integer,
        ColumnKind::Decimal(_) => types.decimal,
        ColumnKind::Date(_) => types.date,
        _ => types.text,
    };
    let is_key = table.key.len() == 1 && column.spec.kind == ColumnKind::Key;
    let suffix = if is_key {
        " PRIMARY KEY"
    } else if column.spec.nulls == 0 {
        " NOT NULL"
    } else {
        ""
    };
    format!("{} {sql_type}{suffix}", column.name)
}
