//! Runs gold SQL read-only within a budget, and says which functions SQL may call.
//!
//! Budgets count SQLite's instructions and bytes and never time, so that a query succeeds or fails
//! alike on every machine. Gold SQL may read and call only what the agent's queries may: it runs in
//! the environment's sandbox again.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::DataError;

/// The number of SQLite instructions that a gold query may spend.
pub(crate) const BUDGET_STEPS: u64 = 20_000_000;
const STEPS_PER_CHECK: i32 = 10_000;
const MAX_ROWS: usize = 20_000;
/// The longest text or BLOB that a gold query may handle. One cell of a stranger's file may have a
/// gigabyte.
const MAX_CELL_BYTES: i32 = 1 << 20;
/// All cells of a result together.
const MAX_RESULT_BYTES: usize = 16 << 20;

/// Functions that SQL may call: pure, the same on every machine, and with a cost that the budget of
/// the environment counts.
const FUNCTIONS: &str = "
    abs avg ceil ceiling char coalesce concat concat_ws count cume_dist current_date
    current_time current_timestamp date datetime dense_rank first_value floor format glob
    group_concat hex if ifnull iif instr julianday lag last_value lead length like likelihood
    likely lower ltrim max min mod nth_value ntile nullif octet_length percent_rank printf quote
    rank replace round row_number rtrim sign sqrt strftime string_agg substr substring sum time
    timediff total trim trunc typeof unicode unixepoch unlikely upper
";

/// Whether gold SQL and the agents' queries may call the SQL function `name`, in any case.
pub fn is_sql_function(name: &str) -> bool {
    FUNCTIONS
        .split_ascii_whitespace()
        .any(|listed| listed.eq_ignore_ascii_case(name))
}

/// Looks for damage in all pages of a database file, and returns what SQLite finds, a line each.
///
/// # Errors
/// The file cannot be opened.
pub(crate) fn damage(path: &Path) -> Result<Vec<String>, DataError> {
    const MOST_LINES: u8 = 5;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(DataError::sqlite(path))?;
    let sql = format!("PRAGMA quick_check({MOST_LINES})");
    let lines = connection.prepare(&sql).and_then(|mut statement| {
        let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
        lines.collect::<rusqlite::Result<Vec<_>>>()
    });
    Ok(match lines {
        Ok(lines) if lines == ["ok"] => Vec::new(),
        // One finding may have several lines.
        Ok(lines) => lines.iter().map(|line| line.replace('\n', " ")).collect(),
        Err(error) => vec![error.to_string()],
    })
}

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
            AuthAction::Select | AuthAction::Recursive => Authorization::Allow,
            AuthAction::Function { function_name } if is_sql_function(function_name) => {
                Authorization::Allow
            }
            _ => Authorization::Deny,
        };
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)?;
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
                Some(rusqlite::ErrorCode::TooBig) => format!(
                    "a cell of the gold SQL has more than {MAX_CELL_BYTES} bytes, or its result \
                     more than {MAX_RESULT_BYTES}"
                ),
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
        let mut rows = statement.query([])?;
        let (mut read, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let cells: Vec<SqlValue> = (0..width).map(|i| row.get(i)).collect::<Result<_, _>>()?;
            bytes += cells.iter().map(cell_bytes).sum::<usize>();
            if bytes > MAX_RESULT_BYTES {
                return Err(too_large());
            }
            read.push(cells);
            if read.len() > MAX_ROWS {
                break;
            }
        }
        Ok(read)
    }
}

fn cell_bytes(cell: &SqlValue) -> usize {
    size_of::<SqlValue>()
        + match cell {
            SqlValue::Text(text) => text.len(),
            SqlValue::Blob(bytes) => bytes.len(),
            _ => 0,
        }
}

/// The error that SQLite itself has for a cell over the limit.
fn too_large() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_TOOBIG), None)
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

    #[test]
    fn gold_sql_calls_what_the_sandbox_lets_queries_call() {
        let database = GoldDatabase::guard(Connection::open_in_memory().unwrap()).unwrap();
        database.run("SELECT Round(abs(-1.5), 1)").unwrap();
        for function in [
            "random()",
            "randomblob(9)",
            "zeroblob(9)",
            "last_insert_rowid()",
        ] {
            let refusal = database.run(&format!("SELECT {function}")).err().unwrap();
            assert!(refusal.contains("not authorized"), "{function}: {refusal}");
        }
    }

    #[test]
    fn large_cells_and_results_are_refused() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE a (x); INSERT INTO a VALUES (zeroblob(3000000));
                 CREATE TABLE b (x);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 40)
                 INSERT INTO b SELECT replace(hex(zeroblob(250000)), '0', 'x') FROM n",
            )
            .unwrap();
        let database = GoldDatabase::guard(connection).unwrap();
        for sql in [
            "SELECT x FROM a",
            "SELECT x FROM b",
            "SELECT printf('%2000000d', 1)",
        ] {
            let refusal = database.run(sql).err().unwrap();
            assert!(refusal.contains("bytes"), "{sql}: {refusal}");
        }
        assert_eq!(
            database.run("SELECT x FROM b LIMIT 2").unwrap().rows.len(),
            2
        );
    }
}
