//! Copies the tables of a DuckDB database through the program `duckdb`.

use std::path::Path;
use std::process::Command;

use super::column_type::ColumnType;
use super::external::{self, ExportAs, ExternalSchema, ExternalTable};
use super::table::{ColumnKind, TableSpec};
use crate::DataError;
use crate::sql_text::literal;

/// The schema whose tables keep their names.
const MAIN_SCHEMA: &str = "main";

/// One JSON document with the fields of [`ExternalSchema`].
const SCHEMA_SQL: &str = "
    SELECT to_json({
      'columns': (SELECT coalesce(list({'schema': c.schema_name, 'table': c.table_name,
          'column': c.column_name, 'data_type': c.data_type}
          ORDER BY c.schema_name, c.table_name, c.column_index), [])
        FROM duckdb_columns() c JOIN duckdb_tables() t USING (database_oid, table_oid)
        WHERE NOT c.internal AND NOT t.temporary AND c.database_name = current_database()),
      'keys': (SELECT coalesce(list({'schema': schema_name, 'table': table_name,
          'columns': constraint_column_names,
          'parent': CASE WHEN constraint_type = 'FOREIGN KEY'
            THEN json_array(schema_name, referenced_table, referenced_column_names) END}
          ORDER BY schema_name, table_name, constraint_index), [])
        FROM duckdb_constraints()
        WHERE constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')
          AND database_name = current_database()),
      'others': (SELECT coalesce(list(view_name ORDER BY view_name), [])
        FROM duckdb_views() WHERE NOT internal AND database_name = current_database())
    })";

/// Writes all tables as CSV files into `folder`. Returns the tables, and the names of what is not
/// copied.
///
/// # Errors
/// The program is missing or fails.
pub(crate) fn export(
    file: &Path,
    folder: &Path,
) -> Result<(Vec<TableSpec>, Vec<String>), DataError> {
    let answer = external::output(
        duckdb(file).args(["-noheader", "-list", "-c", SCHEMA_SQL]),
        file,
    )?;
    let schema: ExternalSchema = external::parse(answer.trim(), file)?;
    let tables = external::tables(&schema, MAIN_SCHEMA, export_as, (file, folder))?;
    let mut script = "SET TimeZone = 'UTC';\n".to_owned();
    for table in &tables {
        script.push_str(&copy(table)?);
    }
    let script_file = folder.join("copy.sql");
    std::fs::write(&script_file, script).map_err(DataError::io(&script_file, "write"))?;
    external::output(duckdb(file).arg("-f").arg(&script_file), file)?;
    Ok((
        tables.into_iter().map(|it| it.spec).collect(),
        schema.others,
    ))
}

/// The program on a file, without what its user configured.
fn duckdb(file: &Path) -> Command {
    let mut command = Command::new("duckdb");
    command
        .args(["-no-init", "-bail", "-batch", "-readonly"])
        .arg(file);
    command
}

fn copy(table: &ExternalTable) -> Result<String, DataError> {
    let columns = table.select_list(|name, export| match export {
        ExportAs::Text(_) => format!("CAST({name} AS VARCHAR)"),
        ExportAs::Hex => format!("hex({name})"),
        ExportAs::Utc => format!("CAST({name} AT TIME ZONE 'UTC' AS VARCHAR)"),
        ExportAs::Json => format!("CAST(to_json({name}) AS VARCHAR)"),
    });
    Ok(format!(
        "COPY (SELECT {columns} FROM {}) TO {} (FORMAT csv, HEADER true);\n",
        table.quoted_name(),
        literal(table.csv_path()?)
    ))
}

fn export_as(data_type: &str) -> ExportAs {
    let name = data_type.split('(').next().unwrap_or_default();
    if data_type.ends_with(']') || ["STRUCT", "MAP", "UNION"].contains(&name) {
        return ExportAs::Json;
    }
    match name {
        "TINYINT" | "SMALLINT" | "INTEGER" | "BIGINT" | "UTINYINT" | "USMALLINT" | "UINTEGER" => {
            ExportAs::exactly(ColumnType::Integer)
        }
        "UBIGINT" | "HUGEINT" | "UHUGEINT" | "BIGNUM" | "VARINT" | "DECIMAL" => {
            ExportAs::Text(ColumnKind::Number)
        }
        "FLOAT" | "DOUBLE" => ExportAs::exactly(ColumnType::Real),
        "BOOLEAN" => ExportAs::exactly(ColumnType::Boolean),
        "BLOB" => ExportAs::Hex,
        "DATE" => ExportAs::exactly(ColumnType::Date),
        "TIMESTAMP WITH TIME ZONE" => ExportAs::Utc,
        _ if name.starts_with("TIMESTAMP") => ExportAs::exactly(ColumnType::Datetime),
        _ => ExportAs::exactly(ColumnType::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_equals() {
        for (data_type, expected) in [
            ("INTEGER", ExportAs::exactly(ColumnType::Integer)),
            ("DECIMAL(10,2)", ExportAs::Text(ColumnKind::Number)),
            ("VARCHAR[]", ExportAs::Json),
            ("INTEGER[3]", ExportAs::Json),
            ("STRUCT(a INTEGER)", ExportAs::Json),
            ("ENUM('a', 'b')", ExportAs::exactly(ColumnType::Text)),
            ("TIMESTAMP_NS", ExportAs::exactly(ColumnType::Datetime)),
            ("TIMESTAMP WITH TIME ZONE", ExportAs::Utc),
        ] {
            assert_eq!(export_as(data_type), expected, "{data_type}");
        }
    }
}
