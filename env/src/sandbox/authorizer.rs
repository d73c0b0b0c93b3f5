//! What a statement may touch: SELECT, the schema's own tables, the functions that `data` lists.
//!
//! Invariant: only what is listed is allowed. SQLite calls the authorizer while it compiles,
//! so a refused statement never runs.

use std::collections::BTreeSet;

use rusqlite::{
    Connection,
    hooks::{AuthAction, AuthContext, Authorization},
};

/// SQLite's schema table, by the name that the authorizer is called with.
const SCHEMA_TABLE: &str = "sqlite_master";

/// Lets `connection` compile only what reads the tables and views `own`, and SQLite's own schema
/// table where that is allowed.
pub(crate) fn authorize_reads<'a>(
    connection: &mut Connection,
    own: impl Iterator<Item = &'a str>,
    allow_schema_tables: bool,
) -> rusqlite::Result<()> {
    let own: BTreeSet<String> = own
        .chain(allow_schema_tables.then_some(SCHEMA_TABLE))
        .map(str::to_ascii_lowercase)
        .collect();
    let mut hidden = tables(connection)?;
    hidden.retain(|table| !own.contains(table));
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        authorize(&context, &own, &hidden)
    }))
}

/// Returns the names of all tables of the file in lower case.
fn tables(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage <> 0";
    let mut statement = connection.prepare(sql)?;
    let names = statement.query_map([], |row| row.get(0))?;
    names
        .map(|name: rusqlite::Result<String>| name.map(|name| name.to_ascii_lowercase()))
        .collect()
}

/// `own` holds the schema's tables and `hidden` all other ones of the file, in lower case.
fn authorize(
    context: &AuthContext<'_>,
    own: &BTreeSet<String>,
    hidden: &BTreeSet<String>,
) -> Authorization {
    let is_own = |table: &str| own.contains(&table.to_ascii_lowercase());
    let is_hidden = |table: &str| hidden.contains(&table.to_ascii_lowercase());
    let allowed = match context.action {
        AuthAction::Select | AuthAction::Recursive => true,
        // A source none of whose columns is used has no column name here, and may be a common table
        // expression. Statements are compiled without virtual tables, so every other table that
        // SQLite could resolve is hidden or has the reserved prefix.
        AuthAction::Read {
            table_name,
            column_name: "",
        } => is_own(table_name) || !(is_hidden(table_name) || data::is_reserved_table(table_name)),
        AuthAction::Read { table_name, .. } => is_own(table_name),
        AuthAction::Function { function_name } => data::is_sql_function(function_name),
        _ => false,
    };
    if allowed {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}
