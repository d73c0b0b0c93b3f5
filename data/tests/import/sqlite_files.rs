//! SQLite files of all kinds.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::json;

use crate::{Desk, assert_parts};

const ODD: &str = r#"
    CREATE TABLE "order items" (id INTEGER PRIMARY KEY, "select" TEXT, "a""b" REAL, "größe" TEXT);
    INSERT INTO "order items" VALUES (1, 'x', 1.5, 'L'), (2, 'y', 2.5, 'M');
    CREATE TABLE "group" (a, b);
    INSERT INTO "group" VALUES (1, 'one');
    CREATE VIEW chosen AS SELECT "select" AS word FROM "order items";
    CREATE TABLE empty (x);
    CREATE TABLE codes (k TEXT PRIMARY KEY, v INT) WITHOUT ROWID;
    INSERT INTO codes VALUES ('a', 7);
    CREATE TABLE doubled (x INT, y INT AS (x * 2) STORED, z INT AS (x + 1));
    INSERT INTO doubled (x) VALUES (5);
    CREATE TRIGGER t AFTER INSERT ON "group" BEGIN DELETE FROM codes; END;
"#;

#[test]
fn odd_schemas_are_copied_whole() {
    let desk = Desk::new();
    let database = desk.database("odd.db", ODD);
    for (sql, answer) in [
        (
            "SELECT \"a\"\"b\" FROM \"order items\" WHERE \"größe\" = 'M'",
            "2.5",
        ),
        ("SELECT b FROM \"group\"", "\"one\""),
        (
            "SELECT word FROM chosen ORDER BY 1 -- the view\n;",
            "[\"x\",\"y\"]",
        ),
        ("SELECT count(*) FROM empty", "0"),
        ("SELECT v FROM codes", "7"),
        ("SELECT y + z FROM doubled", "16"),
    ] {
        assert_eq!(desk.answer(&database, sql).0, answer, "{sql}");
    }
    let report = desk.import(&[&database], &[]).unwrap();
    let it = &report.databases[0];
    assert_eq!((it.tables, it.views, it.rows), (5, 1, 5));
}

#[test]
fn a_log_is_part_of_a_database() {
    let desk = Desk::new();
    let path = desk.path("log.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        .unwrap();
    assert!(
        desk.path("log.sqlite-wal").exists(),
        "the program is still writing"
    );
    assert_eq!(desk.answer(&path, "SELECT count(*) FROM t").0, "1");
    let copy = desk.out().join("databases/log/log.sqlite");
    let bytes = fs::read(copy).unwrap();
    assert_eq!(bytes[18..20], [1, 1], "the copy has no log");
    // It is not beside a link.
    fs::create_dir(desk.path("links")).unwrap();
    let link = desk.path("links/log.sqlite");
    symlink(&path, &link).unwrap();
    assert_eq!(desk.answer(&link, "SELECT count(*) FROM t").0, "1");
    drop(connection);
    // A finished one in a folder where no file can be made.
    let folder = desk.path("shelf");
    fs::create_dir(&folder).unwrap();
    let shelved = folder.join("log.sqlite");
    fs::copy(&path, &shelved).unwrap();
    fs::set_permissions(&shelved, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    assert_eq!(desk.answer(&shelved, "SELECT count(*) FROM t").0, "1");
    assert_eq!(
        fs::read_dir(&folder).unwrap().count(),
        1,
        "nothing is written beside it"
    );
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A table whose rows take many steps to check: a computed column adds this many values.
fn slow_to_check(terms: usize) -> String {
    let sum = vec!["x"; terms].join(" + ");
    format!(
        "CREATE TABLE t (x INTEGER, pad TEXT, sum INTEGER AS ({sum}) NOT NULL);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000)
         INSERT INTO t SELECT i, CASE {terms} WHEN 200 THEN printf('%050d', i) END FROM n"
    )
}

#[test]
fn a_large_log_gives_its_check_more_time() {
    let desk = Desk::new();
    let path = desk.path("log.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0")
        .unwrap();
    connection.execute_batch(&slow_to_check(200)).unwrap();
    assert!(
        fs::metadata(&path).unwrap().len() < 10_000,
        "all is in the log"
    );
    let report = desk.import(&[&path], &[]).unwrap();
    assert_eq!(report.databases[0].rows, 100_000);
}

#[test]
fn computed_columns_that_take_too_long_are_no_damage() {
    let desk = Desk::new();
    let long = "CREATE TABLE t (x INTEGER, v AS (length(zeroblob(2000000 + x))) NOT NULL);
                INSERT INTO t (x) VALUES (1)";
    for sql in [&slow_to_check(600), long] {
        let database = desk.database("slow.db", sql);
        assert_parts(
            &desk.refusal(&[&database], &[]),
            &["slow.db: the database takes too long to check", "CSV"],
        );
        fs::remove_file(database).unwrap();
    }
}

#[test]
fn long_values_are_no_damage() {
    let desk = Desk::new();
    let sql = "CREATE TABLE t (x JSON CHECK (json_valid(x)));
               INSERT INTO t VALUES (json_quote(hex(zeroblob(1500000))))";
    let database = desk.database("long.db", sql);
    let report = desk.import(&[&database], &[]).unwrap();
    assert_eq!(report.databases[0].rows, 1);
}

#[test]
fn damaged_files_are_refused() {
    let desk = Desk::new();
    let many = "CREATE TABLE t (x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n \
                LIMIT 9000) INSERT INTO t SELECT 'row ' || i FROM n";
    let path = desk.database("damaged.db", many);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    assert_parts(
        &desk.refusal(&[&path], &[]),
        &["damaged.db", "damaged", ".recover"],
    );
    let cut = desk.write("cut.db", &bytes[..bytes.len() / 2]);
    assert_parts(
        &desk.refusal(&[&cut], &[]),
        &["cut.db", "damaged", "give another"],
    );
    let header = desk.write("header.db", b"SQLite format 3\0 and no more");
    assert_parts(&desk.refusal(&[&header], &[]), &["header.db"]);
    // An application makes such a schema, which SQLite alone would refuse.
    let regexp = "CREATE TABLE t (x CHECK (x LIKE 'a')); PRAGMA writable_schema = 1;
                  UPDATE sqlite_master SET sql = replace(sql, 'LIKE', 'REGEXP')";
    let regexp = desk.database("regexp.db", regexp);
    assert_parts(
        &desk.refusal(&[&regexp], &[]),
        &["regexp.db", "needs its own application", "regexp", "CSV"],
    );
    let bare = desk.database("bare.db", "CREATE TABLE t (x); DROP TABLE t");
    assert_parts(&desk.refusal(&[&bare], &[]), &["bare.db", "has no table"]);
}

/// Makes a table, and gives it another declaration afterwards.
fn declared_again(sql: &str, declaration: &str) -> String {
    format!("{sql}; PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = {declaration}")
}

#[test]
fn rows_and_names_that_queries_cannot_rely_on_are_refused() {
    let desk = Desk::new();
    let row = "CREATE TABLE t (a, b); INSERT INTO t VALUES (NULL, 1)";
    for (declaration, part) in [
        ("'CREATE TABLE t (a NOT NULL, b)'", "NULL value in t.a"),
        ("'CREATE TABLE t (a, b TEXT)'", "NUMERIC value in t.b"),
        (
            "'CREATE TABLE t (a ANY, b TEXT) STRICT'",
            "non-TEXT value in t.b",
        ),
        (
            "CAST('CREATE TABLE t (a, b' || x'e929' AS TEXT)",
            "table t or one of its columns",
        ),
        (
            "sql; CREATE VIEW v AS SELECT 1; UPDATE sqlite_master SET (name, tbl_name, sql) = \
             (CAST(x'e9' AS TEXT), CAST(x'e9' AS TEXT), \
             CAST('CREATE VIEW ' || x'e9' || ' AS SELECT 1' AS TEXT)) WHERE type = 'view'",
            "view \u{fffd} or one of its columns has a name that is not UTF-8; rename it",
        ),
    ] {
        let database = desk.database("odd.db", &declared_again(row, declaration));
        let refusal = desk.refusal(&[&database], &[]);
        assert_parts(&refusal, &["odd.db", part, "CSV"]);
        assert!(!refusal.contains("damaged"), "{refusal}");
        fs::remove_file(database).unwrap();
    }
}

/// Agents do not see virtual tables, and no query depends on a CHECK constraint.
#[test]
fn tokenizers_and_checks_do_not_refuse_a_file() {
    let desk = Desk::new();
    let schema = "CREATE TABLE t (x CHECK (x > 0)); CREATE VIRTUAL TABLE words USING fts3(a);
        PRAGMA ignore_check_constraints = ON; INSERT INTO t VALUES (-1)";
    let declaration = "replace(sql, 'fts3(a)', 'fts3(a, tokenize=mozporter)')";
    let database = desk.database("marks.db", &declared_again(schema, declaration));
    assert_eq!(desk.answer(&database, "SELECT x FROM t").0, "-1");
}

#[test]
fn names_of_databases_are_unique_and_plain() {
    let desk = Desk::new();
    for folder in ["a", "b"] {
        fs::create_dir(desk.path(folder)).unwrap();
        desk.database(&format!("{folder}/shop.db"), "CREATE TABLE t (x)");
    }
    let [a, b] = ["a/shop.db", "b/shop.db"].map(|it| desk.path(it));
    assert_parts(
        &desk.refusal(&[&a, &b], &[]),
        &["a/shop.db", "b/shop.db", "`shop`", "NAME=PLACE"],
    );
    let [a, b] = [&a, &b].map(|it| it.to_str().unwrap().to_owned());
    let report = desk
        .import_named(&[&a, &format!("second={b}")], &[])
        .unwrap();
    let names: Vec<&str> = report.databases.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["second", "shop"]);
    for name in ["../out", "a,b", "all", ".hidden", ""] {
        let error = desk
            .import_named(&[&format!("{name}={a}")], &[])
            .unwrap_err();
        assert_parts(&error, &["cannot name a database", "NAME=PLACE"]);
    }
}

#[test]
fn folders_of_others_are_not_replaced() {
    let desk = Desk::new();
    let database = desk.database("shop.db", "CREATE TABLE t (x)");
    desk.write("out/thesis.txt", "years of work");
    let error = desk.import(&[&database], &[]).unwrap_err();
    assert_parts(&error, &["out", "not an earlier import", "choose another"]);
    assert!(desk.path("out/thesis.txt").is_file());
    fs::remove_dir_all(desk.out()).unwrap();
    desk.import(&[&database], &[]).unwrap();
    let error = data::build(&desk.out(), 1, &mut |_, _| {}).unwrap_err();
    assert_parts(
        &error.to_string(),
        &["data build", "import", "choose another"],
    );
}

#[test]
fn one_unreadable_view_does_not_refuse_a_file() {
    let desk = Desk::new();
    let schema =
        "CREATE TABLE t (x); INSERT INTO t VALUES (7); CREATE VIEW good AS SELECT x FROM t;
        CREATE VIEW lost AS SELECT * FROM nowhere; CREATE VIEW user AS SELECT * FROM lost;
        CREATE VIEW pick AS SELECT random() FROM t; CREATE VIEW odd AS SELECT 1;
        CREATE VIEW odder AS SELECT * FROM odd; PRAGMA writable_schema = ON;
        UPDATE sqlite_master SET sql = CAST(sql || ' AS a' || x'e9' AS TEXT) WHERE name = 'odd'";
    let database = desk.database("views.db", schema);
    assert_eq!(desk.answer(&database, "SELECT x FROM good").0, "7");
    let report = desk.import(&[&database], &[]).unwrap();
    let it = &report.databases[0];
    assert_eq!((it.tables, it.views, it.rows), (1, 1, 1));
    for (view, reason) in [
        ("lost", ""),
        ("user", ""),
        ("pick", ""),
        ("odd", "its declaration is not UTF-8"),
        ("odder", "fails: no such table"),
    ] {
        let start = format!("view {view} is left out: it cannot be read ({reason}");
        assert!(
            it.notes.iter().any(|it| it.starts_with(&start)),
            "{:?}",
            it.notes
        );
    }
}

/// They are neither counted nor asked about: agents do not see them.
#[test]
fn tables_of_virtual_tables_do_not_count() {
    let desk = Desk::new();
    let schema = "CREATE TABLE notes (title TEXT); INSERT INTO notes VALUES ('a'), ('b');
        CREATE VIRTUAL TABLE search USING fts5(title); INSERT INTO search SELECT title FROM notes;
        CREATE VIEW found AS SELECT c0 FROM search_content";
    let database = desk.database("notes.db", schema);
    let report = desk.import(&[&database], &[]).unwrap();
    let it = &report.databases[0];
    assert_eq!((it.tables, it.views, it.rows), (1, 0, 2));
    assert_eq!(report.manifest.databases[0].rows, 2);
    assert_parts(
        &it.notes.join("\n"),
        &["view found is left out", "virtual tables search"],
    );
    let record = json!([{"question": "?", "sql": "SELECT c0 FROM search_content"}]);
    let questions = desk.write("q.json", record.to_string());
    let error = desk.import(&[&database], &[&questions]).unwrap_err();
    assert_parts(&error, &["none of 1 records", "search_content"]);
}

#[test]
fn errors_name_places_that_stay() {
    let desk = Desk::new();
    let dump = desk.write("shop.sql", "CREATE TABLE t (x); DROP TABLE t;");
    let error = desk.refusal(&[&dump], &[]);
    assert_parts(&error, &["shop.sql", "has no table"]);
    assert!(
        !error.contains("scratch") && !error.contains(".new"),
        "{error}"
    );
}
