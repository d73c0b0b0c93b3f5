//! What a statement may touch: SELECT, the schema's own tables, listed functions.
//!
//! Invariant: nothing is allowed that is not listed here. SQLite asks while it compiles, so a refused statement never runs.

use std::collections::BTreeSet;

use rusqlite::{
    Connection,
    hooks::{AuthAction, AuthContext, Authorization},
};

use crate::{schema::Schema, sql_text::names};

/// Functions an agent may call: pure, and the same on every machine.
const FUNCTIONS: &[&str] = &[
    "abs",
    "avg",
    "ceil",
    "ceiling",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "count",
    "cume_dist",
    "dense_rank",
    "first_value",
    "floor",
    "format",
    "glob",
    "group_concat",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "lag",
    "last_value",
    "lead",
    "length",
    "like",
    "likelihood",
    "likely",
    "lower",
    "ltrim",
    "max",
    "min",
    "mod",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "percent_rank",
    "printf",
    "quote",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtrim",
    "sign",
    "sqrt",
    "string_agg",
    "substr",
    "substring",
    "sum",
    "total",
    "trim",
    "trunc",
    "typeof",
    "unhex",
    "unicode",
    "unistr",
    "unlikely",
    "upper",
];

/// Functions that read the clock. Column defaults name them, and SQLite compiles those too when such a column is read, so
/// the authorizer lets them pass; a statement that names one is refused before that.
const CLOCK_FUNCTIONS: &[&str] = &["CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME"];

/// Prefixes of tables that SQLite offers in every database; none may be read.
const BUILT_IN_TABLES: &[&str] = &[
    "sqlite_",
    "pragma_",
    "json_",
    "jsonb_",
    "dbstat",
    "fts",
    "rtree",
    "generate_",
    "bytecode",
    "tables_used",
];

/// Lets `connection` compile only what reads `schema`.
pub(super) fn install(connection: &mut Connection, schema: &Schema) -> rusqlite::Result<()> {
    let tables = schema
        .tables
        .iter()
        .map(|table| table.name.to_ascii_lowercase())
        .collect();
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        authorize(&context, &tables)
    }))
}

/// The function that reads the clock and that `sql` names, if any.
pub(super) fn clock_function(sql: &str) -> Option<&'static str> {
    CLOCK_FUNCTIONS
        .iter()
        .copied()
        .find(|function| names(sql, function))
}

/// `tables` holds the schema's tables in lower case.
fn authorize(context: &AuthContext<'_>, tables: &BTreeSet<String>) -> Authorization {
    let is_own = |table: &str| tables.contains(&table.to_ascii_lowercase());
    let allowed = match context.action {
        AuthAction::Select | AuthAction::Recursive => true,
        // A source none of whose columns is used comes without a column, and may be a common table expression.
        AuthAction::Read {
            table_name,
            column_name: "",
        } => is_own(table_name) || !is_built_in(table_name),
        AuthAction::Read { table_name, .. } => is_own(table_name),
        AuthAction::Function { function_name } => is_listed(function_name),
        _ => false,
    };
    if allowed {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}

fn is_built_in(table: &str) -> bool {
    let table = table.to_ascii_lowercase();
    BUILT_IN_TABLES
        .iter()
        .any(|prefix| table.starts_with(prefix))
}

fn is_listed(function: &str) -> bool {
    FUNCTIONS
        .binary_search(&function.to_ascii_lowercase().as_str())
        .is_ok()
        || CLOCK_FUNCTIONS
            .iter()
            .any(|clock| clock.eq_ignore_ascii_case(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_list_can_be_searched() {
        assert!(FUNCTIONS.is_sorted());
        assert!(is_listed("COUNT") && !is_listed("randomblob"));
    }
}
