//! What a statement spends: work units and time.
//!
//! A work unit is one step of SQLite's virtual machine, or 64 bytes that a function reads, writes
//! or compares.
//! Invariant: units depend on the statement and the database alone, so the budget ends a statement
//! at the same place on every machine. The clock is the backstop behind them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, Error};

/// Virtual machine steps between two checks of the budget.
const STEPS_PER_CHECK: u32 = 100;
/// Bytes that cost as much as one virtual machine step.
const BYTES_PER_UNIT: u64 = 64;
/// Bytes between two checks of the clock, since one step may call many functions.
const BYTES_PER_CLOCK_CHECK: u64 = 1 << 16;

/// Counters of one connection and the callbacks inside it, all on one thread at a time.
pub(super) struct Meter {
    /// In bytes; a step counts as [`BYTES_PER_UNIT`].
    spent: AtomicU64,
    /// What was spent at the last check of the clock.
    spent_at_clock_check: AtomicU64,
    budget: u64,
    is_past_deadline: AtomicBool,
    deadline_micros: AtomicU64,
    epoch: Instant,
}

impl Meter {
    /// A meter that stops statements on `connection` after `work_units` or, once started, at their
    /// deadline.
    pub(super) fn install(
        connection: &mut Connection,
        work_units: u64,
    ) -> rusqlite::Result<Arc<Self>> {
        let meter = Arc::new(Self::new(work_units));
        let watched = Arc::clone(&meter);
        connection.progress_handler(STEPS_PER_CHECK as i32, Some(move || watched.must_stop()))?;
        Ok(meter)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the wall clock is a backstop; results do not depend on it"
    )]
    pub(super) fn new(work_units: u64) -> Self {
        Self {
            spent: AtomicU64::new(0),
            spent_at_clock_check: AtomicU64::new(0),
            budget: work_units.saturating_mul(BYTES_PER_UNIT),
            is_past_deadline: AtomicBool::new(false),
            deadline_micros: AtomicU64::new(u64::MAX),
            epoch: Instant::now(),
        }
    }

    /// Starts a statement with nothing spent and its deadline `allowed` from now.
    pub(super) fn start(&self, allowed: Duration) {
        self.restart();
        self.is_past_deadline.store(false, Relaxed);
        let deadline = self.epoch.elapsed() + allowed;
        self.deadline_micros
            .store(deadline.as_micros() as u64, Relaxed);
    }

    /// Counts from zero again.
    pub(super) fn restart(&self) {
        self.spent.store(0, Relaxed);
        self.spent_at_clock_check.store(0, Relaxed);
    }

    /// Spends `bytes`.
    ///
    /// # Errors
    /// The budget is spent or the deadline has passed. The function that called ends the statement.
    pub(super) fn spend_bytes(&self, bytes: u64) -> rusqlite::Result<()> {
        // Only one thread at a time writes, so a load and a store suffice and are cheaper than an
        // exchange.
        let spent = self.spent.load(Relaxed).saturating_add(bytes);
        self.spent.store(spent, Relaxed);
        self.check()?;
        if spent - self.spent_at_clock_check.load(Relaxed) >= BYTES_PER_CLOCK_CHECK {
            self.spent_at_clock_check.store(spent, Relaxed);
            return self.check_clock();
        }
        Ok(())
    }

    /// Checks the clock, then the budget.
    ///
    /// # Errors
    /// The budget is spent or the deadline has passed.
    pub(super) fn check_clock(&self) -> rusqlite::Result<()> {
        if self.epoch.elapsed().as_micros() as u64 > self.deadline_micros.load(Relaxed) {
            self.is_past_deadline.store(true, Relaxed);
        }
        self.check()
    }

    /// Checks the budget, and what the last check of the clock found.
    ///
    /// # Errors
    /// The budget is spent or the deadline has passed.
    pub(super) fn check(&self) -> rusqlite::Result<()> {
        if self.is_budget_spent() || self.is_past_deadline() {
            return Err(Error::UserFunctionError("the statement is ended".into()));
        }
        Ok(())
    }

    /// Returns the bytes that are left.
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.budget.saturating_sub(self.spent.load(Relaxed))
    }

    /// Charges [`STEPS_PER_CHECK`] steps. SQLite calls it that often.
    fn must_stop(&self) -> bool {
        let bytes = u64::from(STEPS_PER_CHECK) * BYTES_PER_UNIT;
        self.spend_bytes(bytes).is_err() || self.check_clock().is_err()
    }

    /// Charges the steps of a finished statement since the last call of the progress handler. It
    /// ran `steps` in all.
    pub(super) fn add_unreported_steps(&self, steps: u64) {
        let rest = steps % u64::from(STEPS_PER_CHECK) * BYTES_PER_UNIT;
        self.spent.fetch_add(rest, Relaxed);
    }

    /// Returns the units spent; for a failed statement, up to the last check.
    pub(super) fn work_units(&self) -> u64 {
        self.spent.load(Relaxed) / BYTES_PER_UNIT
    }

    /// Returns whether the budget is spent.
    pub(super) fn is_budget_spent(&self) -> bool {
        self.spent.load(Relaxed) > self.budget
    }

    /// Returns whether the deadline has passed, by the last check.
    pub(super) fn is_past_deadline(&self) -> bool {
        self.is_past_deadline.load(Relaxed)
    }
}
