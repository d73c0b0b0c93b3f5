//! The tables in which virtual tables keep their content: shadow tables.

use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::sql_text::{SqlToken, sql_tokens};

/// Modules of virtual tables, and what follows the name of such a table and `_` in the names of its
/// shadow tables. They are those of SQLite's own source.
const MODULES: &[(&[&str], &[&str])] = &[
    (
        &["fts3", "fts4"],
        &["content", "docsize", "segdir", "segments", "stat"],
    ),
    (&["fts5"], &["config", "content", "data", "docsize", "idx"]),
    (
        &["geopoly", "rtree", "rtree_i32"],
        &["node", "parent", "rowid"],
    ),
];

/// Returns the names of the shadow tables, as declared. They are no tables of the database's owner,
/// and change with SQLite's version.
///
/// SQLite lists them in `pragma_table_list` too, but opens every virtual table for it. Those of an
/// untrusted file stay closed.
///
/// # Errors
/// The schema cannot be read.
pub fn shadow_tables(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    // Only these declarations are looked at, as bytes: others may have text that is no UTF-8.
    // SQLite gives text as UTF-8, also where the database has UTF-16.
    let sql = "SELECT name, rootpage = 0, iif(rootpage = 0, sql, '') \
               FROM sqlite_master WHERE type = 'table'";
    let mut statement = connection.prepare(sql)?;
    let tables = statement.query_map([], |row| {
        let declaration = row.get_ref(2)?.as_bytes()?;
        Ok((row.get(0)?, row.get(1)?, declaration.to_vec()))
    })?;
    let tables: Vec<(String, bool, Vec<u8>)> = tables.collect::<rusqlite::Result<_>>()?;
    let mut shadows = BTreeSet::new();
    for (name, _, sql) in tables.iter().filter(|(_, is_virtual, _)| *is_virtual) {
        let suffixes = suffixes(&String::from_utf8_lossy(sql)).iter();
        shadows.extend(suffixes.map(|suffix| format!("{name}_{suffix}").to_ascii_lowercase()));
    }
    let names = tables.into_iter().filter(|(_, is_virtual, _)| !is_virtual);
    let names = names.map(|(name, ..)| name);
    let is_shadow = |name: &String| shadows.contains(&name.to_ascii_lowercase());
    Ok(names.filter(is_shadow).collect())
}

/// Returns the ends of the names of the shadow tables of a virtual table, by its declaration.
fn suffixes(declaration: &str) -> &'static [&'static str] {
    let mut tokens = sql_tokens(declaration).filter(|it| !matches!(it, SqlToken::Gap(_)));
    let is_using = |token: &SqlToken<'_>| match token {
        SqlToken::Word(word) => word.eq_ignore_ascii_case("using"),
        _ => false,
    };
    let module = tokens.find(is_using).and_then(|_| tokens.next());
    let module = module.map_or("", SqlToken::text);
    let module = module.trim_matches(['"', '`', '\'', '[', ']']);
    let is_it = |names: &[&str]| names.iter().any(|it| it.eq_ignore_ascii_case(module));
    let known = MODULES.iter().find(|(names, _)| is_it(names));
    match known {
        Some((_, suffixes)) => suffixes,
        None => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SQLite itself is the oracle.
    #[test]
    fn shadow_tables_are_those_that_sqlite_lists() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE VIRTUAL TABLE posts USING fts5(title, body);
                 CREATE VIRTUAL TABLE \"Using x\" USING \"FTS4\"(a);
                 CREATE VIRTUAL TABLE old USING fts3(a);
                 CREATE VIRTUAL TABLE areas USING rtree(id, low, high);
                 CREATE VIRTUAL TABLE spots using Rtree_i32(id, low, high);
                 CREATE TABLE areas_data (a); CREATE TABLE posts_node (a); CREATE TABLE other (a);
                 CREATE TABLE using_content (a); CREATE VIEW posts_view AS SELECT 1 AS a",
            )
            .unwrap();
        let sql = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'";
        let mut statement = connection.prepare(sql).unwrap();
        let listed = statement.query_map([], |row| row.get(0)).unwrap();
        let listed: BTreeSet<String> = listed.collect::<Result<_, _>>().unwrap();
        assert!(listed.len() > 15, "{listed:?}");
        assert_eq!(shadow_tables(&connection).unwrap(), listed);
    }

    #[test]
    fn shadow_tables_are_found_in_utf_16() {
        let connection = Connection::open_in_memory().unwrap();
        let sql = "PRAGMA encoding = 'UTF-16le'; CREATE VIRTUAL TABLE words USING fts5(a)";
        connection.execute_batch(sql).unwrap();
        let shadows = shadow_tables(&connection).unwrap();
        assert!(shadows.contains("words_data"), "{shadows:?}");
    }

    #[test]
    fn declarations_may_have_text_that_is_no_utf_8() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE t (a); CREATE VIRTUAL TABLE words USING fts5(a);
                 PRAGMA writable_schema = ON;
                 UPDATE sqlite_master SET sql = CAST(sql || x'2f2ae92a2f' AS TEXT)
                 WHERE name IN ('t', 'words')",
            )
            .unwrap();
        let shadows = shadow_tables(&connection).unwrap();
        assert!(shadows.contains("words_data"), "{shadows:?}");
    }
}
