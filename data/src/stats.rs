//! Counts the questions of a dataset, for display.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::sql_text::query_key;
use crate::{Dataset, Question};

/// The number of databases of a split that are listed by name.
const LISTED_DATABASES: usize = 40;

/// Describes a dataset: the number of questions by split, and within a split by difficulty, answer
/// type and database.
pub fn stats(dataset: &Dataset) -> String {
    let (name, questions) = (&dataset.name, dataset.questions.len());
    let bytes: u64 = dataset.databases.values().map(|file| file.size_bytes).sum();
    let mebibytes = bytes as f64 / (1024.0 * 1024.0);
    let databases = dataset.databases.len();
    let mut text =
        format!("{name}: {questions} questions, {databases} databases ({mebibytes:.1} MiB)\n");
    for split in dataset.split_names() {
        let questions = dataset.questions.iter().filter(|it| it.split == split);
        text.push_str(&of_split(&split, &questions.collect::<Vec<_>>()));
    }
    for (reason, count) in counted(dataset.left_out.iter().map(|it| &it.reason)) {
        text.push_str(&format!("\nleft out, {count}: {reason}\n"));
    }
    text
}

fn of_split(split: &str, questions: &[&Question]) -> String {
    let queries = questions
        .iter()
        .map(|it| (&it.database_name, query_key(&it.gold_sql)));
    let queries = queries.collect::<BTreeSet<_>>().len();
    let count = questions.len();
    let difficulties = counted(questions.iter().map(|it| &it.difficulty));
    let answers = counted(questions.iter().map(|it| it.answer_type.name()));
    let databases = counted(questions.iter().map(|it| &it.database_name));
    let listed = databases.iter().take(LISTED_DATABASES);
    let mut listed: Vec<String> = listed.map(|(name, n)| format!("{name} {n}")).collect();
    if let Some(others) = databases.len().checked_sub(LISTED_DATABASES + 1) {
        listed.push(format!("and {} more", others + 1));
    }
    format!(
        "\n{split}: {count} questions, {queries} queries\n  difficulty  {}\n  answers     {}\n  \
         databases   {}\n",
        shares(&difficulties, count),
        shares(&answers, count),
        listed.join(", ")
    )
}

fn counted<K: Ord>(keys: impl Iterator<Item = K>) -> BTreeMap<K, usize> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn shares<K: fmt::Display>(counts: &BTreeMap<K, usize>, total: usize) -> String {
    let share = |(name, count): (&K, &usize)| {
        let percent = 100.0 * *count as f64 / total as f64;
        format!("{name} {count} ({percent:.1} %)")
    };
    counts.iter().map(share).collect::<Vec<_>>().join(", ")
}
