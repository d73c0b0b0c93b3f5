//! Tests drafting on a database with odd names, and on Spider's databases if they are there.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

use std::collections::BTreeSet;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};

use data::{DataError, DatabaseSource, Dataset, DraftReport, DraftSettings, draft};

/// A cellar: keywords, blanks, no declared key, a view, free text, BLOBs and an empty table.
const SCHEMA: &str = r#"
    CREATE TABLE "Order" ("order" INTEGER PRIMARY KEY, "Total Price (EUR)" REAL, "group" TEXT,
        "date placed" TEXT, "is paid" INTEGER, "from" TEXT, internal_token TEXT);
    CREATE TABLE "bottle kinds" ("kind no" INTEGER, "kind name" TEXT, "Grape/Variety" TEXT,
        "Vintage Year" INTEGER, "alcohol %" REAL, "bottles in stock" INTEGER, notes TEXT,
        photo BLOB, "wine maker no" INTEGER, "hidden ref id" INTEGER);
    CREATE TABLE "wineMakers" (makerNo INTEGER, makerName TEXT, "home region" TEXT, hectares REAL);
    CREATE TABLE "Tasting-Events" ("event id" TEXT, "event title" TEXT, held_on TEXT,
        "guest count" INTEGER, city TEXT);
    CREATE TABLE "poured at" ("event id" TEXT, "kind no" INTEGER, glasses INTEGER);
    CREATE TABLE guests (guest_id INTEGER PRIMARY KEY, first_name TEXT, last_name TEXT, age INT);
    CREATE TABLE "empty one" (a, b);
    CREATE VIEW "paid orders" AS SELECT * FROM "Order" WHERE "is paid" = 1;
"#;

/// Fills the cellar by recurrences, so that the rows are the same everywhere.
const ROWS: &str = r#"
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
    INSERT INTO "Order" SELECT i + 1, 10 + (i * 7919 % 890) / 1.0, substr('retailtrade ', i % 2 * 6 + 1, 6),
        printf('20%d-%02d-%02d', 19 + i % 5, 1 + i * 7 % 12, 1 + i * 11 % 28), i * 13 % 3 = 0,
        substr('web  shop phone', i % 3 * 5 + 1, 5), hex(i * 99991) FROM n;
    UPDATE "Order" SET "group" = trim("group"), "from" = trim("from");
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 12)
    INSERT INTO "wineMakers" SELECT i + 1, 'Maker ' || substr('ABCDEFGHIJKL', i + 1, 1) || 'x',
        substr('MoselRiojaDouro', i * 5 % 15 + 1, 5), 3 + i * 37 % 80 + 0.5 FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 40)
    INSERT INTO "bottle kinds" SELECT 100 + i, 'Slope ' || char(65 + i % 26) || (i / 26),
        substr('RieslingFurmint Muscat  ', i * 8 % 24 + 1, 8), 2005 + i * 5 % 17,
        9 + i * 31 % 60 / 10.0, i * 83 % 400, 'a very long note that nobody looks for at all, ' || i,
        zeroblob(3), 1 + i * i % 12, 5000 + i % 7 FROM n;
    UPDATE "bottle kinds" SET "Grape/Variety" = trim("Grape/Variety");
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 15)
    INSERT INTO "Tasting-Events" SELECT printf('EV-%03d', i), 'Fair ' || char(65 + i),
        printf('20%d-%02d-10', 19 + i % 5, 1 + i % 12), 5 + i * 17 % 75,
        substr('Trier Lisbon', i % 2 * 6 + 1, 6) FROM n;
    UPDATE "Tasting-Events" SET city = trim(city);
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 80)
    INSERT INTO "poured at" SELECT printf('EV-%03d', i * 3 % 14), 100 + i * i % 37, 2 + i * 41 % 58
        FROM n;
    INSERT INTO guests VALUES (1, 'Ann', 'Lee', 30), (2, 'Ann', 'Poe', 41), (3, 'Bo', 'Lee', 25),
        (4, 'Cy', 'Fox', 63), (5, 'Di', 'Poe', 35), (6, 'Bo', 'Fox', 52);
"#;

struct Cellar {
    dir: tempfile::TempDir,
}

impl Cellar {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cellar = Self { dir };
        let connection = rusqlite::Connection::open(cellar.file()).unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        connection.execute_batch(ROWS).unwrap();
        cellar
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("wine cellar.db")
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn words(&self, text: &str) {
        let path = self.dir.path().join("wine cellar.words.toml");
        std::fs::write(path, text).unwrap();
    }

    fn draft(&self, seed: u64, count: usize) -> Result<DraftReport, DataError> {
        let settings = settings(vec![self.file()], seed, count);
        draft(&self.out(), &settings, &mut |_| {})
    }

    fn dataset(&self) -> Dataset {
        Dataset::open(&self.out(), None).unwrap()
    }
}

fn settings(files: Vec<PathBuf>, seed: u64, count: usize) -> DraftSettings {
    try_settings(files, seed, count).unwrap()
}

fn try_settings(files: Vec<PathBuf>, seed: u64, count: usize) -> Result<DraftSettings, DataError> {
    let sources = files
        .into_iter()
        .map(|it| DatabaseSource::parse(it.to_str().unwrap()));
    Ok(DraftSettings {
        databases: sources.collect::<Result<_, _>>()?,
        words: None,
        seed,
        count,
        licence: "NOASSERTION".to_owned(),
    })
}

fn texts(dataset: &Dataset) -> Vec<&str> {
    let questions = dataset.questions.iter();
    questions.map(|it| it.question_text.as_str()).collect()
}

#[test]
fn a_database_that_nobody_has_seen_is_drafted() {
    let cellar = Cellar::new();
    let report = cellar.draft(1, 200).unwrap();
    let [database] = report.databases.as_slice() else {
        panic!("{report}");
    };
    assert_eq!(
        (database.tables, database.inferred_keys),
        (6, 3),
        "{report}"
    );
    assert!(database.questions() >= 180, "{report}");
    let levels = database.levels();
    assert!(
        levels[0] >= 3 && levels[1..].iter().all(|level| *level >= 30),
        "{report}"
    );
    for note in [
        "view paid orders is left out: only plain tables are asked about",
        "table empty one is left out: it has no rows",
        "key inferred: poured at.kind no refers to bottle kinds",
        "bottle kinds.notes is free text",
        "bottle kinds.hidden ref id is an id that refers to no table",
        "Order.internal_token is a secret",
    ] {
        assert!(
            database.notes.iter().any(|it| it == note),
            "{note}: {report}"
        );
    }
    let checked = data::check(&cellar.out(), None).unwrap();
    assert!(checked.problems.is_empty(), "{checked}");
    let dataset = cellar.dataset();
    for split in ["train", "eval"] {
        let levels = dataset.split(split).map(|it| it.difficulty.clone());
        let levels: BTreeSet<String> = levels.collect();
        assert!(levels.len() >= 4, "{split} has only {levels:?}");
    }
}

#[test]
fn questions_name_no_secret_no_free_text_and_join_along_keys() {
    let cellar = Cellar::new();
    cellar.draft(2, 200).unwrap();
    let dataset = cellar.dataset();
    for question in &dataset.questions {
        let sql = &question.gold_sql;
        for hidden in [
            "notes",
            "photo",
            "hidden ref",
            "internal_token",
            "paid orders",
        ] {
            assert!(!sql.contains(hidden), "{sql}");
        }
        for join in sql.split("JOIN ").skip(1) {
            let keys = [
                "\"Tasting-Events\" USING (\"event id\")",
                "\"bottle kinds\" USING (\"kind no\")",
                "wineMakers ON \"bottle kinds\".\"wine maker no\" = wineMakers.makerNo",
            ];
            assert!(keys.iter().any(|key| join.starts_with(key)), "{sql}");
        }
    }
    let texts = texts(&dataset);
    let distinct: BTreeSet<&&str> = texts.iter().collect();
    assert_eq!(distinct.len(), texts.len(), "no text asks for two queries");
    let find = |part: &str| texts.iter().any(|text| text.contains(part));
    assert!(
        find("alcohol percentage") && find("number of guests"),
        "{texts:#?}"
    );
    assert!(
        find("full name") && !find("Group") && !find("{"),
        "{texts:#?}"
    );
}

/// Blanks and placeholders are no values.
#[test]
fn texts_that_stand_for_a_missing_value_are_neither_counted_nor_answers() {
    let cellar = Cellar::new();
    let connection = rusqlite::Connection::open(cellar.file()).unwrap();
    let blank = "UPDATE \"Tasting-Events\" SET city = ";
    let blanks = [
        format!("{blank} '' WHERE rowid % 5 = 0"),
        format!("{blank} 'N/A' WHERE rowid % 5 = 1"),
    ];
    connection.execute_batch(&blanks.join(";")).unwrap();
    cellar.draft(3, 300).unwrap();
    let dataset = cellar.dataset();
    let mut cities = 0;
    for question in dataset
        .questions
        .iter()
        .filter(|it| it.gold_sql.contains("city"))
    {
        cities += 1;
        let (sql, answer) = (&question.gold_sql, question.gold_answer.to_string());
        assert!(
            !sql.contains("DISTINCT city") && !sql.contains("GROUP BY city"),
            "{sql}"
        );
        assert!(
            !answer.contains("N/A") && !answer.contains("\"\""),
            "{sql}: {answer}"
        );
    }
    assert!(cities > 0, "no question is about a city");
}

/// A draft is replaced, but nothing that a user put into its folder.
#[test]
fn files_of_a_user_in_the_folder_are_kept() {
    let cellar = Cellar::new();
    cellar.draft(1, 20).unwrap();
    let notes = cellar.out().join("notes.txt");
    std::fs::write(&notes, "mine").unwrap();
    let fault = cellar.draft(2, 20).unwrap_err().to_string();
    assert!(
        fault.contains("notes.txt") && fault.contains("move it away"),
        "{fault}"
    );
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
    std::fs::remove_file(&notes).unwrap();
    let questions = cellar.out().join("questions/train.jsonl");
    let corrected = std::fs::read_to_string(&questions).unwrap() + "\n";
    std::fs::write(&questions, &corrected).unwrap();
    let fault = cellar.draft(2, 20).unwrap_err().to_string();
    assert!(fault.contains("train.jsonl"), "{fault}");
    assert_eq!(std::fs::read_to_string(&questions).unwrap(), corrected);
}

#[test]
fn the_same_seed_drafts_the_same_bytes_and_another_seed_others() {
    let cellar = Cellar::new();
    let manifest = || {
        let path = cellar.out().join("manifest.json");
        std::fs::read_to_string(path).unwrap()
    };
    cellar.draft(1, 60).unwrap();
    let first = manifest();
    cellar.draft(2, 60).unwrap();
    let other = manifest();
    cellar.draft(1, 60).unwrap();
    assert_eq!(manifest(), first);
    assert_ne!(other, first);
}

#[test]
fn words_beside_the_database_are_used() {
    let cellar = Cellar::new();
    cellar.words(
        r#"
        [tables.winemakers]
        one = "winery"
        many = "wineries"
        columns."home region" = { says = "from {}", also = ["area"] }
        columns.hectares = { skip = true }
        [tables."poured at"]
        skip = true
        [tables.guests]
        one = "visitor"
        also = ["patron"]
        "#,
    );
    let report = cellar.draft(1, 300).unwrap();
    let dataset = cellar.dataset();
    let texts = texts(&dataset);
    let find = |part: &str| texts.iter().any(|text| text.contains(part));
    for part in ["wineries", " from ", "visitor", "patron"] {
        assert!(find(part), "{part}: {texts:#?}");
    }
    for part in ["wine maker", "hectares", "poured"] {
        assert!(!find(part), "{part}: {texts:#?}");
    }
    let notes = &report.databases[0].notes;
    let note = "table poured at is left out: the file of words skips it";
    assert!(notes.iter().any(|it| it == note), "{notes:#?}");
}

#[test]
fn what_cannot_be_drafted_is_refused_with_a_remedy() {
    let cellar = Cellar::new();
    let refusal = |files: &[&Path], parts: &[&str]| {
        let files = files.iter().map(|it| it.to_path_buf()).collect();
        let drafted = try_settings(files, 1, 10)
            .and_then(|settings| draft(&cellar.out(), &settings, &mut |_| {}));
        let text = drafted.unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!cellar.out().exists(), "nothing is written");
    };
    let file = |name: &str| cellar.dir.path().join(name);
    refusal(&[&file("nowhere.db")], &["nowhere.db", "check the path"]);
    std::fs::write(file("text.db"), "no database, but a text of some length").unwrap();
    refusal(
        &[&file("text.db")],
        &["text.db", "neither a SQLite file nor"],
    );
    std::fs::write(file("dump.sql"), "CREATE TABLE t (a);").unwrap();
    refusal(
        &[&file("dump.sql")],
        &["dump.sql", "is a SQL dump", "sqlenv data import"],
    );
    let mut bytes = std::fs::read(cellar.file()).unwrap();
    let length = bytes.len();
    bytes[4096..length - 4096].fill(0xa5);
    std::fs::write(file("broken.db"), bytes).unwrap();
    refusal(
        &[&file("broken.db")],
        &["/broken.db: the database is damaged", ".recover"],
    );
    rusqlite::Connection::open(file("void.db"))
        .unwrap()
        .execute_batch("CREATE TABLE t (a)")
        .unwrap();
    refusal(
        &[&file("void.db")],
        &["no question could be drafted", "table t is left out"],
    );
    std::fs::create_dir(file("other")).unwrap();
    let twin = file("other").join("Wine Cellar.db");
    std::fs::copy(cellar.file(), &twin).unwrap();
    refusal(
        &[&cellar.file(), &twin],
        &["the same name `Wine Cellar`", "NAME=PLACE"],
    );
    refusal(&[], &["name a SQLite file"]);
    cellar.words("[tables.guests]\nonne = \"x\"");
    let parts = ["wine cellar.words.toml: line 2", "`onne`", "one of `one`"];
    refusal(&[&cellar.file()], &parts);
    std::fs::write(file("wine cellar.words.toml"), b"\xff\xfe[\0").unwrap();
    let parts = ["wine cellar.words.toml", "UTF-16", "save the file as UTF-8"];
    refusal(&[&cellar.file()], &parts);
}

#[test]
fn databases_of_spider_are_drafted() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/spider/database");
    if !dir.is_dir() {
        let line = "SKIPPED: a test of Spider's databases, because they are not there\n";
        let _ = stderr().write_all(line.as_bytes());
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let names = [
        "concert_singer",
        "dog_kennels",
        "hospital_1",
        "student_assessment",
    ];
    let files = names.map(|name| dir.join(name).join(format!("{name}.sqlite")));
    let settings = settings(files.to_vec(), 1, 60);
    let report = draft(&out.path().join("data"), &settings, &mut |_| {}).unwrap();
    for database in &report.databases {
        assert!(database.questions() >= 50, "{report}");
        let integers = database.answer_types()[&data::AnswerType::Integer];
        assert!(integers * 2 < database.questions(), "{report}");
    }
    let checked = data::check(&out.path().join("data"), None).unwrap();
    assert!(checked.problems.is_empty(), "{checked}");
}

/// Views of an untrusted file may be broken, endless, or use each other.
#[test]
fn unreadable_views_are_reported_and_the_rest_is_drafted() {
    let cellar = Cellar::new();
    let connection = rusqlite::Connection::open(cellar.file()).unwrap();
    connection
        .execute_batch(
            "CREATE VIEW lost AS SELECT * FROM nowhere; CREATE VIEW follows AS SELECT * FROM lost;
             CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
             SELECT i FROM n;
             CREATE TABLE photos (id INTEGER PRIMARY KEY, name TEXT, photo BLOB);
             INSERT INTO photos VALUES (1, CAST(x'e9' AS TEXT), zeroblob(3000000));
             CREATE VIEW shown AS SELECT * FROM photos; CREATE VIEW names AS SELECT name FROM photos",
        )
        .unwrap();
    drop(connection);
    let before = std::fs::read(cellar.file()).unwrap();
    let report = cellar.draft(1, 20).unwrap();
    let notes = &report.databases[0].notes;
    for (view, reason) in [
        ("lost", "no such table"),
        ("follows", "no such table"),
        ("endless", "instructions"),
        ("shown", "(makes a cell of more than"),
    ] {
        let start = format!("view {view} is left out: it cannot be read ");
        let is_it = |it: &&String| it.starts_with(&start) && it.contains(reason);
        assert!(notes.iter().any(|it| is_it(&it)), "{view}: {notes:#?}");
    }
    assert_eq!(std::fs::read(cellar.file()).unwrap(), before);
    let copy = cellar
        .out()
        .join("databases/wine cellar/wine cellar.sqlite");
    let copy = rusqlite::Connection::open(copy).unwrap();
    let views = "SELECT group_concat(name) FROM sqlite_master WHERE type = 'view'";
    let views: String = copy.query_row(views, [], |row| row.get(0)).unwrap();
    assert_eq!(views, "paid orders,names", "agents can read odd text");
}

/// A count that no database has ends when nothing new is drawn, and says how far it is.
#[test]
fn a_huge_count_ends_and_shows_its_progress() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("small.db");
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, age INTEGER);
             INSERT INTO t VALUES (1, 20), (2, 33), (3, 41), (4, 58), (5, 58)",
        )
        .unwrap();
    let mut seen = Vec::new();
    let settings = settings(vec![file], 1, 10_000_000);
    let report = draft(&dir.path().join("out"), &settings, &mut |at| {
        seen.push((at.databases, at.questions));
    })
    .unwrap();
    let kept = report.databases[0].questions();
    assert!(kept > 10, "{report}");
    assert!(seen.len() > kept && seen.is_sorted(), "{seen:?}");
    assert!(seen.len() < 10_000, "it goes on: {}", seen.len());
    assert_eq!(seen.last(), Some(&(1, 0)));
}
