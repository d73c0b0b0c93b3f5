//! Errors of the environment.
//!
//! What the agent does wrong (bad SQL, an unknown table, a spent budget) is an observation and
//! never an [`EnvError`].

use std::path::PathBuf;

use crate::{token::TokenError, truncate::truncated};

/// Bytes of a caller's text that a message repeats.
const NAME_BYTES: usize = 255;

/// The environment cannot start, or cannot run a call.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// A setting is out of range, contradicts another or names a file that cannot be used.
    #[error("environment setting {field} cannot be used: {remedy}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// What is wrong and what to give.
        remedy: String,
    },
    /// A database file cannot be used.
    #[error("database {name:?} ({path}): {reason}", path = path.display())]
    Database {
        /// The database.
        name: String,
        /// Its file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A database file has another content than when it was opened, so its hash no longer says what
    /// episodes are played on.
    #[error(
        "database {name:?} ({path}) has changed since it was opened; restore the file, or start \
         again to use it as it is now, which a run on the old data refuses",
        path = path.display()
    )]
    ChangedDatabase {
        /// The database.
        name: String,
        /// Its file.
        path: PathBuf,
    },
    /// The sandbox lets a hostile statement pass, so the environment must not be served. Remedy:
    /// build from unchanged sources with the SQLite that they name.
    #[error(
        "the SQL sandbox does not stop {statement:?}; do not serve, build env-node again from its \
         own folder, with the SQLite it names and the flags in .cargo/config.toml"
    )]
    SelfTest {
        /// The statement.
        statement: &'static str,
    },
    /// The dataset is inconsistent.
    #[error("dataset {dataset:?}: {reason}")]
    Dataset {
        /// The dataset.
        dataset: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The caller asked for something that does not exist here.
    #[error("no {kind} {name:?}; {remedy}", name = truncated(name, NAME_BYTES))]
    NotFound {
        /// What was asked for, such as `question` or `split`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The names that exist, or where to find them.
        remedy: String,
    },
    /// A field of the caller's request is malformed.
    #[error("{message}")]
    Request {
        /// The field.
        field: &'static str,
        /// What is wrong and what to give.
        message: String,
    },
    /// The episode token is refused.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Too many queries wait, too many files are open, or no thread can be started. Remedy: retry
    /// after a pause, add nodes, or raise `sql_threads`, `sql_queue` or what the message names.
    #[error("env-node is overloaded: {problem}; retry after a pause")]
    Overloaded {
        /// What has run out.
        problem: String,
    },
    /// A query ran into the wall clock: the machine is too busy, or the query does much work per
    /// work unit. Remedy: retry; the step was not applied.
    #[error(
        "{query} ran into the wall clock after {seconds} s; the step was not applied, retry it; if \
         this lasts, ease the machine or raise sql.wall_clock_seconds"
    )]
    WallClock {
        /// Which query: the agent's, or a question's gold SQL.
        query: String,
        /// The setting it ran into.
        seconds: f64,
    },
    /// An SQL thread failed. Remedy: retry; the step was not applied.
    #[error("env-node failed inside: {0}; the step was not applied, retry it")]
    Internal(String),
}
