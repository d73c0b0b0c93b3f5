//! One statement in the sandbox: its run, its cost, and why it failed.

use std::{sync::Arc, time::Duration};

use data::sql_text::{first_keyword, has_another_statement};
use rusqlite::{Connection, Error as SqliteError, ErrorCode, PrepFlags, StatementStatus, ffi};

use super::{
    authorizer::authorize_reads, collations, connection, functions, inspection, limits,
    memory::StatementMemory, meter::Meter,
};
use crate::{
    database::Database, row_reader::read_rows, rows::ResultRows, settings::SqlLimits,
    truncate::truncated,
};

/// Work units of a quick run: they take about a millisecond, and almost all honest queries need
/// fewer.
const QUICK_WORK_UNITS: u64 = 50_000;

/// Seconds of a quick run, a bound for work that units do not count.
const QUICK_SECONDS: f64 = 0.02;
/// A statement may use one part in so many of its memory while it is compiled. Some of what SQLite
/// allocates then stays with the schema, so that only the first statement pays for it. Therefore
/// running starts with a new account.
const COMPILING_SHARE: u64 = 16;

/// How much of the budget a statement gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkBudget {
    /// Enough for most statements. One that needs more runs again with the full budget.
    Quick,
    /// The whole budget.
    Full,
}

impl WorkBudget {
    /// Returns the word for metrics and threads.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

/// A query needs more than the quick budget. It has no result and must run again.
#[derive(Debug)]
pub(crate) struct QuickBudgetSpent;

/// Why a query failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It is no SELECT, or it touches what it may not.
    Denied,
    /// The budget of work units is spent.
    WorkUnits,
    /// It needs more memory than it may hold.
    Memory,
    /// The wall clock ran out.
    WallClock,
    /// The content of the file is not that of a whole database.
    Damaged,
    /// The system cannot read the file.
    Unreadable,
    /// SQLite reports an error: syntax, names, sizes.
    Sqlite,
}

impl Failure {
    pub(crate) const ALL: [Self; 7] = [
        Self::Denied,
        Self::WorkUnits,
        Self::Memory,
        Self::WallClock,
        Self::Damaged,
        Self::Unreadable,
        Self::Sqlite,
    ];

    /// Returns the word for metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::WorkUnits => "work_units",
            Self::Memory => "memory",
            Self::WallClock => "wall_clock",
            Self::Damaged => "damaged",
            Self::Unreadable => "unreadable",
            Self::Sqlite => "error",
        }
    }
}

/// A failed query: the reason, and the text for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryError {
    pub(crate) failure: Failure,
    pub(crate) message: String,
}

/// The result of a query and its cost.
#[derive(Debug)]
pub(crate) struct QueryRun {
    pub(crate) rows: Result<ResultRows, QueryError>,
    pub(crate) work_units: u64,
    pub(crate) peak_bytes: u64,
}

/// A hardened connection, for one query at a time.
pub(crate) struct Sandbox {
    pub(super) connection: Connection,
    meter: Arc<Meter>,
    pub(super) limits: SqlLimits,
    /// At most `limits.work_units`; fewer in a quick run.
    work_units: u64,
    is_quick: bool,
}

impl Sandbox {
    pub(crate) fn open(
        database: &Database,
        limits: &SqlLimits,
        budget: WorkBudget,
    ) -> rusqlite::Result<Self> {
        let is_quick = budget == WorkBudget::Quick && QUICK_WORK_UNITS < limits.work_units;
        let work_units = if is_quick {
            QUICK_WORK_UNITS
        } else {
            limits.work_units
        };
        let limits = SqlLimits {
            // However long a row of the database is, it can be read.
            value_bytes: limits.value_bytes.max(database.longest_row_bytes),
            ..limits.clone()
        };
        let reading_units = inspection::reading_units(database.file.size_bytes, &limits);
        let (mut connection, _) = connection::open(&database.file.path, reading_units)?;
        limits::set(&connection, &limits)?;
        let own = database.schema.tables.iter().map(|it| it.name.as_str());
        // Loads the schema, too. Otherwise the first query would pay for steps that later ones do
        // not need.
        authorize_reads(&mut connection, own, limits.allow_schema_tables)?;
        let meter = Meter::install(&mut connection, work_units)?;
        functions::install(&connection, &meter, &limits)?;
        collations::install(&connection, &meter)?;
        Ok(Self {
            connection,
            meter,
            limits,
            work_units,
            is_quick,
        })
    }

    /// Returns the seconds that a query may take.
    pub(crate) fn wall_clock_seconds(&self) -> f64 {
        self.limits.wall_clock_seconds
    }

    /// Runs one SELECT and reads at most `limits.rows` rows.
    ///
    /// # Errors
    /// The sandbox is quick, and the query needs more.
    pub(crate) fn query(&self, sql: &str) -> Result<QueryRun, QuickBudgetSpent> {
        let seconds = self.limits.wall_clock_seconds;
        let seconds = if self.is_quick {
            seconds.min(QUICK_SECONDS)
        } else {
            seconds
        };
        self.meter.start(Duration::from_secs_f64(seconds));
        let _pages = self.meter.charge_pages();
        let memory = StatementMemory::start(self.limits.memory_bytes / COMPILING_SHARE);
        let rows = match self.run(sql, &memory) {
            Err(_) if self.is_quick && self.meter.check().is_err() => return Err(QuickBudgetSpent),
            rows => rows.map_err(|error| self.explain(error, &memory)),
        };
        Ok(QueryRun {
            rows,
            work_units: self.meter.work_units(),
            peak_bytes: memory.peak_bytes(),
        })
    }

    fn run(&self, sql: &str, memory: &StatementMemory) -> Result<ResultRows, StatementError> {
        // SQLite would stop reading there, and the rest would escape the checks.
        if sql.contains('\0') {
            return Err(StatementError::Nul);
        }
        let keyword = first_keyword(sql);
        if !["SELECT", "WITH"].contains(&keyword.as_str()) {
            return Err(StatementError::NotSelect(keyword));
        }
        if has_another_statement(sql) {
            return Err(SqliteError::MultipleStatement.into());
        }
        let mut statement = self
            .connection
            .prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_NO_VTAB)?;
        if !statement.readonly() || statement.column_count() == 0 || statement.is_explain() != 0 {
            return Err(StatementError::NotSelect(keyword));
        }
        // Compiling calls the progress handler too, irregularly, so only running counts.
        self.meter.check_clock()?;
        self.meter.restart();
        let memory_bytes = self.limits.memory_bytes;
        memory.restart(memory_bytes - memory_bytes / COMPILING_SHARE);
        let rows = read_rows(&mut statement, self.limits.rows, |bytes| {
            self.meter.spend_bytes(bytes)?;
            if memory.charge(bytes) {
                return Ok(());
            }
            Err(SqliteError::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_NOMEM),
                None,
            ))
        })?;
        self.meter.check()?;
        let steps = statement.get_status(StatementStatus::VmStep);
        self.meter
            .add_unreported_steps(u64::from(steps.unsigned_abs()));
        Ok(rows)
    }

    fn explain(&self, error: StatementError, memory: &StatementMemory) -> QueryError {
        let (failure, message) = match error {
            StatementError::NotSelect(keyword) => (Failure::Denied, not_select(&keyword)),
            StatementError::Nul => {
                let message = "the statement holds a NUL character; leave it out";
                (Failure::Denied, message.to_owned())
            }
            StatementError::Sqlite(SqliteError::MultipleStatement) => {
                (Failure::Denied, "only one statement is allowed".to_owned())
            }
            StatementError::Sqlite(error) => self.explain_sqlite(&error, memory),
        };
        QueryError {
            failure,
            message: format!("SQL error: {message}"),
        }
    }

    fn explain_sqlite(&self, error: &SqliteError, memory: &StatementMemory) -> (Failure, String) {
        let message = match error {
            SqliteError::SqliteFailure(_, Some(message)) => message.clone(),
            SqliteError::SqlInputError { msg, .. } => msg.clone(),
            other => other.to_string(),
        };
        if self.meter.is_budget_spent() {
            let message = format!(
                "query stopped after {} units of work; make it simpler",
                self.work_units
            );
            return (Failure::WorkUnits, message);
        }
        if self.meter.is_past_deadline() {
            let message = format!(
                "query stopped after {} s; make it simpler",
                self.limits.wall_clock_seconds
            );
            return (Failure::WallClock, message);
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::OutOfMemory) => match memory.exceeded_cap() {
                Some(bytes) => (
                    Failure::Memory,
                    format!("query stopped at {bytes} bytes of memory; make it simpler"),
                ),
                // SQLite reports NOMEM for a program over SQLITE_LIMIT_VDBE_OP, too.
                None => (
                    Failure::Sqlite,
                    "the statement compiles to too many instructions; make it simpler".to_owned(),
                ),
            },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                (Failure::Damaged, message)
            }
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => {
                (Failure::Unreadable, message)
            }
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

enum StatementError {
    NotSelect(String),
    Nul,
    Sqlite(SqliteError),
}

impl From<SqliteError> for StatementError {
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
