//! Tests that small files whose reading would never end are found and refused.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

#[path = "common/endless_tree.rs"]
mod endless_tree;

use std::path::Path;

use data::{DatabaseSource, Dataset, ImportRequest, check, faults, import};
use serde_json::json;

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// SQLite reads the schema in the first statement on a connection.
#[test]
fn a_schema_without_an_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("database/dogs/dogs.sqlite");
    let records = json!([{"db_id": "dogs", "question": "How many?", "query": "SELECT 1"}]);
    write(&dir.path().join("dev.json"), &records.to_string());
    write(&path, "");
    let sql = "CREATE TABLE t (a); PRAGMA writable_schema = ON;
        UPDATE sqlite_master SET sql = NULL";
    endless_tree::make(&path, sql, "sqlite_master");

    let found = faults(&Dataset::of_question(&path, "?").unwrap()).unwrap();
    assert!(found[0].contains("takes too long to check"), "{found:?}");

    let request = ImportRequest {
        databases: vec![DatabaseSource::parse(path.to_str().unwrap()).unwrap()],
        questions: Vec::new(),
        seed: 1,
        held_out: None,
        licence: None,
    };
    let refused = import(&dir.path().join("out"), &request, &mut |_| {}).err();
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("or a damaged one"), "{refused}");

    let refused = Dataset::open(dir.path(), Some(&["all".to_owned()])).err();
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("dogs.sqlite: not a readable"), "{refused}");
}

/// No limit of steps ends a count, which is one step.
#[test]
fn no_gold_sql_runs_on_a_damaged_database() {
    let dir = tempfile::tempdir().unwrap();
    let record = json!([{
        "question_id": "dogs_train_000", "question_text": "How many dogs?",
        "database_name": "dogs", "gold_sql": "SELECT count(*) FROM Dogs", "gold_answer": 2,
        "answer_type": "integer", "difficulty": "easy", "tables_involved": ["Dogs"],
        "split": "train",
    }]);
    let questions = dir.path().join("questions/questions_train.json");
    write(&questions, &record.to_string());
    let path = dir.path().join("databases/dogs/dogs.sqlite");
    write(&path, "");
    let sql = "CREATE TABLE Dogs (a, b); CREATE INDEX i ON Dogs (a);
        INSERT INTO Dogs VALUES (1, 2), (3, 4)";
    endless_tree::make(&path, sql, "i");
    let report = check(dir.path(), None).unwrap();
    assert!(report.damaged.contains("dogs"), "{report}");
    let [problem] = &*report.problems else {
        panic!("not one problem: {report}");
    };
    assert!(problem.contains("the file is damaged"), "{report}");
}
