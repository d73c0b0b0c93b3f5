//! Tests procedural databases: their bytes, their questions, and the words they use.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use data::{
    DataError, Dataset, ProceduralData, WordShare, build_procedural, check, sql_name::needs_quotes,
};

fn wanted(words: WordShare) -> ProceduralData {
    ProceduralData {
        seed: 7,
        first: 0,
        databases: 60,
        questions: 6,
        words,
        declared_percent: if words == WordShare::Training { 25 } else { 0 },
        messy_percent: 0,
        is_simple: false,
    }
}

fn built(dir: &Path, wanted: &ProceduralData) -> Dataset {
    build_procedural(dir, wanted, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Dataset::open(dir, None).unwrap()
}

/// Returns the names of all tables and columns.
fn names(dataset: &Dataset) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in dataset.databases.values() {
        let database = rusqlite::Connection::open(&file.path).unwrap();
        let sql = "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c";
        let mut statement = database.prepare(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            names.extend([row.get(0).unwrap(), row.get(1).unwrap()]);
        }
    }
    names
}

#[test]
fn the_same_numbers_give_the_same_bytes_and_other_numbers_give_others() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = ProceduralData {
        databases: 8,
        ..wanted(WordShare::Training)
    };
    let manifest = |name: &str, wanted: &ProceduralData| {
        let mut go_on = |_, _| ControlFlow::Continue(());
        build_procedural(&dir.path().join(name), wanted, &mut go_on).unwrap()
    };
    let first = manifest("a", &wanted);
    assert_eq!(first, manifest("b", &wanted));
    // A shard holds the databases that a larger build holds under the same numbers.
    let second_half = ProceduralData {
        first: 4,
        databases: 4,
        ..wanted
    };
    let half = manifest("c", &second_half);
    let databases = half
        .files
        .iter()
        .filter(|(name, _)| name.ends_with(".sqlite"));
    for (name, sha256) in databases {
        assert_eq!(first.files.get(name), Some(sha256), "{name}");
    }
    let other = ProceduralData { seed: 8, ..wanted };
    assert_ne!(first.files, manifest("d", &other).files);
}

#[test]
fn a_build_that_is_stopped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut done = Vec::new();
    let mut stop = |count, _| {
        done.push(count);
        ControlFlow::Break(())
    };
    let wanted = wanted(WordShare::Training);
    let stopped = build_procedural(&dir.path().join("data"), &wanted, &mut stop);
    assert!(matches!(stopped, Err(DataError::Stopped)), "{stopped:?}");
    assert_eq!(done, [1]);
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_build_passes_the_check_and_has_its_questions() {
    let dir = tempfile::tempdir().unwrap();
    for (words, split) in [
        (WordShare::Training, "train"),
        (WordShare::HeldOut, "eval-unseen/words"),
    ] {
        let dir = dir.path().join(split.replace('/', "-"));
        let dataset = built(&dir, &wanted(words));
        assert_eq!(check(&dir, None).unwrap().problems, [""; 0]);
        assert_eq!(dataset.split_names(), [split]);
        assert_eq!(dataset.databases.len(), 60);
        let questions = dataset.questions.len();
        assert!((300..=360).contains(&questions), "{questions} questions");
        let levels: BTreeSet<&str> = dataset
            .questions
            .iter()
            .map(|question| question.difficulty.as_str())
            .collect();
        assert!(levels.len() >= 4, "{levels:?}");
    }
}

/// As spreadsheets and messy schemas have them: blanks, hyphens, units and keywords.
#[test]
fn names_may_need_quotation_marks() {
    let dir = tempfile::tempdir().unwrap();
    let share = |messy_percent| {
        let wanted = ProceduralData {
            messy_percent,
            ..wanted(WordShare::HeldOut)
        };
        let dir = dir.path().join(messy_percent.to_string());
        let dataset = built(&dir, &wanted);
        assert_eq!(check(&dir, None).unwrap().problems, [""; 0]);
        assert!(dataset.questions.len() >= 300);
        let names = names(&dataset);
        let quoted: Vec<&String> = names.iter().filter(|it| needs_quotes(it)).collect();
        for part in [" ", "-", " (", "rder"] {
            let has_part = quoted.iter().any(|name| name.contains(part));
            assert_eq!(has_part, messy_percent > 0, "{part:?} in {quoted:?}");
        }
        let in_sql = |it: &&data::Question| it.gold_sql.contains('"');
        let questions = dataset.questions.iter().filter(in_sql).count();
        (quoted.len() as f64 / names.len() as f64, questions)
    };
    // SQLite takes some keywords as names without quotation marks.
    let (names, questions) = share(0);
    assert!(names < 0.01 && questions == 0, "{names} {questions}");
    let (names, questions) = share(100);
    assert!(names > 0.25 && questions > 150, "{names} {questions}");
}

/// Texts in all databases, and names in messy ones.
#[test]
fn a_part_has_letters_beyond_ascii() {
    let dir = tempfile::tempdir().unwrap();
    for messy_percent in [0, 100] {
        let wanted = ProceduralData {
            messy_percent,
            databases: 200,
            ..wanted(WordShare::HeldOut)
        };
        let dataset = built(&dir.path().join(messy_percent.to_string()), &wanted);
        let is_beyond = |it: &&data::Question| !it.question_text.is_ascii();
        let questions = dataset.questions.iter().filter(is_beyond).count();
        let percent = questions * 100 / dataset.questions.len();
        assert!((2..15).contains(&percent), "{percent} % of the questions");
        let names = names(&dataset);
        let beyond = names.iter().any(|name| !name.is_ascii());
        assert_eq!(beyond, messy_percent > 0);
    }
}

#[test]
fn a_simple_build_has_small_databases_and_simple_questions() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = ProceduralData {
        is_simple: true,
        declared_percent: 0,
        ..wanted(WordShare::Training)
    };
    let dataset = built(dir.path(), &wanted);
    assert!(
        dataset
            .questions
            .iter()
            .all(|it| ["level-0", "level-1"].contains(&&*it.difficulty))
    );
}

/// Keys and labels have the same names in all databases, some of them abbreviated.
#[test]
fn names_of_held_out_databases_do_not_occur_in_training() {
    let dir = tempfile::tempdir().unwrap();
    let training = built(&dir.path().join("training"), &wanted(WordShare::Training));
    let held_out = built(&dir.path().join("held-out"), &wanted(WordShare::HeldOut));
    let folded = |dataset: &Dataset| -> BTreeSet<String> {
        let names = names(dataset).into_iter();
        names
            .map(|name| name.to_lowercase().replace('_', ""))
            .collect()
    };
    let (training, held_out) = (folded(&training), folded(&held_out));
    let common = [
        "capt", "caption", "code", "cptn", "fullname", "id", "label", "name", "ncknm", "nickname",
        "tit", "title", "ttl",
    ];
    let shared = held_out.intersection(&training);
    let shared: Vec<&String> = shared
        .filter(|name| !common.contains(&name.as_str()))
        .collect();
    assert!(shared.is_empty(), "{shared:?} of {}", held_out.len());
    assert!(training.len() > 600, "{}", training.len());
}
