//! Opens database files that may be a stranger's.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::clock::{FIXED_CLOCK, register_fixed_clock};

/// Opens a file as the environment does: nothing is written beside it, a write-ahead log is not
/// read, and the clock stands still.
pub(crate) fn open_immutable(path: &Path) -> rusqlite::Result<Connection> {
    register_fixed_clock()?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags_and_vfs(immutable_uri(path), flags, FIXED_CLOCK)
}

/// Returns the URI under which SQLite opens a file without locks, journals and files beside it.
pub fn immutable_uri(path: &Path) -> String {
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

/// Turns off what `CREATE` statements of a stranger could do when they run, and triggers.
pub(crate) fn harden(connection: &Connection) -> rusqlite::Result<()> {
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
