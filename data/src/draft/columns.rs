//! Describes the columns of a table: nouns, kinds and phrases. Pure.

use rusqlite::types::Value as SqlValue;

use super::dictionary::Dictionary;
use super::keys::{names_other_table, without_key};
use super::kind::{ColumnPlace, InferredColumn, infer};
use super::links::Links;
use super::source::{SourceDatabase, SourceTable};
use super::statistics::ColumnStatistics;
use super::table_nouns::{TableNouns, row_noun};
use super::unusable;
use super::word_file::{ColumnWords, WordFile};
use crate::generator::domain::{ColumnKind, ColumnSpec, DraftedPhrases};
use crate::generator::schema::GrammarColumn;
use crate::sql_name::as_needed;

/// Numbers at the end of names, and how a person says them.
const ORDINALS: [(&str, &str); 4] = [
    ("1", "first"),
    ("2", "second"),
    ("3", "third"),
    ("4", "fourth"),
];

/// A column on its way into the schema, and what the schema does not say of it.
#[derive(Clone)]
pub(super) struct DraftColumn {
    /// The columns whose texts it joins, if the table has no such column itself.
    pub(super) joined: Option<[usize; 2]>,
    pub(super) column: GrammarColumn,
    /// The noun with all words of the name.
    pub(super) full_noun: String,
    pub(super) statistics: ColumnStatistics,
    /// Other nouns.
    pub(super) synonyms: Vec<String>,
    pub(super) hidden_because: Option<String>,
}

pub(super) fn join(row: &[SqlValue], columns: [usize; 2]) -> SqlValue {
    match columns.map(|column| &row[column]) {
        [SqlValue::Text(first), SqlValue::Text(last)] => SqlValue::Text(format!("{first} {last}")),
        _ => SqlValue::Null,
    }
}

/// Describes the columns of one table.
pub(super) struct TableDescriber<'a> {
    pub(super) database: &'a SourceDatabase,
    pub(super) links: &'a Links,
    pub(super) file: &'a WordFile,
    pub(super) dictionary: &'a Dictionary,
    pub(super) nouns: &'a [TableNouns],
    /// The first letters of the words of all tables' names.
    pub(super) initials: &'a [char],
    pub(super) kept: &'a [usize],
    pub(super) index: usize,
}

impl TableDescriber<'_> {
    pub(super) fn table(&self) -> &SourceTable {
        &self.database.tables[self.index]
    }

    fn words(&self, column: &str) -> Vec<String> {
        self.dictionary.column_words(column, self.initials)
    }

    pub(super) fn drafts(&self) -> Vec<DraftColumn> {
        let columns = 0..self.table().columns.len();
        let mut drafts: Vec<DraftColumn> = columns.map(|column| self.draft(column)).collect();
        self.choose_label(&mut drafts, false);
        let full_name = self.full_name(&drafts);
        if full_name.is_none() {
            self.choose_label(&mut drafts, true);
        }
        self.name_like_rows(&mut drafts);
        self.separate(&mut drafts);
        drafts.extend(full_name);
        drafts
    }

    fn statistics(&self, index: usize) -> ColumnStatistics {
        let table = self.table();
        let column = &table.columns[index];
        let read = table.rows.iter().map(|row| &row[index]);
        let values = read.chain(&column.gaps).chain(&column.odd_value);
        let mut statistics = ColumnStatistics::count(values);
        if column.has_more_values {
            // Rows that were not read say neither yes nor no.
            statistics.pair.clear();
        }
        statistics
    }

    fn draft(&self, index: usize) -> DraftColumn {
        let table = self.table();
        let column = &table.columns[index];
        let words = self.words(&column.name);
        let own = self.own_words(index);
        let mut draft = DraftColumn {
            joined: None,
            column: GrammarColumn {
                name: as_needed(&column.name),
                noun: String::new(),
                spec: ColumnSpec {
                    name: column.name.clone(),
                    kind: ColumnKind::Hidden,
                    ..ColumnSpec::default()
                },
                parent: None,
            },
            full_noun: words.join(" "),
            statistics: self.statistics(index),
            synonyms: Vec::new(),
            hidden_because: None,
        };
        if own.is_some_and(|own| own.skip) {
            draft.hidden_because = Some("is skipped by the file of words".to_owned());
            return draft;
        }
        if let Some(link) = self.links.of(self.index, index) {
            let parent = self.kept.iter().position(|kept| *kept == link.parent);
            draft.column.parent = parent;
            let is_open = |word: &String| self.dictionary.lists.prepositions.contains(word);
            if own.is_none_or(|own| own.noun.is_none()) && words.iter().any(is_open) {
                draft.column.parent = None;
                draft.hidden_because = Some("has a name that is no noun; give it words".to_owned());
            }
            let is_key = self.links.keys[self.index] == Some(index);
            draft.column.noun = match is_key {
                true => self.nouns[link.parent].one.clone(),
                false => self.role(&words, link.parent),
            };
        } else if self.links.keys[self.index] == Some(index) {
            self.describe_key(&mut draft, &words);
        } else {
            self.describe_value(&mut draft, &words, index);
        }
        if let Some(own) = own {
            draft.synonyms = own.also.clone();
            draft.column.spec.says = own.says.clone();
            if own.says.is_some() || own.noun.is_some() {
                draft.column.spec.drafted = DraftedPhrases::None;
            }
            if let Some(noun) = &own.noun {
                draft.column.noun.clone_from(noun);
                draft.full_noun.clone_from(noun);
            }
        }
        draft
    }

    /// Returns the noun for the row of `parent` that a column refers to.
    fn role(&self, words: &[String], parent: usize) -> String {
        let key_words = self.links.keys[parent].map_or_else(Vec::new, |key| {
            self.words(&self.database.tables[parent].columns[key].name)
        });
        // `club_id_2` refers to the second club.
        let numbered = match words {
            [rest @ .., number] => ORDINALS
                .iter()
                .find(|(digit, _)| digit == number)
                .map(|(_, ordinal)| (rest, *ordinal)),
            [] => None,
        };
        if let Some((rest, ordinal)) = numbered {
            return format!("{ordinal} {}", self.role(rest, parent));
        }
        let stem = without_key(words, self.dictionary);
        let noun = self.dictionary.singular(&stem.join(" "));
        let is_plain =
            words == key_words.as_slice() || stem.is_empty() || noun == self.default_noun(parent);
        match is_plain {
            true => self.nouns[parent].one.clone(),
            false => noun,
        }
    }

    /// Returns what the rows of a table are called without the file of words.
    fn default_noun(&self, table: usize) -> String {
        row_noun(&self.database.tables[table].name, true, self.dictionary)
    }

    fn describe_key(&self, draft: &mut DraftColumn, words: &[String]) {
        draft.column.spec.kind = ColumnKind::Key;
        let noun = self.short_noun(words);
        let is_id = noun.is_empty() || self.dictionary.lists.keys.contains(&noun);
        let is_code = noun == "code" || noun == "number";
        draft.column.noun = match is_id && !is_code {
            true => "id".to_owned(),
            false => noun,
        };
    }

    /// Describes a column that is no key by its name. If the name says too little, the noun of the
    /// file of words says what the values are.
    fn describe_value(&self, draft: &mut DraftColumn, words: &[String], index: usize) {
        let own = self.own_words(index).and_then(|own| own.noun.as_ref());
        let mut found = self.inferred(words, &draft.statistics, index, false);
        if let (Err(reason), Some(noun)) = (&found, own)
            && unusable::asks_for_words(reason)
        {
            let words = self.dictionary.words(noun);
            found = self.inferred(&words, &draft.statistics, index, true);
        }
        match found {
            Ok((inferred, full_noun)) => {
                draft.full_noun = full_noun;
                // "The name that most products have" is about the name of the product.
                let is_category = matches!(inferred.kind, ColumnKind::OneOf(_));
                draft.column.noun = match is_category && inferred.noun == "name" {
                    true => draft.full_noun.clone(),
                    false => inferred.noun,
                };
                let statistics = &draft.statistics;
                let nulls = statistics.nulls * 100 / statistics.rows.max(1);
                let is_countable = statistics.nulls > 0 && statistics.blanks == 0;
                draft.column.spec.nulls = if is_countable { nulls.max(1) as u32 } else { 0 };
                draft.column.spec.additive = inferred.is_additive;
                draft.column.spec.drafted = inferred.phrases;
                draft.column.spec.kind = inferred.kind;
            }
            // Another note says where its key refers to, and why that is not used.
            Err(unusable::WITHOUT_TABLE) if self.has_declared_key(index) => {
                draft.hidden_because = Some("is an id whose key is not used".to_owned());
            }
            Err(reason) => {
                let note = match unusable::is_about_all_rows(reason) {
                    true => self.table().sample_note(),
                    false => String::new(),
                };
                draft.hidden_because = Some(format!("{reason}{note}"));
            }
        }
    }

    /// Infers what a column means from its words, and returns its noun with all of them as well.
    /// `is_worded`: they are those of the file of words.
    fn inferred(
        &self,
        words: &[String],
        statistics: &ColumnStatistics,
        index: usize,
        is_worded: bool,
    ) -> Result<(InferredColumn, String), &'static str> {
        let place = ColumnPlace {
            own: &self.nouns[self.index].one,
            is_unique: self.table().columns[index].is_unique,
            is_reference: self.is_reference(index, words),
            is_worded,
        };
        let noun_of = |words: &[String]| infer(words, statistics, place, self.dictionary);
        let full = noun_of(words);
        let short: Vec<String> = self
            .short_noun(words)
            .split(' ')
            .map(str::to_owned)
            .collect();
        let inferred = noun_of(&short).or_else(|_| full.clone())?;
        let full_noun = full.map_or_else(|_| inferred.noun.clone(), |it| it.noun);
        Ok((inferred, full_noun))
    }

    /// Returns the words of the file for a column.
    fn own_words(&self, index: usize) -> Option<&ColumnWords> {
        let table = self.table();
        self.file.column(&table.name, &table.columns[index].name)
    }

    /// Whether the schema or the file of words says which table a column refers to.
    fn has_declared_key(&self, index: usize) -> bool {
        let mut keys = self.table().foreign_keys.iter();
        keys.any(|it| it.column == index)
            || self
                .own_words(index)
                .is_some_and(|own| own.refers_to.is_some())
    }

    /// Whether a column is declared or named as one that refers to a table.
    fn is_reference(&self, index: usize, words: &[String]) -> bool {
        let table = self.table();
        let is_declared = table.foreign_keys.iter().any(|it| it.column == index);
        is_declared || names_other_table(words, self.index, &self.links.nouns, self.dictionary)
    }

    /// Returns the words of a column without the noun of the table before them.
    fn short_noun(&self, words: &[String]) -> String {
        let own = &self.nouns[self.index].one;
        let default = self.default_noun(self.index);
        let base = own.strip_suffix(" record").unwrap_or(own);
        for one in [own, base, &default] {
            let one: Vec<&str> = one.split(' ').collect();
            let is_before = |prefix: &&[&str]| {
                words.len() > prefix.len()
                    && words.iter().zip(*prefix).all(|(it, other)| it == other)
            };
            let mut prefixes = (0..one.len()).map(|start| &one[start..]);
            if let Some(prefix) = prefixes.find(is_before) {
                return words[prefix.len()..].join(" ");
            }
        }
        words.join(" ")
    }
}
