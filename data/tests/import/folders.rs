//! Folders of CSV files, and SQL dumps.

use crate::{Desk, assert_parts};

#[test]
fn a_folder_of_csv_files_is_a_database() {
    let desk = Desk::new();
    let text = "\u{feff}code,Amount,day,when,note\r\n007,1,2024-02-29,2024-02-29 10:00,\"a, \"\"b\"\"\"\r\n\
                ,2.5,,,\"\"\r\n";
    desk.write("shop/bills.csv", text);
    desk.write("shop/no rows.tsv", "a\tb\n");
    desk.write("shop/one.csv", "x\n1\n\n\"\"\n3\n\n");
    desk.write("shop/readme.txt", "not a table");
    let folder = desk.path("shop");
    let report = desk.import(&[&folder], &[]).unwrap();
    assert_eq!(report.databases[0].notes, ["not imported: readme.txt"]);
    for (sql, answer) in [
        ("SELECT code FROM bills WHERE code IS NOT NULL", "\"007\""),
        ("SELECT sum(amount) FROM bills", "3.5"),
        ("SELECT count(*) FROM bills WHERE note IS NULL", "0"),
        ("SELECT length(note) FROM bills ORDER BY rowid", "[6,0]"),
        ("SELECT count(*) FROM bills WHERE day IS NULL", "1"),
        (
            "SELECT date(day, '+1 day') FROM bills WHERE day IS NOT NULL",
            "\"2024-03-01\"",
        ),
        ("SELECT count(*) FROM \"no rows\"", "0"),
        ("SELECT x FROM one ORDER BY rowid", "[1,null,3]"),
    ] {
        assert_eq!(desk.answer(&folder, sql).0, answer, "{sql}");
    }
    let path = desk.out().join("databases/shop/shop.sqlite");
    let connection = rusqlite::Connection::open(path).unwrap();
    let types = "SELECT group_concat(type) FROM pragma_table_info('bills')";
    let types: String = connection.query_row(types, [], |row| row.get(0)).unwrap();
    assert_eq!(types, "TEXT,REAL,DATE,DATETIME,TEXT");
}

/// The largest text is not the largest number.
#[test]
fn columns_of_text_that_are_mostly_numbers_are_noted() {
    let desk = Desk::new();
    desk.write(
        "shop/sales.csv",
        "qty,code,price\n5,007,1\nNA,008,2\n10,9,3\n",
    );
    let folder = desk.path("shop");
    let report = desk.import(&[&folder], &[]).unwrap();
    let [note] = &report.databases[0].notes[..] else {
        panic!("{:?}", report.databases[0].notes)
    };
    assert_parts(
        note,
        &[
            "sales.qty is text because of \"NA\" on line 3; 2 of 3 cells are numbers",
            "leave them empty",
        ],
    );
    assert_eq!(
        desk.answer(&folder, "SELECT max(qty) FROM sales").0,
        "\"NA\""
    );
}

#[test]
fn csv_files_with_errors_are_named_with_their_line() {
    for (name, content, parts) in [
        (
            "a.csv",
            "x,y\n1,2\n1,2,3\n",
            &["a.csv: line 3: 3 cells", "header has 2"][..],
        ),
        (
            "a.csv",
            "x,y\n1,\"2\n3,4\n",
            &["a.csv: line 2", "never closed"],
        ),
        ("a.csv", "", &["a.csv: is empty", "first line"]),
        ("a.csv", "x,,z\n", &["line 1: column 2 has no name"]),
        (
            "a.csv",
            "x,X\n",
            &["line 1: two columns are named `x` and `X`"],
        ),
        (
            "a.csv",
            "x;y\n1;2\n",
            &["line 1: one column", "';'", "commas"],
        ),
        ("sqlite_a.csv", "x\n", &["sqlite_a", "rename"]),
        ("a.txt", "x\n", &["no .csv or .tsv file"]),
    ] {
        let desk = Desk::new();
        desk.write(&format!("shop/{name}"), content);
        assert_parts(&desk.refusal(&[&desk.path("shop")], &[]), parts);
    }
    let desk = Desk::new();
    desk.write("shop/a.csv", "x\n");
    desk.write("shop/A.tsv", "x\n");
    let refusal = desk.refusal(&[&desk.path("shop")], &[]);
    assert_parts(&refusal, &["shop", "`A` and `a`", "rename"]);
}

#[test]
fn a_dump_of_sqlite_is_a_database() {
    let desk = Desk::new();
    let dump = desk.write(
        "shop.sql",
        "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\n\
         CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, x TEXT DEFAULT CURRENT_TIMESTAMP);\n\
         INSERT INTO t VALUES(1,'a;b');\nINSERT INTO t VALUES(2,unistr('c\\u000ad'));\n\
         DELETE FROM sqlite_sequence;\nINSERT INTO sqlite_sequence VALUES('t',2);\n\
         CREATE INDEX i ON t (x);\nCREATE VIEW v AS SELECT x FROM t;\n\
         CREATE TRIGGER g AFTER INSERT ON t BEGIN UPDATE t SET x = 'never'; DELETE FROM t; END;\n\
         INSERT INTO t VALUES(3,'e');\n\
         CREATE TABLE u (\"select\" TIMESTAMP WITH TIME ZONE\n\
         CHECK (\"select\" IS DISTINCT FROM 'x')); -- SELECT\n\
         INSERT INTO u VALUES('SELECT 1'),('b');\nCOMMIT;\n",
    );
    assert_eq!(
        desk.answer(&dump, "SELECT x FROM v ORDER BY 1").0,
        "[\"a;b\",\"c\\nd\",\"e\"]"
    );
}

#[test]
fn dumps_of_others_are_refused_at_the_statement() {
    let desk = Desk::new();
    for (dump, parts) in [
        (
            "--\n-- PostgreSQL database dump\n--\n\nSET statement_timeout = 0;\n",
            &[
                "line 5: `SET statement_timeout = 0`",
                "syntax error",
                "postgresql://HOST",
            ][..],
        ),
        (
            "-- MySQL dump 10.13\nCREATE TABLE `t` (`id` int AUTO_INCREMENT) ENGINE=InnoDB;\n",
            &["line 2: `CREATE TABLE `t`", "MySQL", "CSV"],
        ),
        ("-- nothing\n", &["has no table"]),
    ] {
        let path = desk.write("shop.sql", dump);
        let refusal = desk.refusal(&[&path], &[]);
        assert_parts(&refusal, parts);
        assert_parts(&refusal, &["shop.sql"]);
    }
}
