//! DuckDB and PostgreSQL, where their programs are installed.

#![allow(
    clippy::disallowed_methods,
    reason = "the address of a test server is in the environment"
)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::{Desk, assert_parts};

fn skip(why: &str) {
    // The harness hides what a passing test prints.
    let _ = writeln!(std::io::stderr(), "SKIPPED: a test of data import: {why}");
}

fn run(command: &mut Command) -> Option<Output> {
    let output = command.output().ok()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(output)
}

/// Asserts the answers of queries on the imported database, in their order.
fn assert_answers(desk: &Desk, database: &Path, expected: &[(&str, &str)]) {
    for (sql, answer) in expected {
        assert_eq!(desk.answer(database, sql).0, *answer, "{sql}");
    }
}

#[test]
fn tables_of_duckdb_are_copied() {
    let desk = Desk::new();
    let path = desk.path("shop.duckdb");
    let sql = r#"
        CREATE SCHEMA other; CREATE TYPE mood AS ENUM ('ok', 'sad');
        CREATE TABLE "my authors" (id INTEGER PRIMARY KEY, "full name" VARCHAR, m mood, born DATE);
        CREATE TABLE books (id BIGINT, author INTEGER REFERENCES "my authors" (id),
          price DECIMAL(10, 2), pieces DECIMAL(5, 0), big HUGEINT, x DOUBLE, ok BOOLEAN, b BLOB,
          ts TIMESTAMP, tz TIMESTAMPTZ, tags VARCHAR[], PRIMARY KEY (id, author));
        INSERT INTO "my authors" VALUES (1, 'Ann "A" O''Hara', 'ok', '2001-02-03'),
          (2, '', NULL, NULL);
        INSERT INTO books VALUES (1, 1, 9.90, 3, 170141183460469231731687303715884105727, 'NaN',
          true, '\xAA\x00'::BLOB, '2024-01-02 03:04:05', '2024-01-02 03:04:05+02', ['a', 'b']),
          (2, 2, NULL, NULL, 5, 1.5, false, NULL, NULL, NULL, NULL);
        CREATE TABLE other.books (a INTEGER); CREATE VIEW v AS SELECT * FROM books;"#;
    if run(Command::new("duckdb").arg(&path).args(["-c", sql])).is_none() {
        return skip("the program duckdb is missing");
    }
    let report = desk.import(&[&path], &[]).unwrap();
    let it = &report.databases[0];
    assert_eq!((it.tables, it.rows), (3, 4));
    assert_parts(
        &it.notes.join("; "),
        &["not imported: v", "1 numbers became NULL"],
    );
    assert_answers(
        &desk,
        &path,
        &[
            (
                "SELECT \"full name\" FROM \"my authors\" WHERE m = 'ok'",
                "\"Ann \\\"A\\\" O'Hara\"",
            ),
            (
                "SELECT count(*) FROM \"my authors\" WHERE \"full name\" = ''",
                "1",
            ),
            ("SELECT price FROM books WHERE id = 1", "9.9"),
            ("SELECT pieces FROM books WHERE id = 1", "3"),
            (
                "SELECT big FROM books WHERE id = 1",
                "\"170141183460469231731687303715884105727\"",
            ),
            ("SELECT ok FROM books ORDER BY id", "[1,0]"),
            ("SELECT hex(b) FROM books WHERE id = 1", "\"AA00\""),
            (
                "SELECT ts, tz FROM books WHERE id = 1",
                "[[\"2024-01-02 03:04:05\",\"2024-01-02 01:04:05\"]]",
            ),
            (
                "SELECT tags FROM books WHERE id = 1",
                "\"[\\\"a\\\",\\\"b\\\"]\"",
            ),
            ("SELECT count(*) FROM other_books", "0"),
        ],
    );
    let copy = desk.out().join("databases/shop/shop.sqlite");
    let connection = rusqlite::Connection::open(copy).unwrap();
    let keys = "SELECT \"table\" || '.' || \"to\" FROM pragma_foreign_key_list('books')";
    let key: String = connection.query_row(keys, [], |row| row.get(0)).unwrap();
    assert_eq!(key, "my authors.id");
}

#[test]
fn a_duckdb_file_that_is_damaged_is_named() {
    if Command::new("duckdb").arg("--version").output().is_err() {
        return skip("the program duckdb is missing");
    }
    let desk = Desk::new();
    let path = desk.write("shop.duckdb", b"12345678DUCK and no more");
    assert_parts(
        &desk.refusal(&[&path], &[]),
        &["shop.duckdb", "`duckdb` failed"],
    );
}

const POSTGRES: &str = r#"
    DROP SCHEMA IF EXISTS sqlenv_test CASCADE; CREATE SCHEMA sqlenv_test;
    SET search_path = sqlenv_test;
    CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE DOMAIN cents AS integer;
    CREATE DOMAIN price AS cents; CREATE DOMAIN share AS numeric(5, 2);
    CREATE TYPE size AS (wide integer, high integer); CREATE DOMAIN frame AS size;
    CREATE TABLE "my authors" (id integer PRIMARY KEY, "full name" text, m mood, born date);
    CREATE TABLE books (id bigint, author integer REFERENCES "my authors" (id),
      price numeric(10, 2), pieces numeric(5, 0), x double precision, ok boolean, b bytea,
      ts timestamp, tz timestamptz, tags text[], j jsonb, c cents, p price, s share, f frame,
      PRIMARY KEY (id, author));
    INSERT INTO "my authors" VALUES (2, '', NULL, NULL), (1, 'Ann "A" O''Hara', 'ok', '2001-02-03');
    INSERT INTO books VALUES (1, 1, 9.90, 3, 'NaN', true, '\xaa00', '2024-01-02 03:04:05',
      '2024-01-02 03:04:05+02', '{a,b}', '{"k": 1}', 250, 199, 0.5, '(2,3)');
    CREATE TABLE parts (d date) PARTITION BY RANGE (d);
    CREATE TABLE parts_2024 PARTITION OF parts FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
    INSERT INTO parts VALUES ('2024-05-06'); CREATE VIEW v AS SELECT * FROM books;"#;

/// `SQLENV_TEST_POSTGRES` is the address of a server on which a schema may be made.
#[test]
fn tables_of_postgresql_are_copied() {
    let Ok(address) = std::env::var("SQLENV_TEST_POSTGRES") else {
        return skip("SQLENV_TEST_POSTGRES is not set");
    };
    let desk = Desk::new();
    let script = desk.write("make.sql", POSTGRES);
    let psql = ["-q", "-v", "ON_ERROR_STOP=1", "-d", &address, "-f"];
    run(Command::new("psql").args(psql).arg(script)).unwrap();
    let place = format!("shop={address}");
    let place = Path::new(&place);
    let report = desk.import(&[place], &[]).unwrap();
    let it = &report.databases[0];
    assert_parts(
        &it.notes.join("; "),
        &["not imported: v", "1 numbers became NULL"],
    );
    let name = "sqlenv_test_books";
    assert_answers(
        &desk,
        place,
        &[
            (
                "SELECT count(*) FROM \"sqlenv_test_my authors\" WHERE \"full name\" = ''",
                "1",
            ),
            (
                &format!("SELECT price, pieces, c, p, s, f FROM {name}"),
                "[[9.9,3,250,199,0.5,\"{\\\"wide\\\":2,\\\"high\\\":3}\"]]",
            ),
            (&format!("SELECT ok FROM {name}"), "1"),
            (&format!("SELECT hex(b) FROM {name}"), "\"AA00\""),
            (
                &format!("SELECT ts, tz FROM {name}"),
                "[[\"2024-01-02 03:04:05\",\"2024-01-02 01:04:05\"]]",
            ),
            (
                &format!("SELECT tags, j FROM {name}"),
                "[[\"[\\\"a\\\",\\\"b\\\"]\",\"{\\\"k\\\": 1}\"]]",
            ),
            ("SELECT d FROM sqlenv_test_parts", "\"2024-05-06\""),
        ],
    );
    let drop = [
        "-q",
        "-d",
        &address,
        "-c",
        "DROP SCHEMA sqlenv_test CASCADE",
    ];
    run(Command::new("psql").args(drop)).unwrap();
}

#[test]
fn a_server_that_is_away_is_named_without_its_password() {
    if Command::new("psql").arg("--version").output().is_err() {
        return skip("the program psql is missing");
    }
    let desk = Desk::new();
    let place = Path::new("postgresql://me:secret@127.0.0.1:1/shop");
    let refusal = desk.refusal(&[place], &[]);
    assert_parts(
        &refusal,
        &["postgresql://me@127.0.0.1:1/shop", "`psql` failed"],
    );
    assert!(!refusal.contains("secret"), "{refusal}");
}
