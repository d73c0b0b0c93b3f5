//! Statements that must not get through, and statements that must.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Fixture;
use env_node::{EnvConfig, SqlLimits};
use sha2::{Digest, Sha256};

/// Refused before or while they are compiled; each with a part of the text that the agent reads.
const REFUSED: &[(&str, &str)] = &[
    (
        "DROP TABLE Cars",
        "only SELECT or WITH ... SELECT is allowed, not DROP",
    ),
    ("DELETE FROM Cars", "not DELETE"),
    ("INSERT INTO Cars VALUES (99,1,'1',1.0,1)", "not INSERT"),
    ("UPDATE Cars SET Year = 0", "not UPDATE"),
    ("REPLACE INTO Cars VALUES (1,1,'1',1.0,1)", "not REPLACE"),
    ("CREATE TABLE t (a)", "not CREATE"),
    ("CREATE TEMP TABLE t (a)", "not CREATE"),
    ("CREATE VIRTUAL TABLE t USING fts5(a)", "not CREATE"),
    ("ALTER TABLE Cars RENAME TO c", "not ALTER"),
    ("ATTACH 'x.sqlite' AS x", "not ATTACH"),
    ("ATTACH ':memory:' AS x", "not ATTACH"),
    ("DETACH main", "not DETACH"),
    ("VACUUM", "not VACUUM"),
    ("VACUUM INTO 'copy.sqlite'", "not VACUUM"),
    ("REINDEX", "not REINDEX"),
    ("ANALYZE", "not ANALYZE"),
    ("PRAGMA writable_schema = ON", "not PRAGMA"),
    ("PRAGMA query_only = OFF", "not PRAGMA"),
    ("PRAGMA journal_mode = WAL", "not PRAGMA"),
    ("BEGIN", "not BEGIN"),
    ("SAVEPOINT a", "not SAVEPOINT"),
    ("COMMIT", "not COMMIT"),
    ("EXPLAIN SELECT 1", "not EXPLAIN"),
    ("EXPLAIN QUERY PLAN SELECT 1", "not EXPLAIN"),
    ("VALUES (1)", "not VALUES"),
    ("", "only SELECT or WITH ... SELECT is allowed"),
    (" ;;; ", "only SELECT or WITH ... SELECT is allowed"),
    (
        "-- only a comment",
        "only SELECT or WITH ... SELECT is allowed",
    ),
    ("/* open", "only SELECT or WITH ... SELECT is allowed"),
    (
        "WITH a AS (SELECT 1) DELETE FROM Cars",
        "only SELECT or WITH ... SELECT is allowed",
    ),
    (
        "WITH a AS (SELECT 1) INSERT INTO Cars SELECT 99,1,'1',1.0,1",
        "only SELECT or WITH ... SELECT is allowed",
    ),
    ("SELECT 1; DROP TABLE Cars", "only "),
    ("SELECT 1; SELECT 2", "only one statement is allowed"),
    ("SELECT name FROM sqlite_master", "prohibited"),
    ("SELECT count(*) FROM sqlite_master", ""),
    ("SELECT sql FROM sqlite_schema", "prohibited"),
    ("SELECT 1 FROM sqlite_temp_master", ""),
    (
        "SELECT a FROM (SELECT name AS a FROM sqlite_master)",
        "prohibited",
    ),
    (
        "SELECT Id FROM Cars UNION SELECT name FROM sqlite_master",
        "prohibited",
    ),
    ("SELECT * FROM pragma_database_list", "prohibited"),
    ("SELECT count(*) FROM pragma_table_info('Cars')", ""),
    ("SELECT * FROM dbstat", ""),
    ("SELECT value FROM json_each('[1,2]')", "prohibited"),
    ("SELECT count(*) FROM json_each('[1,2]')", ""),
    ("SELECT value FROM generate_series(1, 9)", ""),
    ("SELECT load_extension('x')", "not authorized"),
    ("SELECT fts3_tokenizer('simple')", ""),
    ("SELECT readfile('/etc/passwd')", "no such function"),
    ("SELECT random()", "not authorized to use function: random"),
    (
        "SELECT randomblob(8)",
        "not authorized to use function: randomblob",
    ),
    (
        "SELECT zeroblob(8)",
        "not authorized to use function: zeroblob",
    ),
    (
        "SELECT CURRENT_TIMESTAMP",
        "not authorized to use function: CURRENT_TIMESTAMP",
    ),
    (
        "SELECT \"current_date\"()",
        "not authorized to use function: CURRENT_DATE",
    ),
    ("SELECT date('now')", "not authorized to use function: date"),
    (
        "SELECT datetime()",
        "not authorized to use function: datetime",
    ),
    (
        "SELECT strftime('%s', 'now')",
        "not authorized to use function: strftime",
    ),
    (
        "SELECT sqlite_version()",
        "not authorized to use function: sqlite_version",
    ),
    ("SELECT sqlite_compileoption_get(1)", "not authorized"),
    (
        "SELECT changes()",
        "not authorized to use function: changes",
    ),
    ("SELECT last_insert_rowid()", "not authorized"),
    ("SELECT ?1", "variable"),
    (
        "SELECT Salary FROM Cars",
        "SQL error: no such column: Salary",
    ),
    ("SELEC 1", "not SELEC"),
    ("SELECT FROM", "syntax error"),
    ("SELECT * FROM nope", "SQL error: no such table: nope"),
];

/// Stopped by a limit on size or by the budget of virtual machine steps, at the same place on every machine.
const BOUNDED: &[(&str, &str)] = &[
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "units of work",
    ),
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT i FROM n WHERE i > 1",
        "units of work",
    ),
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT max(i) FROM n",
        "units of work",
    ),
    (
        "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e",
        "units of work",
    ),
    (
        "SELECT a.Id FROM Cars a, Cars b, Cars c, Cars d ORDER BY a.Id + b.Id",
        "units of work",
    ),
    (
        "WITH RECURSIVE s(t) AS (SELECT 'xxxxxxxx' UNION ALL SELECT t || t FROM s) SELECT max(length(t)) FROM s",
        "too big",
    ),
    ("SELECT printf('%1000000000s', 'a')", ""),
    (
        "SELECT replace(hex(printf('%8000s', 'a')), '0', 'aaaaaaaaaaaaaaaa')",
        "too big",
    ),
    (
        "SELECT sum(9223372036854775807) FROM Cars",
        "integer overflow",
    ),
];

const MEANINGFUL: &[(&str, &str)] = &[
    ("SELECT count(*) FROM Cars", "1. 40"),
    ("select COUNT(*) from CARS;", "1. 40"),
    ("  -- a comment\n SELECT 1 -- another", "1. 1"),
    (
        "WITH n AS (SELECT Id FROM Cars) SELECT count(*) FROM n",
        "1. 40",
    ),
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) FROM n",
        "1. 15",
    ),
    (
        "SELECT count(*) FROM (SELECT Id FROM Cars WHERE Id < 4) AS sub",
        "1. 3",
    ),
    ("SELECT count(*) FROM fast", "1. 7"),
    ("SELECT min(Accelerate) FROM fast", "1. 10.25"),
    ("SELECT Name FROM makers WHERE Name = \"Fiat\"", "1. Fiat"),
    (
        "SELECT * FROM \"odd \"\"name\"",
        "1. 1 | 1.0e+20 | x'00ff' | noon\n2. 0.1 | -5 | NULL | NULL",
    ),
    (
        "SELECT untyped FROM \"odd \"\"name\" ORDER BY at",
        "1. -5\n2. 1.0e+20",
    ),
    (
        "SELECT Name, Country FROM makers WHERE Id > 3",
        "1. Lada | NULL\n2. O'Hara | Sons | Ireland",
    ),
    (
        "SELECT upper(Name), length(Name) FROM makers WHERE Id = 2",
        "1. CITROëN | 7",
    ),
    ("SELECT 1 WHERE 0", "(no rows)"),
    (
        "SELECT 10 / 4, 10 / 4.0, 1.0 * 100 / 3",
        "1. 2 | 2.5 | 33.333333333333336",
    ),
    (
        "SELECT row_number() OVER (ORDER BY Id DESC) FROM makers WHERE Id < 3",
        "1. 1\n2. 2",
    ),
    (
        "SELECT Maker, count(*) FROM Cars GROUP BY Maker HAVING count(*) > 7 ORDER BY Maker LIMIT 2",
        "1. 1 | 8\n2. 2 | 8",
    ),
    (
        "SELECT Id FROM makers EXCEPT SELECT Maker FROM Cars",
        "(no rows)",
    ),
    ("SELECT 9e999, -9e999", "1. Inf | -Inf"),
];

#[tokio::test]
async fn refused_bounded_or_answered_and_the_file_stays_as_it_was() {
    let config = EnvConfig {
        sql: SqlLimits {
            work_units: 200_000,
            wall_clock_seconds: 600.0,
            ..SqlLimits::default()
        },
        ..EnvConfig::default()
    };
    let fixture = Fixture::new(config);
    let file = fixture.folder.path().join("cars.sqlite");
    let hash = || Sha256::digest(std::fs::read(&file).unwrap());
    let before = hash();
    for (sql, part) in REFUSED.iter().chain(BOUNDED) {
        let (result, error) = fixture.query(sql).await;
        assert_eq!(result, "", "{sql}");
        assert!(
            error.starts_with("SQL error: ") && error.contains(part),
            "{sql}: {error}"
        );
        assert_eq!(
            fixture.query(sql).await,
            (result, error),
            "{sql}: the same text each time"
        );
    }
    for (sql, text) in MEANINGFUL {
        let (result, error) = fixture.query(sql).await;
        assert_eq!((result.as_str(), error.as_str()), (*text, ""), "{sql}");
    }
    assert_eq!(hash(), before);
    let files: Vec<_> = std::fs::read_dir(fixture.folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "nothing is written beside the database");
}

#[tokio::test]
async fn the_step_budget_stops_at_the_same_step_on_a_fresh_and_on_a_used_connection() {
    // The largest count that passes under a budget is the same on ten fresh nodes and on a node that has run other SQL.
    let sql = |rows: u32| {
        format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT count(*) FROM n"
        )
    };
    let config = || EnvConfig {
        sql: SqlLimits {
            work_units: 5_000,
            ..SqlLimits::default()
        },
        ..EnvConfig::default()
    };
    let mut limits = Vec::new();
    for used in [false, true, true] {
        let fixture = Fixture::new(config());
        if used {
            fixture
                .query("SELECT * FROM Cars JOIN makers ON Maker = makers.Id")
                .await;
        }
        let mut largest = 0;
        for rows in 1..1_000 {
            if fixture.query(&sql(rows)).await.1.is_empty() {
                largest = rows;
            }
        }
        limits.push(largest);
    }
    assert!(limits[0] > 0 && limits[0] < 999, "{limits:?}");
    assert!(limits.iter().all(|limit| *limit == limits[0]), "{limits:?}");
}
