//! Malicious database files: schemas that hide something, and corrupt files.

use super::corpus::{database, limits, open, result_of};
use crate::sandbox::{Sandbox, WorkBudget};

/// Schemas that are refused, with a part of the reason.
const REFUSED_SCHEMAS: &[(&str, &str)] = &[
    (
        "CREATE TABLE t (a); CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) AS c FROM n",
        "units of work to count",
    ),
    (
        "CREATE TABLE t (a, b AS (printf('%500000000d', a))); INSERT INTO t(a) VALUES (1)",
        "bytes of memory",
    ),
    (
        "CREATE TABLE t (a, b); INSERT INTO t VALUES (zeroblob(1000000), CAST(zeroblob(500000) || 'b' AS BLOB));
        CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) SELECT sum(instr(a, b)) AS c FROM n, t",
        "units of work to count",
    ),
    (
        "CREATE TABLE t (a); INSERT INTO t VALUES (replace(hex(zeroblob(50000)), '0', 'a'));
        CREATE VIEW v AS SELECT replace(a, 'a', a) AS c FROM t",
        "bytes of memory",
    ),
];

/// Schemas that hide work, growth or functions behind honest names.
#[test]
fn malicious_schemas_are_refused_or_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (index, (sql, part)) in REFUSED_SCHEMAS.iter().enumerate() {
        let error = open(&path(&format!("{index}.sqlite")), sql).unwrap_err();
        assert!(error.contains(part), "{sql}: {error}");
    }

    // Functions that honest columns need are allowed. All others stay denied, also behind a view.
    let tables = "
        CREATE TABLE t (a, b AS (upper(a)), c DEFAULT CURRENT_TIMESTAMP);
        INSERT INTO t(a) VALUES ('x');
        CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END;
        CREATE VIEW files AS SELECT name FROM pragma_database_list;
        CREATE VIEW loader AS SELECT load_extension('x') AS a;
        CREATE VIEW tokenizer AS SELECT fts3_tokenizer('simple') AS a;
        CREATE VIEW peek AS SELECT name FROM sqlite_master;
        CREATE VIEW dice AS SELECT random() AS a;
        CREATE VIEW pile AS SELECT printf('%15000s', a.a) AS a FROM t a;
        CREATE VIRTUAL TABLE words USING fts5(w);
        INSERT INTO words VALUES ('x');
    ";
    let database = open(&path("mixed.sqlite"), tables).unwrap();
    // What agents may not query is not shown either: random rows would differ between nodes.
    let shown = database.schema.tables.iter().map(|it| it.name.as_str());
    let shown: Vec<&str> = shown.collect();
    assert_eq!(shown, ["t", "pile"]);
    let columns = &database.schema.tables[0].columns_text;
    assert!(columns.contains("- b"), "a generated column: {columns}");
    let sandbox = Sandbox::open(&database, &limits(), WorkBudget::Full).unwrap();
    for (sql, class) in [
        ("SELECT b FROM t", "ok"),
        ("INSERT INTO t(a) VALUES ('y')", "denied"),
        ("SELECT * FROM loader", "error"),
        ("SELECT * FROM tokenizer", "error"),
        ("SELECT * FROM peek", "denied"),
        ("SELECT count(*) FROM peek", "denied"),
        ("SELECT * FROM dice", "denied"),
        ("SELECT length(a) FROM pile", "ok"),
        ("SELECT * FROM words", "error"),
        ("SELECT words FROM words WHERE words MATCH 'x'", "error"),
        ("SELECT block FROM words_data", "denied"),
        ("SELECT count(*) FROM words_data", "denied"),
    ] {
        let result = result_of(&sandbox, sql);
        assert_eq!(result.class, class, "{sql}: {result:?}");
    }
}

/// Flipped bits, missing ends and wrong headers are refused at the start or answered with errors,
/// without a crash or a write.
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
        let sandbox = Sandbox::open(&database, &limits(), WorkBudget::Full).unwrap();
        for sql in [
            "SELECT * FROM Cars ORDER BY Year",
            "SELECT count(*), max(Name) FROM makers",
            "SELECT * FROM fast JOIN makers",
        ] {
            let result = result_of(&sandbox, sql);
            assert!(
                ["ok", "error", "memory"].contains(&result.class),
                "{result:?}"
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    };
    for seed in 0..300_usize {
        let mut bytes = sound.clone();
        // Spread over the file, mostly in page headers.
        let at = (seed * 7_919 + seed / 3 * 4_096) % bytes.len();
        bytes[at] ^= 1 << (seed % 8);
        bytes[seed % 100] ^= u8::from(seed % 5 == 0) << (seed % 7);
        try_out(&bytes);
    }
    let lengths = [0, 1, 99, 100, 512, 4_095, 4_096, 4_097, 8_192];
    for length in lengths.into_iter().chain([sound.len() - 1]) {
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

/// Wide tables and long rows are unusual but not hostile: they open, and each row can be read.
#[test]
fn wide_and_long_rows_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let columns: Vec<String> = (0..1_500).map(|column| format!("c{column}")).collect();
    let tables = format!(
        "CREATE TABLE wide ({}); INSERT INTO wide DEFAULT VALUES;
         CREATE TABLE long (a); INSERT INTO long VALUES (printf('%70000d', 7)), (zeroblob(90000));",
        columns.join(", ")
    );
    let database = open(&folder.path().join("odd.sqlite"), &tables).unwrap();
    assert!((90_000..91_000).contains(&database.longest_row_bytes));
    let sandbox = Sandbox::open(&database, &limits(), WorkBudget::Full).unwrap();
    for (sql, text) in [
        ("SELECT c1499 FROM wide", "1. NULL"),
        ("SELECT length(a) FROM long", "1. 70000\n2. 90000"),
        (
            "SELECT length(hex(a)) FROM long WHERE typeof(a) = 'text'",
            "SQL error: string or blob too big",
        ),
    ] {
        assert_eq!(result_of(&sandbox, sql).text, text, "{sql}");
    }
}

/// A schema may hold longer patterns and more arguments than agents may write.
#[test]
fn long_patterns_and_argument_lists_of_a_schema_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (pattern, arguments) = ("_%".repeat(500), vec!["a"; 100].join(", "));
    let tables = format!(
        "CREATE TABLE t (a, b AS (a LIKE '%{pattern}'), c AS (concat({arguments})));
         INSERT INTO t(a) VALUES ('x'), (5);
         CREATE VIEW v AS SELECT a GLOB '*{pattern}' AS d FROM t;"
    );
    let database = open(&folder.path().join("long.sqlite"), &tables).unwrap();
    let samples = database.schema.tables.iter().map(|it| it.sample.as_str());
    let samples: Vec<&str> = samples.collect();
    let [table, view] = samples.as_slice() else {
        panic!("not a table and a view: {samples:?}");
    };
    assert!(
        table.starts_with("1. x | 0 | xxx") && table.contains("2. 5 | 0 | 555"),
        "{table}"
    );
    assert_eq!(*view, "1. 0\n2. 0");
}
