//! Tests that the oracle's tidy SQL means what the gold SQL means, on whole data sets.
#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

use std::{
    collections::BTreeMap,
    io::{Write as _, stderr},
    ops::ControlFlow,
    path::Path,
    sync::Arc,
};

use baselines::{ActionPolicy as _, OraclePolicy, Solutions};
use data::{DEFAULT_SEED, Dataset, ProceduralData, Question, WordShare, build, build_procedural};
use policy::Coordinates;
use proto::v1::Observation;
use rusqlite::{Connection, types::Value};

/// Returns what the oracle sees when it has described the tables of a question.
fn described(database: &Connection, question: &Question) -> Observation {
    let mut schema_info = "Available tables:".to_owned();
    let mut table_info = String::new();
    for table in &question.tables_involved {
        schema_info += &format!("\n- {table}");
        table_info += &format!("\nTable '{table}' columns:");
        let sql = "SELECT name, type FROM pragma_table_xinfo(?)";
        let mut columns = database.prepare(sql).unwrap();
        let mut columns = columns.query([table]).unwrap();
        while let Some(column) = columns.next().unwrap() {
            let (name, kind): (String, String) = (column.get(0).unwrap(), column.get(1).unwrap());
            table_info += &format!("\n- {name}: {kind}");
        }
    }
    Observation {
        schema_info: schema_info + &table_info,
        step_count: question.tables_involved.len() as u32,
        budget_remaining: 2,
        ..Observation::default()
    }
}

fn rows(database: &Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = database.prepare(sql)?;
    let columns = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| (0..columns).map(|column| row.get(column)).collect();
    statement.query_map([], row)?.collect()
}

/// Calls `check` with the database, the gold SQL and the oracle's SQL of each question.
fn for_each_query(dataset: &Dataset, mut check: impl FnMut(&Connection, &str, &str)) {
    let oracle = OraclePolicy(Arc::new(dataset.questions.iter().collect::<Solutions>()));
    let mut databases: BTreeMap<&str, Connection> = BTreeMap::new();
    for question in &dataset.questions {
        let name = question.database_name.as_str();
        let database = databases
            .entry(name)
            .or_insert_with(|| Connection::open(&dataset.databases[name].path).unwrap());
        let observation = described(database, question);
        let action = oracle.act(&question.question_id, &observation, Coordinates::default());
        assert_eq!(action.action_type, "QUERY");
        check(database, &question.gold_sql, &action.argument);
    }
}

/// The base policy was trained on such SQL, so another form would train another policy.
#[test]
fn generated_sql_is_tidy_already() {
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().join("project");
    build(&project, DEFAULT_SEED, &mut |_, _| {}).unwrap();
    let wanted = |messy_percent| ProceduralData {
        seed: 3,
        first: 0,
        databases: 60,
        questions: 8,
        words: WordShare::Training,
        declared_percent: 25,
        messy_percent,
        is_simple: false,
    };
    let (tidy, messy) = (dir.path().join("tidy"), dir.path().join("messy"));
    let mut go_on = |_, _| ControlFlow::Continue(());
    build_procedural(&tidy, &wanted(0), &mut go_on).unwrap();
    build_procedural(&messy, &wanted(100), &mut go_on).unwrap();
    for folder in [&project, &tidy, &messy] {
        let dataset = Dataset::open(folder, None).unwrap();
        assert!(dataset.questions.len() > 200);
        for_each_query(&dataset, |_, gold, tidy| assert_eq!(tidy, gold));
    }
}

#[test]
fn tidy_sql_of_spider_returns_the_rows_of_the_gold_sql() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/spider");
    if !dir.is_dir() {
        let line = format!("SKIPPED: Spider is not at {}\n", dir.display());
        let _ = stderr().write_all(line.as_bytes());
        return;
    }
    let dataset = Dataset::open(&dir, Some(&["all".to_owned()])).unwrap();
    let (mut same, mut aliased) = (0, 0);
    for_each_query(&dataset, |database, gold, tidy| {
        let expected = rows(database, gold).unwrap();
        assert_eq!(rows(database, tidy).unwrap(), expected, "{gold}\n{tidy}");
        same += 1;
        aliased += usize::from(tidy.to_lowercase().contains(" as t"));
    });
    assert!(same > 6_000 && aliased < 150, "{same} {aliased}");
}
