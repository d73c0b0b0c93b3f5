//! Tests `sqlenv data draft`: questions about a stranger's database, which other commands read.

use std::{fs, path::Path};

use crate::program::sqlenv;

fn output(args: &[&str]) -> (bool, String) {
    let output = sqlenv(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn shop(path: &Path) {
    let shop = rusqlite::Connection::open(path).unwrap();
    shop.execute_batch(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER);
         CREATE TABLE \"order\" (id INTEGER PRIMARY KEY, customer_id INTEGER, total_price REAL);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30)
         INSERT INTO customers SELECT i, 'Customer ' || i, char(65 + i % 4) || 'town', 20 + i * 7 % 50
         FROM n;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 90)
         INSERT INTO \"order\" SELECT i, 1 + i * i % 29, 5 + i * 37 % 400 / 2.0 FROM n",
    )
    .unwrap();
}

#[test]
fn a_drafted_folder_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("shop.sqlite"), dir.path().join("data"));
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    shop(file.as_ref());
    let (is_ok, text) = output(&["data", "draft", out, "--database", file, "--count", "50"]);
    assert!(is_ok, "{text}");
    for part in [
        "level 0/1/2/3/4",
        "shop",
        "key inferred: order.customer_id refers to customers",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (is_ok, text) = output(&["data", "check", out]);
    assert!(is_ok && text.contains(" 0 problems"), "{text}");
    let (is_ok, text) = output(&["data", "stats", out]);
    assert!(is_ok && text.contains("level-3"), "{text}");
}

#[test]
fn wrong_requests_name_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shop.sqlite");
    let (words, out) = (dir.path().join("words.toml"), dir.path().join("data"));
    shop(&file);
    fs::write(&words, "[tables.order]\nons = \"order\"").unwrap();
    let [file, words, out] = [&file, &words, &out].map(|it| it.to_str().unwrap());
    let draft = |more: &[&str]| {
        let args = [&["data", "draft", out, "--database", file][..], more].concat();
        let (is_ok, text) = output(&args);
        assert!(!is_ok, "{text}");
        text
    };
    assert!(draft(&["--words", words]).contains("did you mean `one`?"));
    assert!(draft(&[file, "--words", words]).contains("--words is for one --database"));
    assert!(draft(&["--count", "0"]).contains("at least one question"));
}
