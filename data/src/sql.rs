//! Runs gold SQL read-only within a budget.
//!
//! Budgets count SQLite's instructions and bytes and never time, so that a query succeeds or fails
//! alike on every machine. Gold SQL may read and call only what the agent's queries may, under the
//! same clock (`clock.rs`): it runs in the environment's sandbox again. The limits there are
//! tighter (`agents.rs`).

mod agents;
mod clock;
mod functions;
mod opening;
mod shadow;

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, PrepFlags, Statement, ffi};

use crate::error::Refused;
use crate::sql_text::{first_keyword, has_another_statement, normal_form};
use crate::{DataError, text};

pub(crate) use agents::{MAX_COLUMNS, SHOWN_ROWS};
pub use agents::{STATEMENT_LIMITS, longest_row_sql};
pub use clock::{FIXED_CLOCK, register_fixed_clock};
pub use functions::{is_reserved_table, is_sql_function};
pub(crate) use opening::{NAME_NOT_UTF8, check_names, limit_steps};
pub use opening::{harden, open_immutable};
pub use shadow::shadow_tables;

/// The number of SQLite instructions that a gold query may spend.
pub(crate) const BUDGET_STEPS: u64 = 20_000_000;
const STEPS_PER_CHECK: i32 = 10_000;
const MAX_ROWS: usize = 20_000;
/// The longest text or BLOB that a gold query may handle. One cell of an untrusted file may have a
/// gigabyte.
const MAX_CELL_BYTES: i32 = 1 << 20;
/// All cells of a result together.
const MAX_RESULT_BYTES: usize = 16 << 20;
/// Why a query has no result that has text in another encoding.
pub(crate) const NOT_UTF8: &str = "returns text that is not UTF-8";

/// A database on which gold SQL runs. Nothing can be written through it.
pub(crate) struct GoldDatabase {
    connection: Connection,
    /// The names of tables and views as declared, and whether it is a table. Queries may write them
    /// in another case.
    declared: Vec<(String, bool)>,
    tables_read: Arc<Mutex<Vec<String>>>,
    steps: Arc<AtomicU64>,
    /// The bytes that a value may have in the environment, once that was asked.
    value_bytes: OnceCell<i32>,
}

/// The result of a gold query, and the tables it read in the order of their first use.
pub(crate) struct GoldResult {
    pub(crate) rows: Vec<Vec<SqlValue>>,
    pub(crate) tables: Vec<String>,
}

impl GoldDatabase {
    /// Opens a database file read-only.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let connection = open_immutable(path).map_err(DataError::sqlite(path))?;
        Self::guard(connection).map_err(|error| {
            DataError::format(
                path,
                format!("not a readable SQLite database ({error}); fetch or build it again"),
            )
        })
    }

    /// Makes a connection read-only and limits its queries. Its clock is the one that it was opened
    /// with: the machine's, if it is in memory.
    pub(crate) fn guard(mut connection: Connection) -> rusqlite::Result<Self> {
        let steps = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&steps);
        let over_budget = move || {
            let before = counter.fetch_add(STEPS_PER_CHECK as u64, Ordering::Relaxed);
            before + STEPS_PER_CHECK as u64 > BUDGET_STEPS
        };
        // Before the first statement: it reads the schema, whose pages may form a tree without an
        // end.
        connection.progress_handler(STEPS_PER_CHECK, Some(over_budget))?;
        check_names(&connection)?;
        let declared = declared_tables(&connection)?;
        let shadows = shadow_tables(&connection)?;
        let tables_read = Arc::new(Mutex::new(Vec::<String>::new()));
        let seen = Arc::clone(&tables_read);
        let authorizer = move |context: AuthContext<'_>| match context.action {
            // Agents may not read these either.
            AuthAction::Read { table_name, .. }
                if is_reserved_table(table_name)
                    || shadows.iter().any(|it| it.eq_ignore_ascii_case(table_name)) =>
            {
                Authorization::Deny
            }
            AuthAction::Read { table_name, .. } => {
                let mut tables = seen.lock();
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
        connection.authorizer(Some(authorizer))?;
        Ok(Self {
            connection,
            declared,
            tables_read,
            steps,
            value_bytes: OnceCell::new(),
        })
    }

    /// Runs one query to completion.
    ///
    /// # Errors
    /// [`Refused::reason`] continues "the query". The query is wrong if it does not compile: it is
    /// not one SELECT, SQLite rejects it, or it uses what it may not. Otherwise it has no result:
    /// it spends the budget, or returns too many rows, too many bytes or text that is not UTF-8.
    pub(crate) fn run(&self, sql: &str) -> Result<GoldResult, Refused> {
        self.tables_read.lock().clear();
        let mut statement = self.prepare(sql).map_err(Refused::wrong)?;
        self.steps.store(0, Ordering::Relaxed);
        let rows = rows(&mut statement).map_err(|error| Refused::unanswered(no_result(&error)))?;
        if rows.len() > MAX_ROWS {
            return Err(Refused::unanswered(format!(
                "returns more than {MAX_ROWS} rows"
            )));
        }
        Ok(GoldResult {
            rows,
            tables: self.tables_involved(),
        })
    }

    /// Returns the name of a table or view as declared.
    pub(crate) fn declared_name(&self, name: &str) -> Option<String> {
        let mut declared = self.declared.iter().map(|(name, _)| name);
        declared.find(|it| it.eq_ignore_ascii_case(name)).cloned()
    }

    fn tables_involved(&self) -> Vec<String> {
        let mut involved: Vec<String> = Vec::new();
        for read in self.tables_read.lock().iter() {
            let declared = self.declared_name(read);
            involved.extend(declared.filter(|table| !involved.contains(table)));
        }
        involved
    }

    fn prepare(&self, sql: &str) -> Result<Statement<'_>, String> {
        check_text(sql)?;
        self.steps.store(0, Ordering::Relaxed);
        let flags = PrepFlags::SQLITE_PREPARE_NO_VTAB;
        let prepared = self.connection.prepare_with_flags(sql, flags);
        let statement = prepared.map_err(|error| match error {
            rusqlite::Error::MultipleStatement => {
                "has more than one statement; keep one".to_owned()
            }
            error => format!("fails: {}", message(&error)),
        })?;
        if statement.parameter_count() > 0 {
            return Err("has a parameter, such as ?1; write its value".to_owned());
        }
        Ok(statement)
    }
}

/// Says what is wrong with gold SQL that SQLite would explain badly or not at all.
fn check_text(sql: &str) -> Result<(), String> {
    if sql.starts_with(text::BYTE_ORDER_MARK) {
        return Err("begins with a byte order mark (U+FEFF); remove this character".to_owned());
    }
    if sql.contains('\0') {
        return Err("holds a NUL character; remove it".to_owned());
    }
    if normal_form(sql).is_empty() {
        return Err(match sql.trim().is_empty() {
            true => "is empty; write a SELECT".to_owned(),
            false => "holds only comments; write a SELECT".to_owned(),
        });
    }
    if has_another_statement(sql) {
        return Err("has more than one statement; keep one".to_owned());
    }
    match first_keyword(sql).as_str() {
        "SELECT" | "WITH" => Ok(()),
        "" => Err("does not begin with SELECT or WITH; write a SELECT".to_owned()),
        other => Err(format!(
            "begins with {}; only SELECT or WITH ... SELECT is allowed",
            other.chars().take(32).collect::<String>()
        )),
    }
}

/// Says why a query that compiles has no result.
fn no_result(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::OperationInterrupted) => {
            format!("spends more than {BUDGET_STEPS} SQLite instructions")
        }
        Some(rusqlite::ErrorCode::TooBig) => format!(
            "makes a cell of more than {MAX_CELL_BYTES} bytes, or a result of more than \
             {MAX_RESULT_BYTES}"
        ),
        _ if matches!(error, rusqlite::Error::Utf8Error(..)) => NOT_UTF8.to_owned(),
        _ => format!("fails: {error}"),
    }
}

/// Returns SQLite's message without the SQL text, which the caller names.
fn message(error: &rusqlite::Error) -> String {
    let message = match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    };
    match message.as_str() {
        "not authorized" => "only SELECT or WITH ... SELECT is allowed, from the database's own \
                             tables"
            .to_owned(),
        _ => message,
    }
}

fn rows(statement: &mut Statement<'_>) -> rusqlite::Result<Vec<Vec<SqlValue>>> {
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

fn declared_tables(connection: &Connection) -> rusqlite::Result<Vec<(String, bool)>> {
    let sql = "SELECT name, type = 'table' FROM sqlite_master WHERE type IN ('table', 'view') AND \
               name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    connection
        .prepare(sql)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_query_has_a_reason_of_its_own() {
        let database = GoldDatabase::guard(Connection::open_in_memory().unwrap()).unwrap();
        let many = "SELECT 1;".repeat(100_000);
        for (sql, part) in [
            (many.as_str(), "more than one statement"),
            ("SELECT name FROM sqlite_master", "prohibited"),
            ("", "is empty"),
            (" \n", "is empty"),
            ("-- SELECT 1", "only comments"),
            ("/* a */ ;", "only comments"),
            ("\u{feff}SELECT 1", "byte order mark"),
            ("SELECT 1\0", "NUL"),
            ("SELECT 1; SELECT 2", "more than one statement"),
            ("SELECT ?1", "parameter"),
            ("DELETE FROM t", "begins with DELETE"),
            ("(SELECT 1)", "does not begin with SELECT"),
            ("SELECT x FROM t", "no such table: t"),
            ("SELECT * FROM pragma_database_list", "fails"),
        ] {
            let refused = database.run(sql).err().unwrap();
            let has_part = refused.reason.contains(part);
            assert!(refused.is_wrong && has_part, "{sql:?}: {refused:?}");
        }
        for sql in [
            "SELECT 1;",
            "SELECT 1; -- end",
            "/* a */ WITH a AS (SELECT 1) SELECT * FROM a",
        ] {
            assert_eq!(database.run(sql).unwrap().rows.len(), 1);
        }
    }

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
        let indexed = Connection::open_in_memory().unwrap();
        let schema = "CREATE VIRTUAL TABLE words USING fts5(w); CREATE TABLE words_list (w)";
        indexed.execute_batch(schema).unwrap();
        let indexed = GoldDatabase::guard(indexed).unwrap();
        indexed.run("SELECT count(*) FROM words_list").unwrap();
        for (sql, part) in [
            ("SELECT c0 FROM Words_content", "prohibited"),
            ("SELECT 1 FROM words_data", "own tables"),
        ] {
            let refusal = indexed.run(sql).err().unwrap().reason;
            assert!(refusal.contains(part), "{sql}: {refusal}");
        }
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
            let refused = database.run(&format!("SELECT {function}")).err();
            let refusal = refused.unwrap().reason;
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
            let refused = database.run(sql).err().unwrap();
            let is_named = !refused.is_wrong && refused.reason.contains("bytes");
            assert!(is_named, "{sql}: {refused:?}");
        }
        assert_eq!(
            database.run("SELECT x FROM b LIMIT 2").unwrap().rows.len(),
            2
        );
    }
}
