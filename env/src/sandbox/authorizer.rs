//! What a statement may touch: SELECT, the schema's own tables, listed functions.
//!
//! Invariant: only what is listed here is allowed. SQLite calls the authorizer while it compiles,
//! so a refused statement never runs.

use std::collections::BTreeSet;

use rusqlite::{
    Connection,
    hooks::{AuthAction, AuthContext, Authorization},
};

use crate::schema::Schema;

/// Functions that an agent may call: pure, the same on every machine, and with a cost that the
/// budget counts.
const FUNCTIONS: &str = "
    abs avg ceil ceiling char coalesce concat concat_ws count cume_dist current_date
    current_time current_timestamp date datetime dense_rank first_value floor format glob
    group_concat hex if ifnull iif instr julianday lag last_value lead length like likelihood
    likely lower ltrim max min mod nth_value ntile nullif octet_length percent_rank printf quote
    rank replace round row_number rtrim sign sqrt strftime string_agg substr substring sum time
    timediff total trim trunc typeof unicode unixepoch unlikely upper
";

/// SQLite's schema table, by the name that the authorizer is called with.
const SCHEMA_TABLE: &str = "sqlite_master";

/// Lets `connection` compile only what reads `schema`, and SQLite's own schema table where that is
/// allowed.
pub(super) fn install(
    connection: &mut Connection,
    schema: &Schema,
    allow_schema_tables: bool,
) -> rusqlite::Result<()> {
    let own = schema.tables.iter().map(|table| table.name.as_str());
    let tables = own
        .chain(allow_schema_tables.then_some(SCHEMA_TABLE))
        .map(str::to_ascii_lowercase)
        .collect();
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        authorize(&context, &tables)
    }))
}

/// `tables` holds the schema's tables in lower case.
fn authorize(context: &AuthContext<'_>, tables: &BTreeSet<String>) -> Authorization {
    let is_own = |table: &str| tables.contains(&table.to_ascii_lowercase());
    let allowed = match context.action {
        AuthAction::Select | AuthAction::Recursive => true,
        // A source none of whose columns is used has no column name here, and may be a common table
        // expression. Statements are compiled without virtual tables, so every other table that
        // SQLite could resolve has the reserved prefix.
        AuthAction::Read {
            table_name,
            column_name: "",
        } => is_own(table_name) || !is_reserved(table_name),
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

fn is_reserved(table: &str) -> bool {
    let prefix = table.as_bytes().get(..7);
    prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(b"sqlite_"))
}

fn is_listed(function: &str) -> bool {
    FUNCTIONS
        .split_ascii_whitespace()
        .any(|name| name.eq_ignore_ascii_case(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_functions_match_in_any_case() {
        assert!(is_listed("COUNT") && !is_listed("randomblob"));
    }
}
