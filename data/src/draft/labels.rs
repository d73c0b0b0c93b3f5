//! Chooses the label of a table, and tells columns of one noun apart. Pure.

use rusqlite::types::Value as SqlValue;

use super::columns::{DraftColumn, TableDescriber, join};
use super::statistics::ColumnStatistics;
use crate::generator::domain::ColumnKind;
use crate::sql_name::as_needed;

/// The longest text that names a row.
const LONGEST_LABEL: usize = 50;

impl TableDescriber<'_> {
    /// Makes one column the label that rows are called by: the unique text whose name is the most
    /// like a name.
    pub(super) fn choose_label(&self, drafts: &mut [DraftColumn], of_persons: bool) {
        let is_label = |draft: &DraftColumn| draft.column.spec.kind.is_label();
        if drafts.iter().any(is_label) {
            return;
        }
        let one = &self.nouns[self.index].one;
        let rank = |(index, draft): (usize, &DraftColumn)| {
            let statistics = &draft.statistics;
            let is_text = statistics.texts == statistics.rows
                && statistics.lettered == statistics.rows
                && statistics.blanks == 0
                && statistics.distinct == statistics.distinct_folded
                && statistics.longest <= LONGEST_LABEL;
            let is_key = self.links.keys[self.index] == Some(index);
            let is_value = draft.column.parent.is_none() && draft.hidden_because.is_none();
            let is_asked = matches!(
                draft.column.spec.kind,
                ColumnKind::Text | ColumnKind::OneOf(_) | ColumnKind::Key
            );
            let is_unique = self.table().columns[index].is_unique;
            if !(is_text && is_value && is_asked && is_unique) {
                return None;
            }
            let noun: Vec<String> = draft.column.noun.split(' ').map(str::to_owned).collect();
            let labels = &self.dictionary.lists.labels;
            if !of_persons
                && super::name_lists::ending(&noun, &self.dictionary.lists.person_names).is_some()
            {
                return None;
            }
            let rank = match super::name_lists::ending(&noun, labels) {
                _ if draft.column.noun == *one => 1,
                Some(rank) => {
                    2 * rank + usize::from(noun.len() > 1 && labels[rank] != draft.column.noun)
                }
                None if is_key && draft.column.noun != "id" => 2 * labels.len(),
                None => return None,
            };
            Some((rank, index))
        };
        let best = drafts.iter().enumerate().filter_map(rank).min();
        if let Some((_, index)) = best {
            drafts[index].column.spec.kind = ColumnKind::Label(Vec::new());
        }
    }

    /// Calls a label like "continent" in the table of continents "name", and hides other columns
    /// that are called like the rows.
    pub(super) fn name_like_rows(&self, drafts: &mut [DraftColumn]) {
        let one = &self.nouns[self.index].one;
        let has_name = drafts.iter().any(|draft| draft.column.noun == "name");
        for draft in drafts {
            let noun = &draft.column.noun;
            let is_value =
                draft.column.parent.is_none() && draft.column.spec.kind != ColumnKind::Hidden;
            let is_like_rows = noun == one
                || one.ends_with(&format!(" {noun}"))
                || noun.strip_prefix("number of ") == Some(&self.nouns[self.index].many);
            if !is_value || !is_like_rows || self.is_worded(draft) {
                continue;
            }
            if draft.column.spec.kind.is_label() && !has_name {
                draft.column.noun = "name".to_owned();
            } else if !draft.column.spec.kind.is_label() {
                draft.hidden_because = Some("is called like the rows; give it words".to_owned());
                draft.column.spec.kind = ColumnKind::Hidden;
                draft.column.spec.nulls = 0;
            }
        }
    }

    /// Whether the file of words says what a column is called.
    fn is_worded(&self, draft: &DraftColumn) -> bool {
        let words = self
            .file
            .column(&self.table().name, &draft.column.spec.name);
        words.is_some_and(|words| words.noun.is_some())
    }

    /// Returns a label that joins first and last name, for a table without a label whose rows have
    /// different ones.
    pub(super) fn full_name(&self, drafts: &[DraftColumn]) -> Option<DraftColumn> {
        const PAIRS: [[&str; 2]; 3] = [
            ["first name", "last name"],
            ["first name", "surname"],
            ["given name", "family name"],
        ];
        let table = self.table();
        let is_label = |draft: &DraftColumn| draft.column.spec.kind.is_label();
        if drafts.iter().any(is_label) || table.sample.is_some() {
            return None;
        }
        let find = |noun: &str| {
            let is_it = |it: &DraftColumn| {
                it.full_noun.ends_with(noun)
                    && it.hidden_because.is_none()
                    && !it.statistics.has_gaps()
                    && it.statistics.texts == it.statistics.rows
            };
            drafts.iter().position(is_it)
        };
        let joined = PAIRS
            .iter()
            .find_map(|[first, last]| Some([find(first)?, find(last)?]))?;
        let name = as_needed(&table.name);
        let parts = joined.map(|index| format!("{name}.{}", drafts[index].column.name));
        let mut draft = drafts[joined[0]].clone();
        draft.joined = Some(joined);
        draft.column.name = parts.join(" || ' ' || ");
        draft.column.noun = "full name".to_owned();
        draft.column.spec.kind = ColumnKind::Label(Vec::new());
        draft.column.spec.says = None;
        draft.synonyms = Vec::new();
        let names: Vec<SqlValue> = table.rows.iter().map(|row| join(row, joined)).collect();
        draft.statistics = ColumnStatistics::count(names.iter());
        let is_unique = draft.statistics.distinct_folded == names.len();
        (is_unique && draft.statistics.longest <= LONGEST_LABEL).then_some(draft)
    }

    /// Gives columns of one noun their full names, and hides those that have one noun even so.
    pub(super) fn separate(&self, drafts: &mut [DraftColumn]) {
        let is_asked = |draft: &DraftColumn| {
            draft.hidden_because.is_none()
                && !(draft.column.parent.is_none() && draft.column.spec.kind == ColumnKind::Hidden)
        };
        let repeated = |drafts: &[DraftColumn]| -> Vec<usize> {
            let is_repeated = |index: &usize| {
                let noun = &drafts[*index].column.noun;
                let same = drafts
                    .iter()
                    .filter(|it| is_asked(it) && it.column.noun == *noun);
                is_asked(&drafts[*index]) && same.count() > 1
            };
            (0..drafts.len()).filter(is_repeated).collect()
        };
        for index in repeated(drafts) {
            let draft = &mut drafts[index];
            if draft.column.parent.is_none() && draft.column.spec.kind != ColumnKind::Key {
                draft.column.noun.clone_from(&draft.full_noun);
            }
        }
        for index in repeated(drafts) {
            let draft = &mut drafts[index];
            // A column that refers to a table keeps its noun, and the key is named by "id".
            if draft.column.parent.is_none() && draft.column.spec.kind != ColumnKind::Key {
                draft.hidden_because = Some(format!(
                    "has the words of another column: \"{}\"",
                    draft.column.noun
                ));
                draft.column.spec.kind = ColumnKind::Hidden;
                draft.column.spec.nulls = 0;
            }
        }
    }
}
