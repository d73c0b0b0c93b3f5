//! Creates a small dataset. The tests of `env-node` and the fuzz targets use it too.

use std::{collections::BTreeMap, path::Path};

use data::{AnswerType, DatabaseFile, Dataset, Question};
use serde_json::{Value, json};

/// Forty cars of five makers, with a view, odd names, NULLs, reals, a blob and non-ASCII text.
const CARS: &str = "
    CREATE TABLE makers (Id INTEGER PRIMARY KEY, Name TEXT NOT NULL, Country TEXT);
    INSERT INTO makers VALUES (1,'Audi','Germany'),(2,'Citroën','France'),(3,'Fiat','Italy'),(4,'Lada',NULL),(5,'O''Hara | Sons','Ireland');
    CREATE TABLE Cars (Id INTEGER PRIMARY KEY, Maker INTEGER REFERENCES makers(Id), Horsepower TEXT, Accelerate REAL, Year INTEGER);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
    INSERT INTO Cars SELECT i, 1 + i % 5, CASE WHEN i % 9 = 0 THEN NULL ELSE 60 + i END, 10 + i * 0.25, 1970 + i % 13 FROM n;
    CREATE VIEW fast AS SELECT Id, Accelerate FROM Cars WHERE Accelerate < 12;
    CREATE TABLE \"odd \"\"name\" (\"a b\" NUMERIC, untyped, data BLOB, at TEXT DEFAULT CURRENT_TIMESTAMP);
    INSERT INTO \"odd \"\"name\" VALUES (1, 1e20, x'00ff', 'noon'), (0.1, -5, NULL, NULL);
";

/// Writes the database into `folder`.
pub(crate) fn dataset(folder: &Path) -> Dataset {
    let path = folder.join("cars.sqlite");
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(CARS)
        .unwrap();
    let database = DatabaseFile::open("cars", &path).unwrap();
    let question =
        |id: &str, split: &str, text: &str, sql: &str, answer_type, answer: Value| Question {
            question_id: id.to_owned(),
            question_text: text.to_owned(),
            database_name: "cars".to_owned(),
            gold_sql: sql.to_owned(),
            gold_answer: answer,
            answer_type,
            difficulty: "level-1".to_owned(),
            tables_involved: vec!["Cars".to_owned()],
            split: split.to_owned(),
        };
    Dataset {
        name: "cars".to_owned(),
        questions: vec![
            question(
                "cars-1",
                "train",
                "How many cars are there?",
                "SELECT count(*) FROM Cars",
                AnswerType::Integer,
                json!(40),
            ),
            question(
                "cars-2",
                "train",
                "Which countries have makers?",
                "SELECT Country FROM makers WHERE Country IS NOT NULL",
                AnswerType::List,
                json!(["Germany", "France", "Italy", "Ireland"]),
            ),
            question(
                "cars-3",
                "eval-unseen/domain",
                "How many cars has each maker?",
                "SELECT Maker, count(*) FROM Cars GROUP BY Maker",
                AnswerType::Table,
                json!([[1, 8], [2, 8], [3, 8], [4, 8], [5, 8]]),
            ),
        ],
        databases: BTreeMap::from([("cars".to_owned(), database)]),
        left_out: Vec::new(),
    }
}
