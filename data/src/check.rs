//! A full check of a data folder: what a build or a download promises, verified from the files alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use crate::sql::{GoldDatabase, normalize};
use crate::{DataError, Dataset, Manifest, Question, Role, answer_from_rows};

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Databases opened and hashed.
    pub databases: usize,
    /// Questions whose gold SQL was run again.
    pub questions: usize,
    /// Questions that the loader left out.
    pub left_out: usize,
    /// Everything that is wrong, one line each.
    pub problems: Vec<String>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            databases,
            questions,
            left_out,
            problems,
        } = self;
        writeln!(
            f,
            "{databases} databases, {questions} questions checked, {left_out} left out, {} problems",
            problems.len()
        )?;
        problems
            .iter()
            .try_for_each(|problem| writeln!(f, "- {problem}"))
    }
}

/// Opens a folder with its hashes, runs every gold SQL again, and looks for questions that leak between splits.
///
/// # Errors
/// As [`Dataset::open`]; what is wrong with single questions is in the report.
pub fn check(dir: &Path, databases: Option<&[String]>) -> Result<CheckReport, DataError> {
    let dataset = Dataset::open(dir, databases)?;
    let mut problems = wrong_answers(&dataset)?;
    problems.extend(shared_queries(&dataset));
    if dir.join(crate::manifest::FILE_NAME).is_file() {
        problems.extend(misplaced(&dataset, &Manifest::read(dir)?));
    }
    Ok(CheckReport {
        databases: dataset.databases.len(),
        questions: dataset.questions.len(),
        left_out: dataset.left_out.len(),
        problems,
    })
}

fn wrong_answers(dataset: &Dataset) -> Result<Vec<String>, DataError> {
    let mut problems = Vec::new();
    for (name, file) in &dataset.databases {
        let database = GoldDatabase::open(&file.path)?;
        // Wordings of one query share its result.
        let mut results = BTreeMap::new();
        for question in dataset
            .questions
            .iter()
            .filter(|question| question.database_name == *name)
        {
            let result = results.entry(&question.gold_sql).or_insert_with(|| {
                database
                    .run(&question.gold_sql)
                    .and_then(|gold| answer_from_rows(&gold.rows))
            });
            match result {
                Ok((_, answer)) if *answer == question.gold_answer => {}
                Ok((_, answer)) => problems.push(format!(
                    "{}: the gold SQL now gives {answer}, the record says {}",
                    question.question_id, question.gold_answer
                )),
                Err(reason) => problems.push(format!("{}: {reason}", question.question_id)),
            }
        }
    }
    Ok(problems)
}

/// Questions of `split` whose query, on the same database and spelled alike up to white space and case of keywords, belongs
/// to a question of `train` too.
pub fn queries_in_train(dataset: &Dataset, split: &str) -> usize {
    let query = |question: &Question| {
        (
            question.database_name.clone(),
            normalize(&question.gold_sql),
        )
    };
    let trained: BTreeSet<_> = dataset.split("train").map(query).collect();
    let asked = dataset.split(split).map(query);
    asked.filter(|query| trained.contains(query)).count()
}

fn shared_queries(dataset: &Dataset) -> Vec<String> {
    let mut splits: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for question in &dataset.questions {
        let query = (
            question.database_name.as_str(),
            normalize(&question.gold_sql),
        );
        splits.entry(query).or_default().insert(&question.split);
    }
    let shared = splits.into_iter().filter(|(_, splits)| splits.len() > 1);
    shared
        .map(|((database, sql), splits)| format!("{database}: in the splits {splits:?}: {sql}"))
        .collect()
}

fn misplaced(dataset: &Dataset, manifest: &Manifest) -> Vec<String> {
    let roles: BTreeMap<&str, Role> = manifest
        .databases
        .iter()
        .map(|database| (database.name.as_str(), database.role))
        .collect();
    let is_misplaced = |question: &&Question| {
        let allowed: &[&str] = match roles.get(question.database_name.as_str()) {
            Some(Role::Known) => &["train", "eval"],
            Some(Role::UnseenDatabase) => &["eval-unseen/database"],
            Some(Role::UnseenDomain) => &["eval-unseen/domain"],
            None => &[],
        };
        !allowed.contains(&question.split.as_str())
    };
    let misplaced = dataset.questions.iter().filter(is_misplaced);
    misplaced
        .map(|question| {
            format!(
                "{}: its database does not belong in split {}",
                question.question_id, question.split
            )
        })
        .collect()
}
