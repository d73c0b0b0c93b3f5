//! The questions a node serves, joined to their databases.
//!
//! Invariant: every question has its database, ids are unique, order is the dataset's. A draw depends on split and seed
//! alone. Leaves out episodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use data::{Dataset, Question};
use proto::v1::{self, ListQuestionsRequest, ListQuestionsResponse, ResetRequest};

use crate::{config::ResultLimits, database::Database, error::EnvError, gold::GoldRows};

const DEFAULT_PAGE_SIZE: usize = 1_000;
const MAX_PAGE_SIZE: usize = 10_000;

/// The node's questions and databases.
pub(crate) struct Catalog {
    items: Vec<Item>,
    /// Question id to index.
    by_id: BTreeMap<String, usize>,
    /// Split to indices; `eval-unseen` holds its parts too. The empty name holds all.
    by_split: BTreeMap<String, Vec<usize>>,
    databases: BTreeMap<String, Arc<Database>>,
}

/// A question with what the node works out of it once.
pub(crate) struct Item {
    pub(crate) question: Arc<Question>,
    pub(crate) database: Arc<Database>,
    pub(crate) gold: Arc<OnceLock<GoldRows>>,
}

impl Catalog {
    /// Opens every database and joins the questions to them.
    pub(crate) fn open(dataset: Dataset, limits: &ResultLimits) -> Result<Self, EnvError> {
        let databases: BTreeMap<String, Arc<Database>> = dataset
            .databases
            .iter()
            .map(|(name, file)| Ok((name.clone(), Arc::new(Database::open(file, limits)?))))
            .collect::<Result<_, EnvError>>()?;
        let items = join(&dataset.name, dataset.questions, &databases)?;
        let ids = items.iter().map(|item| item.question.question_id.clone());
        Ok(Self {
            by_id: ids.zip(0..).collect(),
            by_split: splits(&items),
            items,
            databases,
        })
    }

    /// The question of this id.
    pub(crate) fn get(&self, question_id: &str) -> Option<&Item> {
        self.by_id.get(question_id).map(|&index| &self.items[index])
    }

    /// The questions, in the dataset's order.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &Question> {
        self.items.iter().map(|item| item.question.as_ref())
    }

    /// The question that a Reset asks for by name, or draws.
    pub(crate) fn choose(&self, request: &ResetRequest) -> Result<&Item, EnvError> {
        if request.question_id.is_empty() {
            let split = self.split(&request.split)?;
            let index = scrambled(request.seed) % split.len() as u64;
            return Ok(&self.items[split[index as usize]]);
        }
        self.get(&request.question_id)
            .ok_or_else(|| EnvError::NotFound {
                kind: "question",
                name: request.question_id.clone(),
                remedy: format!("ListQuestions names the {} there are", self.items.len()),
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

    /// Lists questions in the dataset's order.
    pub(crate) fn list(
        &self,
        request: &ListQuestionsRequest,
    ) -> Result<ListQuestionsResponse, EnvError> {
        let split = self.split(&request.split)?;
        let database = request.database_name.as_str();
        if !database.is_empty() && !self.databases.contains_key(database) {
            let names: Vec<&str> = self.databases.keys().map(String::as_str).collect();
            return Err(EnvError::NotFound {
                kind: "database",
                name: database.to_owned(),
                remedy: format!("there are: {}", names.join(", ")),
            });
        }
        let start = match request.page_token.as_str() {
            "" => 0,
            text => text.parse::<usize>().map_err(|_| EnvError::Request {
                field: "page_token",
                message: format!(
                    "page_token {text:?} is none of this node's; pass on next_page_token unchanged"
                ),
            })?,
        };
        let size = match request.page_size as usize {
            0 => DEFAULT_PAGE_SIZE,
            size => size.min(MAX_PAGE_SIZE),
        };
        let matches = || {
            let items = split.iter().map(|&index| &self.items[index].question);
            items.map(AsRef::as_ref).filter(|question: &&Question| {
                database.is_empty() || question.database_name == database
            })
        };
        let total = matches().count();
        let questions: Vec<v1::Question> = matches().skip(start).take(size).map(public).collect();
        let next = start.saturating_add(questions.len());
        Ok(ListQuestionsResponse {
            next_page_token: if next < total {
                next.to_string()
            } else {
                String::new()
            },
            total_size: total as u32,
            questions,
        })
    }

    /// The databases, by name.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &Database> {
        self.databases.values().map(AsRef::as_ref)
    }

    /// Split names and their sizes.
    pub(crate) fn split_sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        let named = self.by_split.iter().filter(|(name, _)| !name.is_empty());
        named.map(|(name, members)| (name.as_str(), members.len()))
    }
}

fn join(
    dataset: &str,
    questions: Vec<Question>,
    databases: &BTreeMap<String, Arc<Database>>,
) -> Result<Vec<Item>, EnvError> {
    let refuse = |reason: String| EnvError::Dataset {
        dataset: dataset.to_owned(),
        reason,
    };
    if questions.is_empty() {
        return Err(refuse(
            "has no questions; build or choose another".to_owned(),
        ));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = questions
        .iter()
        .find(|question| !seen.insert(&question.question_id))
    {
        return Err(refuse(format!(
            "has two questions {:?}; give each its own question_id",
            twice.question_id
        )));
    }
    questions
        .into_iter()
        .map(|question| {
            let database = databases.get(&question.database_name).ok_or_else(|| {
                refuse(format!("question {:?} is on database {:?}, which is not there; add it or leave the question out", question.question_id, question.database_name))
            })?;
            Ok(Item {
                database: Arc::clone(database),
                question: Arc::new(question),
                gold: Arc::default(),
            })
        })
        .collect()
}

/// A question of split `a/b` counts in `a/b`, `a` and the empty split, which holds all.
fn splits(questions: &[Item]) -> BTreeMap<String, Vec<usize>> {
    let mut splits: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, item) in questions.iter().enumerate() {
        let name = item.question.split.as_str();
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

/// SplitMix64's output function: spreads neighbouring seeds over all questions.
pub(crate) fn scrambled(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn public(question: &Question) -> v1::Question {
    v1::Question {
        question_id: question.question_id.clone(),
        question_text: question.question_text.clone(),
        database_name: question.database_name.clone(),
        split: question.split.clone(),
        difficulty: question.difficulty.clone(),
    }
}
