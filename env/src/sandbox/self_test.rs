//! An honest statement and a few hostile ones that each environment runs when it opens.
//!
//! Invariant: an environment whose limits stop the honest one, or whose sandbox lets a hostile one
//! pass, does not open. There is at least one for each layer, and all take a few milliseconds. The
//! whole corpus is a test (`tests/corpus.rs`).

use super::{
    planner,
    query::{Failure, QueryError, Sandbox, WorkBudget},
};
use crate::{database::Database, error::EnvError, settings::SqlLimits};

// Small limits show quickly that the budget and the cap hold, whatever the settings are.
const WORK_UNITS: u64 = 200_000;
const MEMORY_BYTES: u64 = 4 << 20;
const VALUE_BYTES: u32 = 16 << 10;
const WALL_CLOCK_SECONDS: f64 = 60.0;

/// Each statement, with the layer that must stop it.
const STATEMENTS: &[(&str, Failure)] = &[
    ("DROP TABLE t", Failure::Denied),
    ("PRAGMA query_only = OFF", Failure::Denied),
    ("ATTACH ':memory:' AS t", Failure::Denied),
    ("VACUUM INTO 'self-test.sqlite'", Failure::Denied),
    ("EXPLAIN SELECT 1", Failure::Denied),
    ("SELECT 1; SELECT 2", Failure::Denied),
    ("SELECT name FROM sqlite_schema", Failure::Denied),
    ("SELECT count(*) FROM sqlite_schema", Failure::Denied),
    ("SELECT random()", Failure::Denied),
    ("SELECT load_extension('t')", Failure::Denied),
    ("SELECT fts3_tokenizer('simple')", Failure::Denied),
    ("SELECT hex(zeroblob(1000000000))", Failure::Denied),
    ("SELECT * FROM pragma_database_list", Failure::Sqlite),
    ("SELECT value FROM json_each('[1]')", Failure::Sqlite),
    ("SELECT readfile('/etc/passwd')", Failure::Sqlite),
    ("SELECT ?1", Failure::Sqlite),
    ("SELECT printf('%1000000000s', 'a')", Failure::Sqlite),
    (
        "SELECT 'a' LIKE 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
        Failure::Sqlite,
    ),
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        Failure::WorkUnits,
    ),
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
         SELECT sum(length(replace(printf('%7000s', i), ' ', 'a'))) FROM n",
        Failure::WorkUnits,
    ),
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
         SELECT i || printf('%7000s', '') AS t FROM n ORDER BY t",
        Failure::Memory,
    ),
];

/// Runs the statements against `database`.
///
/// # Errors
/// The limits stop every statement, or a layer did not stop the one that is named.
pub(crate) fn self_test(database: &Database, limits: &SqlLimits) -> Result<(), EnvError> {
    let cannot_open = |error: rusqlite::Error| EnvError::Database {
        name: database.file.name.clone(),
        path: database.file.path.clone(),
        reason: format!("cannot be opened: {error}"),
    };
    let open =
        |limits: &SqlLimits| Sandbox::open(database, limits, WorkBudget::Full).map_err(cannot_open);
    let own_limits = SqlLimits {
        wall_clock_seconds: WALL_CLOCK_SECONDS,
        ..limits.clone()
    };
    if let Some(error) = error_of(&open(&own_limits)?, "SELECT 1") {
        return Err(EnvError::Setting {
            field: "sql",
            remedy: format!("its limits stop SELECT 1 ({}); raise them", error.message),
        });
    }
    let sandbox = open(&test_limits(limits))?;
    if !planner::is_bounded().map_err(cannot_open)? {
        let statement = "a join that takes seconds to plan";
        return Err(EnvError::SelfTest { statement });
    }
    match unstopped(limits.allow_schema_tables, &sandbox) {
        Some(statement) => Err(EnvError::SelfTest { statement }),
        None => Ok(()),
    }
}

fn test_limits(limits: &SqlLimits) -> SqlLimits {
    SqlLimits {
        work_units: WORK_UNITS,
        memory_bytes: MEMORY_BYTES,
        value_bytes: limits.value_bytes.max(VALUE_BYTES),
        wall_clock_seconds: WALL_CLOCK_SECONDS,
        ..limits.clone()
    }
}

/// Returns the first statement that its layer does not stop.
fn unstopped(allow_schema_tables: bool, sandbox: &Sandbox) -> Option<&'static str> {
    let may_pass = |sql: &str| allow_schema_tables && sql.contains("sqlite_schema");
    let layer_of = |sql: &str| error_of(sandbox, sql).map(|error| error.failure);
    let (statement, _) = STATEMENTS
        .iter()
        .filter(|(sql, _)| !may_pass(sql))
        .find(|(sql, layer)| layer_of(sql) != Some(*layer))?;
    Some(statement)
}

/// Returns the error of a statement, if it has one. The sandbox has the whole budget.
fn error_of(sandbox: &Sandbox, sql: &str) -> Option<QueryError> {
    sandbox.query(sql).ok()?.rows.err()
}

#[cfg(test)]
mod tests {
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

    use super::*;
    use crate::sandbox::tests::corpus::database;

    /// Returns the statement that passes after `weaken`.
    fn passes(database: &Database, weaken: fn(&mut Sandbox)) -> &'static str {
        let limits = test_limits(&SqlLimits::default());
        let mut sandbox = Sandbox::open(database, &limits, WorkBudget::Full).unwrap();
        weaken(&mut sandbox);
        unstopped(false, &sandbox).unwrap_or_default()
    }

    #[test]
    fn each_weakened_layer_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let database = database(folder.path());
        let passes = |weaken| passes(&database, weaken);
        assert_eq!(passes(|_| {}), "");
        let without_authorizer = passes(|sandbox| {
            let none = None::<fn(AuthContext<'_>) -> Authorization>;
            sandbox.connection.authorizer(none).unwrap();
        });
        assert!(
            without_authorizer.contains("sqlite_schema"),
            "{without_authorizer}"
        );
        let with_random = passes(|sandbox| {
            let allow = |context: AuthContext<'_>| match context.action {
                AuthAction::Function { .. } | AuthAction::Select => Authorization::Allow,
                _ => Authorization::Deny,
            };
            sandbox.connection.authorizer(Some(allow)).unwrap();
        });
        assert_eq!(with_random, "SELECT random()");
        let without_budget = passes(|sandbox| {
            let mut looks = 0;
            let forgetful = move || {
                looks += 1;
                looks > 10_000
            };
            sandbox
                .connection
                .progress_handler(100, Some(forgetful))
                .unwrap();
        });
        assert!(
            without_budget.contains("count(*) FROM n"),
            "{without_budget}"
        );
        let without_cap = passes(|sandbox| sandbox.limits.memory_bytes = u64::MAX);
        assert!(without_cap.contains("ORDER BY t"), "{without_cap}");
        let without_meter = passes(|sandbox| {
            for (name, count) in [("replace", 3), ("printf", -1), ("length", 1)] {
                sandbox.connection.remove_function(name, count).unwrap();
            }
        });
        assert!(without_meter.contains("replace("), "{without_meter}");
    }

    #[test]
    fn limits_under_which_nothing_runs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let database = database(folder.path());
        let default = SqlLimits::default;
        for (limits, reason) in [
            (
                SqlLimits {
                    work_units: 0,
                    ..default()
                },
                "after 0 units of work",
            ),
            (
                SqlLimits {
                    memory_bytes: 1_000,
                    ..default()
                },
                "at 62 bytes of memory",
            ),
        ] {
            let message = self_test(&database, &limits).unwrap_err().to_string();
            assert!(
                message.starts_with("environment setting sql cannot be used")
                    && message.contains(reason),
                "{message}"
            );
        }
    }
}
