//! A connection on which hostile SQL may run.
//!
//! Layers: file read-only and immutable; schema functions and extensions off; an authorizer that allows SELECT, reads of
//! the schema's own tables, and listed functions; limits on sizes; a budget in virtual machine steps, which stops a
//! query at the same step on every machine; a wall clock for the work those steps do not see.
//! Invariant: same database, statement and limits give the same rows or the same error, the wall clock apart: whoever
//! gets [`Failure::WallClock`] treats it as a fault of the machine, not as a result (see `node.rs`).
//! Leaves out metering of single string functions, a cap on SQLite's allocator and a pinned clock; functions that read
//! the clock or chance are not listed, so they cannot be called.

mod authorizer;
mod limits;

use std::{sync::Arc, time::Duration};

use rusqlite::{Connection, Error as SqliteError, ErrorCode, StatementStatus, config::DbConfig};

use crate::{
    config::SqlLimits,
    database::{Database, connect, read_rows},
    rows::Rows,
    sql_text::first_keyword,
};

use self::limits::Meter;

/// Why a query failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Not a SELECT, or it touches what it may not.
    Denied,
    /// The budget of virtual machine steps is spent.
    VmSteps,
    /// The wall clock ran out.
    WallClock,
    /// SQLite's own error: syntax, names, sizes.
    Sqlite,
}

/// A failed query: the reason, and the text for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryError {
    pub(crate) failure: Failure,
    pub(crate) message: String,
}

/// What a query returned and what it cost.
#[derive(Debug)]
pub(crate) struct QueryRun {
    pub(crate) rows: Result<Rows, QueryError>,
    pub(crate) vm_steps: u64,
}

/// A hardened connection. One query at a time.
pub(crate) struct Sandbox {
    connection: Connection,
    meter: Arc<Meter>,
    limits: SqlLimits,
}

impl Sandbox {
    pub(crate) fn open(database: &Database, limits: &SqlLimits) -> rusqlite::Result<Self> {
        let mut connection = connect(&database.file.path)?;
        harden(&connection)?;
        limits::set(&connection, limits)?;
        // Loads the schema now: the first query must not pay steps that later ones do not.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        authorizer::install(&mut connection, &database.schema)?;
        let meter = Meter::install(&mut connection, limits.vm_steps)?;
        Ok(Self {
            connection,
            meter,
            limits: limits.clone(),
        })
    }

    /// Seconds that a query may take by the clock.
    pub(crate) fn wall_clock_seconds(&self) -> f64 {
        self.limits.wall_clock_seconds
    }

    /// Runs one SELECT and reads at most `limits.rows` rows.
    pub(crate) fn query(&self, sql: &str) -> QueryRun {
        self.meter
            .start(Duration::from_secs_f64(self.limits.wall_clock_seconds));
        let mut vm_steps = 0;
        let rows = self
            .run(sql, &mut vm_steps)
            .map_err(|error| self.explain(error));
        QueryRun { rows, vm_steps }
    }

    fn run(&self, sql: &str, vm_steps: &mut u64) -> Result<Rows, Refusal> {
        let keyword = first_keyword(sql);
        if !["SELECT", "WITH"].contains(&keyword.as_str()) {
            return Err(Refusal::NotSelect(keyword));
        }
        if let Some(function) = authorizer::clock_function(sql) {
            return Err(Refusal::Clock(function));
        }
        let mut statement = self.connection.prepare(sql)?;
        if !statement.readonly() || statement.column_count() == 0 || statement.is_explain() != 0 {
            return Err(Refusal::NotSelect(keyword));
        }
        // Compiling also calls the progress handler; only running counts.
        self.meter.reset_steps();
        let rows = read_rows(&mut statement, self.limits.rows);
        *vm_steps = u64::from(statement.get_status(StatementStatus::VmStep).unsigned_abs());
        Ok(rows?)
    }

    fn explain(&self, refusal: Refusal) -> QueryError {
        let (failure, message) = match refusal {
            Refusal::NotSelect(keyword) => (Failure::Denied, not_select(&keyword)),
            Refusal::Clock(function) => (
                Failure::Denied,
                format!("not authorized to use function: {function}"),
            ),
            Refusal::Sqlite(SqliteError::MultipleStatement) => {
                (Failure::Denied, "only one statement is allowed".to_owned())
            }
            Refusal::Sqlite(error) => self.explain_sqlite(&error),
        };
        QueryError {
            failure,
            message: format!("SQL error: {message}"),
        }
    }

    fn explain_sqlite(&self, error: &SqliteError) -> (Failure, String) {
        let message = match error {
            SqliteError::SqliteFailure(_, Some(message)) => message.clone(),
            SqliteError::SqlInputError { msg, .. } => msg.clone(),
            other => other.to_string(),
        };
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => match self.meter.stopped_by() {
                Failure::WallClock => (
                    Failure::WallClock,
                    format!(
                        "query stopped after {} s; make it simpler",
                        self.limits.wall_clock_seconds
                    ),
                ),
                _ => (
                    Failure::VmSteps,
                    format!(
                        "query stopped after {} steps of work; make it simpler",
                        self.limits.vm_steps
                    ),
                ),
            },
            Some(ErrorCode::AuthorizationForStatementDenied) if message == "not authorized" => (
                Failure::Denied,
                "only SELECT or WITH ... SELECT is allowed".to_owned(),
            ),
            Some(ErrorCode::AuthorizationForStatementDenied) => (Failure::Denied, message),
            // SQLite reports a denied function as a plain error.
            _ if message.starts_with("not authorized") => (Failure::Denied, message),
            _ => (Failure::Sqlite, message),
        }
    }
}

enum Refusal {
    NotSelect(String),
    Clock(&'static str),
    Sqlite(SqliteError),
}

impl From<SqliteError> for Refusal {
    fn from(error: SqliteError) -> Self {
        Self::Sqlite(error)
    }
}

fn not_select(keyword: &str) -> String {
    match keyword {
        "" | "SELECT" | "WITH" => "only SELECT or WITH ... SELECT is allowed".to_owned(),
        other => format!(
            "only SELECT or WITH ... SELECT is allowed, not {}",
            crate::rows::cut(other, 32)
        ),
    }
}

/// Settings after SQLite's own advice for untrusted SQL (sqlite.org/security.html).
fn harden(connection: &Connection) -> rusqlite::Result<()> {
    for (option, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE, false),
    ] {
        connection.set_db_config(option, on)?;
    }
    connection.execute_batch(
        "PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA cell_size_check = ON; PRAGMA cache_size = -2048; \
         PRAGMA mmap_size = 0;",
    )?;
    Ok(())
}
