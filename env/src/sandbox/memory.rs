//! SQLite's heap, billed to the statement that runs on the thread.
//!
//! Invariant: a statement holds at most its cap in requested bytes, so that it fails at the same allocation on every
//! machine, and no other statement feels it. What is allocated outside a [`Bill`] (other crates' connections, open
//! databases) is not billed. Leaves out the page cache of files: it outlives statements (`page_cache.rs`).

use std::{
    alloc::{Layout, alloc, dealloc, realloc},
    cell::Cell,
    ffi::{c_int, c_void},
    marker::PhantomData,
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering},
};

use rusqlite::ffi::sqlite3_mem_methods;

/// In front of each block.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Header {
    bytes: u64,
    /// The bill that paid for the block; 0 for none.
    bill: u64,
}

const HEADER_BYTES: usize = size_of::<Header>();

/// The bill that is open on a thread.
struct Account {
    /// 0 where none is open.
    bill: Cell<u64>,
    cap_bytes: Cell<u64>,
    live_bytes: Cell<u64>,
    peak_bytes: Cell<u64>,
}

thread_local! {
    static ACCOUNT: Account = const {
        Account { bill: Cell::new(0), cap_bytes: Cell::new(0), live_bytes: Cell::new(0), peak_bytes: Cell::new(0) }
    };
}

static BILLS: AtomicU64 = AtomicU64::new(0);

/// While it lives, what SQLite allocates on this thread is billed to one statement.
pub(super) struct Bill(PhantomData<*const ()>);

impl Bill {
    /// Opens a bill of at most `cap_bytes`. One at a time on a thread.
    pub(super) fn open(cap_bytes: u64) -> Self {
        ACCOUNT.with(|account| account.peak_bytes.set(0));
        let bill = Self(PhantomData);
        bill.renew(cap_bytes);
        bill
    }

    /// Goes on with a new account of at most `cap_bytes`. What is held by now is neither counted nor refunded.
    pub(super) fn renew(&self, cap_bytes: u64) {
        ACCOUNT.with(|account| {
            account.bill.set(BILLS.fetch_add(1, Ordering::Relaxed) + 1);
            account.cap_bytes.set(cap_bytes);
            account.live_bytes.set(0);
        });
    }

    /// The most bytes that were held at once.
    pub(super) fn peak_bytes(&self) -> u64 {
        ACCOUNT.with(|account| account.peak_bytes.get())
    }

    /// Bills `bytes` that our own code keeps for the statement; false where the cap does not allow them.
    pub(super) fn add(&self, bytes: u64) -> bool {
        ACCOUNT.with(|account| account.pay(bytes)).is_some()
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        ACCOUNT.with(|account| account.bill.set(0));
    }
}

/// Runs `work` with the bill put aside: for what outlives the statement.
pub(super) fn unbilled<T>(work: impl FnOnce() -> T) -> T {
    struct Resume(u64);
    impl Drop for Resume {
        fn drop(&mut self) {
            ACCOUNT.with(|account| account.bill.set(self.0));
        }
    }
    let _resume = Resume(ACCOUNT.with(|account| account.bill.replace(0)));
    work()
}

impl Account {
    /// The bill that pays for `bytes`, 0 for none; `None` where they are over its cap.
    fn pay(&self, bytes: u64) -> Option<u64> {
        let bill = self.bill.get();
        if bill == 0 {
            return Some(0);
        }
        let live = self.live_bytes.get() + bytes;
        if live > self.cap_bytes.get() {
            return None;
        }
        self.live_bytes.set(live);
        self.peak_bytes.set(self.peak_bytes.get().max(live));
        Some(bill)
    }

    fn refund(&self, header: Header) {
        if header.bill != 0 && header.bill == self.bill.get() {
            self.live_bytes.set(self.live_bytes.get() - header.bytes);
        }
    }
}

/// The methods that SQLite is given.
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
    // SQLite asks for a positive c_int, so the sum stays far below isize::MAX.
    Layout::from_size_align(HEADER_BYTES + bytes as usize, align_of::<Header>())
        .expect("a c_int and a header fit: this is a bug")
}

unsafe extern "C" fn malloc(bytes: c_int) -> *mut c_void {
    let bytes = u64::from(bytes.unsigned_abs());
    let Some(bill) = ACCOUNT.with(|account| account.pay(bytes)) else {
        return null_mut();
    };
    // SAFETY: the layout is not empty; a block that is not null has room for the header, which begins it.
    unsafe {
        let block = alloc(layout(bytes)).cast::<Header>();
        if block.is_null() {
            return null_mut();
        }
        block.write(Header { bytes, bill });
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
    // SAFETY: as in `free`; on failure the old block stays valid and is billed again.
    unsafe {
        let block = block.cast::<Header>().sub(1);
        let header = block.read();
        let bill = ACCOUNT.with(|account| {
            account.refund(header);
            account.pay(bytes)
        });
        if let Some(bill) = bill {
            let moved =
                realloc(block.cast(), layout(header.bytes), layout(bytes).size()).cast::<Header>();
            if !moved.is_null() {
                moved.write(Header { bytes, bill });
                return moved.add(1).cast();
            }
        }
        ACCOUNT.with(|account| {
            if bill.is_some() {
                account.refund(Header {
                    bytes,
                    bill: account.bill.get(),
                });
            }
            if header.bill != 0 && header.bill == account.bill.get() {
                account
                    .live_bytes
                    .set(account.live_bytes.get() + header.bytes);
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
    fn a_bill_is_paid_refunded_and_capped() {
        // SAFETY: blocks are freed once, by the functions that gave them.
        unsafe {
            let before = malloc(100);
            let bill = Bill::open(1_000);
            let block = malloc(600);
            assert!(!block.is_null() && malloc(600).is_null());
            assert!(resize(block, 1_001).is_null(), "the old block stays");
            let block = resize(block, 1_000);
            assert_eq!((size(block), bill.peak_bytes()), (1_000, 1_000));
            assert!(!bill.add(1));
            free(before);
            assert!(!bill.add(1), "what was not billed is not refunded");
            let aside = unbilled(|| malloc(5_000));
            assert!(!aside.is_null());
            free(aside);
            free(block);
            assert!(bill.add(1_000));
            let kept = malloc(0);
            bill.renew(2_000);
            free(kept);
            assert!(!bill.add(2_001) && bill.add(2_000));
            assert_eq!(bill.peak_bytes(), 2_000);
            drop(bill);
            free(malloc(5_000));
        }
    }
}
