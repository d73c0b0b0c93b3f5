//! Runs gold SQL read-only within a budget.
//!
//! Budgets count SQLite's instructions and never time, so that a query succeeds or fails alike on
//! every machine.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OpenFlags};

use crate::DataError;

/// The number of SQLite instructions that a gold query may spend.
pub(crate) const BUDGET_STEPS: u64 = 20_000_000;
const STEPS_PER_CHECK: i32 = 10_000;
const MAX_ROWS: usize = 20_000;

/// A database on which gold SQL runs. Nothing can be written through it.
pub(crate) struct GoldDatabase {
    connection: Connection,
    /// Table names as declared. Queries may write them in another case.
    declared: Vec<String>,
    tables_read: Arc<Mutex<Vec<String>>>,
    steps: Arc<AtomicU64>,
}

/// The result of a gold query, and the tables it read in the order of their first use.
pub(crate) struct GoldResult {
    pub(crate) rows: Vec<Vec<SqlValue>>,
    pub(crate) tables: Vec<String>,
}

impl GoldDatabase {
    /// Opens a database file read-only.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path, flags).map_err(DataError::sqlite(path))?;
        Self::guard(connection).map_err(|error| {
            DataError::format(
                path,
                format!("not a readable SQLite database ({error}); fetch or build it again"),
            )
        })
    }

    /// Makes a connection read-only and limits its queries.
    pub(crate) fn guard(mut connection: Connection) -> rusqlite::Result<Self> {
        let declared = declared_tables(&connection)?;
        let tables_read = Arc::new(Mutex::new(Vec::<String>::new()));
        let seen = Arc::clone(&tables_read);
        let authorizer = move |context: AuthContext<'_>| match context.action {
            AuthAction::Read { table_name, .. } => {
                let mut tables = seen.lock().unwrap_or_else(PoisonError::into_inner);
                tables.push(table_name.to_owned());
                Authorization::Allow
            }
            AuthAction::Select | AuthAction::Function { .. } | AuthAction::Recursive => {
                Authorization::Allow
            }
            _ => Authorization::Deny,
        };
        let steps = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&steps);
        let over_budget = move || {
            let before = counter.fetch_add(STEPS_PER_CHECK as u64, Ordering::Relaxed);
            before + STEPS_PER_CHECK as u64 > BUDGET_STEPS
        };
        connection.authorizer(Some(authorizer))?;
        connection.progress_handler(STEPS_PER_CHECK, Some(over_budget))?;
        Ok(Self {
            connection,
            declared,
            tables_read,
            steps,
        })
    }

    /// Runs one query to completion.
    ///
    /// # Errors
    /// Returns the reason: SQLite's message, the spent budget, or too many rows.
    pub(crate) fn run(&self, sql: &str) -> Result<GoldResult, String> {
        self.steps.store(0, Ordering::Relaxed);
        self.tables().clear();
        let rows = self
            .rows(sql)
            .map_err(|error| match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::OperationInterrupted) => {
                    format!("the gold SQL spends more than {BUDGET_STEPS} SQLite instructions")
                }
                _ => format!("the gold SQL fails: {error}"),
            })?;
        if rows.len() > MAX_ROWS {
            return Err(format!("the gold SQL returns more than {MAX_ROWS} rows"));
        }
        Ok(GoldResult {
            rows,
            tables: self.tables_involved(),
        })
    }

    fn tables_involved(&self) -> Vec<String> {
        let mut involved: Vec<String> = Vec::new();
        for read in self.tables().iter() {
            let declared = self
                .declared
                .iter()
                .find(|table| table.eq_ignore_ascii_case(read));
            involved.extend(declared.filter(|table| !involved.contains(table)).cloned());
        }
        involved
    }

    fn tables(&self) -> MutexGuard<'_, Vec<String>> {
        self.tables_read
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn rows(&self, sql: &str) -> rusqlite::Result<Vec<Vec<SqlValue>>> {
        let mut statement = self.connection.prepare(sql)?;
        let width = statement.column_count();
        let rows = statement.query_map([], |row| (0..width).map(|i| row.get(i)).collect())?;
        rows.take(MAX_ROWS + 1).collect()
    }
}

fn declared_tables(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE \
               'sqlite\\_%' ESCAPE '\\'";
    connection
        .prepare(sql)?
        .query_map([], |row| row.get(0))?
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gold_sql_reads_and_reports_its_tables() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE B (x); CREATE TABLE A (x); INSERT INTO A VALUES (1)")
            .unwrap();
        let database = GoldDatabase::guard(connection).unwrap();
        let mut tables = database
            .run("SELECT count(*) FROM b AS c, a WHERE a.x IN (SELECT x FROM B)")
            .unwrap()
            .tables;
        tables.sort();
        assert_eq!(tables, ["A", "B"]);
        assert_eq!(database.run("SELECT x FROM a").unwrap().tables, ["A"]);
        for sql in [
            "DELETE FROM A",
            "INSERT INTO A VALUES (2)",
            "PRAGMA user_version = 3",
            "ATTACH ':memory:' AS m",
        ] {
            assert!(database.run(sql).is_err(), "{sql}");
        }
        assert_eq!(
            database.run("SELECT x FROM a").unwrap().rows,
            [[SqlValue::Integer(1)]]
        );
    }
}
