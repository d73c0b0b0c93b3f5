//! Runs hostile SQL on read-only databases.
//!
//! The layers: a file that cannot be written (`connection.rs`); an authorizer that allows SELECT,
//! the schema's own tables and listed functions; SQLite's limits on sizes (`limits.rs`); a budget
//! of work units (`meter.rs`, `page_cache.rs`, `functions.rs`, `collations.rs`); a cap on memory
//! (`memory.rs`); the constant clock of gold SQL (`process.rs`); and a wall clock behind them all.
//! Invariant: the same database, statement and limits give the same rows or the same error, except
//! for [`Failure::WallClock`] and faults of the file. Callers treat these as faults of the machine
//! and not as results (see `environment.rs` and `open_database.rs`). Work that units do not count,
//! above all arithmetic on texts of thousands of digits, ends at the wall clock. In a quick run the
//! clock only decides which run gives the result.

pub(crate) mod authorizer;
mod collations;
mod connection;
mod functions;
pub(crate) mod inspection;
mod limits;
mod memory;
mod meter;
mod page_cache;
mod pattern;
mod planner;
mod process;
mod query;
mod self_test;
mod text;

pub(crate) use query::{Failure, QueryError, QueryRun, QuickBudgetSpent, Sandbox, WorkBudget};
pub(crate) use self_test::self_test;

#[cfg(test)]
mod tests {
    pub(super) mod corpus;
    mod endless_trees;
    mod hostile_files;
    mod statement_costs;
}
