//! Tests the layouts on small folders, whole and broken.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

use std::path::Path;

use data::{AnswerType, Dataset, check};
use serde_json::{Value, json};
use tempfile::TempDir;

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Writes a database with two tables: three dogs, two owners, one dog without an owner.
fn write_database(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let connection = rusqlite::Connection::open(path).unwrap();
    let sql = "CREATE TABLE Owners (id INTEGER PRIMARY KEY, city TEXT);
        CREATE TABLE Dogs (id INTEGER PRIMARY KEY, name TEXT, owner INTEGER, weight REAL);
        INSERT INTO Owners VALUES (1, 'Rome'), (2, 'Oslo');
        INSERT INTO Dogs VALUES (1, 'Max', 1, 9.5), (2, 'Bella', 2, 4.25), (3, 'Rex', NULL, 30)";
    connection.execute_batch(sql).unwrap();
}

fn spider(dev: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("tables.json"), "[]");
    write(&dir.path().join("dev.json"), &dev.to_string());
    write_database(&dir.path().join("database/dogs/dogs.sqlite"));
    dir
}

fn record(question: &str, query: &str) -> Value {
    json!({"db_id": "dogs", "question": question, "query": query})
}

fn sqlenv_record(id: &str, gold: &Value) -> Value {
    json!({
        "question_id": id, "question_text": "How many dogs?", "database_name": "dogs",
        "gold_sql": "SELECT count(*) FROM Dogs", "gold_answer": gold, "answer_type": "integer",
        "difficulty": "easy", "tables_involved": ["Dogs"], "split": id.split('_').nth(1).unwrap(),
    })
}

fn sqlenv(root: &str, train: &Value, eval: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join(root);
    write(
        &root.join("questions/questions_train.json"),
        &train.to_string(),
    );
    write(
        &root.join("questions/questions_eval.json"),
        &eval.to_string(),
    );
    write(&root.join("questions/db_list.json"), "[\"dogs\"]");
    write_database(&root.join("databases/dogs/dogs.sqlite"));
    dir
}

fn open_all(dir: &Path) -> Dataset {
    Dataset::open(dir, Some(&["all".to_owned()])).unwrap()
}

fn error_of(dir: &Path) -> String {
    Dataset::open(dir, Some(&["all".to_owned()]))
        .unwrap_err()
        .to_string()
}

/// Questions with answers of every type, then three without a usable answer.
fn spider_of_every_type() -> TempDir {
    spider(&json!([
        record("How many dogs?", "SELECT count(*) FROM dogs"),
        record(
            "How heavy is Max?",
            "SELECT weight FROM Dogs WHERE name = 'Max'"
        ),
        record("Name all dogs.", "SELECT name FROM Dogs"),
        record(
            "Which cities?",
            "SELECT D.name, O.city FROM dogs AS D JOIN owners AS O ON D.owner = O.id"
        ),
        record("Who owns Rex?", "SELECT owner FROM Dogs WHERE name = 'Rex'"),
        record("Any cats?", "SELECT name FROM Dogs WHERE name = 'Tom'"),
        record("Any birds?", "SELECT name FROM Birds"),
    ]))
}

#[test]
fn spider_answers_come_from_its_gold_sql() {
    let dir = spider_of_every_type();
    let dataset = open_all(dir.path());
    let types: Vec<AnswerType> = dataset
        .questions
        .iter()
        .map(|question| question.answer_type)
        .collect();
    assert_eq!(
        types,
        [
            AnswerType::Integer,
            AnswerType::Float,
            AnswerType::List,
            AnswerType::Table
        ]
    );
    assert_eq!(
        dataset.questions[2].gold_answer,
        json!(["Max", "Bella", "Rex"])
    );
    let mut tables = dataset.questions[3].tables_involved.clone();
    tables.sort();
    assert_eq!(
        tables,
        ["Dogs", "Owners"],
        "names as the database declares them"
    );
    let report = check(dir.path(), Some(&["dogs".to_owned()])).unwrap();
    assert_eq!(report.dataset.left_out.len(), 3);
    assert_eq!(
        report.problems,
        [
            "dev.json[6] on dogs: the gold SQL fails: no such table: Birds; correct the record, or \
          remove it"
        ],
        "a query that does not compile fails the check, one without rows does not"
    );
}

#[test]
fn spider_questions_without_an_answer_are_left_out_with_the_reason() {
    let dataset = open_all(spider_of_every_type().path());
    let left_out: Vec<(usize, &str, bool)> = dataset
        .left_out
        .iter()
        .map(|left_out| (left_out.index, &*left_out.reason, left_out.is_wrong))
        .collect();
    assert_eq!(
        left_out,
        [
            (4, "the gold SQL returns nothing but NULL or blanks", false),
            (5, "the gold SQL returns no row", false),
            (6, "the gold SQL fails: no such table: Birds", true),
        ]
    );
    let wrong = &dataset.left_out[2];
    assert_eq!((&*wrong.file, &*wrong.database_name), ("dev.json", "dogs"));
    assert_eq!(
        wrong.to_string(),
        "dev.json[6] on dogs: the gold SQL fails: no such table: Birds"
    );
}

#[test]
fn wordings_of_a_spider_query_stay_in_one_split() {
    let queries: Vec<Value> = (0..60)
        .flat_map(|limit| {
            let query = format!("SELECT name FROM Dogs WHERE id>0 LIMIT {}", limit + 1);
            [
                record("One?", &query),
                record(
                    "The other?",
                    &format!("select  NAME from dogs where id > 0 limit {} ;", limit + 1),
                ),
            ]
        })
        .collect();
    let dir = spider(&json!(queries));
    let dataset = open_all(dir.path());
    assert_eq!(dataset.split_names(), ["eval", "train"]);
    for pair in dataset.questions.chunks(2) {
        assert_eq!(pair[0].split, pair[1].split, "{}", pair[0].gold_sql);
    }
    assert!(
        (12..=60).contains(&dataset.split("eval").count()),
        "near 30 in 100"
    );
    let train = dataset.split("train").count();
    let counts = format!("train: {train} questions, {} queries\n", train / 2);
    let stats = data::stats(&dataset);
    assert!(stats.contains(&counts), "{counts}: {stats}");
    assert!(
        dataset
            .questions
            .iter()
            .any(|question| question.question_id == "dogs_train_000")
    );
    let report = check(dir.path(), Some(&["all".to_owned()])).unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

#[test]
fn sqlenv_files_open_in_both_places_and_empty_answers_are_left_out() {
    for root in ["", "data"] {
        let train = json!([
            sqlenv_record("dogs_train_000", &json!(3)),
            sqlenv_record("dogs_train_001", &json!(null))
        ]);
        let dir = sqlenv(
            root,
            &train,
            &json!([sqlenv_record("dogs_eval_000", &json!(3))]),
        );
        let dataset = Dataset::open(dir.path(), None).unwrap();
        assert_eq!(dataset.questions.len(), 2);
        assert_eq!(
            dataset.split("eval").next().unwrap().question_id,
            "dogs_eval_000"
        );
        let left_out = &dataset.left_out[0];
        assert_eq!(left_out.question_id.as_deref(), Some("dogs_train_001"));
        assert_eq!(
            (&*left_out.file, left_out.index),
            ("questions/questions_train.json", 1)
        );
        let file = &dataset.databases["dogs"];
        assert_eq!((file.sha256.len(), file.size_bytes > 0), (64, true));
    }
}

#[test]
fn a_check_reports_wrong_answers_and_queries_in_two_splits() {
    let train = json!([sqlenv_record("dogs_train_000", &json!(4))]);
    let dir = sqlenv(
        "",
        &train,
        &json!([sqlenv_record("dogs_eval_000", &json!(3))]),
    );
    let report = check(dir.path(), None).unwrap();
    assert_eq!(report.problems.len(), 2, "{report}");
    assert!(
        report.problems[0]
            .contains("dogs_train_000 on dogs: the gold SQL now gives 3, the record says 4"),
        "{report}"
    );
    assert!(
        report.problems[1].contains("in the splits {\"eval\", \"train\"}"),
        "{report}"
    );
}

/// Published numbers are about all questions of these layouts.
#[test]
fn questions_that_are_hard_for_agents_are_kept_and_counted() {
    let number = "SELECT n FROM (SELECT a.id + 3 * b.id + 9 * c.id AS n FROM Dogs AS a, Dogs AS b, \
                  Dogs AS c)";
    let compound = ["SELECT name FROM Dogs"; 17].join(" UNION ALL ");
    let dir = spider(&json!([
        record("How many dogs?", "SELECT count(*) FROM dogs"),
        record("Which numbers?", number),
        record("Which names?", &compound),
    ]));
    let report = check(dir.path(), Some(&["all".to_owned()])).unwrap();
    assert!(report.problems.is_empty(), "{report}");
    let dataset = &report.dataset;
    assert_eq!((dataset.questions.len(), dataset.left_out.len()), (3, 0));
    let [refused, long] = &report.notes[..] else {
        panic!("{report}")
    };
    for (note, part) in [
        (
            refused,
            "dogs: the gold SQL of 1 questions is over the limits",
        ),
        (refused, "(too many terms in compound SELECT)"),
        (
            long,
            "dogs: 1 questions have an answer of more than 20 rows",
        ),
    ] {
        assert!(note.starts_with(part) || note.ends_with(part), "{note}");
        assert!(report.to_string().contains(&format!("note: {note}\n")));
    }
}

#[test]
fn malformed_input_is_named_with_its_place() {
    let good = record("How many dogs?", "SELECT count(*) FROM Dogs");
    let cases = [
        (
            spider(&json!([good, {"db_id": "dogs", "question": "?"}])),
            "dev.json: index 1: missing field `query`",
        ),
        (
            spider(&json!([record("?", "  ")])),
            "dev.json: index 0: the field query (BIRD: SQL) is empty",
        ),
        (
            spider(&json!({"questions": []})),
            "dev.json: not a JSON array",
        ),
        (
            spider(&json!([{"db_id": "cats", "question": "?", "query": "SELECT 1"}])),
            "cats.sqlite: the database `cats` is missing",
        ),
        (
            spider(&json!([record("?", "SELECT 1 WHERE 0")])),
            "no usable question (1 left out, the first dev.json[0] on dogs",
        ),
        (
            sqlenv("", &json!([{"question_id": "x"}]), &json!([])),
            "questions_train.json: index 0: missing field",
        ),
        (
            sqlenv(
                "",
                &json!([sqlenv_record("dogs_train_000", &json!(3))]),
                &json!([sqlenv_record("dogs_train_000", &json!(3))]),
            ),
            "question_id `dogs_train_000` occurs twice",
        ),
    ];
    for (dir, expected) in cases {
        let error = error_of(dir.path());
        assert!(error.contains(expected), "{error}\nlacks {expected}");
    }
}

#[test]
fn a_folder_without_a_layout_says_what_was_sought() {
    let dir = tempfile::tempdir().unwrap();
    assert!(error_of(&dir.path().join("nowhere")).contains("no such folder"));
    let file = dir.path().join("shop.sqlite");
    write_database(&file);
    let error = error_of(&file);
    assert!(
        [
            "shop.sqlite: is a file",
            "data draft DIR",
            "data import DIR"
        ]
        .iter()
        .all(|part| error.contains(part)),
        "{error}"
    );
    std::fs::remove_file(file).unwrap();
    let error = error_of(dir.path());
    assert!(
        [
            "manifest.json",
            "tables.json",
            "dev_databases",
            "questions_train.json",
            "data import"
        ]
        .iter()
        .all(|file| error.contains(file)),
        "{error}"
    );
    write(&dir.path().join("tables.json"), "[]");
    assert!(error_of(dir.path()).contains("neither dev.json nor train_spider.json"));
    write(&dir.path().join("manifest.json"), "{}");
    let error = error_of(dir.path());
    assert!(
        error.contains("manifest.json: not a manifest") && error.contains("sqlenv data build"),
        "{error}"
    );
}

#[test]
fn a_broken_database_is_named() {
    let dir = spider(&json!([record(
        "How many dogs?",
        "SELECT count(*) FROM Dogs"
    )]));
    write(
        &dir.path().join("database/dogs/dogs.sqlite"),
        "this is not a database, and never was one",
    );
    let error = error_of(dir.path());
    assert!(
        error.contains("dogs.sqlite: not a readable SQLite database"),
        "{error}"
    );
}

/// A record is not to lead to a file elsewhere.
#[test]
fn a_database_is_inside_of_the_folder() {
    for name in ["../outside", "/tmp/outside", "dogs/../dogs", "..", "."] {
        let mut record = record("How many dogs?", "SELECT count(*) FROM Dogs");
        record["db_id"] = name.into();
        let dir = spider(&json!([record]));
        write_database(&dir.path().join("outside/outside.sqlite"));
        let all = ["all".to_owned()];
        let error = Dataset::open(dir.path(), Some(&all))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("without a path") && error.contains(name),
            "{error}"
        );
    }
}

#[test]
fn an_unknown_database_is_named_with_those_that_are_there() {
    let dir = spider(&json!([record(
        "How many dogs?",
        "SELECT count(*) FROM Dogs"
    )]));
    let error = Dataset::open(dir.path(), Some(&["cats".to_owned()]))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`cats`") && error.contains("there are dogs"),
        "{error}"
    );
    let error = Dataset::open(dir.path(), None).unwrap_err().to_string();
    assert!(error.contains("none of SQLEnv's ten databases"), "{error}");
}

#[test]
fn layouts_need_no_dummy_files() {
    let count = record("How many dogs?", "SELECT count(*) FROM Dogs");
    let dir = spider(&json!([count]));
    std::fs::remove_file(dir.path().join("tables.json")).unwrap();
    assert_eq!(open_all(dir.path()).questions.len(), 1);
    let eval = json!([sqlenv_record("dogs_eval_000", &json!(3))]);
    let dir = sqlenv("", &json!([]), &eval);
    std::fs::remove_file(dir.path().join("questions/questions_train.json")).unwrap();
    std::fs::remove_file(dir.path().join("questions/db_list.json")).unwrap();
    assert_eq!(open_all(dir.path()).split_names(), ["eval"]);
}

/// Writes one of BIRD's question files, with its databases.
fn write_bird(dir: &Path, part: &str, file: &str, databases: &[&str], records: &Value) {
    write(&dir.join(file), &records.to_string());
    for name in databases {
        let path = format!("{part}_databases/{name}/{name}.sqlite");
        write_database(&dir.join(path));
    }
}

fn bird_record(database: &str, sql: &str) -> Value {
    json!({"db_id": database, "question": "How many?", "evidence": "A dog is a row.", "SQL": sql})
}

#[test]
fn bird_opens_with_one_part_or_both() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = bird_record("dogs", "SELECT count(*) FROM Dogs");
    dev["difficulty"] = "moderate".into();
    dev["question_id"] = 7.into();
    write_bird(dir.path(), "dev", "dev.json", &["dogs"], &json!([dev]));
    let dataset = Dataset::open(dir.path(), None).unwrap();
    let question = &dataset.questions[0];
    assert_eq!(question.question_text, "How many? Hint: A dog is a row.");
    assert_eq!(
        (&*question.difficulty, &question.gold_answer),
        ("moderate", &json!(3))
    );
    assert_ne!(
        question.split, "eval-unseen",
        "one database is not held out"
    );

    let train = json!([
        bird_record("cats", "SELECT count(*) FROM Owners"),
        bird_record("cats", "SELECT count(*) FROM Birds"),
    ]);
    write_bird(dir.path(), "train", "train.json", &["cats"], &train);
    let dataset = Dataset::open(dir.path(), None).unwrap();
    assert_eq!(dataset.split("eval-unseen").count(), 1);
    assert_eq!(
        dataset.split("eval-unseen").next().unwrap().database_name,
        "dogs"
    );
    assert_eq!(
        dataset.left_out[0].to_string().split(':').next(),
        Some("train.json[1] on cats")
    );
    std::fs::remove_file(dir.path().join("dev.json")).unwrap();
    let error = error_of(dir.path());
    assert!(
        error.contains("dev.json or mini_dev_sqlite.json"),
        "{error}"
    );
}

/// Changes that are only in the log would be invisible to agents.
#[test]
fn a_check_finds_a_log_beside_a_database() {
    let dir = spider(&json!([record("How many?", "SELECT count(*) FROM Dogs")]));
    let path = dir.path().join("database/dogs/dogs.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch("PRAGMA journal_mode = WAL; INSERT INTO Dogs VALUES (4, 'Ben', 1, 3.5)")
        .unwrap();
    let all = ["all".to_owned()];
    let report = check(dir.path(), Some(&all)).unwrap();
    assert!(report.to_string().contains("dogs.sqlite-wal"), "{report}");
    drop(connection);
    let report = check(dir.path(), Some(&all)).unwrap();
    assert!(report.problems.is_empty(), "{report}");

    // This mode keeps the journal of a transaction that has ended.
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = DELETE; PRAGMA journal_mode = PERSIST;
             INSERT INTO Dogs VALUES (5, 'Max', 1, 3.5)",
        )
        .unwrap();
    drop(connection);
    let journal = path.with_extension("sqlite-journal");
    let report = check(dir.path(), Some(&all)).unwrap();
    assert!(journal.is_file() && report.problems.is_empty(), "{report}");
    let is_named = || {
        let report = check(dir.path(), Some(&all)).unwrap();
        let text = report.to_string();
        assert!(text.contains("dogs.sqlite-journal"), "{text}");
    };
    std::fs::write(&journal, b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7, and pages").unwrap();
    is_named();
    // One that cannot be read may hold a transaction.
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    is_named();
}
