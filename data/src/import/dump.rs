//! Runs a SQL dump in SQLite's dialect in a new database.
//!
//! Invariant: a dump changes nothing but its own database, and it ends: its statements may not
//! attach files, make temporary tables, run queries or call functions with effects, triggers do not
//! fire, and SQLite's instructions, the length of a value and the size of the file are bounded.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
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
/// The longest value or row: for any dump, and for each byte of it. A statement may compute longer
/// ones than it holds, each in one instruction.
const VALUE_BYTES: u64 = 64 << 10;
const VALUE_BYTES_PER_BYTE: u64 = 2;
/// The longest pattern of LIKE and GLOB. Comparing a text with a long one takes long, and is one
/// instruction.
const PATTERN_BYTES: i32 = 1_000;
/// Characters that SQLite may skip in front of a token.
const SKIPPED: [char; 2] = ['\u{b}', text::BYTE_ORDER_MARK];
/// The characters of a statement that an error repeats.
const SHOWN_CHARS: usize = 80;
/// Functions of dumps, defaults, CHECK constraints and generated columns, besides those of queries.
/// Those of JSON are pure.
const FUNCTIONS: &str = "
    changes unistr unistr_quote -> ->> json json_array json_array_insert json_array_length
    json_error_position json_extract json_insert json_object json_patch json_pretty json_quote
    json_remove json_replace json_set json_type json_valid jsonb jsonb_array jsonb_array_insert
    jsonb_extract jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set
";

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
    // SQLite lowers what is above its own limit.
    let value_bytes = VALUE_BYTES + VALUE_BYTES_PER_BYTE * dump_bytes;
    let value_bytes = i32::try_from(value_bytes).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, value_bytes)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_BYTES)?;
    harden(connection)?;
    // `x IN v` would run the query of the view v.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    connection.authorizer(Some(authorize))?;
    limit_steps(connection, STEPS + STEPS_PER_BYTE * dump_bytes)
}

fn authorize(context: AuthContext<'_>) -> Authorization {
    let is_allowed = match context.action {
        AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::CreateVtable { .. }
        | AuthAction::DropVtable { .. } => false,
        // Temporary triggers fire all the same, temporary views may be read, and temporary tables
        // have no limit.
        _ if context.database_name == Some("temp") => false,
        // A dump turns checks off, which they are anyway, or names a version.
        AuthAction::Pragma { pragma_name, .. } => {
            let harmless = ["foreign_keys", "user_version", "application_id", "encoding"];
            harmless.contains(&pragma_name.to_ascii_lowercase().as_str())
        }
        AuthAction::Function { function_name } => {
            let is_own = FUNCTIONS
                .split_ascii_whitespace()
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
    if runs_query(sql) {
        let problem = "a dump may not run a query (SELECT, WITH, RETURNING, UPDATE ... FROM); only \
                       views and triggers may have one";
        return Err(problem.to_owned());
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
            "the disk of the output folder is full (free space on it), or the database becomes \
             larger than the dump's size allows"
                .to_owned()
        }
        // SQLite does not say that a limit of the process was reached.
        (Some(ErrorCode::SystemIoFailure), error) => format!(
            "the new database cannot be written ({error}): free space on the disk of the output \
             folder, or raise the limit of a file's size (ulimit -f)"
        ),
        (Some(ErrorCode::TooBig), _) => {
            "a value becomes longer than the dump's size allows".to_owned()
        }
        (Some(ErrorCode::AuthorizationForStatementDenied), _) => {
            "a dump may not attach files, make virtual or temporary tables, or set this PRAGMA"
                .to_owned()
        }
        (_, rusqlite::Error::SqlInputError { msg, .. }) => msg,
        (_, rusqlite::Error::SqliteFailure(_, Some(message))) => message,
        (_, error) => error.to_string(),
    })
}

/// Returns whether a statement runs a query. Dumps have none, apart from views and triggers, which
/// are only stored. SQLite sorts and collects the rows of a query outside of the database, where no
/// limit applies.
fn runs_query(sql: &str) -> bool {
    let is =
        |word: &str, keywords: &[&str]| keywords.iter().any(|it| word.eq_ignore_ascii_case(it));
    let mut words = sql_tokens(sql).filter_map(|token| match token {
        SqlToken::Word(word) => Some(word.trim_start_matches(SKIPPED)),
        _ => None,
    });
    let first = words.next().unwrap_or_default();
    let second = words.next().unwrap_or_default();
    if is(first, &["CREATE"]) && is(second, &["VIEW", "TRIGGER"]) {
        return false;
    }
    let queries: &[&str] = match is(first, &["UPDATE"]) {
        true => &["SELECT", "RETURNING", "FROM"],
        false => &["SELECT", "RETURNING"],
    };
    let mut all = [first, second].into_iter().chain(words);
    // WITH may also be part of a type: TIMESTAMP WITH TIME ZONE.
    is(first, &["WITH"]) || all.any(|word| is(word, queries))
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
    is_trigger: bool,
    after_semicolon: bool,
    at_end: bool,
}

impl TriggerWords {
    fn see(&mut self, token: SqlToken<'_>) {
        let text = token.text().trim_start_matches(SKIPPED);
        if text.is_empty() {
            return;
        }
        let is = |word: &str| text.eq_ignore_ascii_case(word);
        match self.words {
            0 => self.is_create = is("CREATE"),
            // Behind another word it is the name of a table.
            1 => self.is_trigger = self.is_create && is("TRIGGER"),
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
mod tests;
