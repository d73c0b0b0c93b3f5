//! What a statement spends: work units and time.
//!
//! A work unit is one step of SQLite's virtual machine, or 64 bytes that a function reads, writes
//! or compares. Steps pay for the pages of the file that they read, up to 256 in a hundred steps.
//! `SELECT count(*)` reads a whole table in one step, so there a page is 16 units.
//! Invariant: units depend on the statement and the database alone, so the budget ends a statement
//! at the same place on every machine. The clock is the backstop behind them.

use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, Error, InterruptHandle};

/// Virtual machine steps between two checks of the budget.
const STEPS_PER_CHECK: u32 = 100;
/// Bytes that cost as much as one virtual machine step.
const BYTES_PER_UNIT: u64 = 64;
/// Bytes between two checks of the clock, since one step may call many functions.
const BYTES_PER_CLOCK_CHECK: u64 = 1 << 16;
/// Pages that [`STEPS_PER_CHECK`] steps pay for. A search reads a page for each level of its tree,
/// so other statements read fewer, and cost what they cost without this.
const PAGES_PER_CHECK: u32 = 256;
/// Units of a page beyond these. It takes 1.3 us where it is not cached, so the default budget ends
/// a count at about the default wall clock. A cached one costs the same units: SQLite asks its
/// cache for the same pages whatever that holds.
const UNITS_PER_PAGE: u64 = 16;

thread_local! {
    /// Pages that are left until the next charge.
    static PAGES_LEFT: Cell<u32> = const { Cell::new(PAGES_PER_CHECK) };
    /// The meter of the statement that runs on the thread.
    static METER: RefCell<Option<Arc<Meter>>> = const { RefCell::new(None) };
}

/// While it lives, the pages of files that are read on this thread are charged to one meter.
pub(super) struct PageCharges(PhantomData<*const ()>);

impl Drop for PageCharges {
    fn drop(&mut self) {
        METER.set(None);
    }
}

/// Counts a page of a file. SQLite's page cache calls it for each page that it is asked for.
pub(super) fn count_page() {
    match PAGES_LEFT.get() {
        0 | 1 => charge_counted_pages(),
        left => PAGES_LEFT.set(left - 1),
    }
}

#[cold]
fn charge_counted_pages() {
    PAGES_LEFT.set(PAGES_PER_CHECK);
    // While a thread ends, the variable may be gone, and no statement runs.
    let _ = METER.try_with(|meter| {
        if let Some(meter) = &*meter.borrow() {
            meter.spend_pages();
        }
    });
}

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
    /// Ends a step that does not call the progress handler.
    interrupt: Option<InterruptHandle>,
}

impl Meter {
    /// A meter that stops statements on `connection` after `work_units` or, once started, at their
    /// deadline.
    pub(super) fn install(
        connection: &mut Connection,
        work_units: u64,
    ) -> rusqlite::Result<Arc<Self>> {
        let meter = Arc::new(Self {
            interrupt: Some(connection.get_interrupt_handle()),
            ..Self::new(work_units)
        });
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
            interrupt: None,
        }
    }

    /// Charges this meter for pages, too. A thread has one statement at a time.
    pub(super) fn charge_pages(self: &Arc<Self>) -> PageCharges {
        METER.set(Some(Arc::clone(self)));
        PageCharges(PhantomData)
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
        PAGES_LEFT.set(PAGES_PER_CHECK);
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
        PAGES_LEFT.set(PAGES_PER_CHECK);
        let bytes = u64::from(STEPS_PER_CHECK) * BYTES_PER_UNIT;
        self.spend_bytes(bytes).is_err() || self.check_clock().is_err()
    }

    /// Charges [`PAGES_PER_CHECK`] pages. SQLite calls no progress handler within a step, but
    /// looks for an interrupt at each page that it counts, and after the step.
    fn spend_pages(&self) {
        let bytes = u64::from(PAGES_PER_CHECK) * UNITS_PER_PAGE * BYTES_PER_UNIT;
        let is_ended = self.spend_bytes(bytes).is_err();
        if let Some(interrupt) = self.interrupt.as_ref().filter(|_| is_ended) {
            interrupt.interrupt();
        }
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
