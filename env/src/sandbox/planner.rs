//! Checks that SQLite's query planner is bounded.
//!
//! No budget counts how long SQLite plans a statement, so the build bounds it (`LIBSQLITE3_FLAGS`
//! in `.cargo/config.toml`). SQLite does not report that option. But it calls the progress handler
//! while it plans: about 30 times for the join below where planning is bounded, about 400 times
//! where it is not.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use rusqlite::Connection;

const TABLES: usize = 30;
const MOST_CALLS: u32 = 100;

/// Returns whether planning is bounded. It plans a join of many tables, each of which can be
/// searched by two columns in any order.
pub(super) fn is_bounded() -> rusqlite::Result<bool> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch("CREATE TABLE t (a, b, PRIMARY KEY (a, b))")?;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let count = move || {
        counted.fetch_add(1, Relaxed);
        false
    };
    connection.progress_handler(100, Some(count))?;
    connection.prepare(&star())?;
    Ok(calls.load(Relaxed) <= MOST_CALLS)
}

fn star() -> String {
    let tables: Vec<String> = (0..TABLES).map(|index| format!("t t{index}")).collect();
    let joined = (0..TABLES).map(|index| format!("t{index}.a = x.a AND t{index}.b = x.b"));
    let joined: Vec<String> = joined.collect();
    format!(
        "SELECT 1 FROM t x, {} WHERE {}",
        tables.join(", "),
        joined.join(" AND ")
    )
}
