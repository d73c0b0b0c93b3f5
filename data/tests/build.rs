//! Tests a whole build: its bytes, its splits, and the properties of every question.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use data::{
    AnswerType, DEFAULT_SEED, DatabaseRole, Dataset, Manifest, Question, answer_text, build,
};
use sha2::{Digest, Sha256};

/// The SHA-256 of the manifest of the default seed, which contains the hash of every other file. It
/// changes with the domains, the grammar, the generator and the version of SQLite. After an
/// intended change, copy the new value from the message of this test, and raise `VERSION` in
/// `generator/mod.rs` if the change was in code.
const MANIFEST_SHA256: &str = "e6da74a5bec4ab76fa9b95885e71bbcb138accd2b2e74985dc8cbbaf85171f69";

struct Build {
    dir: tempfile::TempDir,
    manifest: Manifest,
    dataset: Dataset,
}

/// Returns one build for all tests that only read it.
fn shared() -> &'static Build {
    static BUILD: OnceLock<Build> = OnceLock::new();
    BUILD.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let manifest = build(&dir.path().join("data"), DEFAULT_SEED, &mut |_, _| {}).unwrap();
        let dataset = Dataset::open(&dir.path().join("data"), None).unwrap();
        Build {
            manifest,
            dataset,
            dir,
        }
    })
}

fn folder() -> PathBuf {
    shared().dir.path().join("data")
}

fn connection(name: &str) -> rusqlite::Connection {
    rusqlite::Connection::open(&shared().dataset.databases[name].path).unwrap()
}

fn count(connection: &rusqlite::Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path(), DEFAULT_SEED, &mut |_, _| {}).unwrap();
    let read = |folder: &Path, file: &str| std::fs::read(folder.join(file)).unwrap();
    for file in shared()
        .manifest
        .files
        .keys()
        .map(String::as_str)
        .chain(["manifest.json"])
    {
        assert!(
            read(dir.path(), file) == read(&folder(), file),
            "{file} differs between two builds"
        );
    }
    let found = hex::encode(Sha256::digest(read(dir.path(), "manifest.json")));
    assert_eq!(
        found, MANIFEST_SHA256,
        "the default data changed; see MANIFEST_SHA256"
    );
}

#[test]
fn another_seed_gives_other_data() {
    let dir = tempfile::tempdir().unwrap();
    let other = build(dir.path(), DEFAULT_SEED + 1, &mut |_, _| {}).unwrap();
    let shared = &shared().manifest;
    assert_eq!(other.recipe, shared.recipe);
    assert!(
        other
            .files
            .iter()
            .all(|(file, sha256)| shared.files[file] != *sha256)
    );
    let report = data::check(dir.path(), None).unwrap();
    assert!(report.problems.is_empty(), "{report}");
}

#[test]
fn a_check_is_clean() {
    let report = data::check(&folder(), None).unwrap();
    assert!(report.problems.is_empty(), "{report}");
    assert_eq!(report.dataset, shared().dataset);
}

#[test]
fn the_splits_are_as_large_as_promised() {
    let dataset = &shared().dataset;
    let size = |split: &str| dataset.split(split).count();
    assert!(size("train") >= 2_500, "{}", size("train"));
    assert!(size("eval") >= 400, "{}", size("eval"));
    assert!(
        size("eval-unseen/database") >= 300,
        "{}",
        size("eval-unseen/database")
    );
    assert!(
        size("eval-unseen/domain") >= 300,
        "{}",
        size("eval-unseen/domain")
    );
    assert_eq!(
        size("eval-unseen"),
        size("eval-unseen/database") + size("eval-unseen/domain")
    );
    assert_eq!(
        dataset.split_names(),
        [
            "eval",
            "eval-unseen/database",
            "eval-unseen/domain",
            "train"
        ]
    );
    assert_eq!(
        dataset
            .split_names()
            .iter()
            .map(|split| size(split))
            .sum::<usize>(),
        dataset.questions.len()
    );
}

#[test]
fn no_unseen_database_or_domain_leaks_into_training() {
    let Build {
        dataset, manifest, ..
    } = shared();
    let databases = |split| {
        dataset
            .split(split)
            .map(|q| q.database_name.as_str())
            .collect::<BTreeSet<_>>()
    };
    let role = |role| {
        manifest
            .databases
            .iter()
            .filter(|d| d.role == role)
            .map(|d| d.name.as_str())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(databases("train"), role(DatabaseRole::Known));
    assert_eq!(databases("eval"), role(DatabaseRole::Known));
    assert_eq!(
        databases("eval-unseen/database"),
        role(DatabaseRole::UnseenDatabase)
    );
    assert_eq!(
        databases("eval-unseen/domain"),
        role(DatabaseRole::UnseenDomain)
    );
    let domains = |role| {
        manifest
            .databases
            .iter()
            .filter(|d| d.role == role)
            .map(|d| &d.domain)
            .collect::<BTreeSet<_>>()
    };
    let [known, of_base, unseen] = [
        DatabaseRole::Known,
        DatabaseRole::UnseenDatabase,
        DatabaseRole::UnseenDomain,
    ]
    .map(domains);
    assert_eq!([known.len(), of_base.len(), unseen.len()], [3, 32, 6]);
    assert!(known.is_disjoint(&of_base) && known.is_disjoint(&unseen));
    assert!(of_base.is_disjoint(&unseen));
}

/// Most questions have levels 1 and 2, which a small policy can learn.
#[test]
fn levels_and_answer_types_are_mixed() {
    let train: Vec<&Question> = shared().dataset.split("train").collect();
    let share = |fits: &dyn Fn(&Question) -> bool| {
        100.0 * train.iter().filter(|question| fits(question)).count() as f64 / train.len() as f64
    };
    let bounds = [
        ("level-0", 0.5, 2.0),
        ("level-1", 29.0, 36.0),
        ("level-2", 28.0, 35.0),
        ("level-3", 18.0, 26.0),
        ("level-4", 10.0, 17.0),
    ];
    for (level, low, high) in bounds {
        let share = share(&|question| question.difficulty == level);
        assert!((low..=high).contains(&share), "{level}: {share}");
    }
    for answer_type in [
        AnswerType::Integer,
        AnswerType::Float,
        AnswerType::String,
        AnswerType::List,
        AnswerType::Table,
    ] {
        assert!(
            share(&|question| question.answer_type == answer_type) >= 1.0,
            "{answer_type:?}"
        );
    }
}

#[test]
fn every_question_is_whole_and_its_answer_can_be_written() {
    for question in &shared().dataset.questions {
        let id = &question.question_id;
        let short = question
            .split
            .split('/')
            .next()
            .unwrap()
            .trim_start_matches("eval-");
        assert!(
            id.starts_with(&format!("{}_{short}_", question.database_name)),
            "{id} in {}",
            question.split
        );
        assert!(
            question.question_text.ends_with(['?', '.']),
            "{id}: {}",
            question.question_text
        );
        assert!(
            !question.question_text.contains(['{', '}', '_']),
            "{id}: {}",
            question.question_text
        );
        assert!(
            question
                .question_text
                .starts_with(|first: char| first.is_uppercase()),
            "{id}"
        );
        assert!(!question.tables_involved.is_empty(), "{id}");
        let text = answer_text(question);
        assert!(!text.trim().is_empty() && text.len() < 300, "{id}: {text}");
        assert!(!text.starts_with(['[', '"']), "{id}: {text}");
        if let Some(rows) = question.gold_answer.as_array() {
            assert!((1..=5).contains(&rows.len()), "{id}");
            let separators = if question.answer_type == AnswerType::Table {
                "\n"
            } else {
                ", "
            };
            assert_eq!(text.split(separators).count(), rows.len(), "{id}: {text}");
        }
    }
}

#[test]
fn a_text_asks_for_one_query_and_a_query_has_several_texts() {
    let mut queries: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    let mut texts: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for question in &shared().dataset.questions {
        let database = &question.database_name;
        queries
            .entry((database, &question.question_text))
            .or_default()
            .insert(&question.gold_sql);
        texts
            .entry((database, &question.gold_sql))
            .or_default()
            .insert(&question.question_text);
    }
    for (text, queries) in queries {
        assert_eq!(queries.len(), 1, "{text:?} asks for {queries:?}");
    }
    for (query, texts) in texts {
        assert!((2..=4).contains(&texts.len()), "{query:?}: {texts:?}");
    }
}

#[test]
fn the_databases_have_the_quirks_of_real_ones() {
    let warehouse = connection("warehouse");
    assert!(
        count(
            &warehouse,
            "SELECT count(*) FROM putaways WHERE forklift_id IS NULL"
        ) > 0,
        "nulls"
    );
    let top = "SELECT count(*) FROM putaways GROUP BY ramp ORDER BY 1 DESC LIMIT 1";
    assert!(
        count(&warehouse, top) * 4 > count(&warehouse, "SELECT count(*) FROM putaways"),
        "a skewed category"
    );
    let most = count(
        &warehouse,
        "SELECT count(*) FROM putaways GROUP BY ware_id ORDER BY 1 DESC LIMIT 1",
    );
    assert!(most > 10, "uneven fan-out: {most}");
    assert!(
        count(
            &warehouse,
            "SELECT count(*) FROM wares WHERE ware_id NOT IN (SELECT ware_id FROM putaways)"
        ) > 0
    );
    assert_eq!(
        count(
            &warehouse,
            "SELECT count(*) FROM wares WHERE bulk_dm3 IS NOT NULL AND typeof(bulk_dm3) <> 'text'"
        ),
        0
    );
    let cases =
        "SELECT count(DISTINCT (hazmat = upper(hazmat)) + 2 * (hazmat = lower(hazmat))) FROM wares";
    assert!(count(&warehouse, cases) > 1, "mixed case");
    let keys = "SELECT count(*) FROM sqlite_schema s, pragma_table_info(s.name) WHERE pk > 1";
    assert!(count(&connection("gym_2"), keys) > 0, "a composite key");
    let mut databases = shared().manifest.databases.iter();
    assert!(databases.any(|it| it.rows >= 100_000), "a large table");
    for name in shared().dataset.databases.keys() {
        assert_eq!(
            count(
                &connection(name),
                "SELECT count(*) FROM pragma_foreign_key_check"
            ),
            0,
            "{name}: dangling keys"
        );
    }
}

#[test]
fn an_equal_build_is_reused_and_an_altered_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("deep/data");
    let mut steps = Vec::new();
    let first = build(&out, 5, &mut |done, total| steps.push((done, total))).unwrap();
    assert_eq!(steps.len(), first.databases.len());
    assert!(
        steps
            .iter()
            .enumerate()
            .all(|(index, step)| *step == (index + 1, steps.len()))
    );
    let second = build(&out, 5, &mut |_, _| panic!("an equal build is there")).unwrap();
    assert_eq!(first, second);

    let file = out.join("questions/eval.jsonl");
    std::fs::write(&file, "").unwrap();
    let error = Dataset::open(&out, None).unwrap_err().to_string();
    assert!(
        error.contains("eval.jsonl: altered") && error.contains("sqlenv data build"),
        "{error}"
    );
    let mut steps = 0;
    assert_eq!(build(&out, 5, &mut |_, _| steps += 1).unwrap(), first);
    assert!(steps > 0 && Dataset::open(&out, None).is_ok());
}

#[test]
fn a_selection_of_databases_opens_alone() {
    let names = ["farm".to_owned(), "warehouse".to_owned()];
    let dataset = Dataset::open(&folder(), Some(&names)).unwrap();
    assert_eq!(
        dataset.databases.keys().collect::<Vec<_>>(),
        ["farm", "warehouse"]
    );
    assert!(
        dataset
            .questions
            .iter()
            .all(|question| names.contains(&question.database_name))
    );
    let error = Dataset::open(&folder(), Some(&["libary".to_owned()]))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`libary`") && error.contains("airline"),
        "{error}"
    );
}

#[test]
fn a_foreign_folder_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("thesis");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("chapter.txt"), "years of work").unwrap();
    // A manifest of another program.
    std::fs::write(out.join("manifest.json"), "{\"name\": \"thesis\"}").unwrap();
    let error = build(&out, 1, &mut |_, _| {}).unwrap_err().to_string();
    assert!(
        error.contains("thesis") && error.contains("not an earlier build"),
        "{error}"
    );
    assert!(out.join("chapter.txt").is_file());
    let entries = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(entries, 1, "nothing is left beside it");
}

/// A user may link a data folder to a larger disk.
#[test]
fn a_link_stays_and_its_folder_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let [real, link] = ["disk/real", "link"].map(|name| dir.path().join(name));
    std::fs::create_dir_all(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    build(&link, 1, &mut |_, _| {}).unwrap();
    assert!(link.is_symlink() && real.join("manifest.json").is_file());
    for folder in [dir.path(), &dir.path().join("disk")] {
        let names = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(names, if folder == dir.path() { 2 } else { 1 });
    }
}

#[test]
fn a_path_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = build(&file.join("data"), 1, &mut |_, _| {}).unwrap_err();
    let message = error.to_string();
    for part in ["file", "cannot create", "choose another folder"] {
        assert!(message.contains(part), "{message}");
    }
    // The message contains the cause, so a source would repeat it.
    assert!(std::error::Error::source(&error).is_none());
}
