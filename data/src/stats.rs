//! Counts of a dataset, for people.

use std::collections::BTreeMap;
use std::fmt;

use crate::Dataset;

/// Numbers of questions by split, and within a split by difficulty, answer type and database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// The dataset's name.
    pub name: String,
    /// By split.
    pub splits: BTreeMap<String, SplitStats>,
    /// Number of databases.
    pub databases: usize,
    /// Bytes of all databases.
    pub database_bytes: u64,
    /// Questions left out, by reason.
    pub left_out: BTreeMap<String, usize>,
}

/// Numbers of questions of one split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitStats {
    /// All questions.
    pub questions: usize,
    /// Distinct queries.
    pub queries: usize,
    /// By difficulty.
    pub difficulties: BTreeMap<String, usize>,
    /// By answer type.
    pub answer_types: BTreeMap<&'static str, usize>,
    /// By database.
    pub databases: BTreeMap<String, usize>,
}

/// Counts a dataset.
pub fn stats(dataset: &Dataset) -> Stats {
    let mut stats = Stats {
        name: dataset.name.clone(),
        databases: dataset.databases.len(),
        database_bytes: dataset.databases.values().map(|file| file.size_bytes).sum(),
        ..Stats::default()
    };
    for left_out in &dataset.left_out {
        *stats.left_out.entry(left_out.reason.clone()).or_default() += 1;
    }
    let mut queries = BTreeMap::<&String, std::collections::BTreeSet<_>>::new();
    for question in &dataset.questions {
        let split = stats.splits.entry(question.split.clone()).or_default();
        split.questions += 1;
        *split
            .difficulties
            .entry(question.difficulty.clone())
            .or_default() += 1;
        *split
            .answer_types
            .entry(question.answer_type.name())
            .or_default() += 1;
        *split
            .databases
            .entry(question.database_name.clone())
            .or_default() += 1;
        queries
            .entry(&question.split)
            .or_default()
            .insert((&question.database_name, &question.gold_sql));
    }
    for (name, split) in &mut stats.splits {
        split.queries = queries.get(name).map_or(0, std::collections::BTreeSet::len);
    }
    stats
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let questions: usize = self.splits.values().map(|split| split.questions).sum();
        let mebibytes = self.database_bytes as f64 / (1024.0 * 1024.0);
        writeln!(
            f,
            "{}: {questions} questions, {} databases ({mebibytes:.1} MiB)",
            self.name, self.databases
        )?;
        for (name, split) in &self.splits {
            writeln!(
                f,
                "\n{name}: {} questions, {} queries",
                split.questions, split.queries
            )?;
            writeln!(
                f,
                "  difficulty  {}",
                shares(&split.difficulties, split.questions)
            )?;
            writeln!(
                f,
                "  answers     {}",
                shares(&split.answer_types, split.questions)
            )?;
            writeln!(f, "  databases   {}", counts(&split.databases))?;
        }
        for (reason, count) in &self.left_out {
            writeln!(f, "\nleft out, {count}: {reason}")?;
        }
        Ok(())
    }
}

fn shares<K: fmt::Display>(counts: &BTreeMap<K, usize>, total: usize) -> String {
    let share = |(name, count): (&K, &usize)| {
        format!(
            "{name} {count} ({:.1} %)",
            100.0 * *count as f64 / total as f64
        )
    };
    counts.iter().map(share).collect::<Vec<_>>().join(", ")
}

fn counts(counts: &BTreeMap<String, usize>) -> String {
    counts
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect::<Vec<_>>()
        .join(", ")
}
