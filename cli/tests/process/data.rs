//! Imports, checks and describes data as a user does.

use std::{fs, path::Path, process::Output};

use crate::{
    outcomes::{fail, succeed},
    program::sqlenv,
};

fn run(args: &[&str]) -> Output {
    sqlenv(args).output().unwrap()
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}

/// Runs a command that succeeds.
fn printed_by(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output));
    text(&output)
}

/// Runs a command that finds a problem.
fn complaint(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output));
    assert!(!text(&output).contains("panicked"), "{}", text(&output));
    text(&output)
}

fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text}\nlacks {part}");
    }
}

/// The worked example of `docs/data.md`, whose output the page shows.
#[test]
fn the_worked_example_runs_as_the_page_says() {
    let dir = tempfile::tempdir().unwrap();
    let [out, left_out] =
        ["data", "left.jsonl"].map(|it| dir.path().join(it).to_str().unwrap().to_owned());
    let import = [
        "data",
        "import",
        &out,
        "--database",
        "data/examples/bookshop.sql",
        "data/examples/sensors",
        "--questions",
        "data/examples/questions.csv",
        "--left-out",
        &left_out,
    ];
    let imported = printed_by(&import);
    let page = include_str!("../../../docs/data.md");
    let shown = page
        .split("\n```\n")
        .find(|it| it.starts_with("bookshop: "))
        .unwrap();
    assert_parts(&imported, &shown.lines().collect::<Vec<_>>());
    let line = fs::read_to_string(&left_out).unwrap();
    let line: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    assert_eq!(
        (&line["index"], &line["database_name"]),
        (&6.into(), &"bookshop".into())
    );
    assert_parts(
        &printed_by(&["data", "check", &out]),
        &["2 databases, 10 questions", "0 problems"],
    );
    assert_parts(
        &printed_by(&["data", "list", &out]),
        &["bookshop: eval 3, train 3", "sensors: train 4"],
    );
    let listed = printed_by(&[
        "data",
        "list",
        &out,
        "--questions",
        "--databases",
        "sensors",
    ]);
    assert_eq!(listed.lines().count(), 4, "{listed}");
    assert!(
        listed
            .lines()
            .all(|line| line.starts_with("sensors_train_")),
        "{listed}"
    );
    let id = listed.split('\t').next().unwrap();
    let played = ["play", "--policy", "base", "--data", &out, "--question", id];
    assert_parts(&printed_by(&played), &["Gold SQL: "]);
    let one = ["data", "stats", &out, "--databases", "sensors"];
    assert_parts(&printed_by(&one), &["4 questions, 1 databases"]);
    let evaluated = [
        "eval", "--policy", "oracle", "--split", "eval", "--data", &out,
    ];
    assert_parts(&printed_by(&evaluated), &["100.0"]);
}

/// Writes a folder of Spider's layout with one good record, and others.
fn spider(dir: &Path, others: &[(&str, &str)]) -> String {
    let folder = dir.join("spider");
    let database = folder.join("database/pets");
    fs::create_dir_all(&database).unwrap();
    let connection = rusqlite::Connection::open(database.join("pets.sqlite")).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE pets (name TEXT); CREATE TABLE notes (text TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 4000)
             INSERT INTO notes SELECT 'note number ' || i FROM n; INSERT INTO pets VALUES ('Rex')",
        )
        .unwrap();
    let good = ("How many pets?", "SELECT count(*) FROM pets");
    let record = |(question, query): &(&str, &str)| serde_json::json!({"db_id": "pets", "question": question, "query": query});
    let records: Vec<_> = [good].iter().chain(others).map(record).collect();
    fs::write(
        folder.join("dev.json"),
        serde_json::Value::from(records).to_string(),
    )
    .unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn checks_and_counts_tell_the_truth() {
    let dir = tempfile::tempdir().unwrap();
    let empty = ("Which cat?", "SELECT name FROM pets WHERE name = 'Tom'");
    let folder = spider(dir.path(), &[empty]);
    let databases = ["--databases", "all"];
    for command in ["check", "stats"] {
        let args = [&["data", command, &folder], &databases[..]].concat();
        assert_parts(&printed_by(&args), &["the gold SQL returns no row"]);
    }
    let list = ["data", "list", &folder, "--left-out", "/dev/stdout"];
    let listed = printed_by(&[&list[..], &databases].concat());
    assert_parts(&listed, &["{\"file\":", "pets: "]);
    let wrong = ("Who?", "SELECT nme FROM pets");
    spider(&dir.path().join("wrong"), &[empty, wrong]);
    let folder_wrong = dir.path().join("wrong/spider");
    let folder_wrong = folder_wrong.to_str().unwrap();
    for command in ["check", "stats"] {
        let args = [&["data", command, folder_wrong], &databases[..]].concat();
        assert_parts(
            &complaint(&args),
            &["dev.json[2] on pets", "no such column: nme", "correct"],
        );
    }
    let path = Path::new(&folder).join("database/pets/pets.sqlite");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    for command in ["check", "stats"] {
        let args = [&["data", command, &folder], &databases[..]].concat();
        let told = complaint(&args);
        assert_parts(&told, &["pets: the file is damaged", "pets.sqlite"]);
        // The environment would say so, too.
        assert!(!told.contains("build or copy it again"), "{told}");
    }
}

#[test]
fn imports_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("data");
    let out = out.to_str().unwrap();
    for (place, parts) in [
        ("README.md", &["README.md", "neither a SQLite file"][..]),
        ("/nowhere/a.db", &["/nowhere/a.db", "check the path"]),
        ("data/examples/questions.csv", &["questions.csv", "folder"]),
        ("docs", &["docs", "no .csv or .tsv file"]),
    ] {
        let import = ["data", "import", out, "--database", place];
        assert_parts(&fail(&mut sqlenv(&import), 1), parts);
        assert!(!Path::new(out).exists(), "{place}");
    }
    let database = dir.path().join("endless.db");
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (x); INSERT INTO t VALUES (1); CREATE VIEW v AS WITH RECURSIVE n(i) AS \
             (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        )
        .unwrap();
    let database = database.to_str().unwrap();
    assert_parts(
        &printed_by(&["data", "import", out, "--database", database]),
        &["view v is left out: it cannot be read (spends more than"],
    );
    printed_by(&["data", "check", out]);
}

/// `train` builds the project's data at `data/build` by itself.
#[test]
fn data_of_another_command_are_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let run = |command: &str| {
        let args: Vec<&str> = command.split(' ').collect();
        let mut command = sqlenv(&args);
        command.current_dir(dir.path());
        command
    };
    let procedural = "data procedural --databases 1 --questions 1 --out data/build";
    succeed(&mut run(procedural));
    for (command, remedy) in [
        (
            "train",
            "holds data of `sqlenv data procedural`; use it by --data",
        ),
        ("data build", "names procedural); choose another folder"),
    ] {
        assert_parts(&fail(&mut run(command), 1), &["data/build", remedy]);
    }
    succeed(&mut run(procedural));
}
