//! The corpus of hostile statements, run in a sandbox.

use std::{path::Path, thread, time::Instant};

use data::DatabaseFile;
use sha2::{Digest, Sha256};

use super::{Failure, Patience, QueryRun, Sandbox};
use crate::{
    config::{ResultLimits, SqlLimits},
    database::Database,
};

#[path = "../../tests/common/corpus.rs"]
mod file;

/// Writes the tables that the corpus speaks of into `folder`.
pub(super) fn database(folder: &Path) -> Database {
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

fn open(path: &Path, sql: &str) -> Result<Database, String> {
    if !sql.is_empty() {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch(sql).unwrap();
    }
    let bytes = std::fs::read(path).unwrap();
    let file = DatabaseFile {
        name: "cars".to_owned(),
        path: path.to_owned(),
        sha256: hex::encode(Sha256::digest(&bytes)),
        size_bytes: bytes.len() as u64,
    };
    Database::open(&file, &ResultLimits::default(), &SqlLimits::default())
        .map_err(|error| error.to_string())
}

/// What came of a statement: the class and the text, and what it cost.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    class: &'static str,
    text: String,
    work_units: u64,
    peak_bytes: u64,
}

impl From<QueryRun> for Verdict {
    fn from(run: QueryRun) -> Self {
        let (class, text) = match run.rows {
            Ok(rows) => ("ok", rows.render(&ResultLimits::default())),
            Err(error) => {
                let class = match error.failure {
                    Failure::Denied => "denied",
                    Failure::CutShort => "cut_short",
                    Failure::WorkUnits => "work_units",
                    Failure::Memory => "memory",
                    Failure::WallClock => "wall_clock",
                    Failure::Sqlite => "error",
                };
                (class, error.message)
            }
        };
        Self {
            class,
            text,
            work_units: run.work_units,
            peak_bytes: run.peak_bytes,
        }
    }
}

/// Runs the corpus against `database` on one new connection, as often as `runs` says.
fn run(database: &Database, limits: &SqlLimits, runs: usize) -> Vec<Vec<Verdict>> {
    let sandbox = Sandbox::open(database, limits, Patience::Full).unwrap();
    let once = |_| {
        let cases = file::cases().into_iter();
        cases.map(|case| sandbox.query(&case.sql).into()).collect()
    };
    (0..runs).map(once).collect()
}

fn limits() -> SqlLimits {
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
        let verdict = &here[0][index];
        let is_expected = match case.class {
            "ok" => verdict.text.lines().next().map(str::trim_end) == Some(case.part.trim_end()),
            _ => verdict.text.contains(case.part),
        };
        if verdict.class != case.class || !is_expected {
            wrong.push(format!("{:.120}\n   {verdict:.200?}", case.sql));
        }
        for other in [&here[1][index], &there[0][index]] {
            if other != verdict {
                wrong.push(format!(
                    "{:.120}\n   {verdict:.200?}\n   {other:.200?}",
                    case.sql
                ));
            }
        }
        if verdict.peak_bytes > limits.memory_bytes {
            wrong.push(format!("{} bytes: {}", verdict.peak_bytes, case.sql));
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

/// Work that units do not see: it ends at the wall clock.
const UNSEEN: &[&str] = &[
    "{n 9999999} SELECT sum((t || i) + 0) FROM n, (SELECT replace(printf('%15000s', ''), ' ', '1') AS t)",
    "{n 9999999} SELECT max(t || i) FROM n, (SELECT printf('%15000s', '') AS t)",
    "{n 9999999} SELECT count(*) FROM n, (SELECT printf('%15000s', '') AS t) WHERE t || i = t || -i COLLATE NOCASE",
];

#[test]
#[ignore = "takes a minute: prints the slowest statements under the default limits"]
#[expect(clippy::disallowed_methods, reason = "prints how long statements take")]
fn figures_under_the_default_limits() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::open(
        &database(folder.path()),
        &SqlLimits::default(),
        Patience::Full,
    )
    .unwrap();
    let statements = file::cases().into_iter().map(|case| case.sql);
    let unseen = UNSEEN.iter().map(|sql| file::expanded(sql));
    let mut figures: Vec<_> = statements
        .chain(unseen)
        .map(|sql| {
            let began = Instant::now();
            let verdict = Verdict::from(sandbox.query(&sql));
            (began.elapsed().as_millis(), verdict, sql)
        })
        .collect();
    figures.sort_by_key(|(milliseconds, ..)| std::cmp::Reverse(*milliseconds));
    let most = figures
        .iter()
        .map(|(_, verdict, _)| verdict.peak_bytes)
        .max();
    eprintln!(
        "{} statements, at most {most:?} bytes; the slowest:",
        figures.len()
    );
    for (milliseconds, verdict, sql) in figures.iter().take(25) {
        eprintln!(
            "{milliseconds} ms, {}, {} units: {sql:.250}",
            verdict.class, verdict.work_units
        );
    }
}

#[test]
fn schema_tables_are_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    let limits = SqlLimits {
        allow_schema_tables: true,
        ..limits()
    };
    let sandbox = Sandbox::open(&database(folder.path()), &limits, Patience::Full).unwrap();
    for sql in [
        "SELECT count(*) FROM sqlite_master WHERE type = 'table'",
        "SELECT count(name) - 1 FROM sqlite_schema",
    ] {
        let verdict = Verdict::from(sandbox.query(sql));
        assert_eq!(
            (verdict.class, verdict.text.as_str()),
            ("ok", "1. 3"),
            "{sql}"
        );
    }
    for sql in [
        "SELECT 1 FROM sqlite_temp_schema",
        "SELECT * FROM pragma_database_list",
    ] {
        assert_ne!(Verdict::from(sandbox.query(sql)).class, "ok", "{sql}");
    }
}

/// Schemas that hide work, growth or functions behind honest names.
#[test]
fn malicious_schemas_are_refused_or_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (index, (sql, part)) in [
        (
            "CREATE TABLE t (a); CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) AS c FROM n",
            "units of work to count",
        ),
        (
            "CREATE TABLE t (a, b AS (printf('%500000000d', a))); INSERT INTO t(a) VALUES (1)",
            "bytes of memory",
        ),
        (
            "CREATE TABLE t (a); CREATE VIEW v AS SELECT load_extension('x') AS a",
            "unsafe use of load_extension",
        ),
        (
            "CREATE TABLE t (a); CREATE VIEW v AS SELECT fts3_tokenizer('simple') AS a",
            "unsafe use of fts3_tokenizer",
        ),
        (
            "CREATE TABLE t (a); CREATE VIEW v AS SELECT name FROM pragma_database_list",
            "unsafe use of virtual table",
        ),
        (
            "CREATE TABLE t (a); CREATE VIEW v AS SELECT * FROM nowhere",
            "nowhere",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let error = open(&path(&format!("{index}.sqlite")), sql).unwrap_err();
        assert!(error.contains(part), "{sql}: {error}");
    }

    // What an honest column may do is open to all; the rest stays closed also behind a view.
    let tables = "
        CREATE TABLE t (a, b AS (upper(a)), c DEFAULT CURRENT_TIMESTAMP);
        INSERT INTO t(a) VALUES ('x');
        CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END;
        CREATE VIEW peek AS SELECT name FROM sqlite_master;
        CREATE VIEW dice AS SELECT random() AS a;
        CREATE VIEW pile AS SELECT printf('%15000s', a.a) AS a FROM t a;
        CREATE VIRTUAL TABLE words USING fts5(w);
        INSERT INTO words VALUES ('x');
    ";
    let database = open(&path("mixed.sqlite"), tables).unwrap();
    let sandbox = Sandbox::open(&database, &limits(), Patience::Full).unwrap();
    for (sql, class) in [
        ("SELECT b FROM t", "ok"),
        ("INSERT INTO t(a) VALUES ('y')", "denied"),
        ("SELECT * FROM peek", "denied"),
        ("SELECT count(*) FROM peek", "denied"),
        ("SELECT * FROM dice", "denied"),
        ("SELECT length(a) FROM pile", "ok"),
        ("SELECT * FROM words", "error"),
        ("SELECT words FROM words WHERE words MATCH 'x'", "error"),
        ("SELECT block FROM words_data", "ok"),
    ] {
        let verdict = Verdict::from(sandbox.query(sql));
        assert_eq!(verdict.class, class, "{sql}: {verdict:?}");
    }
}

/// Flipped bits, missing ends, wrong heads: refused at the start or an error later, never a crash or a write.
#[test]
fn corrupt_files_are_refused_or_answered_with_errors() {
    let folder = tempfile::tempdir().unwrap();
    let sound = std::fs::read(&database(folder.path()).file.path).unwrap();
    let path = folder.path().join("corrupt.sqlite");
    let (mut refused, mut opened) = (0, 0);
    let mut try_out = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let Ok(database) = open(&path, "") else {
            refused += 1;
            return;
        };
        opened += 1;
        let sandbox = Sandbox::open(&database, &limits(), Patience::Full).unwrap();
        for sql in [
            "SELECT * FROM Cars ORDER BY Year",
            "SELECT count(*), max(Name) FROM makers",
            "SELECT * FROM fast JOIN makers",
        ] {
            let verdict = Verdict::from(sandbox.query(sql));
            assert!(
                ["ok", "error", "memory"].contains(&verdict.class),
                "{verdict:?}"
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    };
    for seed in 0..300_usize {
        let mut bytes = sound.clone();
        // Spread over the file, most in the pages' heads.
        let at = (seed * 7_919 + seed / 3 * 4_096) % bytes.len();
        bytes[at] ^= 1 << (seed % 8);
        bytes[seed % 100] ^= u8::from(seed % 5 == 0) << (seed % 7);
        try_out(&bytes);
    }
    for length in [
        0,
        1,
        99,
        100,
        512,
        4_095,
        4_096,
        4_097,
        8_192,
        sound.len() - 1,
    ] {
        try_out(&sound[..length]);
    }
    for page_size in [0_u16, 1, 3, 256, 1_024, 0xffff] {
        let mut bytes = sound.clone();
        bytes[16..18].copy_from_slice(&page_size.to_be_bytes());
        try_out(&bytes);
    }
    // In WAL mode, without its log.
    let mut bytes = sound.clone();
    bytes[18..20].copy_from_slice(&[2, 2]);
    try_out(&bytes);
    assert!(
        refused > 20 && opened > 20,
        "{refused} refused, {opened} opened"
    );
}

/// Prints what the sandbox costs honest queries: Spider's gold SQL on a bare connection and in the sandbox.
#[test]
#[ignore = "measures: run it alone, with ../shared/data/spider in place"]
#[expect(clippy::disallowed_methods, reason = "measures time")]
fn overhead_on_spiders_gold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/spider");
    let dataset = data::Dataset::open(&folder, Some(&["all".to_owned()])).unwrap();
    let mut times = [Vec::new(), Vec::new()];
    let (mut most_units, mut most_bytes) = (0, 0);
    for (name, file) in &dataset.databases {
        let database =
            Database::open(file, &ResultLimits::default(), &SqlLimits::default()).unwrap();
        let sandbox = Sandbox::open(&database, &SqlLimits::default(), Patience::Full).unwrap();
        let bare = super::connection::open(&file.path).unwrap();
        let in_bare = |sql: &str| {
            let mut statement = bare.prepare(sql).unwrap();
            crate::database::read_rows(&mut statement, 200, |_| Ok(())).unwrap();
        };
        let questions = dataset
            .questions
            .iter()
            .filter(|question| question.database_name == *name);
        for question in questions {
            let sql = &question.gold_sql;
            let run = sandbox.query(sql);
            assert!(run.rows.is_ok(), "{sql}: {:?}", run.rows);
            most_units = most_units.max(run.work_units);
            most_bytes = most_bytes.max(run.peak_bytes);
            let timed = |run: &dyn Fn()| {
                run();
                let began = Instant::now();
                for _ in 0..5 {
                    run();
                }
                began.elapsed().as_secs_f64() / 5.0 * 1e6
            };
            times[0].push(timed(&|| in_bare(sql)));
            times[1].push(timed(&|| drop(sandbox.query(sql))));
        }
    }
    for (name, times) in ["bare", "sandbox"].iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[(times.len() as f64 * part) as usize];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        eprintln!(
            "{name}: {} queries, median {:.1} us, mean {mean:.1}, p99 {:.1}",
            times.len(),
            at(0.5),
            at(0.99)
        );
    }
    eprintln!("at most {most_units} units and {most_bytes} bytes");
}
