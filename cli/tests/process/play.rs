//! Tests `sqlenv play --policy` on a database of a user.

use std::{
    path::{Path, PathBuf},
    process::Output,
};

use rusqlite::Connection;

use crate::{
    program::{serve, sqlenv},
    success::succeed,
};

const SCHEMA: &str = "
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
    INSERT INTO customers VALUES
        (1, 'Ada', 'Lima'), (2, 'Ben', 'Köln'), (3, 'Cy', 'Lima'), (4, 'Di', '北京'),
        (5, 'Ed', 'Köln'), (6, 'Flo', 'Köln');
";

fn play(args: &[&str]) -> Output {
    sqlenv(&["play"]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes a database in a folder.
fn database(dir: &Path) -> PathBuf {
    let path = dir.join("my.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(SCHEMA).unwrap();
    path
}

#[test]
fn the_base_policy_answers_a_question_about_any_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = database(dir.path());
    let before = std::fs::read(&path).unwrap();
    let database = path.to_str().unwrap();
    for (question, answer) in [
        ("How many customers are there?", 6),
        ("How many customers are from Lima?", 2),
        ("How many customers are from Köln?", 3),
        ("How many customers are from 北京?", 1),
    ] {
        let played = play(&["--policy", "base", "--database", database, "-q", question]);
        let (shown, errors) = (text(&played.stdout), text(&played.stderr));
        assert!(played.status.success(), "{errors}");
        assert!(shown.starts_with(question), "{shown}");
        assert!(shown.contains("describe customers"), "{shown}");
        assert!(shown.ends_with(&format!("Answer: {answer}\n")), "{shown}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// Marks of the reading direction are common in Hebrew and Arabic. They are replaced on a terminal
/// only.
#[test]
fn a_pipe_gets_each_text_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = database(dir.path());
    let question = "How many customers are there?\u{200f}";
    let database = path.to_str().unwrap();
    let played = play(&["--policy", "base", "--database", database, "-q", question]);
    let shown = text(&played.stdout);
    assert!(shown.starts_with(question), "{shown:?}");
}

#[test]
fn wrong_arguments_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (no_database, empty, busy) = (
        path("text.sqlite"),
        path("empty.sqlite"),
        path("busy.sqlite"),
    );
    std::fs::write(
        &no_database,
        "This is no database, whatever its name says. ".repeat(20),
    )
    .unwrap();
    Connection::open(&empty).unwrap();
    Connection::open(&busy)
        .unwrap()
        .execute_batch(SCHEMA)
        .unwrap();
    std::fs::write(format!("{busy}-wal"), "changes").unwrap();
    let folder = dir.path().to_str().unwrap();
    let ask = "How many?";
    let cases: &[(&[&str], &str)] = &[
        (&["--database", "none.sqlite", "-q", ask], "no such file"),
        (&["--database", folder, "-q", ask], "sqlenv data import DIR"),
        (&["--database", &no_database, "-q", ask], "cannot be used"),
        (&["--database", &empty, "-q", ask], "cannot be used"),
        (
            &["--database", &busy, "-q", ask],
            "busy.sqlite-wal holds changes",
        ),
        (&["--database", &no_database, "-q", " "], "-q is empty"),
        (
            &["--database", &no_database, "-q", ask, "--data", "x"],
            "cannot be used with",
        ),
        (&["--database", &no_database], "--ask <QUESTION>"),
        (&["--question", "none"], "the data has no such question"),
        (&["--model", "x"], "--policy base is the embedded policy"),
    ];
    for (args, wanted) in cases {
        let played = play(&[&["--policy", "base"], *args].concat());
        let errors = text(&played.stderr);
        assert!(!played.status.success(), "{args:?}");
        assert!(errors.contains(wanted), "{args:?}: {errors}");
        assert!(!errors.contains("panicked"), "{args:?}: {errors}");
    }
    let asked = play(&["--database", &no_database, "-q", ask]);
    assert!(text(&asked.stderr).contains("--policy"), "{asked:?}");
}

#[test]
fn a_policy_plays_a_question_of_the_data_and_the_gold_is_shown() {
    let shown = succeed(&mut sqlenv(&[
        "play", "--policy", "base", "--split", "eval",
    ]));
    assert!(shown.contains("orrect.\nGold answer: "), "{shown}");
}

/// A folder without data shows that none is opened or built.
#[test]
fn with_an_env_node_a_policy_needs_no_data() {
    let (_node, address) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let empty = tempfile::tempdir().unwrap();
    let mut play = sqlenv(&["play", "--policy", "base", "--split", "eval"]);
    let shown = succeed(play.args(["--env", &address]).current_dir(empty.path()));
    assert!(
        shown.contains("Answer: ") || shown.contains("No answer after"),
        "{shown}"
    );
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[test]
fn a_model_plays_without_naming_the_policy() {
    let missing = play(&["--model", "no-such-folder"]);
    let errors = text(&missing.stderr);
    assert!(
        errors.contains("no-such-folder: no such folder"),
        "{errors}"
    );
}
