//! SQLite's heap, charged to the statement that runs on the thread.
//!
//! Invariant: a statement holds at most its cap in requested bytes, so that it fails at the same
//! allocation on every machine and no other statement is affected. Allocations outside of a
//! [`StatementMemory`] (other crates' connections, open databases) are not charged. Neither is the
//! page cache of files, which outlives statements (`page_cache.rs`).

use std::{
    alloc::{Layout, alloc, dealloc, realloc},
    cell::Cell,
    ffi::{c_int, c_void},
    marker::PhantomData,
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering},
};

use rusqlite::ffi::sqlite3_mem_methods;

/// Stands in front of each block.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Header {
    bytes: u64,
    /// The account that was charged for the block; 0 for none.
    account: u64,
}

const HEADER_BYTES: usize = size_of::<Header>();

/// The account that a thread charges.
struct ThreadAccount {
    /// Number of the account; 0 if nothing is charged.
    id: Cell<u64>,
    cap_bytes: Cell<u64>,
    live_bytes: Cell<u64>,
    peak_bytes: Cell<u64>,
    /// Whether a charge was over the cap.
    has_refused: Cell<bool>,
}

thread_local! {
    static ACCOUNT: ThreadAccount = const {
        ThreadAccount {
            id: Cell::new(0),
            cap_bytes: Cell::new(0),
            live_bytes: Cell::new(0),
            peak_bytes: Cell::new(0),
            has_refused: Cell::new(false),
        }
    };
}

static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// While it lives, SQLite's allocations on this thread are charged to one statement.
pub(super) struct StatementMemory(PhantomData<*const ()>);

impl StatementMemory {
    /// Starts to charge at most `cap_bytes`. A thread has one statement at a time.
    pub(super) fn start(cap_bytes: u64) -> Self {
        ACCOUNT.with(|account| account.peak_bytes.set(0));
        let memory = Self(PhantomData);
        memory.restart(cap_bytes);
        memory
    }

    /// Continues with a new account of at most `cap_bytes`. What is held by now is neither counted
    /// nor refunded. The peak continues.
    pub(super) fn restart(&self, cap_bytes: u64) {
        ACCOUNT.with(|account| {
            account.id.set(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1);
            account.cap_bytes.set(cap_bytes);
            account.live_bytes.set(0);
            account.has_refused.set(false);
        });
    }

    /// Returns the most bytes that were held at once.
    pub(super) fn peak_bytes(&self) -> u64 {
        ACCOUNT.with(|account| account.peak_bytes.get())
    }

    /// Returns the cap if a charge was over it.
    pub(super) fn exceeded_cap(&self) -> Option<u64> {
        ACCOUNT.with(|account| account.has_refused.get().then(|| account.cap_bytes.get()))
    }

    /// Charges `bytes` that our own code keeps for the statement. Returns false if the cap does
    /// not allow them.
    pub(super) fn charge(&self, bytes: u64) -> bool {
        ACCOUNT.with(|account| account.charge(bytes)).is_some()
    }
}

impl Drop for StatementMemory {
    fn drop(&mut self) {
        ACCOUNT.with(|account| account.id.set(0));
    }
}

/// Returns whether the statement on this thread may hold `bytes` at all. If not, that is over its
/// cap.
pub(super) fn may_hold(bytes: u64) -> bool {
    ACCOUNT.with(|account| {
        let is_over = account.id.get() != 0 && bytes > account.cap_bytes.get();
        account
            .has_refused
            .set(account.has_refused.get() || is_over);
        !is_over
    })
}

/// Runs `work` without charging it: for what outlives the statement.
pub(super) fn uncharged<T>(work: impl FnOnce() -> T) -> T {
    struct Resume(u64);
    impl Drop for Resume {
        fn drop(&mut self) {
            ACCOUNT.with(|account| account.id.set(self.0));
        }
    }
    let _resume = Resume(ACCOUNT.with(|account| account.id.replace(0)));
    work()
}

impl ThreadAccount {
    /// Charges `bytes` and returns the id of the account, 0 for none. Returns `None` if they are
    /// over the cap.
    fn charge(&self, bytes: u64) -> Option<u64> {
        let id = self.id.get();
        if id == 0 {
            return Some(0);
        }
        let live = self.live_bytes.get() + bytes;
        if live > self.cap_bytes.get() {
            self.has_refused.set(true);
            return None;
        }
        self.live_bytes.set(live);
        self.peak_bytes.set(self.peak_bytes.get().max(live));
        Some(id)
    }

    /// A block of an earlier account, or of none, is not refunded: it was not charged to this one.
    fn refund(&self, header: Header) {
        if self.is_charged_for(header) {
            self.live_bytes.set(self.live_bytes.get() - header.bytes);
        }
    }

    fn is_charged_for(&self, header: Header) -> bool {
        header.account != 0 && header.account == self.id.get()
    }
}

/// The methods that SQLite is configured with.
pub(super) const METHODS: sqlite3_mem_methods = sqlite3_mem_methods {
    xMalloc: Some(malloc),
    xFree: Some(free),
    xRealloc: Some(resize),
    xSize: Some(size),
    xRoundup: Some(round_up),
    xInit: Some(init),
    xShutdown: Some(shutdown),
    pAppData: null_mut(),
};

fn layout(bytes: u64) -> Layout {
    // SQLite asks for a positive c_int of bytes, so the sum stays far below isize::MAX.
    Layout::from_size_align(HEADER_BYTES + bytes as usize, align_of::<Header>())
        .expect("a c_int and a header fit: this is a bug")
}

unsafe extern "C" fn malloc(bytes: c_int) -> *mut c_void {
    let bytes = u64::from(bytes.unsigned_abs());
    let Some(account) = ACCOUNT.with(|account| account.charge(bytes)) else {
        return null_mut();
    };
    // SAFETY: the layout is not empty; a block that is not null has room for the header, which
    // begins it.
    unsafe {
        let block = alloc(layout(bytes)).cast::<Header>();
        if block.is_null() {
            return null_mut();
        }
        block.write(Header { bytes, account });
        block.add(1).cast()
    }
}

unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: SQLite frees only what `malloc` or `resize` gave, once; the header is in front of it.
    unsafe {
        let block = block.cast::<Header>().sub(1);
        let header = block.read();
        ACCOUNT.with(|account| account.refund(header));
        dealloc(block.cast(), layout(header.bytes));
    }
}

unsafe extern "C" fn resize(block: *mut c_void, bytes: c_int) -> *mut c_void {
    let bytes = u64::from(bytes.unsigned_abs());
    // SAFETY: as in `free`; on failure the old block stays valid and is charged again.
    unsafe {
        let block = block.cast::<Header>().sub(1);
        let header = block.read();
        let charged = ACCOUNT.with(|account| {
            account.refund(header);
            account.charge(bytes)
        });
        if let Some(account) = charged {
            let moved =
                realloc(block.cast(), layout(header.bytes), layout(bytes).size()).cast::<Header>();
            if !moved.is_null() {
                moved.write(Header { bytes, account });
                return moved.add(1).cast();
            }
        }
        ACCOUNT.with(|account| {
            if let Some(id) = charged {
                account.refund(Header { bytes, account: id });
            }
            if account.is_charged_for(header) {
                let live = account.live_bytes.get();
                account.live_bytes.set(live + header.bytes);
            }
        });
        null_mut()
    }
}

unsafe extern "C" fn size(block: *mut c_void) -> c_int {
    if block.is_null() {
        return 0;
    }
    // SAFETY: as in `free`.
    unsafe { block.cast::<Header>().sub(1).read().bytes as c_int }
}

unsafe extern "C" fn round_up(bytes: c_int) -> c_int {
    (bytes + 7) & !7
}

unsafe extern "C" fn init(_: *mut c_void) -> c_int {
    rusqlite::ffi::SQLITE_OK
}

unsafe extern "C" fn shutdown(_: *mut c_void) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_charged_refunded_and_capped() {
        // SAFETY: blocks are freed once, by the functions that gave them.
        unsafe {
            let before = malloc(100);
            let memory = StatementMemory::start(1_000);
            let block = malloc(600);
            assert_eq!(memory.exceeded_cap(), None);
            assert!(!block.is_null() && malloc(600).is_null());
            assert_eq!(memory.exceeded_cap(), Some(1_000));
            assert!(resize(block, 1_001).is_null(), "the old block stays");
            let block = resize(block, 1_000);
            assert_eq!((size(block), memory.peak_bytes()), (1_000, 1_000));
            assert!(!memory.charge(1));
            free(before);
            assert!(!memory.charge(1), "what was not charged is not refunded");
            let aside = uncharged(|| malloc(5_000));
            assert!(!aside.is_null());
            free(aside);
            free(block);
            assert!(memory.charge(1_000));
            let kept = malloc(0);
            memory.restart(2_000);
            assert_eq!(memory.exceeded_cap(), None, "the cap is another one");
            assert!(may_hold(2_000) && memory.exceeded_cap().is_none());
            assert!(!may_hold(2_001) && memory.exceeded_cap().is_some());
            free(kept);
            assert!(!memory.charge(2_001) && memory.charge(2_000));
            assert_eq!(memory.peak_bytes(), 2_000);
            drop(memory);
            assert!(may_hold(u64::MAX), "there is no statement");
            free(malloc(5_000));
            assert_eq!(StatementMemory::start(0).exceeded_cap(), None);
        }
    }
}
