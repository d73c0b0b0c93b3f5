//! Opens database files that may be untrusted.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::clock::{FIXED_CLOCK, register_fixed_clock};

/// How many SQLite instructions run between two looks at the budget.
const STEPS_PER_CALL: i32 = 10_000;

/// Opens a file read-only: nothing is written beside it, a write-ahead log is not read, and the
/// clock stands still.
///
/// # Errors
/// SQLite cannot open the file.
pub fn open_immutable(path: &Path) -> rusqlite::Result<Connection> {
    register_fixed_clock()?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags_and_vfs(immutable_uri(path), flags, FIXED_CLOCK)
}

/// Returns the URI under which SQLite opens a file without locks, journals and files beside it.
fn immutable_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?mode=ro&immutable=1"
}

/// Turns off what untrusted `CREATE` statements could do when they run, and triggers.
///
/// # Errors
/// SQLite refuses a setting.
pub fn harden(connection: &Connection) -> rusqlite::Result<()> {
    for (option, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false),
    ] {
        connection.set_db_config(option, on)?;
    }
    Ok(())
}

/// Interrupts what runs on a connection after so many SQLite instructions.
pub(crate) fn limit_steps(connection: &mut Connection, budget: u64) -> rusqlite::Result<()> {
    let mut steps = 0;
    let is_spent = move || {
        steps += STEPS_PER_CALL as u64;
        steps > budget
    };
    connection.progress_handler(STEPS_PER_CALL, Some(is_spent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_in_uris() {
        assert_eq!(
            immutable_uri(Path::new("/data/a b/100%?#.sqlite")),
            "file:/data/a%20b/100%25%3F%23.sqlite?mode=ro&immutable=1"
        );
    }
}
