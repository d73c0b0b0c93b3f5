//! Tests with Spider's own files, if the folder `../shared/data/spider` exists beside the
//! workspace.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

use std::collections::BTreeSet;
use std::io::{Write as _, stderr};
use std::path::PathBuf;

use data::{AnswerType, Dataset};

/// Returns Spider's folder. Without it, says on stderr that the test is skipped: the harness hides
/// what a passing test prints.
fn spider() -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/spider");
    if !dir.is_dir() {
        let line = format!(
            "SKIPPED: a test of Spider's own files, because {} is not there\n",
            dir.display()
        );
        let _ = stderr().write_all(line.as_bytes());
    }
    dir.is_dir().then_some(dir)
}

#[test]
fn the_ten_databases_of_sqlenv_hold_676_questions() {
    let Some(dir) = spider() else { return };
    let dataset = Dataset::open(&dir, None).unwrap();
    assert_eq!(dataset.databases.len(), 10);
    // SQLEnv counts 676: 623 of Spider's dev file and 53 of its train file.
    assert_eq!(dataset.questions.len() + dataset.left_out.len(), 676);
    let asked_or_not = |name: &str| {
        dataset
            .questions
            .iter()
            .filter(|question| question.database_name == name)
            .count()
            + dataset
                .left_out
                .iter()
                .filter(|left_out| left_out.database_name == name)
                .count()
    };
    assert_eq!(asked_or_not("student_assessment"), 53);
    assert_eq!(asked_or_not("world_1"), 120);
    assert_eq!(dataset.split_names(), ["eval", "eval-unseen", "train"]);
    let unseen: BTreeSet<&str> = dataset
        .split("eval-unseen")
        .map(|q| q.database_name.as_str())
        .collect();
    assert_eq!(
        unseen,
        BTreeSet::from(["cre_Doc_Template_Mgt", "student_assessment"]),
        "the two that the hash holds out"
    );
    assert!(
        dataset
            .questions
            .iter()
            .all(|q| (q.split == "eval-unseen") == unseen.contains(&*q.database_name))
    );
}

#[test]
fn every_database_of_spider_opens() {
    let Some(dir) = spider() else { return };
    let dataset = Dataset::open(&dir, Some(&["all".to_owned()])).unwrap();
    assert_eq!(dataset.databases.len(), 133);
    assert_eq!(
        dataset.questions.len() + dataset.left_out.len(),
        5_634 + 623
    );
    assert!(
        dataset
            .questions
            .iter()
            .any(|question| question.answer_type == AnswerType::Table)
    );
}

#[test]
fn a_check_of_spider_is_clean() {
    let Some(dir) = spider() else { return };
    let report = data::check(&dir, None).unwrap();
    assert!(report.problems.is_empty(), "{report}");
}
