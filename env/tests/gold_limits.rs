//! Compares the limits that the import of questions knows with those of the environment: what it
//! leaves out is what a query of an agent may not be.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use data::{DatabaseSource, Dataset, ImportReport, ImportRequest, import};
use env::{Action, EnvSettings, Environment, EpisodeSpec};
use serde_json::json;

/// Twenty-one rows, so that a query does not show all.
const SHOP: &str = "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 21)
    INSERT INTO items SELECT i, 'row ' || i FROM n;";

/// Imports a database with a question for each statement.
fn imported(folder: &Path, schema: &str, statements: &[(String, bool)]) -> ImportReport {
    let database = folder.join("shop.sqlite");
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.execute_batch(schema).unwrap();
    drop(connection);
    let record = |(sql, _): &(String, bool)| json!({"question": "Which?", "sql": sql});
    let records: Vec<_> = statements.iter().map(record).collect();
    let questions = folder.join("questions.json");
    std::fs::write(&questions, json!(records).to_string()).unwrap();
    let request = ImportRequest {
        databases: vec![DatabaseSource::parse(database.to_str().unwrap()).unwrap()],
        questions: vec![questions],
        seed: 1,
        held_out: None,
        licence: None,
    };
    import(&folder.join("data"), &request, &mut |_| {}).unwrap()
}

/// Returns the error of a query of an agent, which is empty if there is none.
async fn error_of(environment: &Environment, sql: &str) -> String {
    let token = environment.reset(EpisodeSpec::default(), 0).unwrap().token;
    let action = Action {
        action_type: "QUERY".to_owned(),
        argument: sql.to_owned(),
    };
    let reply = environment.step(token, &action, 0).await.unwrap();
    reply.observation.error
}

/// Checks that the import and the environment take the same statements: those that are marked.
async fn compare(schema: &str, statements: &[(String, bool)]) -> ImportReport {
    let folder = tempfile::tempdir().unwrap();
    let report = imported(folder.path(), schema, statements);
    let dataset = Dataset::open(&folder.path().join("data"), None).unwrap();
    let environment = Environment::open(dataset, EnvSettings::default()).unwrap();
    for (index, (sql, is_taken)) in statements.iter().enumerate() {
        let left_out = report.left_out.iter().find(|it| it.index == index);
        let error = error_of(&environment, sql).await;
        assert_eq!(left_out.is_none(), *is_taken, "{sql:.200}: {left_out:?}");
        let part = "the gold SQL is over the limits of agents' queries: ";
        let is_named = left_out.is_none_or(|it| !it.is_wrong && it.reason.starts_with(part));
        assert!(is_named, "{sql:.200}: {left_out:?}");
        assert_eq!(error.is_empty(), *is_taken, "{sql:.200}: {error}");
    }
    report
}

/// Returns statements of which the first is within a limit and the second is not.
fn pairs(pairs: [[String; 2]; 8]) -> Vec<(String, bool)> {
    let pair = |[within, over]: [String; 2]| [(within, true), (over, false)];
    pairs.into_iter().flat_map(pair).collect()
}

#[tokio::test]
async fn the_import_knows_the_limits_of_the_environment() {
    let padded = |bytes: usize| {
        let start = "SELECT count(*) FROM items /*";
        format!("{start}{}*/", "x".repeat(bytes - start.len() - 2))
    };
    let compound = |terms: usize| vec!["SELECT 1"; terms].join(" UNION ALL ");
    let columns = |count: usize| format!("SELECT {}", vec!["id"; count].join(", ") + " FROM items");
    let sum = |terms: usize| {
        let sum = vec!["id"; terms].join(" + ");
        format!("SELECT {sum} FROM items WHERE id = 1")
    };
    let largest = |count: usize| format!("SELECT max({})", vec!["1"; count].join(", "));
    let like = |bytes: usize| {
        let pattern = "r".repeat(bytes - 1);
        format!("SELECT count(*) FROM items WHERE name LIKE '{pattern}%'")
    };
    let text = |bytes: usize| format!("SELECT length(printf('%{bytes}d', id)) FROM items LIMIT 1");
    let joined =
        |bytes: usize| format!("SELECT length(group_concat(printf('%{bytes}d', id))) FROM items");
    let mut statements = pairs([
        [16 << 10, (16 << 10) + 1].map(padded),
        [16, 17].map(compound),
        [256, 257].map(columns),
        [100, 101].map(sum),
        [32, 33].map(largest),
        [64, 65].map(like),
        [16_000, 17_000].map(text),
        [700, 900].map(joined),
    ]);
    statements.push(("SELECT name FROM items".to_owned(), true));
    let report = compare(SHOP, &statements).await;
    let notes = &report.databases[0].notes;
    let shown = EnvSettings::default().result.rows;
    let part = format!("an answer of more than {shown} rows");
    assert!(notes.iter().any(|it| it.contains(&part)), "{notes:?}");
}

/// The longest row of a table raises the limit of a value. A longer value of a view is refused.
#[tokio::test]
async fn the_import_knows_that_long_rows_raise_a_limit() {
    let schema = "CREATE TABLE texts (id INTEGER PRIMARY KEY, body TEXT);
        INSERT INTO texts VALUES (1, printf('%40000d', 7));
        CREATE VIEW doubled AS SELECT body || body AS body FROM texts";
    let text = |bytes: usize| format!("SELECT length(printf('%{bytes}d', id)) FROM texts");
    let statements = [
        ("SELECT length(body || '') FROM texts".to_owned(), true),
        (text(39_000), true),
        (text(41_000), false),
        ("SELECT length(body) FROM doubled".to_owned(), false),
    ];
    compare(schema, &statements).await;
}
