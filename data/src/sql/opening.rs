//! Opens database files that may be untrusted.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, ffi};

use super::clock::{FIXED_CLOCK, register_fixed_clock};

/// How many SQLite instructions run between two looks at the budget.
const STEPS_PER_CALL: i32 = 10_000;
/// What [`check_names`] says of a table or a view.
pub(crate) const NAME_NOT_UTF8: &str = "has a name that is not UTF-8";

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
    // The authority is empty. Without it, SQLite would take the first folder of `//a/b` for one.
    let authority = if path.is_absolute() { "//" } else { "" };
    let mut uri = format!("file:{authority}");
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

/// Checks the names of tables, of their columns, and of views. An authorizer of rusqlite and the
/// names of a result's columns panic on those that are not UTF-8.
///
/// # Errors
/// Names the table or the view, or says why the schema cannot be read.
pub(crate) fn check_names(connection: &Connection) -> rusqlite::Result<()> {
    // No virtual table is opened for this, and no view is compiled.
    let sql = "SELECT t.type, t.name, c.name \
               FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c \
               WHERE t.type = 'table' AND t.rootpage > 0 \
               UNION ALL SELECT type, name, '' FROM sqlite_master \
               WHERE type IN ('table', 'view') AND rootpage = 0";
    let mut statement = connection.prepare(sql)?;
    let mut names = statement.query([])?;
    while let Some(row) = names.next()? {
        let (name, column) = (row.get_ref(1)?, row.get_ref(2)?);
        if name.as_str().is_err() || column.as_str().is_err() {
            let kind: String = row.get(0)?;
            let name = String::from_utf8_lossy(name.as_bytes().unwrap_or_default());
            let found = format!("{kind} {name} or one of its columns {NAME_NOT_UTF8}");
            let error = ffi::Error::new(ffi::SQLITE_ERROR);
            return Err(rusqlite::Error::SqliteFailure(error, Some(found)));
        }
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
    use crate::sql::GoldDatabase;

    #[test]
    fn paths_are_quoted_in_uris() {
        assert_eq!(
            immutable_uri(Path::new("/data/a b/100%?#.sqlite")),
            "file:///data/a%20b/100%25%3F%23.sqlite?mode=ro&immutable=1"
        );
        assert_eq!(
            immutable_uri(Path::new("a.sqlite")),
            "file:a.sqlite?mode=ro&immutable=1"
        );
    }

    #[test]
    fn a_path_may_begin_with_two_slashes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.sqlite");
        let made = Connection::open(&path).unwrap();
        made.execute_batch("CREATE TABLE t (x)").unwrap();
        let opened = open_immutable(Path::new(&format!("/{}", path.display()))).unwrap();
        opened.execute_batch("SELECT x FROM t").unwrap();
    }

    #[test]
    fn names_that_are_not_utf_8_are_found_before_queries_run() {
        for (sql, named) in [
            (
                "UPDATE sqlite_master SET sql = replace(sql, 'a', 'größe')",
                None,
            ),
            (
                "UPDATE sqlite_master SET sql = CAST(sql || x'2f2ae92a2f' AS TEXT)",
                None,
            ),
            (
                "UPDATE sqlite_master SET sql = CAST('CREATE TABLE t (a' || x'e929' AS TEXT)",
                Some("table t"),
            ),
            (
                "CREATE VIEW v AS SELECT 1; UPDATE sqlite_master SET (name, tbl_name, sql) = \
                 (CAST(x'e9' AS TEXT), CAST(x'e9' AS TEXT), \
                 CAST('CREATE VIEW ' || x'e9' || ' AS SELECT 1' AS TEXT)) WHERE type = 'view'",
                Some("view \u{fffd}"),
            ),
        ] {
            let connection = Connection::open_in_memory().unwrap();
            let change = format!(
                "CREATE TABLE t (a); PRAGMA writable_schema = ON; {sql};
                 PRAGMA writable_schema = RESET"
            );
            connection.execute_batch(&change).unwrap();
            let refusal = GoldDatabase::guard(connection).err();
            let refusal = refusal.map(|it| it.to_string());
            let named = named.map(|it| format!("{it} or one of its columns {NAME_NOT_UTF8}"));
            assert_eq!(refusal, named, "{sql}");
        }
    }
}
