//! Copies the tables of a PostgreSQL database through the program `psql`.

use std::path::Path;
use std::process::Command;

use super::column_type::ColumnType;
use super::external::{self, ExportAs, ExternalSchema, ExternalTable};
use super::table::{ColumnKind, TableSpec};
use crate::DataError;
use crate::sql_text::quoted;

/// The schema whose tables keep their names.
const MAIN_SCHEMA: &str = "public";

/// Begins a transaction in which all statements see the same rows, bounds how long they wait for
/// locks, and fixes how values are written.
const BEGIN_SQL: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL lock_timeout = '60s';
SET LOCAL TimeZone = 'UTC';
SET LOCAL DateStyle = 'ISO, YMD';
SET LOCAL IntervalStyle = 'postgres';
SET LOCAL extra_float_digits = 1;
";

/// One JSON document with the fields of [`ExternalSchema`]. Partitions are part of their table. A
/// domain counts as the type below it, and below all domains between the two.
const SCHEMA_SQL: &str = "
WITH RECURSIVE relations AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'
    AND NOT c.relispartition AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND has_schema_privilege(n.oid, 'USAGE')
    AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
      AND d.objid = c.oid AND d.deptype = 'e')
), tables AS (
  SELECT * FROM relations WHERE relkind IN ('r', 'p') AND has_table_privilege(oid, 'SELECT')
), names AS (
  SELECT conrelid, conindid, confrelid, contype, conname, conkey, confkey FROM pg_constraint
  WHERE contype IN ('p', 'f')
), domains AS (
  SELECT oid, typbasetype AS base, typtypmod AS modifier FROM pg_type WHERE typtype = 'd'
  UNION ALL
  SELECT d.oid, ty.typbasetype, ty.typtypmod FROM domains d JOIN pg_type ty ON ty.oid = d.base
  WHERE ty.typtype = 'd'
), types AS (
  SELECT oid, typtype, oid AS base, NULL::integer AS modifier FROM pg_type WHERE typtype <> 'd'
  UNION ALL
  SELECT d.oid, ty.typtype, d.base, d.modifier FROM domains d JOIN pg_type ty ON ty.oid = d.base
  WHERE ty.typtype <> 'd'
)
SELECT json_build_object(
  'columns', (SELECT coalesce(json_agg(json_build_object('schema', t.nspname, 'table', t.relname,
      'column', a.attname, 'data_type', CASE ty.typtype WHEN 'c' THEN 'record'
        ELSE format_type(ty.base, coalesce(ty.modifier, a.atttypmod)) END)
      ORDER BY t.nspname, t.relname, a.attnum), '[]')
    FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid JOIN types ty ON ty.oid = a.atttypid
    WHERE a.attnum > 0 AND NOT a.attisdropped),
  'keys', (SELECT coalesce(json_agg(json_build_object('schema', t.nspname, 'table', t.relname,
      'columns', (SELECT json_agg(a.attname ORDER BY k.n) FROM unnest(c.conkey) WITH ORDINALITY
        k(attnum, n) JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum),
      'parent', CASE WHEN c.contype = 'f' THEN json_build_array(p.nspname, p.relname,
        (SELECT json_agg(a.attname ORDER BY k.n) FROM unnest(c.confkey) WITH ORDINALITY
        k(attnum, n) JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.attnum)) END)
      ORDER BY t.nspname, t.relname, c.conname), '[]')
    FROM names c JOIN tables t ON t.oid = c.conrelid LEFT JOIN tables p ON p.oid = c.confrelid
    WHERE c.contype = 'p' OR p.oid IS NOT NULL),
  'others', (SELECT coalesce(json_agg(relname ORDER BY relname), '[]') FROM relations
    WHERE oid NOT IN (SELECT oid FROM tables))
);
";

/// Writes all tables as CSV files into `folder`. Returns the tables, and the names of what is not
/// copied. `place` is what errors name instead of the address, which may hold a password.
///
/// # Errors
/// The program is missing or fails.
pub(crate) fn export(
    address: &str,
    place: &Path,
    folder: &Path,
) -> Result<(Vec<TableSpec>, Vec<String>), DataError> {
    let run = |name: &str, script: String| {
        let file = folder.join(name);
        std::fs::write(&file, script).map_err(DataError::io(&file, "write"))?;
        external::output(psql(address).arg("-f").arg(&file), place)
    };
    let answer = run("schema.sql", format!("{BEGIN_SQL}{SCHEMA_SQL}COMMIT;\n"))?;
    let schema: ExternalSchema = external::parse(answer.trim(), place)?;
    let tables = external::tables(&schema, MAIN_SCHEMA, export_as, (place, folder))?;
    let mut script = BEGIN_SQL.to_owned();
    for table in &tables {
        script.push_str(&copy(table)?);
    }
    run("copy.sql", script + "COMMIT;\n")?;
    Ok((
        tables.into_iter().map(|it| it.spec).collect(),
        schema.others,
    ))
}

/// The program on a database, without what its user configured. It never asks for a password.
fn psql(address: &str) -> Command {
    let mut command = Command::new("psql");
    let options =
        "--no-psqlrc --no-password --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1";
    command
        .args(options.split(' '))
        .arg("--dbname")
        .arg(address);
    command.env("PGCLIENTENCODING", "UTF8");
    // In seconds. An address that has an option such as `?connect_timeout=60` takes precedence.
    command.env("PGCONNECT_TIMEOUT", "10");
    command
}

fn copy(table: &ExternalTable) -> Result<String, DataError> {
    let columns = table.select_list(|name, export| match export {
        ExportAs::Text(_) => format!("{name}::text"),
        ExportAs::Hex => format!("encode({name}, 'hex')"),
        ExportAs::Utc => format!("({name} AT TIME ZONE 'UTC')::text"),
        ExportAs::Json => format!("to_json({name})::text"),
    });
    let key: Vec<String> = table.spec.primary_key.iter().map(|it| quoted(it)).collect();
    let order = match key.is_empty() {
        true => String::new(),
        false => format!(" ORDER BY {}", prefixed(&key)),
    };
    // Within the quotes of psql a backslash escapes.
    let csv = table.csv_path()?.replace('\\', "\\\\").replace('\'', "\\'");
    Ok(format!(
        "\\o '{csv}'\nCOPY (SELECT {columns} FROM {} AS t{order}) TO STDOUT WITH (FORMAT csv, \
         HEADER);\n",
        table.quoted_name(),
    ))
}

/// The columns of the table, not the texts that are written and have the same names.
fn prefixed(columns: &[String]) -> String {
    let columns: Vec<String> = columns.iter().map(|it| format!("t.{it}")).collect();
    columns.join(", ")
}

fn export_as(data_type: &str) -> ExportAs {
    if data_type.ends_with("[]") || data_type == "record" {
        return ExportAs::Json;
    }
    let without_size = |text: &str| match (text.find('('), text.find(')')) {
        (Some(open), Some(close)) => format!("{}{}", &text[..open], &text[close + 1..]),
        _ => text.to_owned(),
    };
    match without_size(data_type).as_str() {
        "smallint" | "integer" | "bigint" | "oid" => ExportAs::exactly(ColumnType::Integer),
        "numeric" => ExportAs::Text(ColumnKind::Number),
        "real" | "double precision" => ExportAs::exactly(ColumnType::Real),
        "boolean" => ExportAs::exactly(ColumnType::Boolean),
        "bytea" => ExportAs::Hex,
        "date" => ExportAs::exactly(ColumnType::Date),
        "timestamp without time zone" => ExportAs::exactly(ColumnType::Datetime),
        "timestamp with time zone" => ExportAs::Utc,
        _ => ExportAs::exactly(ColumnType::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_equals() {
        for (data_type, expected) in [
            ("integer", ExportAs::exactly(ColumnType::Integer)),
            ("numeric(10,2)", ExportAs::Text(ColumnKind::Number)),
            ("text[]", ExportAs::Json),
            ("record", ExportAs::Json),
            ("character varying(20)", ExportAs::exactly(ColumnType::Text)),
            (
                "timestamp(3) without time zone",
                ExportAs::exactly(ColumnType::Datetime),
            ),
            ("timestamp(3) with time zone", ExportAs::Utc),
            ("time with time zone", ExportAs::exactly(ColumnType::Text)),
        ] {
            assert_eq!(export_as(data_type), expected, "{data_type}");
        }
    }
}
