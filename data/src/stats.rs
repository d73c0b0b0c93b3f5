//! Counts the questions of a dataset, for display.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::Dataset;

/// The number of databases of a split that are listed by name.
const LISTED_DATABASES: usize = 40;

/// The number of questions by split, and within a split by difficulty, answer type and database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DatasetStats {
    /// The name of the dataset.
    pub name: String,
    /// The counts by split.
    pub splits: BTreeMap<String, SplitStats>,
    /// The number of databases.
    pub databases: usize,
    /// The size of all databases in bytes.
    pub database_bytes: u64,
    /// The number of questions that were left out, by reason.
    pub left_out: BTreeMap<String, usize>,
}

/// The number of questions of one split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitStats {
    /// All questions.
    pub questions: usize,
    /// Distinct queries.
    pub queries: usize,
    /// Questions by difficulty.
    pub difficulties: BTreeMap<String, usize>,
    /// Questions by answer type.
    pub answer_types: BTreeMap<&'static str, usize>,
    /// Questions by database.
    pub databases: BTreeMap<String, usize>,
}

/// Counts the questions of a dataset.
pub fn stats(dataset: &Dataset) -> DatasetStats {
    let questions_of = |split: String| {
        let mut stats = SplitStats::default();
        let mut queries = BTreeSet::new();
        let questions = dataset.questions.iter();
        for question in questions.filter(|question| question.split == split) {
            let database = &question.database_name;
            stats.questions += 1;
            increment(&mut stats.difficulties, question.difficulty.clone());
            increment(&mut stats.answer_types, question.answer_type.name());
            increment(&mut stats.databases, database.clone());
            queries.insert((database, &question.gold_sql));
        }
        stats.queries = queries.len();
        (split, stats)
    };
    let mut left_out = BTreeMap::new();
    for question in &dataset.left_out {
        increment(&mut left_out, question.reason.clone());
    }
    DatasetStats {
        name: dataset.name.clone(),
        splits: dataset
            .split_names()
            .into_iter()
            .map(questions_of)
            .collect(),
        databases: dataset.databases.len(),
        database_bytes: dataset.databases.values().map(|file| file.size_bytes).sum(),
        left_out,
    }
}

fn increment<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    *counts.entry(key).or_default() += 1;
}

impl fmt::Display for DatasetStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let questions: usize = self.splits.values().map(|split| split.questions).sum();
        let mebibytes = self.database_bytes as f64 / (1024.0 * 1024.0);
        let (name, databases) = (&self.name, self.databases);
        writeln!(
            f,
            "{name}: {questions} questions, {databases} databases ({mebibytes:.1} MiB)"
        )?;
        for (name, split) in &self.splits {
            let (questions, queries) = (split.questions, split.queries);
            writeln!(f, "\n{name}: {questions} questions, {queries} queries")?;
            writeln!(
                f,
                "  difficulty  {}",
                shares(&split.difficulties, questions)
            )?;
            writeln!(
                f,
                "  answers     {}",
                shares(&split.answer_types, questions)
            )?;
            let databases = split.databases.iter().take(LISTED_DATABASES);
            let mut databases: Vec<_> = databases.map(|(name, n)| format!("{name} {n}")).collect();
            if let Some(others) = split.databases.len().checked_sub(LISTED_DATABASES + 1) {
                databases.push(format!("and {} more", others + 1));
            }
            writeln!(f, "  databases   {}", databases.join(", "))?;
        }
        for (reason, count) in &self.left_out {
            writeln!(f, "\nleft out, {count}: {reason}")?;
        }
        Ok(())
    }
}

fn shares<K: fmt::Display>(counts: &BTreeMap<K, usize>, total: usize) -> String {
    let share = |(name, count): (&K, &usize)| {
        let percent = 100.0 * *count as f64 / total as f64;
        format!("{name} {count} ({percent:.1} %)")
    };
    counts.iter().map(share).collect::<Vec<_>>().join(", ")
}
