//! A connection on which hostile SQL may run.
//!
//! Layers: file read-only and immutable; schema functions and extensions off; an authorizer that allows SELECT, reads of
//! the schema's own tables, and listed functions; limits on sizes; a budget in virtual machine steps, which stops a
//! query at the same step on every machine; a wall clock for the work those steps do not see.
//! Invariant: same database, statement and limits give the same rows or the same error, the wall clock apart: whoever
//! gets [`Failure::WallClock`] treats it as a fault of the machine, not as a result (see `node.rs`).
//! Leaves out metering of single string functions, a cap on SQLite's allocator and a pinned clock; functions that read
//! the clock or chance are not listed, so they cannot be called.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{
    Connection, Error as SqliteError, ErrorCode, StatementStatus,
    config::DbConfig,
    hooks::{AuthAction, AuthContext, Authorization},
    limits::Limit,
};

use crate::{
    config::SqlLimits,
    database::{Database, connect, read_rows},
    rows::Rows,
    sql_text::{first_keyword, names},
};

/// Virtual machine steps between two looks at the budget.
const STEPS_PER_CHECK: u32 = 100;

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

/// What the progress handler counts. Shared with the handler, which lives inside the connection.
struct Meter {
    checks: AtomicU64,
    stopped_by: AtomicU8,
    deadline_micros: AtomicU64,
    epoch: Instant,
}

impl Sandbox {
    pub(crate) fn open(database: &Database, limits: &SqlLimits) -> rusqlite::Result<Self> {
        let mut connection = connect(&database.file.path)?;
        harden(&connection, limits)?;
        // Loads the schema now: the first query must not pay steps that later ones do not.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        let tables = database
            .schema
            .tables
            .iter()
            .map(|table| table.name.to_ascii_lowercase())
            .collect();
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            authorize(&context, &tables)
        }))?;
        let meter = Arc::new(Meter::new());
        let (watched, max_checks) = (
            Arc::clone(&meter),
            limits.vm_steps / u64::from(STEPS_PER_CHECK),
        );
        connection.progress_handler(
            STEPS_PER_CHECK as i32,
            Some(move || watched.must_stop(max_checks)),
        )?;
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
        if let Some(function) = CLOCK_FUNCTIONS.iter().find(|function| names(sql, function)) {
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
fn harden(connection: &Connection, limits: &SqlLimits) -> rusqlite::Result<()> {
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
    let bytes = |limit: u32| i32::try_from(limit).unwrap_or(i32::MAX);
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_LENGTH, bytes(limits.value_bytes)),
        (
            Limit::SQLITE_LIMIT_SQL_LENGTH,
            bytes(limits.statement_bytes),
        ),
        (Limit::SQLITE_LIMIT_COLUMN, 256),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 16),
        (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
        (Limit::SQLITE_LIMIT_FUNCTION_ARG, 32),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 64),
        (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 0),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, value)?;
    }
    Ok(())
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

impl Meter {
    #[expect(
        clippy::disallowed_methods,
        reason = "the wall clock is a backstop; results do not depend on it"
    )]
    fn new() -> Self {
        Self {
            checks: AtomicU64::new(0),
            stopped_by: AtomicU8::new(0),
            deadline_micros: AtomicU64::new(0),
            epoch: Instant::now(),
        }
    }

    fn start(&self, allowed: Duration) {
        self.reset_steps();
        self.stopped_by.store(0, Ordering::Relaxed);
        let deadline = self.epoch.elapsed() + allowed;
        self.deadline_micros
            .store(deadline.as_micros() as u64, Ordering::Relaxed);
    }

    fn reset_steps(&self) {
        self.checks.store(0, Ordering::Relaxed);
    }

    /// Called every [`STEPS_PER_CHECK`] virtual machine steps.
    fn must_stop(&self, max_checks: u64) -> bool {
        let checks = self.checks.fetch_add(1, Ordering::Relaxed) + 1;
        if checks > max_checks {
            return true;
        }
        let late =
            self.epoch.elapsed().as_micros() as u64 > self.deadline_micros.load(Ordering::Relaxed);
        if late {
            self.stopped_by.store(1, Ordering::Relaxed);
        }
        late
    }

    fn stopped_by(&self) -> Failure {
        match self.stopped_by.load(Ordering::Relaxed) {
            0 => Failure::VmSteps,
            _ => Failure::WallClock,
        }
    }
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
