//! One statement in the sandbox: its run, its cost, and why it failed.

use std::{cell::Cell, fmt, sync::Arc, time::Duration};

use rusqlite::{Connection, Error as SqliteError, ErrorCode, PrepFlags, StatementStatus, ffi};

use super::{authorizer, collations, connection, functions, limits, memory::Bill, meter::Meter};
use crate::{
    database::Database, row_reader::read_rows, rows::Rows, settings::SqlLimits,
    sql_text::first_keyword, truncate::truncated,
};

/// Work units of a quick run: about a millisecond, and more than almost all honest queries need.
const QUICK_WORK_UNITS: u64 = 50_000;

/// Seconds of a quick run, for work that units do not see.
const QUICK_SECONDS: f64 = 0.02;
/// The share of its memory that a statement may take to be compiled: one in so many. Some of what SQLite makes then stays
/// with the schema, so that the first statement to need it pays; running starts with nothing on the bill.
const COMPILING_SHARE: u64 = 16;

/// How much of its budget a statement gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Enough for most; a statement that needs more is cut short.
    Quick,
    /// All of it.
    Full,
}

/// Why a query failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Not a SELECT, or it touches what it may not.
    Denied,
    /// It needs more than a quick run has; no result, only a reason to run it with full patience.
    CutShort,
    /// The budget of work units is spent.
    WorkUnits,
    /// It holds more memory than it may.
    Memory,
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
    pub(crate) work_units: u64,
    pub(crate) peak_bytes: u64,
}

/// A hardened connection. One query at a time.
pub(crate) struct Sandbox {
    pub(super) connection: Connection,
    meter: Arc<Meter>,
    pub(super) limits: SqlLimits,
    /// Less than `limits.work_units` where runs are quick.
    budget: u64,
    is_quick: bool,
    cut_short: Cell<bool>,
}

impl Sandbox {
    pub(crate) fn open(
        database: &Database,
        limits: &SqlLimits,
        patience: Patience,
    ) -> rusqlite::Result<Self> {
        let is_quick = patience == Patience::Quick && QUICK_WORK_UNITS < limits.work_units;
        let budget = if is_quick {
            QUICK_WORK_UNITS
        } else {
            limits.work_units
        };
        let limits = SqlLimits {
            // Each row of the database can be read, however long.
            value_bytes: limits.value_bytes.max(database.longest_row_bytes),
            ..limits.clone()
        };
        let mut connection = connection::open(&database.file.path)?;
        limits::set(&connection, &limits)?;
        // Loads the schema now: the first query must not pay steps that later ones do not.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        authorizer::install(
            &mut connection,
            &database.schema,
            limits.allow_schema_tables,
        )?;
        let meter = Meter::install(&mut connection, budget)?;
        functions::install(&connection, &meter, &limits)?;
        collations::install(&connection, &meter)?;
        Ok(Self {
            connection,
            meter,
            limits,
            budget,
            is_quick,
            cut_short: Cell::new(false),
        })
    }

    /// Whether a query was cut short since the last time this was asked.
    pub(crate) fn take_cut_short(&self) -> bool {
        self.cut_short.take()
    }

    /// Seconds that a query may take by the clock.
    pub(crate) fn wall_clock_seconds(&self) -> f64 {
        self.limits.wall_clock_seconds
    }

    /// Runs one SELECT and reads at most `limits.rows` rows.
    pub(crate) fn query(&self, sql: &str) -> QueryRun {
        let seconds = self.limits.wall_clock_seconds;
        let seconds = if self.is_quick {
            seconds.min(QUICK_SECONDS)
        } else {
            seconds
        };
        self.meter.start(Duration::from_secs_f64(seconds));
        let bill = Bill::open(self.limits.memory_bytes / COMPILING_SHARE);
        let rows = self.run(sql, &bill).map_err(|error| self.explain(error));
        QueryRun {
            rows,
            work_units: self.meter.work_units(),
            peak_bytes: bill.peak_bytes(),
        }
    }

    fn run(&self, sql: &str, bill: &Bill) -> Result<Rows, Refusal> {
        // SQLite would stop reading there.
        if sql.contains('\0') {
            return Err(Refusal::Nul);
        }
        let keyword = first_keyword(sql);
        if !["SELECT", "WITH"].contains(&keyword.as_str()) {
            return Err(Refusal::NotSelect(keyword));
        }
        let mut statement = self
            .connection
            .prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_NO_VTAB)?;
        if !statement.readonly() || statement.column_count() == 0 || statement.is_explain() != 0 {
            return Err(Refusal::NotSelect(keyword));
        }
        // Compiling also calls the progress handler, now and then; only running counts.
        self.meter.look_at_clock()?;
        self.meter.restart();
        let memory_bytes = self.limits.memory_bytes;
        bill.renew(memory_bytes - memory_bytes / COMPILING_SHARE);
        let rows = read_rows(&mut statement, self.limits.rows, |bytes| {
            self.meter.spend_bytes(bytes)?;
            if bill.add(bytes) {
                return Ok(());
            }
            Err(SqliteError::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_NOMEM),
                None,
            ))
        })?;
        self.meter.go_on()?;
        let steps = statement.get_status(StatementStatus::VmStep);
        self.meter.settle(u64::from(steps.unsigned_abs()));
        Ok(rows)
    }

    fn explain(&self, refusal: Refusal) -> QueryError {
        let (failure, message) = match refusal {
            Refusal::NotSelect(keyword) => (Failure::Denied, not_select(&keyword)),
            Refusal::Nul => {
                let message = "the statement holds a NUL character; leave it out";
                (Failure::Denied, message.to_owned())
            }
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
        let limits = &self.limits;
        if self.is_quick && self.meter.go_on().is_err() {
            self.cut_short.set(true);
            return (Failure::CutShort, "query cut short".to_owned());
        }
        if self.meter.is_spent() {
            let message = format!(
                "query stopped after {} units of work; make it simpler",
                self.budget
            );
            return (Failure::WorkUnits, message);
        }
        if self.meter.is_late() {
            let message = format!(
                "query stopped after {} s; make it simpler",
                limits.wall_clock_seconds
            );
            return (Failure::WallClock, message);
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::OutOfMemory) => (
                Failure::Memory,
                format!(
                    "query stopped at {} bytes of memory; make it simpler",
                    limits.memory_bytes
                ),
            ),
            Some(ErrorCode::AuthorizationForStatementDenied) if message == "not authorized" => (
                Failure::Denied,
                "only SELECT or WITH ... SELECT is allowed, from the database's own tables"
                    .to_owned(),
            ),
            Some(ErrorCode::AuthorizationForStatementDenied) => (Failure::Denied, message),
            // SQLite reports a denied function as a plain error.
            _ if message.starts_with("not authorized") => (Failure::Denied, message),
            _ => (Failure::Sqlite, message),
        }
    }
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quick => "quick",
            Self::Full => "full",
        })
    }
}

enum Refusal {
    NotSelect(String),
    Nul,
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
            truncated(other, 32)
        ),
    }
}
