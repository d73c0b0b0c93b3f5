//! SQLite's page cache, without charging a statement for the memory of the pages of files.
//!
//! Invariant: a statement pays for the memory of its own temporary tables and never for that of a
//! file's pages. These stay for later statements, so charging them would make a statement's result
//! depend on what ran before it. The cache size bounds them. How often it reads one is counted as
//! work (`meter.rs`). SQLite's own implementation does the caching.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr::null_mut,
    sync::OnceLock,
};

use rusqlite::ffi::{sqlite3_pcache, sqlite3_pcache_methods2, sqlite3_pcache_page};

use super::{memory::uncharged, meter::count_page};

/// SQLite's own methods.
struct Original(sqlite3_pcache_methods2);

// SAFETY: function pointers and a null argument, never written after they are stored.
unsafe impl Send for Original {}
// SAFETY: as above.
unsafe impl Sync for Original {}

static ORIGINAL: OnceLock<Original> = OnceLock::new();

/// One cache: SQLite's own, and whether it holds pages of a file.
struct Cache {
    inner: *mut sqlite3_pcache,
    of_file: bool,
}

/// Returns the methods to configure SQLite with in place of `original`.
pub(super) fn wrap(original: sqlite3_pcache_methods2) -> sqlite3_pcache_methods2 {
    ORIGINAL.get_or_init(|| Original(original));
    sqlite3_pcache_methods2 {
        iVersion: original.iVersion,
        pArg: null_mut(),
        xInit: Some(init),
        xShutdown: Some(shutdown),
        xCreate: Some(create),
        xCachesize: Some(cache_size),
        xPagecount: Some(page_count),
        xFetch: Some(fetch),
        xUnpin: Some(unpin),
        xRekey: Some(rekey),
        xTruncate: Some(truncate),
        xDestroy: Some(destroy),
        xShrink: Some(shrink),
    }
}

/// Calls one of SQLite's own methods.
macro_rules! original {
    ($method:ident($($argument:expr),* $(,)?)) => {{
        let methods = &ORIGINAL.get().expect("wrapped before use: this is a bug").0;
        let method = methods.$method.expect("SQLite's own cache has every method: this is a bug");
        // SAFETY: SQLite's contract for this call, passed on with its own object.
        unsafe { method($($argument),*) }
    }};
}

/// Returns the cache behind SQLite's handle.
///
/// # Safety
/// `handle` was returned by [`create`] and not yet destroyed.
unsafe fn cache<'a>(handle: *mut sqlite3_pcache) -> &'a Cache {
    // SAFETY: by the caller; SQLite uses a cache from one thread at a time.
    unsafe { &*handle.cast::<Cache>() }
}

unsafe extern "C" fn init(_: *mut c_void) -> c_int {
    original!(xInit(null_mut()))
}

unsafe extern "C" fn shutdown(_: *mut c_void) {
    original!(xShutdown(null_mut()));
}

unsafe extern "C" fn create(page: c_int, extra: c_int, purgeable: c_int) -> *mut sqlite3_pcache {
    // SQLite calls a cache purgeable where a page can be read again, from its file.
    let of_file = purgeable != 0;
    let make = || original!(xCreate(page, extra, purgeable));
    let inner = if of_file { uncharged(make) } else { make() };
    if inner.is_null() {
        return null_mut();
    }
    Box::into_raw(Box::new(Cache { inner, of_file })).cast()
}

unsafe extern "C" fn fetch(
    handle: *mut sqlite3_pcache,
    key: c_uint,
    create: c_int,
) -> *mut sqlite3_pcache_page {
    // SAFETY: SQLite passes a live handle.
    let cache = unsafe { cache(handle) };
    let fetch = || original!(xFetch(cache.inner, key, create));
    if cache.of_file {
        count_page();
        uncharged(fetch)
    } else {
        fetch()
    }
}

/// Defines methods that pass their call on to SQLite's own cache.
macro_rules! passed_on {
    ($($name:ident => $method:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        unsafe extern "C" fn $name(handle: *mut sqlite3_pcache $(, $argument: $kind)*) -> $result {
            // SAFETY: SQLite passes a live handle.
            let cache = unsafe { cache(handle) };
            original!($method(cache.inner $(, $argument)*))
        }
    )*};
}

passed_on! {
    cache_size => xCachesize(pages: c_int) -> ();
    page_count => xPagecount() -> c_int;
    unpin => xUnpin(page: *mut sqlite3_pcache_page, discard: c_int) -> ();
    rekey => xRekey(page: *mut sqlite3_pcache_page, old: c_uint, new: c_uint) -> ();
    truncate => xTruncate(limit: c_uint) -> ();
    shrink => xShrink() -> ();
}

unsafe extern "C" fn destroy(handle: *mut sqlite3_pcache) {
    // SAFETY: made by `create`, and SQLite does not use it again.
    let cache = unsafe { Box::from_raw(handle.cast::<Cache>()) };
    original!(xDestroy(cache.inner));
}
