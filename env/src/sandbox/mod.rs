//! A connection on which hostile SQL may run.
//!
//! Layers: a file that cannot be written (`connection.rs`); an authorizer that allows SELECT, the schema's own tables and
//! listed functions; limits on sizes; a budget of work units (`meter.rs`, `functions.rs`); a cap on memory (`memory.rs`);
//! a constant clock (`process.rs`); a wall clock behind them all.
//! Invariant: same database, statement and limits give the same rows or the same error, the wall clock apart: whoever
//! gets [`Failure::WallClock`] treats it as a fault of the machine, not as a result (see `node.rs`). What work units do
//! not see, arithmetic on texts of thousands of digits above all, ends there. In a quick run the clock only decides who
//! gives the result.

mod authorizer;
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

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod figures;
#[cfg(test)]
mod hostile_files;

pub(crate) use query::{Failure, Patience, QueryError, QueryRun, Sandbox};
pub(crate) use self_test::self_test;
