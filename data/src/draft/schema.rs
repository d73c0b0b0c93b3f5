//! Describes a database for the query grammar: its tables, their rows, and what is asked about.
//! Pure.

use std::collections::BTreeSet;

use rusqlite::types::Value as SqlValue;

use super::columns::{DraftColumn, TableDescriber, join};
use super::dictionary::Dictionary;
use super::links::Links;
use super::source::{SourceDatabase, SourceTable};
use super::statistics::ColumnStatistics;
use super::table_nouns::{TableNouns, all_table_nouns};
use super::word_file::WordFile;
use crate::generator::rows::DatabaseRows;
use crate::generator::schema::{ColumnId, GrammarSchema, GrammarTable, Phrasing, TypeNames};
use crate::sql_name::as_needed;

/// What the grammar is applied to.
pub(super) struct DescribedDatabase {
    pub(super) schema: GrammarSchema,
    /// What is known besides of the tables of the schema.
    pub(super) tables: Vec<DescribedTable>,
    /// The rows that were read, by table. Those of tables that are left out are missing.
    pub(super) rows: DatabaseRows,
    pub(super) notes: Vec<String>,
}

/// What the schema does not say of a table.
pub(super) struct DescribedTable {
    /// The index of the table in the source.
    source_index: usize,
    /// Whether several rows refer to the same rows of other tables.
    pub(super) repeats: bool,
    /// Other nouns.
    pub(super) synonyms: Vec<String>,
    pub(super) columns: Vec<DraftColumn>,
}

impl DescribedDatabase {
    /// Returns the statistics of a column.
    pub(super) fn statistics(&self, id: ColumnId) -> &ColumnStatistics {
        &self.tables[id.table].columns[id.column].statistics
    }

    /// Moves the rows out of the database, since a second copy would double the memory.
    pub(super) fn take_rows(&mut self, database: &mut SourceDatabase) {
        for table in &self.tables {
            let mut rows = std::mem::take(&mut database.tables[table.source_index].rows);
            let joined = table.columns.iter().filter_map(|it| it.joined);
            let joined: Vec<[usize; 2]> = joined.collect();
            for row in &mut rows {
                for columns in &joined {
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
    let mut described = DescribedDatabase {
        schema: GrammarSchema {
            tables: Vec::new(),
            phrasing: Phrasing::Drafted,
            types: TypeNames::SQLITE,
        },
        tables: Vec::new(),
        rows: Vec::new(),
        notes: Vec::new(),
    };
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
        let words = file.table(&table.name);
        described.schema.tables.push(GrammarTable {
            name: as_needed(&table.name),
            one: nouns[index].one.clone(),
            many: nouns[index].many.clone(),
            key: links.keys[index].into_iter().collect(),
            rows: [0, 0],
            columns: drafts.iter().map(|it| it.column.clone()).collect(),
        });
        described.tables.push(DescribedTable {
            source_index: index,
            repeats: repeats(&drafts, table),
            synonyms: words.map_or_else(Vec::new, |words| words.also.clone()),
            columns: drafts,
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
