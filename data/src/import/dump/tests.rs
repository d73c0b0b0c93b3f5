//! Tests dumps of SQLite.

use super::*;

fn divided(sql: &str) -> Vec<(usize, String)> {
    statements(sql)
        .map(|it| (it.line, normal_form(it.sql)))
        .collect()
}

#[test]
fn statements_end_where_sqlite_ends_them() {
    let trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM a; SELECT CASE WHEN 1 \
                   THEN 2 END; END";
    let sql = format!("-- head;\n\nSELECT ';' ;;\n{trigger};\n SELECT \"a;b\" -- end;\n; select 3");
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
    let skipped = "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM a; \u{b}\u{feff}END; \
                   SELECT 1";
    assert_eq!(divided(skipped).len(), 2);
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

/// Fails unless each statement is refused with this part of a text.
fn assert_refused(cases: &[(&str, &str)]) {
    for (statement, part) in cases {
        let error = error_of(&format!("CREATE TABLE t (x);\n{statement};"));
        assert!(
            error.contains(part) && error.contains("shop.sql"),
            "{error}"
        );
    }
}

#[test]
fn what_a_dump_may_not_do_is_named_with_its_line() {
    assert_refused(&[
        ("ATTACH 'outside.sqlite' AS o", "attach"),
        ("VACUUM INTO 'outside.sqlite'", "shop.sql: line 2"),
        ("PRAGMA writable_schema = ON", "PRAGMA"),
        ("CREATE VIRTUAL TABLE v USING fts5(x)", "virtual"),
        ("CREATE TEMP TABLE u (x)", "temporary"),
        ("CREATE VIEW temp.v AS SELECT 1", "temporary"),
        (
            "CREATE TEMP TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END",
            "temporary",
        ),
        (
            "CREATE TRIGGER temp.g AFTER INSERT ON main.t BEGIN DELETE FROM t; END",
            "temporary",
        ),
        ("INSERT INTO t VALUES (random())", "random"),
        (
            "INSERT INTO t VALUES (load_extension('x'))",
            "load_extension",
        ),
        ("SET search_path = public", "near \"SET\": syntax error"),
        ("INSERT INTO missing VALUES (1)", "no such table: missing"),
        ("ROLLBACK", "takes itself back"),
        ("BEGIN; INSERT INTO t VALUES (1)", "not whole"),
    ]);
    let error = error_of("-- PostgreSQL database dump\nSET x = 1;");
    assert!(error.contains("postgresql://HOST"), "{error}");
}

/// SQLite keeps the rows of some in temporary files without a limit.
#[test]
fn a_dump_runs_no_query() {
    let query = "may not run a query";
    assert_refused(&[
        (
            "INSERT INTO t SELECT count(DISTINCT v) FROM (WITH RECURSIVE n(i) AS (SELECT 1 \
             UNION ALL SELECT i+1 FROM n) SELECT printf('%60000d', i) AS v FROM n)",
            query,
        ),
        ("INSERT INTO t \u{feff}SELECT 1", query),
        ("VALUES ((select 1))", query),
        (
            "WITH n(i) AS (VALUES (1)) DELETE FROM t WHERE x IN n",
            query,
        ),
        ("UPDATE t SET x = a.x FROM t AS a", query),
        ("DELETE FROM t RETURNING x", query),
        (
            "CREATE VIEW v AS SELECT 1; INSERT INTO t VALUES (1 IN v)",
            "access to view",
        ),
    ]);
}

#[test]
fn what_a_dump_may_take_is_bounded_by_its_size() {
    let rows = "(1),".repeat(20_000) + "(1)";
    let steps = "DELETE FROM t WHERE x < 0;".repeat(2_500);
    let steps = format!("INSERT INTO t VALUES {rows}; {steps}");
    let pages = "INSERT INTO t VALUES (printf('%60000d', 1));".repeat(1_300);
    assert_refused(&[
        (steps.as_str(), "more SQLite instructions"),
        (
            pages.as_str(),
            "free space on it), or the database becomes larger",
        ),
        (
            "INSERT INTO t VALUES (printf('%1000000d', 1))",
            "longer than the dump's size",
        ),
        (
            "INSERT INTO t VALUES ('a' LIKE printf('%1001d', 1))",
            "pattern too complex",
        ),
    ]);
}

#[test]
fn checks_and_generated_columns_may_call_json_functions() {
    let dir = tempfile::tempdir().unwrap();
    let (dump, target) = (dir.path().join("shop.sql"), dir.path().join("shop.sqlite"));
    let sql = r#"CREATE TABLE t ("data" TEXT CHECK (JSON_VALID("data") OR "data" IS NULL),
        size AS (json_extract("data", '$.size')), name TEXT AS ("data" ->> '$.name') STORED);
        INSERT INTO t VALUES ('{"size": 3, "name": "cup"}');"#;
    std::fs::write(&dump, sql).unwrap();
    run(&dump, &target).unwrap();
    let made = Connection::open(&target).unwrap();
    let row = made.query_row("SELECT size, name FROM t", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    });
    assert_eq!(row.unwrap(), (3, "cup".to_owned()));
}
