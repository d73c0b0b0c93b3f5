//! The questions, joined to their databases.
//!
//! Invariant: every question has its database, ids are unique, and the order is the dataset's. A
//! draw depends on split and seed alone.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, OnceLock},
};

use data::{DatabaseFile, Dataset, Question};
use sha2::{Digest as _, Sha256};

use crate::{
    database::Database, episode::EpisodeSpec, error::EnvError, gold::GoldRows,
    settings::EnvSettings,
};

/// The questions and databases of an environment.
pub(crate) struct Catalog {
    entries: Vec<CatalogEntry>,
    /// Question id to index.
    by_id: BTreeMap<String, usize>,
    /// Split to indices. A split holds its parts too: `eval-unseen/domain` is in `eval-unseen`. The
    /// empty name holds all questions.
    by_split: BTreeMap<String, Vec<usize>>,
    databases: BTreeMap<String, Arc<Database>>,
}

/// Some of the questions that a caller selected, in the dataset's order.
#[derive(Debug)]
pub struct QuestionPage<'a> {
    /// The questions in the range that was asked for.
    pub questions: Vec<&'a Question>,
    /// How many questions are selected in all.
    pub total: usize,
}

/// A question with what is computed from it once.
pub(crate) struct CatalogEntry {
    pub(crate) question: Arc<Question>,
    /// SHA-256, in hexadecimal, of what an episode depends on: the text, the answer, the database
    /// file. Nodes that serve other questions beside this one have the same.
    pub(crate) question_sha256: String,
    pub(crate) database: Arc<Database>,
    pub(crate) gold: Arc<OnceLock<GoldRows>>,
}

impl Catalog {
    /// Opens every database and joins the questions to them.
    pub(crate) fn open(dataset: Dataset, config: &EnvSettings) -> Result<Self, EnvError> {
        let databases: BTreeMap<String, Arc<Database>> = dataset
            .databases
            .iter()
            .map(|(name, file)| {
                let database = Database::open(file, &config.result, &config.sql)?;
                Ok((name.clone(), Arc::new(database)))
            })
            .collect::<Result<_, EnvError>>()?;
        let entries = join(&dataset.name, dataset.questions, &databases)?;
        let ids = entries
            .iter()
            .map(|entry| entry.question.question_id.clone());
        Ok(Self {
            by_id: ids.zip(0..).collect(),
            by_split: splits(&entries),
            entries,
            databases,
        })
    }

    /// Returns the question of this id.
    pub(crate) fn get(&self, question_id: &str) -> Option<&CatalogEntry> {
        self.by_id
            .get(question_id)
            .map(|&index| &self.entries[index])
    }

    /// Returns the questions in the dataset's order.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &Question> {
        self.entries.iter().map(|entry| entry.question.as_ref())
    }

    /// Returns the question that `spec` names, or draws one.
    pub(crate) fn choose(&self, spec: &EpisodeSpec) -> Result<&CatalogEntry, EnvError> {
        if spec.question_id.is_empty() {
            let split = self.split(&spec.split)?;
            let index = scrambled(spec.seed) % split.len() as u64;
            return Ok(&self.entries[split[index as usize]]);
        }
        self.get(&spec.question_id)
            .ok_or_else(|| EnvError::NotFound {
                kind: "question",
                name: spec.question_id.clone(),
                remedy: format!("ListQuestions names the {} there are", self.entries.len()),
            })
    }

    fn split(&self, name: &str) -> Result<&[usize], EnvError> {
        self.by_split.get(name).map(Vec::as_slice).ok_or_else(|| {
            let names: Vec<&str> = self.split_sizes().map(|(name, _)| name).collect();
            EnvError::NotFound {
                kind: "split",
                name: name.to_owned(),
                remedy: format!("there are: {}", names.join(", ")),
            }
        })
    }

    /// Lists the questions of a split, and of a database unless its name is empty.
    pub(crate) fn list(
        &self,
        split: &str,
        database: &str,
        range: Range<usize>,
    ) -> Result<QuestionPage<'_>, EnvError> {
        let split = self.split(split)?;
        if !database.is_empty() && !self.databases.contains_key(database) {
            let names: Vec<&str> = self.databases.keys().map(String::as_str).collect();
            return Err(EnvError::NotFound {
                kind: "database",
                name: database.to_owned(),
                remedy: format!("there are: {}", names.join(", ")),
            });
        }
        let questions = split.iter().map(|&index| &*self.entries[index].question);
        let selected =
            questions.filter(|question| database.is_empty() || question.database_name == database);
        Ok(QuestionPage {
            total: selected.clone().count(),
            questions: selected.skip(range.start).take(range.len()).collect(),
        })
    }

    /// Returns the databases by name.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &Database> {
        self.databases.values().map(AsRef::as_ref)
    }

    /// Returns the split names and their sizes.
    pub(crate) fn split_sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        let named = self.by_split.iter().filter(|(name, _)| !name.is_empty());
        named.map(|(name, members)| (name.as_str(), members.len()))
    }
}

/// Joins the questions to their databases. A [`Dataset`] has questions, each with its own id.
fn join(
    dataset: &str,
    questions: Vec<Question>,
    databases: &BTreeMap<String, Arc<Database>>,
) -> Result<Vec<CatalogEntry>, EnvError> {
    let entry = |question: Question| {
        let database = databases
            .get(&question.database_name)
            .ok_or_else(|| EnvError::Dataset {
                dataset: dataset.to_owned(),
                reason: format!(
                    "question {:?} is on database {:?}, which is not there; add it or leave the \
                     question out",
                    question.question_id, question.database_name
                ),
            })?;
        Ok(CatalogEntry {
            question_sha256: question_sha256(&question, &database.file),
            database: Arc::clone(database),
            question: Arc::new(question),
            gold: Arc::default(),
        })
    };
    questions.into_iter().map(entry).collect()
}

fn question_sha256(question: &Question, database: &DatabaseFile) -> String {
    let record = serde_json::json!([
        question.question_text,
        question.gold_sql,
        question.gold_answer,
        question.answer_type,
        database.sha256,
    ]);
    hex::encode(Sha256::digest(record.to_string()))
}

/// Groups the questions by split. A question of split `a/b` is in `a/b`, `a` and the empty split.
fn splits(questions: &[CatalogEntry]) -> BTreeMap<String, Vec<usize>> {
    let mut splits: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, entry) in questions.iter().enumerate() {
        let name = entry.question.split.as_str();
        let parents = name.match_indices('/').map(|(slash, _)| &name[..slash]);
        for split in parents.chain([name, ""]) {
            let members = splits.entry(split.to_owned()).or_default();
            if members.last() != Some(&index) {
                members.push(index);
            }
        }
    }
    splits
}

/// Spreads neighbouring seeds over all values, by SplitMix64's output function.
pub fn scrambled(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
