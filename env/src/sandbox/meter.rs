//! What a statement spends: work units, and time.
//!
//! A work unit is one step of SQLite's virtual machine, or 64 bytes that a function reads, writes or compares. Invariant:
//! units depend on the statement and the database alone, so the budget ends a statement at the same place everywhere;
//! the clock is the backstop behind them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, Error};

/// Virtual machine steps between two looks at the budget.
const STEPS_PER_CHECK: u32 = 100;
/// Bytes that cost as much as one virtual machine step.
const BYTES_PER_UNIT: u64 = 64;
/// Bytes between two looks at the clock: one step may call many functions.
const BYTES_PER_LOOK: u64 = 1 << 16;

/// Counts for one connection and the callbacks inside it, all on one thread at a time.
pub(super) struct Meter {
    /// In bytes: a step counts as [`BYTES_PER_UNIT`].
    spent: AtomicU64,
    /// What was spent at the last look at the clock.
    seen: AtomicU64,
    budget: u64,
    is_late: AtomicBool,
    deadline_micros: AtomicU64,
    epoch: Instant,
}

impl Meter {
    /// A meter that stops statements on `connection` after `work_units` or, once started, at their deadline.
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
            seen: AtomicU64::new(0),
            budget: work_units.saturating_mul(BYTES_PER_UNIT),
            is_late: AtomicBool::new(false),
            deadline_micros: AtomicU64::new(u64::MAX),
            epoch: Instant::now(),
        }
    }

    /// Begins a statement: nothing spent, the deadline `allowed` from now.
    pub(super) fn start(&self, allowed: Duration) {
        self.restart();
        self.is_late.store(false, Relaxed);
        let deadline = self.epoch.elapsed() + allowed;
        self.deadline_micros
            .store(deadline.as_micros() as u64, Relaxed);
    }

    /// Counts from here.
    pub(super) fn restart(&self) {
        self.spent.store(0, Relaxed);
        self.seen.store(0, Relaxed);
    }

    /// Spends work of `bytes`.
    ///
    /// # Errors
    /// The budget does not have them, or the time is up; the function that asked ends the statement.
    pub(super) fn spend_bytes(&self, bytes: u64) -> rusqlite::Result<()> {
        // One thread at a time: a load and a store are as good as an exchange, and cheaper.
        let spent = self.spent.load(Relaxed).saturating_add(bytes);
        self.spent.store(spent, Relaxed);
        self.go_on()?;
        if spent - self.seen.load(Relaxed) >= BYTES_PER_LOOK {
            self.seen.store(spent, Relaxed);
            return self.look_at_clock();
        }
        Ok(())
    }

    /// # Errors
    /// The time is up.
    pub(super) fn look_at_clock(&self) -> rusqlite::Result<()> {
        if self.epoch.elapsed().as_micros() as u64 > self.deadline_micros.load(Relaxed) {
            self.is_late.store(true, Relaxed);
        }
        self.go_on()
    }

    /// Whether the statement may go on. Asked where it cannot be ended on the spot.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn go_on(&self) -> rusqlite::Result<()> {
        if self.is_spent() || self.is_late() {
            return Err(Error::UserFunctionError("the statement is ended".into()));
        }
        Ok(())
    }

    /// Bytes that can still be spent.
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.budget.saturating_sub(self.spent.load(Relaxed))
    }

    /// Called every [`STEPS_PER_CHECK`] virtual machine steps.
    fn must_stop(&self) -> bool {
        let bytes = u64::from(STEPS_PER_CHECK) * BYTES_PER_UNIT;
        self.spend_bytes(bytes).is_err() || self.look_at_clock().is_err()
    }

    /// Adds the steps since the last look of a statement that ran `steps` of them.
    pub(super) fn settle(&self, steps: u64) {
        let rest = steps % u64::from(STEPS_PER_CHECK) * BYTES_PER_UNIT;
        self.spent.fetch_add(rest, Relaxed);
    }

    /// Units spent; of a statement that failed, to the last look.
    pub(super) fn work_units(&self) -> u64 {
        self.spent.load(Relaxed) / BYTES_PER_UNIT
    }

    /// Whether the budget ended the statement.
    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Relaxed) > self.budget
    }

    /// Whether the clock ended it.
    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Relaxed)
    }
}
