//! Which gold SQL agents could run.
//!
//! Gold SQL has more room than agents' queries. The environment runs it again within the limits of
//! their queries, and what is over them has no result there. Limits that are settings are copies of
//! the defaults in the crate `env`, whose test `env/tests/gold_limits.rs` compares the two. The
//! budget of work and memory is only known there.

use std::sync::atomic::Ordering;

use rusqlite::limits::Limit;
use rusqlite::{ErrorCode, PrepFlags};

use super::{GoldDatabase, GoldResult, MAX_CELL_BYTES, message};
use crate::error::Refused;
use crate::sql_text::quoted;

/// The rows of a result that a query shows to an agent.
pub(crate) const SHOWN_ROWS: usize = 20;
/// The rows of a result that the environment reads.
const READ_ROWS: usize = 200;
/// The longest text, BLOB or row, unless a table has a longer row.
const VALUE_BYTES: i32 = 16 << 10;
const STATEMENT_BYTES: i32 = 16 << 10;
const MAX_OPERATIONS: i32 = 25_000;
/// The columns of a table or a result.
pub(crate) const MAX_COLUMNS: u16 = 256;
/// The limits of agents' statements that no setting changes. They are above what honest SQL needs.
pub const STATEMENT_LIMITS: [(Limit, i32); 6] = [
    (Limit::SQLITE_LIMIT_COLUMN, MAX_COLUMNS as i32),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 16),
    (Limit::SQLITE_LIMIT_VDBE_OP, MAX_OPERATIONS),
    (Limit::SQLITE_LIMIT_FUNCTION_ARG, 32),
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 64),
];

impl GoldDatabase {
    /// Runs one query like [`Self::run`]. Returns why agents could not run it as well, if so.
    ///
    /// # Errors
    /// Fails like [`Self::run`].
    pub(crate) fn run_for_agents(
        &self,
        sql: &str,
    ) -> Result<(GoldResult, Option<String>), Refused> {
        // Nearly all queries are within the limits and run once.
        let known = self.value_bytes.get().copied();
        let value_bytes = known.unwrap_or(VALUE_BYTES);
        if let Ok(gold) = self.within_limits(value_bytes, || self.run(sql)) {
            return Ok((gold, None));
        }
        let gold = self.run(sql)?;
        let value_bytes = self.value_bytes();
        let refusal = self.within_limits(value_bytes, || self.read_like_agents(sql));
        Ok((gold, refusal.err().map(|it| it.reason)))
    }

    fn within_limits<T>(
        &self,
        value_bytes: i32,
        run: impl FnOnce() -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let limits = STATEMENT_LIMITS.into_iter().chain([
            (Limit::SQLITE_LIMIT_SQL_LENGTH, STATEMENT_BYTES),
            (Limit::SQLITE_LIMIT_LENGTH, value_bytes),
        ]);
        let set = |(limit, most): (Limit, i32)| {
            let before = self.connection.set_limit(limit, most);
            before.map(|before| (limit, before))
        };
        let before: rusqlite::Result<Vec<(Limit, i32)>> = limits.map(set).collect();
        let before = before.map_err(|error| Refused::unanswered(error.to_string()))?;
        let result = run();
        for (limit, most) in before {
            // This cannot fail on an open connection.
            let _ = self.connection.set_limit(limit, most);
        }
        result
    }

    /// Reads as many rows as the environment does, and the one after them.
    fn read_like_agents(&self, sql: &str) -> Result<(), Refused> {
        self.steps.store(0, Ordering::Relaxed);
        let read = || -> rusqlite::Result<()> {
            let flags = PrepFlags::SQLITE_PREPARE_NO_VTAB;
            let mut statement = self.connection.prepare_with_flags(sql, flags)?;
            let mut rows = statement.query([])?;
            for _ in 0..=READ_ROWS {
                if rows.next()?.is_none() {
                    break;
                }
            }
            Ok(())
        };
        read().map_err(|error| {
            Refused::unanswered(match error.sqlite_error_code() {
                // SQLite calls a program over its limit so.
                Some(ErrorCode::OutOfMemory) => {
                    format!("it compiles to more than {MAX_OPERATIONS} SQLite instructions")
                }
                _ => message(&error),
            })
        })
    }

    /// Returns the bytes that a value may have in the environment, where each row of a table can be
    /// read.
    fn value_bytes(&self) -> i32 {
        let longest = || {
            let tables = self.declared.iter().filter(|(_, is_table)| *is_table);
            let longest = tables.filter_map(|(table, _)| match self.longest_row(table) {
                Ok(bytes) => Some(bytes),
                // It is not known, so it may be as long as gold SQL reads.
                Err(error) => matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::OperationInterrupted | ErrorCode::TooBig)
                )
                .then_some(i64::from(MAX_CELL_BYTES)),
            });
            let longest = longest.max().unwrap_or_default();
            let longest = i32::try_from(longest).unwrap_or(MAX_CELL_BYTES);
            longest.clamp(VALUE_BYTES, MAX_CELL_BYTES)
        };
        *self.value_bytes.get_or_init(longest)
    }

    fn longest_row(&self, table: &str) -> rusqlite::Result<i64> {
        let flags = PrepFlags::SQLITE_PREPARE_NO_VTAB;
        let all = format!("SELECT * FROM {}", quoted(table));
        let all = self.connection.prepare_with_flags(&all, flags)?;
        let sql = longest_row_sql(table, all.column_names());
        self.steps.store(0, Ordering::Relaxed);
        let mut longest = self.connection.prepare_with_flags(&sql, flags)?;
        longest.query_row([], |row| row.get(0))
    }
}

/// Returns SQL for the bytes of the longest row of a table, or a little more.
pub fn longest_row_sql<'a>(table: &str, columns: impl Iterator<Item = &'a str>) -> String {
    // Nine bytes hold a number or the length of a text.
    let size = |name: &'a str| {
        let name = quoted(name);
        format!("9 + iif(typeof({name}) IN ('text', 'blob'), octet_length({name}), 0)")
    };
    let sizes: Vec<String> = columns.map(size).collect();
    // SQLite bounds the depth of an expression, so the terms are summed in groups.
    let groups = sizes.chunks(100);
    let groups: Vec<String> = groups.map(|it| format!("({})", it.join(" + "))).collect();
    let (sum, table) = (groups.join(" + "), quoted(table));
    format!("SELECT ifnull(max({sum}), 0) FROM {table}")
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// The environment stops reading before the long row.
    #[test]
    fn rows_that_agents_never_read_do_not_count() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE t (id INTEGER PRIMARY KEY);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300)
                 INSERT INTO t SELECT i FROM n",
            )
            .unwrap();
        let database = GoldDatabase::guard(connection).unwrap();
        for (id, is_run) in [(150, false), (250, true)] {
            let sql = format!("SELECT iif(id = {id}, printf('%20000d', id), id) FROM t");
            let (_, refusal) = database.run_for_agents(&sql).unwrap();
            assert_eq!(refusal.is_none(), is_run, "{id}: {refusal:?}");
        }
    }
}
