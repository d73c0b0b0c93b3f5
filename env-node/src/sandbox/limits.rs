//! What a statement may use: sizes, virtual machine steps, time.
//!
//! Invariant: sizes and steps stop a query at the same place on every machine; the clock is the backstop behind them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, limits::Limit};

use super::Failure;
use crate::config::SqlLimits;

/// Virtual machine steps between two looks at the budget.
const STEPS_PER_CHECK: u32 = 100;

/// Sets SQLite's own limits on sizes.
pub(super) fn set(connection: &Connection, limits: &SqlLimits) -> rusqlite::Result<()> {
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

/// What the progress handler counts. Shared with the handler, which lives inside the connection.
pub(super) struct Meter {
    checks: AtomicU64,
    stopped_by: AtomicU8,
    deadline_micros: AtomicU64,
    epoch: Instant,
}

impl Meter {
    /// A meter that stops queries on `connection` after `vm_steps` or, once started, at its deadline.
    pub(super) fn install(
        connection: &mut Connection,
        vm_steps: u64,
    ) -> rusqlite::Result<Arc<Self>> {
        let meter = Arc::new(Self::new());
        let watched = Arc::clone(&meter);
        let max_checks = vm_steps / u64::from(STEPS_PER_CHECK);
        connection.progress_handler(
            STEPS_PER_CHECK as i32,
            Some(move || watched.must_stop(max_checks)),
        )?;
        Ok(meter)
    }

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

    /// Begins a query: no steps yet, the deadline `allowed` from now.
    pub(super) fn start(&self, allowed: Duration) {
        self.reset_steps();
        self.stopped_by.store(0, Ordering::Relaxed);
        let deadline = self.epoch.elapsed() + allowed;
        self.deadline_micros
            .store(deadline.as_micros() as u64, Ordering::Relaxed);
    }

    /// Counts from here.
    pub(super) fn reset_steps(&self) {
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

    /// What stopped the query that was interrupted last.
    pub(super) fn stopped_by(&self) -> Failure {
        match self.stopped_by.load(Ordering::Relaxed) {
            0 => Failure::VmSteps,
            _ => Failure::WallClock,
        }
    }
}
