//! Question files with gaps and errors.

use data::{AnswerType, Dataset};
use serde_json::{Value, json};

use crate::{Desk, assert_parts};

const SHOP: &str = "CREATE TABLE items (name TEXT, price REAL, kind INTEGER);
    INSERT INTO items VALUES ('pen', 1.5, 1), ('ink', 4.0, 1), ('desk', 99.9, 2), ('void', NULL, 3)";

fn counted() -> Value {
    json!({"question": "How many?", "sql": "SELECT count(*) FROM items"})
}

/// Records that are wrong, each with a part of the reason.
fn wrong_records() -> Vec<(Value, &'static str)> {
    let asked = |sql: &str| json!({"question": "?", "sql": sql});
    let with = |mut record: Value, field: &str, value: Value| {
        record[field] = value;
        record
    };
    vec![
        (json!({"sql": "SELECT 1"}), "question_text is missing"),
        (json!({"question": "?"}), "gold_sql is missing"),
        (asked("-- SELECT 1"), "holds only comments"),
        (asked("\u{feff}SELECT 1"), "byte order mark"),
        (asked("SELECT 1; SELECT 2"), "more than one statement"),
        (asked("DELETE FROM items"), "begins with DELETE"),
        (
            asked("WITH a AS (SELECT 1) DELETE FROM items"),
            "only SELECT or WITH",
        ),
        (asked("SELECT nam FROM items"), "no such column: nam"),
        (asked("SELECT random()"), "random"),
        (
            with(asked("SELECT 1"), "db", json!("shp")),
            "no database `shp`",
        ),
        (
            with(counted(), "answer", json!(5)),
            "gold_answer is 5, but the gold SQL gives 4",
        ),
        (
            with(
                asked("SELECT name FROM items"),
                "answer_type",
                json!("integer"),
            ),
            "answer_type is integer, but the gold SQL gives list",
        ),
        (
            with(asked("SELECT 1"), "tables", json!(["itms"])),
            "names `itms`",
        ),
    ]
}

/// Records without an answer or a use.
fn unusable_records() -> Vec<(Value, &'static str)> {
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) \
                   FROM n";
    [
        ("SELECT price FROM items WHERE kind = 3", "nothing but NULL"),
        ("SELECT name FROM items WHERE kind = 9", "returns no row"),
        (endless, "SQLite instructions"),
    ]
    .into_iter()
    .map(|(sql, part): (&str, &str)| (json!({"question": "?", "sql": sql}), part))
    .chain([(counted(), "repeats question and SQL")])
    .collect()
}

#[test]
fn what_cannot_be_a_question_is_left_out_with_its_place() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    let (wrong, unusable) = (wrong_records(), unusable_records());
    let cases: Vec<&(Value, &str)> = wrong.iter().chain(&unusable).collect();
    let mut records = vec![counted()];
    records.extend(cases.iter().map(|(record, _)| record.clone()));
    let file = desk.write("q.json", Value::from(records).to_string());
    let mut left_out = desk.import(&[&database], &[&file]).unwrap().left_out;
    left_out.sort_by_key(|it| it.index);
    assert_eq!(left_out.len(), cases.len());
    for (index, (it, (_, part))) in left_out.iter().zip(cases).enumerate() {
        let is_wrong = index < wrong.len();
        assert_eq!((it.index, it.is_wrong), (index + 1, is_wrong), "{it}");
        assert_parts(&it.to_string(), &["q.json[", part]);
    }
    let dataset = Dataset::open(&desk.out(), None).unwrap();
    assert_eq!(dataset.questions.len(), 1);
}

#[test]
fn a_record_that_is_left_out_keeps_its_id() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    let wrong = json!({"id": "q7", "question": "?", "sql": "SELECT x FROM nowhere"});
    let file = desk.write("q.json", json!([counted(), wrong]).to_string());
    let left_out = desk.import(&[&database], &[&file]).unwrap().left_out;
    assert_eq!(left_out[0].question_id.as_deref(), Some("q7"));
}

#[test]
fn answers_that_no_single_query_shows_are_noted() {
    let desk = Desk::new();
    let rows = "CREATE TABLE t (x INTEGER);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 42)
        INSERT INTO t SELECT i / 2 FROM n";
    let database = desk.database("long.db", rows);
    let asked = |question: &str, sql: &str| json!({"question": question, "sql": sql});
    let records = json!([
        asked("Which?", "SELECT x FROM t"),
        asked("Which ones?", "SELECT x, x FROM t"),
        asked("Which are small?", "SELECT x FROM t WHERE x < 20"),
    ]);
    let file = desk.write("q.json", records.to_string());
    let report = desk.import(&[&database], &[&file]).unwrap();
    assert_eq!(report.left_out, []);
    let [note] = &report.databases[0].notes[..] else {
        panic!("{:?}", report.databases[0].notes)
    };
    let part = "2 questions have an answer of more than 20 rows";
    assert_parts(note, &[part]);
    let checked = data::check(&desk.out(), None).unwrap();
    assert_eq!(checked.notes.len(), 1);
    assert_parts(&checked.notes[0], &["long: ", part]);
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

/// Cells of CSV are text, also those that are JSON, as zip codes are.
#[test]
fn answers_in_csv_are_compared_as_text_and_as_json() {
    let desk = Desk::new();
    let sql = "CREATE TABLE a (zip TEXT, price REAL); INSERT INTO a VALUES ('90210', 2), ('x', 1)";
    let database = desk.database("a.db", sql);
    let csv = "question,sql,answer\n\
               Which zip?,SELECT zip FROM a WHERE price = 2,90210\n\
               Which price?,SELECT max(price) FROM a,2\n\
               Which zips?,SELECT zip FROM a,\"[\"\"x\"\",\"\"90210\"\"]\"\n\
               Which other?,SELECT zip FROM a WHERE price = 1,90210\n";
    let file = desk.write("q.csv", csv);
    let report = desk.import(&[&database], &[&file]).unwrap();
    let [wrong] = &report.left_out[..] else {
        panic!("{:?}", report.left_out)
    };
    assert_parts(&wrong.reason, &["gold_answer is \"90210\"", "gives \"x\""]);
}

#[test]
fn a_record_that_is_left_out_is_not_repeated() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    let sql = "SELECT count(*) FROM items";
    let records = json!([
        {"question": "How many?", "sql": sql, "question_id": "one"},
        {"question": "How many are there?", "sql": sql, "question_id": "one"},
        {"question": "How many are there?", "sql": sql},
    ]);
    let file = desk.write("q.json", records.to_string());
    let report = desk.import(&[&database], &[&file]).unwrap();
    let left_out: Vec<usize> = report.left_out.iter().map(|it| it.index).collect();
    assert_eq!(left_out, [1], "its id is taken");
    let dataset = Dataset::open(&desk.out(), None).unwrap();
    assert_eq!(dataset.questions.len(), 2);
}

/// White space, comments and case make no other query.
#[test]
fn spellings_of_a_query_are_in_one_split() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    let one = "SELECT count(*) FROM items WHERE kind=1";
    let other = "select COUNT( * ) from items where kind = 1 ;";
    let records = json!([
        {"question": "How many?", "sql": one},
        {"question": "How many are there?", "sql": other},
        {"question": "How many?", "sql": other},
        {"question": "How many in all?", "sql": "SELECT count(*) FROM items"},
    ]);
    let file = desk.write("q.json", records.to_string());
    let report = desk.import(&[&database], &[&file]).unwrap();
    assert_eq!(report.left_out.len(), 1);
    assert_parts(&report.left_out[0].reason, &["repeats question and SQL"]);
    let dataset = Dataset::open(&desk.out(), None).unwrap();
    let questions = dataset.questions.iter();
    let splits = questions.filter(|it| it.gold_sql.contains("kind"));
    let splits: Vec<&str> = splits.map(|it| it.split.as_str()).collect();
    assert_eq!(splits.len(), 2);
    assert_eq!(splits[0], splits[1]);
}

/// The import, the check and the sandbox of the agents have the same clock.
#[test]
fn the_present_of_gold_sql_is_one_moment() {
    let desk = Desk::new();
    let database = desk.database("shop.db", SHOP);
    for (sql, answer) in [
        ("SELECT date('now')", "\"2024-01-01\""),
        ("SELECT current_timestamp", "\"2024-01-01 00:00:00\""),
        ("SELECT strftime('%f', 'now')", "\"00.000\""),
        ("SELECT julianday('now')", "2460310.5"),
    ] {
        assert_eq!(desk.answer(&database, sql).0, answer, "{sql}");
    }
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
    let one = json!({"question": "How many?", "sql": "SELECT count(*) FROM items", "db": "A"});
    let file = desk.write("named.jsonl", format!("{one}\n"));
    desk.import(&[&a, &b], &[&file]).unwrap();
    let questions = Dataset::open(&desk.out(), None).unwrap().questions;
    assert_eq!(questions[0].database_name, "a", "its case does not count");
}
