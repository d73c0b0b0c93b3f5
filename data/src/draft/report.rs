//! What drafting found and kept, for display.

use std::collections::BTreeMap;
use std::fmt;

use crate::AnswerType;

/// The result of drafting.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftReport {
    /// The databases, in the order of the folder.
    pub databases: Vec<DraftedDatabase>,
}

/// What drafting found in a database, and the questions that it kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftedDatabase {
    /// The name of the database.
    pub name: String,
    /// The number of tables that questions are about.
    pub tables: usize,
    /// The number of their columns.
    pub columns: usize,
    /// The number of declared foreign keys that are used.
    pub declared_keys: usize,
    /// The number of foreign keys inferred by name and inclusion.
    pub inferred_keys: usize,
    /// What was inferred, and what is not asked about, with the reason.
    pub notes: Vec<String>,
    /// The number of different queries that were tried.
    pub drafted: usize,
    /// The number of queries that were dropped, by reason.
    pub dropped: BTreeMap<&'static str, usize>,
    /// The number of questions by level and answer type.
    pub kept: BTreeMap<(usize, AnswerType), usize>,
    /// The number of questions by split.
    pub splits: BTreeMap<&'static str, usize>,
}

impl DraftedDatabase {
    /// Returns the number of questions.
    pub fn questions(&self) -> usize {
        self.kept.values().sum()
    }

    /// Returns the number of questions by answer type.
    pub fn answer_types(&self) -> BTreeMap<AnswerType, usize> {
        let mut counts = BTreeMap::new();
        for ((_, answer_type), count) in &self.kept {
            *counts.entry(*answer_type).or_default() += count;
        }
        counts
    }

    /// Returns the number of questions by level.
    pub fn levels(&self) -> [usize; 5] {
        let mut counts = [0; 5];
        for ((level, _), count) in &self.kept {
            counts[*level] += count;
        }
        counts
    }
}

impl fmt::Display for DraftReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |database: &DraftedDatabase| database.name.chars().count();
        let width = self.databases.iter().map(width).max().unwrap_or(0).max(8);
        writeln!(
            f,
            "{:width$}  tables  columns  keys  inferred  drafted   kept  train  eval  \
             level 0/1/2/3/4     integer/float/string/list/table",
            "database"
        )?;
        for database in &self.databases {
            let split = |name| database.splits.get(name).copied().unwrap_or(0);
            let levels = database.levels().map(|it| it.to_string()).join("/");
            let types = database.answer_types();
            let listed = [
                AnswerType::Integer,
                AnswerType::Float,
                AnswerType::String,
                AnswerType::List,
                AnswerType::Table,
            ];
            let types = listed.map(|it| types.get(&it).copied().unwrap_or(0).to_string());
            writeln!(
                f,
                "{:width$}  {:>6}  {:>7}  {:>4}  {:>8}  {:>7}  {:>5}  {:>5}  {:>4}  {:<18}  {}",
                database.name,
                database.tables,
                database.columns,
                database.declared_keys,
                database.inferred_keys,
                database.drafted,
                database.questions(),
                split("train"),
                split("eval"),
                levels,
                types.join("/")
            )?;
        }
        self.databases.iter().try_for_each(|it| details(f, it))
    }
}

fn details(f: &mut fmt::Formatter<'_>, database: &DraftedDatabase) -> fmt::Result {
    writeln!(f, "\n{}", database.name)?;
    for (reason, count) in &database.dropped {
        writeln!(f, "  dropped {count}: {reason}")?;
    }
    for note in &database.notes {
        writeln!(f, "  {note}")?;
    }
    Ok(())
}
