//! Runs the corpus of hostile statements in a sandbox.

use std::{path::Path, thread};

use data::DatabaseFile;
use sha2::{Digest, Sha256};

use crate::sandbox::query::{QueryRun, Sandbox, WorkBudget};
use crate::{database::Database, rows::ResultLimits, settings::SqlLimits};

#[path = "../../../tests/common/corpus.rs"]
pub(in crate::sandbox) mod file;

/// Writes the tables that the corpus uses into `folder`.
pub(in crate::sandbox) fn database(folder: &Path) -> Database {
    let tables = "
        CREATE TABLE makers (Id INTEGER PRIMARY KEY, Name TEXT NOT NULL, Country TEXT);
        INSERT INTO makers VALUES (1,'Audi','Germany'),(2,'Citroën','France'),(3,'Fiat','Italy');
        CREATE TABLE Cars (Id INTEGER PRIMARY KEY, Maker INTEGER, Horsepower TEXT, Accelerate REAL, Year INTEGER);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
        INSERT INTO Cars SELECT i, 1 + i % 3, 60 + i, 10 + i * 0.25, 1970 + i % 13 FROM n;
        CREATE VIEW fast AS SELECT Id, Accelerate FROM Cars WHERE Accelerate < 12;
        CREATE TABLE dated (at TEXT DEFAULT CURRENT_TIMESTAMP);
    ";
    open(&folder.join("cars.sqlite"), tables).unwrap()
}

pub(in crate::sandbox) fn open(path: &Path, sql: &str) -> Result<Database, String> {
    if !sql.is_empty() {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch(sql).unwrap();
    }
    let file = DatabaseFile::open("cars", path).unwrap();
    Database::open(&file, &ResultLimits::default(), &SqlLimits::default())
        .map_err(|error| error.to_string())
}

/// The result of a statement: class, text and cost.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::sandbox) struct CorpusResult {
    pub(in crate::sandbox) class: &'static str,
    pub(in crate::sandbox) text: String,
    pub(in crate::sandbox) work_units: u64,
    pub(in crate::sandbox) peak_bytes: u64,
}

impl From<QueryRun> for CorpusResult {
    fn from(run: QueryRun) -> Self {
        let (class, text) = match run.rows {
            Ok(rows) => ("ok", rows.render(&ResultLimits::default())),
            Err(error) => (error.failure.name(), error.message),
        };
        Self {
            class,
            text,
            work_units: run.work_units,
            peak_bytes: run.peak_bytes,
        }
    }
}

/// Returns the result of a statement in a sandbox with the whole budget.
pub(in crate::sandbox) fn result_of(sandbox: &Sandbox, sql: &str) -> CorpusResult {
    sandbox.query(sql).unwrap().into()
}

/// Runs the corpus `runs` times on one new connection to `database`.
fn run(database: &Database, limits: &SqlLimits, runs: usize) -> Vec<Vec<CorpusResult>> {
    let sandbox = Sandbox::open(database, limits, WorkBudget::Full).unwrap();
    let once = |_| {
        let cases = file::cases().into_iter();
        cases.map(|case| result_of(&sandbox, &case.sql)).collect()
    };
    (0..runs).map(once).collect()
}

/// Returns the default limits with time enough on the busiest machine.
pub(in crate::sandbox) fn limits() -> SqlLimits {
    SqlLimits {
        wall_clock_seconds: 600.0,
        ..SqlLimits::default()
    }
}

#[test]
fn each_statement_ends_as_it_should_everywhere_alike() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    let hash = || Sha256::digest(std::fs::read(&database.file.path).unwrap());
    let before = hash();
    let limits = SqlLimits {
        work_units: 2_000_000,
        ..limits()
    };
    let (here, there) = thread::scope(|scope| {
        let there = scope.spawn(|| run(&database, &limits, 1));
        (run(&database, &limits, 2), there.join().unwrap())
    });
    let cases = file::cases();
    assert!(cases.len() >= 180, "{}", cases.len());
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let result = &here[0][index];
        let is_expected = match case.class {
            "ok" => result.text.lines().next().map(str::trim_end) == Some(case.part.trim_end()),
            _ => result.text.contains(case.part),
        };
        if result.class != case.class || !is_expected {
            wrong.push(format!("{:.120}\n   {result:.200?}", case.sql));
        }
        for other in [&here[1][index], &there[0][index]] {
            if other != result {
                wrong.push(format!(
                    "{:.120}\n   {result:.200?}\n   {other:.200?}",
                    case.sql
                ));
            }
        }
        if result.peak_bytes > limits.memory_bytes {
            wrong.push(format!("{} bytes: {}", result.peak_bytes, case.sql));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(hash() == before, "the file was written");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "a file was made"
    );
}

#[test]
fn a_nul_does_not_end_a_statement() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::open(&database(folder.path()), &limits(), WorkBudget::Full).unwrap();
    for sql in ["SELECT 1\0", "SELECT 1\0; DROP TABLE Cars", "\0SELECT 1"] {
        let result = result_of(&sandbox, sql);
        assert_eq!(result.class, "denied", "{sql:?}");
        assert!(result.text.contains("NUL"), "{}", result.text);
    }
}

/// So many would overflow the stack if they were compiled.
#[test]
fn many_statements_are_refused_before_they_are_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let limits = SqlLimits {
        memory_bytes: 1 << 34,
        statement_bytes: 1 << 20,
        ..limits()
    };
    let sandbox = Sandbox::open(&database(folder.path()), &limits, WorkBudget::Full).unwrap();
    let many = "SELECT 1;".repeat(100_000);
    let refused = "SQL error: only one statement is allowed";
    for (sql, class, text) in [
        (many.as_str(), "denied", refused),
        // SQLite skips what follows the semicolon.
        ("SELECT 1; \u{b}", "ok", "1. 1"),
        ("SELECT 1;\u{feff}", "ok", "1. 1"),
    ] {
        let result = result_of(&sandbox, sql);
        assert_eq!((result.class, result.text.as_str()), (class, text));
    }
}

#[test]
fn schema_tables_are_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    let limits = SqlLimits {
        allow_schema_tables: true,
        ..limits()
    };
    let sandbox = Sandbox::open(&database(folder.path()), &limits, WorkBudget::Full).unwrap();
    for sql in [
        "SELECT count(*) FROM sqlite_master WHERE type = 'table'",
        "SELECT count(name) - 1 FROM sqlite_schema",
    ] {
        let result = result_of(&sandbox, sql);
        assert_eq!(
            (result.class, result.text.as_str()),
            ("ok", "1. 3"),
            "{sql}"
        );
    }
    for sql in [
        "SELECT 1 FROM sqlite_temp_schema",
        "SELECT * FROM pragma_database_list",
    ] {
        assert_ne!(result_of(&sandbox, sql).class, "ok", "{sql}");
    }
}
