//! Checks a data folder completely, from its files alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::gold::of_gold_sql;
use crate::integrity::faults_and_damaged;
use crate::sql::{GoldDatabase, SHOWN_ROWS};
use crate::sql_text;
use crate::{DataError, DatabaseRole, Dataset, Manifest, Question, answer_from_rows};

/// The number of left-out questions that the text of a report names.
const LISTED_LEFT_OUT: usize = 5;

/// The result of a check.
#[derive(Debug)]
pub struct CheckReport {
    /// What was checked: databases that were opened and hashed, questions whose gold SQL was run
    /// again, and those that the loader left out.
    pub dataset: Dataset,
    /// The databases that are damaged, by name. No gold SQL was run on them: it might never end.
    pub damaged: BTreeSet<String>,
    /// All problems, one line each.
    pub problems: Vec<String>,
    /// What makes questions hard to answer or to reward, one line for each database and cause.
    pub notes: Vec<String>,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left_out = &self.dataset.left_out;
        write!(f, "{} databases, ", self.dataset.databases.len())?;
        write!(f, "{} questions checked, ", self.dataset.questions.len())?;
        write!(f, "{} left out, ", left_out.len())?;
        writeln!(f, "{} problems", self.problems.len())?;
        for left_out in left_out.iter().take(LISTED_LEFT_OUT) {
            writeln!(f, "left out: {left_out}")?;
        }
        if let Some(others) = left_out.len().checked_sub(LISTED_LEFT_OUT + 1) {
            writeln!(
                f,
                "left out: {} more; --left-out FILE writes all",
                others + 1
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let mut problems = self.problems.iter();
        problems.try_for_each(|problem| writeln!(f, "- {problem}"))
    }
}

/// Opens a folder, verifies its hashes, looks for damaged pages and wrong records, runs every gold
/// SQL again, and looks for queries that occur in several splits.
///
/// # Errors
/// Fails like [`Dataset::open`]. Problems of single questions are part of the report.
pub fn check(dir: &Path, databases: Option<&[String]>) -> Result<CheckReport, DataError> {
    let dataset = Dataset::open_with_or_without_questions(dir, databases)?;
    let (mut problems, damaged) = faults_and_damaged(&dataset)?;
    let (wrong, mut notes) = run_gold_sql(&dataset, &damaged)?;
    problems.extend(wrong);
    let long = long_answers(&dataset.questions).into_iter();
    notes.extend(long.map(|(database, note)| format!("{database}: {note}")));
    problems.extend(shared_queries(&dataset));
    if dir.join(crate::manifest::FILE_NAME).is_file() {
        problems.extend(misplaced(&dataset, &Manifest::read(dir)?));
    }
    Ok(CheckReport {
        dataset,
        damaged,
        problems,
        notes,
    })
}

/// Runs every gold SQL again, except on damaged databases. Returns the answers that are wrong now,
/// and what agents could not run.
fn run_gold_sql(
    dataset: &Dataset,
    damaged: &BTreeSet<String>,
) -> Result<(Vec<String>, Vec<String>), DataError> {
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let databases = dataset.databases.iter();
    for (name, file) in databases.filter(|(name, _)| !damaged.contains(*name)) {
        let database = GoldDatabase::open(&file.path)?;
        // Wordings of one query share its result.
        let mut results = BTreeMap::new();
        let mut refused = Vec::new();
        let questions = dataset.questions.iter();
        for question in questions.filter(|question| question.database_name == *name) {
            let result = results.entry(&question.gold_sql).or_insert_with(|| {
                let run = database.run_for_agents(&question.gold_sql);
                let (gold, refusal) = run.map_err(|it| of_gold_sql(it).reason)?;
                answer_from_rows(&gold.rows).map(|(_, answer)| (answer, refusal))
            });
            if let Ok((_, Some(refusal))) = result {
                refused.push((&question.question_id, refusal.clone()));
            }
            match result {
                Ok((answer, _)) if *answer == question.gold_answer => {}
                Ok((answer, _)) => problems.push(format!(
                    "{} on {name}: the gold SQL now gives {answer}, the record says {}; correct \
                     one of them",
                    question.question_id, question.gold_answer
                )),
                Err(reason) => problems.push(format!(
                    "{} on {name}: {reason}; correct the record, or remove it",
                    question.question_id
                )),
            }
        }
        if let Some((first, refusal)) = refused.first() {
            notes.push(format!(
                "{name}: the gold SQL of {} questions is over the limits of agents' queries, so \
                 no query on them earns a reward for progress; shorten it, or remove them; the \
                 first is {first} ({refusal})",
                refused.len()
            ));
        }
    }
    Ok((problems, notes))
}

/// Returns a note for each database with questions whose answer has more rows than a query shows.
pub(crate) fn long_answers(questions: &[Question]) -> BTreeMap<&str, String> {
    let is_long = |question: &&Question| {
        let Some(rows) = question.gold_answer.as_array() else {
            return false;
        };
        let rows: BTreeSet<String> = rows.iter().map(Value::to_string).collect();
        rows.len() > SHOWN_ROWS
    };
    let mut long: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for question in questions.iter().filter(is_long) {
        let ids = long.entry(&question.database_name).or_default();
        ids.push(&question.question_id);
    }
    let note = |ids: &[&str]| {
        format!(
            "{} questions have an answer of more than {SHOWN_ROWS} rows, which an agent needs \
             several queries to see; ask for fewer rows, or raise env.result.rows; the first is {}",
            ids.len(),
            ids[0]
        )
    };
    let long = long.into_iter();
    long.map(|(database, ids)| (database, note(&ids))).collect()
}

/// Counts the questions of `split` whose query also belongs to a question of `train` on the same
/// database. White space, comments and the case of words outside quotes do not count.
pub fn queries_in_train(dataset: &Dataset, split: &str) -> usize {
    let trained: BTreeSet<_> = dataset.split("train").map(query_key).collect();
    let queries = dataset.split(split).map(query_key);
    queries.filter(|query| trained.contains(query)).count()
}

/// Returns what makes two questions ask for the same query: the database, and what spellings of the
/// SQL have in common.
fn query_key(question: &Question) -> (&str, String) {
    (
        &question.database_name,
        sql_text::query_key(&question.gold_sql),
    )
}

fn shared_queries(dataset: &Dataset) -> Vec<String> {
    let mut queries: BTreeMap<(&str, String), (&str, BTreeSet<&str>)> = BTreeMap::new();
    for question in &dataset.questions {
        let query = queries.entry(query_key(question));
        let (_, splits) = query.or_insert_with(|| (question.gold_sql.as_str(), BTreeSet::new()));
        splits.insert(&question.split);
    }
    let shared = queries.into_iter();
    shared
        .filter(|(_, (_, splits))| splits.len() > 1)
        .map(|((database, _), (sql, splits))| {
            format!("{database}: in the splits {splits:?}: {sql}; keep it in one of them")
        })
        .collect()
}

fn misplaced(dataset: &Dataset, manifest: &Manifest) -> Vec<String> {
    let roles: BTreeMap<&str, DatabaseRole> = manifest
        .databases
        .iter()
        .map(|database| (database.name.as_str(), database.role))
        .collect();
    let is_misplaced = |question: &&Question| {
        let allowed: &[&str] = match roles.get(question.database_name.as_str()) {
            Some(DatabaseRole::Known) => &["train", "eval"],
            Some(DatabaseRole::UnseenDatabase) => &["eval-unseen/database"],
            Some(DatabaseRole::UnseenDomain) => &["eval-unseen/domain"],
            Some(DatabaseRole::UnseenWords) => &["eval-unseen/words"],
            Some(DatabaseRole::Training) => &["train"],
            None => &[],
        };
        !allowed.contains(&question.split.as_str())
    };
    let problem = |question: &Question| {
        let (id, split) = (&question.question_id, &question.split);
        format!("{id}: its database does not belong in split {split}; give it another split")
    };
    let misplaced = dataset.questions.iter().filter(is_misplaced);
    misplaced.map(problem).collect()
}
