//! Runs a SQL dump in SQLite's dialect in a new database.
//!
//! Invariant: a dump changes nothing but its own database, and it ends: its statements may not
//! attach files or call functions with effects, triggers do not fire, and SQLite's instructions and
//! the size of the file are bounded.

use std::path::Path;

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ErrorCode};

use crate::sql::{harden, limit_steps};
use crate::sql_text::{SqlToken, first_keyword, normal_form, sql_tokens};
use crate::{DataError, is_sql_function, text};

/// The largest dump, which is read at once.
const MAX_BYTES: u64 = 2 << 30;
/// SQLite instructions: for any dump, and for each byte of it.
const STEPS: u64 = 100_000_000;
const STEPS_PER_BYTE: u64 = 200;
/// The size of the database: for any dump, and for each byte of it.
const FILE_BYTES: u64 = 64 << 20;
const FILE_BYTES_PER_BYTE: u64 = 16;
const PAGE_BYTES: u64 = 4096;
/// The characters of a statement that an error repeats.
const SHOWN_CHARS: usize = 80;
/// Functions of dumps and of defaults, besides those of queries.
const FUNCTIONS: [&str; 3] = ["unistr", "unistr_quote", "changes"];

/// Runs all statements of a dump in a new file at `target`.
///
/// # Errors
/// The error names the statement and its line.
pub(crate) fn run(dump: &Path, target: &Path) -> Result<(), DataError> {
    let size_bytes = dump.metadata().map_err(DataError::io(dump, "read"))?.len();
    if size_bytes > MAX_BYTES {
        let problem = format!(
            "has {size_bytes} bytes, more than {MAX_BYTES}; run `sqlite3 new.sqlite < DUMP` and \
             import the file"
        );
        return Err(DataError::format(dump, problem));
    }
    let sql = text::read(dump)?;
    let mut connection = Connection::open(target).map_err(DataError::sqlite(target))?;
    limit(&mut connection, size_bytes).map_err(DataError::sqlite(target))?;
    for statement in statements(&sql) {
        run_statement(&connection, statement.sql).map_err(|problem| {
            let shown: String = normal_form(statement.sql)
                .chars()
                .take(SHOWN_CHARS)
                .collect();
            let remedy = remedy(&sql);
            let problem = format!("line {}: `{shown}`: {problem}; {remedy}", statement.line);
            DataError::format(dump, problem)
        })?;
    }
    if !connection.is_autocommit() {
        let problem = "begins a transaction and never commits it: the dump is not whole; make it \
                       again";
        return Err(DataError::format(dump, problem));
    }
    connection
        .close()
        .map_err(|(_, error)| DataError::sqlite(target)(error))
}

fn limit(connection: &mut Connection, dump_bytes: u64) -> rusqlite::Result<()> {
    let pages = (FILE_BYTES + FILE_BYTES_PER_BYTE * dump_bytes) / PAGE_BYTES;
    // A dump that fails is run again from its start, so the file needs no journal.
    connection.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES}; PRAGMA max_page_count = {pages}; PRAGMA journal_mode = \
         MEMORY; PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF;"
    ))?;
    harden(connection)?;
    connection.authorizer(Some(authorize))?;
    limit_steps(connection, STEPS + STEPS_PER_BYTE * dump_bytes)
}

fn authorize(context: AuthContext<'_>) -> Authorization {
    let is_allowed = match context.action {
        AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::CreateVtable { .. }
        | AuthAction::DropVtable { .. } => false,
        // A dump turns checks off, which they are anyway, or names a version.
        AuthAction::Pragma { pragma_name, .. } => {
            let harmless = ["foreign_keys", "user_version", "application_id", "encoding"];
            harmless.contains(&pragma_name.to_ascii_lowercase().as_str())
        }
        AuthAction::Function { function_name } => {
            let is_own = FUNCTIONS
                .iter()
                .any(|it| it.eq_ignore_ascii_case(function_name));
            is_own || is_sql_function(function_name)
        }
        _ => true,
    };
    match is_allowed {
        true => Authorization::Allow,
        false => Authorization::Deny,
    }
}

fn run_statement(connection: &Connection, sql: &str) -> Result<(), String> {
    if first_keyword(sql) == "ROLLBACK" {
        return Err("the dump was written with errors and takes itself back".to_owned());
    }
    let run = || -> rusqlite::Result<()> {
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    };
    run().map_err(|error| match (error.sqlite_error_code(), error) {
        (Some(ErrorCode::OperationInterrupted), _) => {
            "the dump takes more SQLite instructions than its size allows".to_owned()
        }
        (Some(ErrorCode::DiskFull), _) => {
            "the database becomes larger than the dump's size allows, or the disk is full"
                .to_owned()
        }
        (Some(ErrorCode::AuthorizationForStatementDenied), _) => {
            "a dump may not attach files, make virtual tables or set this PRAGMA".to_owned()
        }
        (_, rusqlite::Error::SqlInputError { msg, .. }) => msg,
        (_, rusqlite::Error::SqliteFailure(_, Some(message))) => message,
        (_, error) => error.to_string(),
    })
}

/// Says what to do with a dump that SQLite does not run.
fn remedy(sql: &str) -> &'static str {
    let mut end = sql.len().min(4096);
    while !sql.is_char_boundary(end) {
        end -= 1;
    }
    let head = sql[..end].to_ascii_lowercase();
    if head.contains("postgresql database dump") || head.contains("pg_catalog") {
        "this is a dump of PostgreSQL: restore it there and give the address \
         postgresql://HOST/DATABASE"
    } else if head.contains("mysql dump") || head.contains("mariadb dump") {
        "this is a dump of MySQL: export its tables as CSV files and give their folder"
    } else {
        "correct the statement, or make the dump with SQLite's `.dump`"
    }
}

/// One statement of a dump.
struct DumpStatement<'a> {
    sql: &'a str,
    /// The line of its first word.
    line: usize,
}

/// Divides a dump into statements. A trigger holds statements of its own, so it ends with
/// `; END;`.
fn statements(sql: &str) -> impl Iterator<Item = DumpStatement<'_>> {
    let mut tokens = sql_tokens(sql);
    let (mut start, mut position, mut line) = (0, 0, 1);
    std::iter::from_fn(move || {
        let mut words = TriggerWords::default();
        let mut first_line = None;
        loop {
            let Some(token) = tokens.next() else {
                let rest = &sql[start..position];
                start = position;
                let line = first_line?;
                return Some(DumpStatement { sql: rest, line });
            };
            let text = token.text();
            position += text.len();
            let is_end = token == SqlToken::Symbol(";") && words.may_end();
            if !matches!(token, SqlToken::Gap(_)) {
                words.see(token);
                if token != SqlToken::Symbol(";") {
                    first_line.get_or_insert(line);
                }
            }
            line += text.bytes().filter(|&byte| byte == b'\n').count();
            if is_end {
                let statement = &sql[start..position];
                start = position;
                match first_line {
                    Some(line) => {
                        return Some(DumpStatement {
                            sql: statement,
                            line,
                        });
                    }
                    None => words = TriggerWords::default(),
                }
            }
        }
    })
}

/// What is known of the words of a statement: whether it creates a trigger, and whether the trigger
/// is at its end.
#[derive(Default)]
struct TriggerWords {
    words: usize,
    is_create: bool,
    is_temporary: bool,
    is_trigger: bool,
    after_semicolon: bool,
    at_end: bool,
}

impl TriggerWords {
    fn see(&mut self, token: SqlToken<'_>) {
        let is = |word: &str| token.text().eq_ignore_ascii_case(word);
        match self.words {
            0 => self.is_create = is("CREATE"),
            1 if self.is_create => {
                self.is_trigger = is("TRIGGER");
                self.is_temporary = is("TEMP") || is("TEMPORARY");
            }
            // Behind another word it is the name of a table.
            2 if self.is_temporary => self.is_trigger = is("TRIGGER"),
            _ => {}
        }
        self.words += 1;
        self.at_end = self.after_semicolon && is("END");
        self.after_semicolon = token == SqlToken::Symbol(";");
    }

    /// Whether a semicolon here ends the statement.
    fn may_end(&self) -> bool {
        !self.is_trigger || self.at_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(sql: &str) -> Vec<(usize, String)> {
        statements(sql)
            .map(|it| (it.line, normal_form(it.sql)))
            .collect()
    }

    #[test]
    fn statements_end_where_sqlite_ends_them() {
        let trigger = "CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM a; SELECT CASE \
                       WHEN 1 THEN 2 END; END";
        let sql =
            format!("-- head;\n\nSELECT ';' ;;\n{trigger};\n SELECT \"a;b\" -- end;\n; select 3");
        assert_eq!(
            divided(&sql),
            [
                (3, "SELECT ';'".to_owned()),
                (4, trigger.to_owned()),
                (5, "SELECT \"a;b\"".to_owned()),
                (6, "select 3".to_owned()),
            ]
        );
        assert!(divided(" -- nothing\n;").is_empty());
        let named = "CREATE TABLE trigger (a); CREATE VIEW trigger AS SELECT 1; SELECT 1";
        assert_eq!(divided(named).len(), 3);
    }

    fn error_of(sql: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let dump = dir.path().join("shop.sql");
        std::fs::write(&dump, sql).unwrap();
        let outside = dir.path().join("outside.sqlite");
        let result = run(&dump, &dir.path().join("shop.sqlite"));
        assert!(!outside.exists());
        result.unwrap_err().to_string()
    }

    #[test]
    fn what_a_dump_may_not_do_is_named_with_its_line() {
        for (statement, part) in [
            ("ATTACH 'outside.sqlite' AS o", "attach"),
            ("VACUUM INTO 'outside.sqlite'", "shop.sql: line 2"),
            ("PRAGMA writable_schema = ON", "PRAGMA"),
            ("CREATE VIRTUAL TABLE v USING fts5(x)", "virtual"),
            ("INSERT INTO t VALUES (random())", "random"),
            (
                "INSERT INTO t VALUES (load_extension('x'))",
                "load_extension",
            ),
            ("SET search_path = public", "near \"SET\": syntax error"),
            ("INSERT INTO missing VALUES (1)", "no such table: missing"),
            ("ROLLBACK", "takes itself back"),
            ("BEGIN; INSERT INTO t VALUES (1)", "not whole"),
            (
                "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                 SELECT i FROM n WHERE i < 0",
                "more SQLite instructions",
            ),
            (
                "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                 SELECT printf('%200000d', i) FROM n",
                "larger than the dump's size",
            ),
        ] {
            let error = error_of(&format!("CREATE TABLE t (x);\n{statement};"));
            assert!(
                error.contains(part) && error.contains("shop.sql"),
                "{error}"
            );
        }
        let error = error_of("-- PostgreSQL database dump\nSET x = 1;");
        assert!(error.contains("postgresql://HOST"), "{error}");
    }
}
