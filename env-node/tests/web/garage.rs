//! Creates a dataset in which every name and value would be markup if it were not escaped.

use std::{collections::BTreeMap, path::Path};

use data::{AnswerType, DatabaseFile, Dataset, Question};
use serde_json::json;

/// The table's name.
pub(crate) const TABLE: &str = "<img src=x onerror=alert(1)>";
/// The column's name.
pub(crate) const COLUMN: &str = "</script><script>alert(2)</script>";
/// A cell.
pub(crate) const CELL: &str = "<svg onload=alert(3)> & \"quotes\"";
/// The question's text.
pub(crate) const QUESTION: &str = "What is <b>in</b> it? <script>alert(4)</script>";

/// Writes the database into `folder`.
pub(crate) fn dataset(folder: &Path) -> Dataset {
    let path = folder.join("garage.sqlite");
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(&format!(
            "CREATE TABLE \"{TABLE}\" (\"{COLUMN}\" TEXT, n INTEGER); INSERT INTO \"{TABLE}\" VALUES ('{CELL}', 1), (NULL, 2);"
        ))
        .unwrap();
    let file = DatabaseFile::open("garage", &path).unwrap();
    Dataset {
        name: "garage".to_owned(),
        questions: vec![Question {
            question_id: "<i>garage</i>/1?#&".to_owned(),
            question_text: QUESTION.to_owned(),
            database_name: "garage".to_owned(),
            gold_sql: format!("SELECT \"{COLUMN}\" FROM \"{TABLE}\" WHERE n = 1"),
            gold_answer: json!(CELL),
            answer_type: AnswerType::String,
            difficulty: "level-<0>".to_owned(),
            tables_involved: vec![TABLE.to_owned()],
            split: "train".to_owned(),
        }],
        databases: BTreeMap::from([("garage".to_owned(), file)]),
        left_out: Vec::new(),
    }
}
