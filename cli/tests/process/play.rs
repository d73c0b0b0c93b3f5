//! Tests `sqlenv play`: by a person, and by a policy on a database of a user.

use std::{
    io::{BufRead as _, BufReader, Write as _, pipe},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rusqlite::Connection;

use crate::{
    outcomes::{fail, succeed},
    program::{serve, sqlenv},
};

const SCHEMA: &str = "
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
    INSERT INTO customers VALUES
        (1, 'Ada', 'Lima'), (2, 'Ben', 'Köln'), (3, 'Cy', 'Lima'), (4, 'Di', '北京'),
        (5, 'Ed', 'Köln'), (6, 'Flo', 'Köln');
";

fn play(args: &[&str]) -> Command {
    let mut command = sqlenv(&["play"]);
    command.args(args);
    command
}

/// Plays with these lines as the input, and returns what is shown.
fn typed(args: &[&str], lines: &str) -> String {
    let (input, mut keyboard) = pipe().unwrap();
    keyboard.write_all(lines.as_bytes()).unwrap();
    drop(keyboard);
    succeed(play(args).stdin(input))
}

/// Asserts that a text has these parts in this order.
fn assert_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let found = rest.split_once(part);
        (_, rest) = found.unwrap_or_else(|| panic!("no {part:?}, or too early, in\n{text}"));
    }
}

/// In the default reward profile an action that fails costs 0.02.
#[test]
fn a_person_plays_an_episode_to_its_end() {
    let wrong = typed(&[], "answer nothing\n");
    assert_order(&wrong, &["\nNot right. Return +0.000.\n", "Gold SQL: "]);
    let (_, gold) = wrong.split_once("\nGold answer: ").unwrap();
    let (gold, _) = gold.split_once('\n').unwrap();
    let lines = format!("\nhuh\nhelp\nsample x\nanswer {gold}\nnever read\n");
    let right = typed(&[], &lines);
    let gold = format!("\nGold answer: {gold}\n");
    let parts = [
        "\nAvailable tables:\n- ",
        "\n8 actions left\n",
        "\"huh\" is unknown",
        "Answers: one value",
        "Table 'x' not found",
        " · 7 actions left\n",
        "\nRight! Return +0.980.",
        &gold,
    ];
    assert_order(&right, &parts);
    assert!(!right.contains("\"never\""), "{right}");
}

/// In the profile `sqlenv-f003` an action that fails costs 0.005.
#[test]
fn the_budget_and_the_rewards_are_those_of_rollouts() {
    let settings = [
        "learner.rollout.step_budget=2",
        "learner.rollout.reward_profile=sqlenv-f003",
    ];
    let settings: Vec<&str> = settings.iter().flat_map(|it| ["--set", it]).collect();
    let shown = typed(&settings, "sample x\nselect 1\n");
    let cost = "reward -0.005 (operational -0.005) · 1 action left";
    assert_order(&shown, &["2 actions left", cost, "\nNot right. "]);
}

#[test]
fn leaving_tells_no_gold() {
    for lines in ["quit\n", "sample x\n"] {
        let shown = typed(&[], lines);
        assert!(
            shown.contains("\nLeft before the end.") && !shown.contains("Gold"),
            "{shown}"
        );
    }
}

#[test]
fn an_env_node_that_ends_before_the_episode_is_an_error() {
    let (node, address) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut player = play(&["--env", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(player.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with(" actions left")));
    drop(node);
    let keyboard = player.stdin.as_mut().unwrap();
    keyboard.write_all(b"sample x\n").unwrap();
    let ended = player.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    let refusal = "error: the environment refused the step: ";
    assert!(errors.contains(refusal), "{errors}");
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
        let asked = ["--policy", "base", "--database", database, "-q", question];
        let shown = succeed(&mut play(&asked));
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
    let asked = ["--policy", "base", "--database", database, "-q", question];
    let shown = succeed(&mut play(&asked));
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
    let failures: [(&[&str], &str); 8] = [
        (&["--database", "none.sqlite", "-q", ask], "no such file"),
        (&["--database", folder, "-q", ask], "sqlenv data import DIR"),
        (&["--database", &no_database, "-q", ask], "cannot be used"),
        (&["--database", &empty, "-q", ask], "cannot be used"),
        (
            &["--database", &busy, "-q", ask],
            "busy.sqlite-wal holds changes",
        ),
        (&["--database", &no_database, "-q", " "], "-q is empty"),
        (&["--question", "none"], "the data has no such question"),
        (&["--model", "x"], "--policy base is the embedded policy"),
    ];
    let wrong_flags: [(&[&str], &str); 2] = [
        (
            &["--database", &no_database, "-q", ask, "--data", "x"],
            "cannot be used with",
        ),
        (&["--database", &no_database], "--ask <QUESTION>"),
    ];
    for (code, cases) in [(1, &failures[..]), (2, &wrong_flags)] {
        for (args, wanted) in cases {
            let errors = fail(play(&["--policy", "base"]).args(*args), code);
            assert!(errors.contains(wanted), "{args:?}: {errors}");
        }
    }
    let errors = fail(&mut play(&["--database", &no_database, "-q", ask]), 1);
    assert!(errors.contains("--policy"), "{errors}");
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
    let errors = fail(&mut play(&["--model", "no-such-folder"]), 1);
    assert!(
        errors.contains("no-such-folder: no such folder"),
        "{errors}"
    );
}

#[test]
fn damage_of_a_file_is_told_beside_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut.sqlite");
    Connection::open(&file)
        .unwrap()
        .execute_batch(SCHEMA)
        .unwrap();
    let printed = || {
        let args = ["--policy", "base", "-q", "How many?", "--database"];
        let output = play(&args).arg(&file).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let whole = printed();
    assert!(!whole.contains("warning"), "{whole}");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 2_000]).unwrap();
    let cut = printed();
    assert!(
        cut.contains("warning: answers may be wrong: cut: the file is damaged"),
        "{cut}"
    );
}
