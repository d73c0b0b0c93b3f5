//! Drafts questions about small databases that a test makes.

use data::{DatabaseSource, Dataset, DraftSettings, DraftedDatabase, Question, draft};

/// Drafts questions about a database that the SQL makes.
pub(crate) fn drafted(sql: &str, count: usize) -> (DraftedDatabase, Vec<Question>) {
    drafted_in_words(sql, "", count)
}

/// Drafts questions about a database that the SQL makes, with a file of words.
pub(crate) fn drafted_in_words(
    sql: &str,
    words: &str,
    count: usize,
) -> (DraftedDatabase, Vec<Question>) {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("d.sqlite"), dir.path().join("out"));
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute_batch(sql).unwrap();
    drop(connection);
    std::fs::write(dir.path().join("d.words.toml"), words).unwrap();
    let settings = DraftSettings {
        databases: vec![DatabaseSource::parse(file.to_str().unwrap()).unwrap()],
        words: None,
        seed: 1,
        count,
        licence: "NOASSERTION".to_owned(),
    };
    let mut report = draft(&out, &settings, &mut |_| {}).unwrap();
    let checked = data::check(&out, None).unwrap();
    assert!(checked.problems.is_empty(), "{checked}");
    let questions = Dataset::open(&out, None).unwrap().questions;
    (report.databases.remove(0), questions)
}

/// Returns the rows, sorted.
pub(crate) fn rows(connection: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap();
    let width = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| {
        let cells = (0..width).map(|index| row.get::<_, rusqlite::types::Value>(index));
        let cells: rusqlite::Result<Vec<_>> = cells.collect();
        cells.map(|cells| format!("{cells:?}"))
    };
    let rows = statement.query_map([], row).unwrap();
    let mut rows: Vec<String> = rows.collect::<Result<_, _>>().unwrap();
    rows.sort();
    rows
}
