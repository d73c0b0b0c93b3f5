//! Describes a database for the query grammar: its tables, their rows, and what is asked about.

use std::collections::BTreeSet;

use rusqlite::types::Value as SqlValue;

use super::columns::{DraftColumn, TableDescriber, join};
use super::dictionary::Dictionary;
use super::links::Links;
use super::source::{SourceDatabase, SourceTable};
use super::table_nouns::{TableNouns, all_table_nouns};
use super::word_file::WordFile;
use crate::generator::rows::DatabaseRows;
use crate::generator::schema::{GeneratedSchema, GeneratedTable, Phrasing, TypeNames};
use crate::sql_name::as_needed;

/// What the grammar is applied to.
pub(super) struct DescribedDatabase {
    pub(super) schema: GeneratedSchema,
    /// The rows that were read, by table. Those of tables that are left out are missing.
    pub(super) rows: DatabaseRows,
    /// The index of each table in the source, with the pairs of columns that it joins.
    joined: Vec<(usize, Vec<[usize; 2]>)>,
    /// Whether some rows have no value, by table and column.
    pub(super) gaps: Vec<Vec<bool>>,
    /// Whether some row of a column has a text that stands for a missing value.
    pub(super) blanks: Vec<Vec<bool>>,
    /// The number of distinct values, by table and column.
    pub(super) distinct: Vec<Vec<usize>>,
    /// The smallest and the largest number, by table and column.
    pub(super) ranges: Vec<Vec<[f64; 2]>>,
    /// Whether several rows refer to the same rows of other tables, by table.
    pub(super) repeats: Vec<bool>,
    /// Other nouns, by table, and by table and column.
    pub(super) table_synonyms: Vec<Vec<String>>,
    pub(super) column_synonyms: Vec<Vec<Vec<String>>>,
    pub(super) notes: Vec<String>,
}

impl DescribedDatabase {
    fn empty() -> Self {
        Self {
            schema: GeneratedSchema {
                tables: Vec::new(),
                phrasing: Phrasing::Drafted,
                types: TypeNames::SQLITE,
            },
            rows: Vec::new(),
            joined: Vec::new(),
            gaps: Vec::new(),
            blanks: Vec::new(),
            distinct: Vec::new(),
            ranges: Vec::new(),
            repeats: Vec::new(),
            table_synonyms: Vec::new(),
            column_synonyms: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Moves the rows out of the database, since a second copy would double the memory.
    pub(super) fn take_rows(&mut self, database: &mut SourceDatabase) {
        for (table, joined) in &self.joined {
            let mut rows = std::mem::take(&mut database.tables[*table].rows);
            for row in &mut rows {
                for columns in joined {
                    let cell = join(row, *columns);
                    row.push(cell);
                }
            }
            self.rows.push(rows);
        }
    }
}

/// Describes a database. Tables without rows, and tables to skip, are left out. The rows are still
/// missing.
pub(super) fn describe(
    database: &SourceDatabase,
    links: &Links,
    file: &WordFile,
    dictionary: &Dictionary,
) -> DescribedDatabase {
    let mut described = DescribedDatabase::empty();
    let nouns = all_table_nouns(database, file, dictionary);
    let kept = kept_tables(database, &nouns, file, &mut described.notes);
    let initials = initials(database, dictionary);
    for &index in &kept {
        let table = &database.tables[index];
        let describer = TableDescriber {
            database,
            links,
            file,
            dictionary,
            nouns: &nouns,
            initials: &initials,
            kept: &kept,
            index,
        };
        let drafts = describer.drafts();
        for draft in &drafts {
            if let Some(reason) = &draft.hidden_because {
                let note = format!("{}.{} {reason}", table.name, draft.column.spec.name);
                described.notes.push(note);
            }
        }
        described
            .gaps
            .push(drafts.iter().map(|it| it.statistics.has_gaps()).collect());
        let blanks = drafts.iter().map(|it| it.statistics.has_blanks());
        described.blanks.push(blanks.collect());
        let distinct = drafts.iter().map(|it| it.statistics.distinct);
        described.distinct.push(distinct.collect());
        let range = |it: &DraftColumn| [it.statistics.least, it.statistics.greatest];
        described.ranges.push(drafts.iter().map(range).collect());
        described.repeats.push(repeats(&drafts, table));
        let joined = drafts.iter().filter_map(|it| it.joined).collect();
        described.joined.push((index, joined));
        described
            .column_synonyms
            .push(drafts.iter().map(|it| it.synonyms.clone()).collect());
        let words = file.table(&table.name);
        described
            .table_synonyms
            .push(words.map_or_else(Vec::new, |words| words.also.clone()));
        described.schema.tables.push(GeneratedTable {
            name: as_needed(&table.name),
            one: nouns[index].one.clone(),
            many: nouns[index].many.clone(),
            key: links.keys[index].into_iter().collect(),
            rows: [0, 0],
            columns: drafts.into_iter().map(|it| it.column).collect(),
        });
    }
    described
}

/// Returns the first letters of the words of all tables' names.
fn initials(database: &SourceDatabase, dictionary: &Dictionary) -> Vec<char> {
    let tables = database.tables.iter();
    let words = tables.flat_map(|table| dictionary.words(&table.name));
    words.filter_map(|word| word.chars().next()).collect()
}

/// Returns the tables that questions are about.
fn kept_tables(
    database: &SourceDatabase,
    nouns: &[TableNouns],
    file: &WordFile,
    notes: &mut Vec<String>,
) -> Vec<usize> {
    let mut kept: Vec<usize> = Vec::new();
    for (index, table) in database.tables.iter().enumerate() {
        let twin = kept.iter().find(|other| {
            nouns[**other].one == nouns[index].one || nouns[**other].many == nouns[index].many
        });
        let reason = if file.table(&table.name).is_some_and(|words| words.skip) {
            "the file of words skips it".to_owned()
        } else if table.row_count == 0 {
            "it has no rows".to_owned()
        } else if let Some(other) = twin {
            let (one, other) = (&nouns[index].one, &database.tables[*other].name);
            format!("its rows would be called \"{one}\" like those of {other}; give it words")
        } else {
            kept.push(index);
            continue;
        };
        notes.push(format!("table {} is left out: {reason}", table.name));
    }
    kept
}

/// Whether several rows of a table refer to the same rows of other tables.
fn repeats(drafts: &[DraftColumn], table: &SourceTable) -> bool {
    let mut seen = BTreeSet::new();
    let is_parent = |index: &usize| drafts[*index].column.parent.is_some();
    let parents: Vec<usize> = (0..drafts.len()).filter(is_parent).collect();
    let key = |row: &Vec<SqlValue>| -> Vec<String> {
        let cells = parents.iter().map(|index| format!("{:?}", row[*index]));
        cells.collect()
    };
    table.sample.is_some() || table.rows.iter().any(|row| !seen.insert(key(row)))
}
