//! Runs the commands of docs/your-database.md on a file with odd names, as a new user would.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use rusqlite::Connection;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/your-database.md");
/// What makes a command short. The test gives nothing else that the page does not.
const SHORT_TRAINING: [&str; 6] = [
    "learner.steps=1",
    "learner.groups_per_step=2",
    "learner.checkpoint.every_steps=1",
    "evaluation.questions=6",
    "evaluation.curve_questions=2",
    "evaluation.every_steps=1",
];

/// Keywords, blanks, quotes, a prefix and letters outside ASCII as names; no key and no reference
/// is declared; a view, a view that cannot be read, and an empty table.
const SCHEMA: &str = r#"
    CREATE TABLE "Order" ("order id" INTEGER, "tblCustomer" INTEGER, "drop" REAL, placed TEXT);
    CREATE TABLE tblCustomer (cust_no INTEGER, "Full Name" TEXT, "größe" INTEGER, "is ""vip""" INTEGER);
    CREATE TABLE "drop" ("select" TEXT, "where" INTEGER);
    CREATE TABLE "never used" (a, b);
    CREATE VIEW "big orders" AS SELECT "order id", "drop" FROM "Order" WHERE "drop" > 100;
    CREATE VIEW broken AS SELECT * FROM gone;
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 40)
    INSERT INTO tblCustomer SELECT i, 'Person ' || i, 150 + i * 7 % 50, i % 3 = 0 FROM n;
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200)
    INSERT INTO "Order" SELECT i, 1 + i * i % 37, 5 + i * 37 % 400 / 2.0, date('2024-01-01', i || ' days')
    FROM n;
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 25)
    INSERT INTO "drop" SELECT char(65 + i % 5) || ' shelf', i * 3 % 17 FROM n;
"#;

/// Returns the commands of the page's first code block, without their comments.
fn commands() -> Vec<Vec<String>> {
    let page = fs::read_to_string(PAGE).unwrap();
    let (_, block) = page.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    block.lines().map(words).collect()
}

/// Splits a line into words; quotes keep blanks.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap();
    let parts = line.split('"').enumerate();
    parts
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

fn run(dir: &Path, command: &[String], more: &[&str]) -> Output {
    assert_eq!(command[0], "sqlenv");
    let mut program = Command::new(env!("CARGO_BIN_EXE_sqlenv"));
    let program = program.current_dir(dir).args(&command[1..]).args(more);
    let output = program.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {printed}");
    output
}

#[test]
fn the_page_leads_from_a_strange_file_to_a_compared_policy() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let file = Connection::open(dir.join("my.sqlite")).unwrap();
    file.execute_batch(SCHEMA).unwrap();
    drop(file);
    let commands = commands();
    let [draft, train, compare, play] = &commands[..] else {
        panic!("the page has {} commands: {commands:?}", commands.len());
    };

    let drafted = run(dir, draft, &[]);
    let printed = String::from_utf8_lossy(&drafted.stdout);
    assert!(
        printed.contains("broken"),
        "the broken view is named: {printed}"
    );
    let check = ["sqlenv", "data", "check", "my-data"].map(str::to_owned);
    let checked = run(dir, &check, &[]);
    let printed = String::from_utf8_lossy(&checked.stdout);
    assert!(printed.contains(" 0 problems"), "{printed}");

    let short: Vec<&str> = SHORT_TRAINING.iter().flat_map(|it| ["--set", it]).collect();
    run(dir, train, &short);
    assert!(dir.join("runs/mine/report.html").is_file());
    let card = fs::read_to_string(dir.join("runs/mine/model/README.md")).unwrap();
    let licence = "Licence: base model: apache-2.0; data: not stated";
    assert!(card.contains(licence), "{card}");
    assert!(!card.contains("license:"), "{card}");
    let compared = run(dir, compare, &["--questions", "3"]);
    let printed = String::from_utf8_lossy(&compared.stdout);
    assert!(
        printed.contains("runs/mine") && printed.contains("base"),
        "{printed}"
    );
    assert!(dir.join("comparison.html").is_file());
    let played = run(dir, play, &[]);
    let printed = String::from_utf8_lossy(&played.stdout);
    assert!(
        printed.starts_with("How many orders are there?"),
        "{printed}"
    );
    let ends = printed.contains("\nAnswer: ") || printed.contains("\nNo answer after ");
    assert!(ends, "{printed}");
}
