//! Question files with gaps and errors.

use data::{AnswerType, Dataset};
use serde_json::{Value, json};

use crate::{Desk, assert_parts};

const SHOP: &str = "CREATE TABLE items (name TEXT, price REAL, kind INTEGER);
    INSERT INTO items VALUES ('pen', 1.5, 1), ('ink', 4.0, 1), ('desk', 99.9, 2), ('void', NULL, 3)";

#[test]
fn what_cannot_be_a_question_is_left_out_with_its_place() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    let good = json!({"question": "How many?", "sql": "SELECT count(*) FROM items"});
    let cases: Vec<(Value, bool, &str)> = vec![
        (json!({"sql": "SELECT 1"}), true, "question_text is missing"),
        (json!({"question": "?"}), true, "gold_sql is missing"),
        (
            json!({"question": "?", "sql": "-- SELECT 1"}),
            true,
            "holds only comments",
        ),
        (
            json!({"question": "?", "sql": "\u{feff}SELECT 1"}),
            true,
            "byte order mark",
        ),
        (
            json!({"question": "?", "sql": "SELECT 1; SELECT 2"}),
            true,
            "more than one statement",
        ),
        (
            json!({"question": "?", "sql": "DELETE FROM items"}),
            true,
            "begins with DELETE",
        ),
        (
            json!({"question": "?", "sql": "WITH a AS (SELECT 1) DELETE FROM items"}),
            true,
            "only SELECT or WITH",
        ),
        (
            json!({"question": "?", "sql": "SELECT nam FROM items"}),
            true,
            "no such column: nam",
        ),
        (
            json!({"question": "?", "sql": "SELECT random()"}),
            true,
            "random",
        ),
        (
            json!({"question": "?", "sql": "SELECT 1", "db": "shp"}),
            true,
            "no database `shp`",
        ),
        (
            json!({"question": "How many?", "sql": "SELECT count(*) FROM items", "answer": 5}),
            true,
            "gold_answer is 5, but the gold SQL gives 4",
        ),
        (
            json!({"question": "?", "sql": "SELECT name FROM items", "answer_type": "integer"}),
            true,
            "answer_type is integer, but the gold SQL gives list",
        ),
        (
            json!({"question": "?", "sql": "SELECT 1", "tables": ["itms"]}),
            true,
            "names `itms`",
        ),
        (
            json!({"question": "?", "sql": "SELECT price FROM items WHERE kind = 3"}),
            false,
            "nothing but NULL",
        ),
        (
            json!({"question": "?", "sql": "SELECT name FROM items WHERE kind = 9"}),
            false,
            "returns no row",
        ),
        (
            json!({"question": "?", "sql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 \
                FROM n) SELECT max(i) FROM n"}),
            false,
            "SQLite instructions",
        ),
        (good.clone(), false, "repeats question and SQL"),
    ];
    let mut records = vec![good];
    records.extend(cases.iter().map(|(record, ..)| record.clone()));
    let file = desk.write("q.json", Value::from(records).to_string());
    let mut left_out = desk.import(&[&database], &[&file]).unwrap().left_out;
    left_out.sort_by_key(|it| it.index);
    assert_eq!(left_out.len(), cases.len());
    for (index, (it, (_, is_wrong, part))) in left_out.iter().zip(&cases).enumerate() {
        assert_eq!((it.index, it.is_wrong), (index + 1, *is_wrong), "{it}");
        assert_parts(&it.to_string(), &["q.json[", part]);
    }
    let dataset = Dataset::open(&desk.out(), None).unwrap();
    assert_eq!(dataset.questions.len(), 1);
}

#[test]
fn given_fields_are_taken() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    let records = json!([
        {"question": "How many?", "sql": "SELECT count(*) FROM items", "id": 7, "answer": 4.0,
         "answer_type": "float", "level": "warm-up", "split": "eval", "tables": ["ITEMS"]},
        {"question": "How many are there?", "sql": "select count(*) from items;"},
        {"question": "Which?", "sql": "SELECT name FROM items WHERE kind = 1",
         "answer": ["ink", "pen"], "split": "eval-unseen"},
        {"question": "Which one?", "sql": "SELECT name FROM items WHERE kind = 2", "id": 7},
    ]);
    let file = desk.write("q.json", records.to_string());
    let report = desk.import(&[&database], &[&file]).unwrap();
    assert_eq!(report.left_out.len(), 2);
    assert_parts(
        &report.left_out[0].reason,
        &["eval-unseen", "`shop` is not held out"],
    );
    assert_parts(
        &report.left_out[1].reason,
        &["question_id is `7`", "q.json[0]"],
    );
    let questions = Dataset::open(&desk.out(), None).unwrap().questions;
    let first = &questions[0];
    assert_eq!((&*first.question_id, &*first.split), ("7", "eval"));
    assert_eq!(
        (first.answer_type, &*first.difficulty),
        (AnswerType::Float, "warm-up")
    );
    assert_eq!(
        first.tables_involved,
        ["items"],
        "as the database declares it"
    );
    assert_eq!(questions[1].split, "eval", "a wording of the same query");
    assert_eq!(questions[1].question_id, "shop_eval_000");
}

#[test]
fn several_databases_need_names() {
    let desk = Desk::new();
    let [a, b] = ["a.db", "b.db"].map(|name| desk.database(name, SHOP));
    let one = json!({"question": "How many?", "sql": "SELECT count(*) FROM items"});
    let file = desk.write("q.jsonl", format!("{one}\n"));
    assert_parts(
        &desk.refusal(&[&a, &b], &[&file]),
        &[
            "none of 1 records",
            "q.jsonl[0], line 1,",
            "database_name is missing",
            "a, b",
        ],
    );
}

#[test]
fn question_files_that_cannot_be_read_are_refused() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    for (name, content, parts) in [
        (
            "q.csv",
            &b"question;sql\n\xc4rger;SELECT 1\n"[..],
            &["q.csv: line 2: not UTF-8"][..],
        ),
        (
            "q.csv",
            b"question,sql\n\"a,b\n",
            &["q.csv: line 2", "never closed"],
        ),
        ("q.json", b"[{]", &["q.json: not JSON"]),
        (
            "q.json",
            b"\xff\xfe[\0]\0",
            &["q.json", "UTF-16", "save the file as UTF-8"],
        ),
        (
            "q.txt",
            b"How many?",
            &["q.txt", ".csv, .tsv, .json and .jsonl"],
        ),
    ] {
        let file = desk.write(name, content);
        assert_parts(&desk.refusal(&[&database], &[&file]), parts);
    }
    let missing = desk.path("none.csv");
    assert_parts(
        &desk.refusal(&[&database], &[&missing]),
        &["none.csv", "check the path"],
    );
}
