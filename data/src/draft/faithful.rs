//! Decides which filled templates say in English what their SQL asks.

use rusqlite::types::Value as SqlValue;

use super::questions::Drafter;
use super::statistics::is_missing;
use crate::generator::binding::{Binding, Filler};
use crate::generator::domain::DraftedPhrases;
use crate::generator::render;
use crate::generator::schema::{ColumnId, GrammarColumn};
use crate::generator::template::{QueryTemplate, SlotKind};

/// Templates whose condition is one of two values. It must leave others.
const EITHER: [&str; 2] = ["count-either", "list-either"];
/// The words in the names of templates whose condition is that a value is another one.
const NEGATED: [&str; 4] = ["count-not", "list-not", "two-not", "distinct-list-not"];
/// The longest value in a question.
const MOST_VALUE_CHARACTERS: usize = 40;

impl Drafter<'_> {
    /// Whether the English of a filled template says what its SQL asks.
    pub(super) fn is_faithful(&self, template: &QueryTemplate, binding: &Binding) -> bool {
        let schema = &self.described.schema;
        let mut tables: Vec<usize> = Vec::new();
        for (_, filler) in binding {
            if let Filler::Table(table) | Filler::Parent { table, .. } = filler {
                // Two rows of one table need aliases, which the grammar does not have.
                if tables.contains(table) {
                    return false;
                }
                tables.push(*table);
            }
        }
        let first = tables.first().map(|table| &schema.tables[*table]);
        let is_linking =
            template.name.starts_with("linked") || template.name == "label-except-linked";
        let is_link = first.is_some_and(|table| table.is_link());
        let repeats = tables
            .first()
            .is_some_and(|it| self.described.tables[*it].repeats);
        // "Linked to Ann" leaves open as what, if a row has several people.
        let is_shared = |(_, filler): &(char, Filler)| match filler {
            Filler::Parent { foreign_key, table } => {
                let columns = schema.tables[foreign_key.table].columns.iter();
                columns.filter(|it| it.parent == Some(*table)).count() > 1
            }
            _ => false,
        };
        if is_link && binding.iter().any(is_shared) {
            return false;
        }
        // The rows of a table that links are no things, but they can count what they link.
        let is_counted = template.name == "linked-count" && repeats;
        if is_link && (!is_linking || is_counted) {
            return false;
        }
        if self.repeats_name(binding) || self.confuses_references(template, binding) {
            return false;
        }
        let is_negated = NEGATED.contains(&template.name.as_str());
        if !self.says_flags(template, binding, is_negated) {
            return false;
        }
        let slots = template.bind.iter();
        slots.zip(binding).all(|(slot, (_, filler))| match filler {
            Filler::Value(id, value) => self.is_plain(*id, value, slot.kind, binding),
            Filler::Range(id, low, high) => {
                self.is_inside(*id, low) && self.is_inside(*id, high) && low != high
            }
            Filler::Column(id) if EITHER.contains(&template.name.as_str()) => {
                slot.kind != SlotKind::Category || self.described.statistics(*id).distinct > 2
            }
            Filler::Column(id) if is_negated && slot.kind == SlotKind::Category => {
                !self.described.statistics(*id).has_gaps()
            }
            // A text that stands for a missing value would be counted, or be a group of its own.
            Filler::Column(id) if slot.kind == SlotKind::Category => {
                !self.described.statistics(*id).has_blanks() || is_filtered(binding, *id)
            }
            _ => true,
        })
    }

    /// Whether a question says only that rows of a table "have" rows of another table, although
    /// the two tables refer to each other. If users are in teams and teams have lead users, "users
    /// that have no teams" are in no team for a reader, and lead none for the SQL.
    fn confuses_references(&self, template: &QueryTemplate, binding: &Binding) -> bool {
        let schema = &self.described.schema;
        // "Teams that have users" are those in which users are, unless a team has a "user", too.
        let is_plain = |column: &GrammarColumn| {
            let parent = column.parent.map(|parent| &schema.tables[parent].one);
            parent == Some(&column.noun)
        };
        let is_confused = |foreign_key: ColumnId, table: usize| {
            let columns = schema.tables[table].columns.iter();
            let mut back = columns.filter(|it| it.parent == Some(foreign_key.table));
            let is_plain_here = is_plain(schema.column(foreign_key));
            back.any(|it| !is_plain_here || is_plain(it))
        };
        let names_rows = |letter: char| {
            let names = [format!("{{{letter}}}"), format!("{{{letter}.one}}")];
            let mut texts = template.wordings.iter().flatten();
            texts.any(|text| names.iter().any(|name| text.contains(name)))
        };
        binding.iter().any(|(letter, filler)| match filler {
            Filler::Parent { foreign_key, table } => {
                is_confused(*foreign_key, *table) && names_rows(*letter)
            }
            _ => false,
        })
    }

    /// Whether flags are only conditions. Nobody asks for the "paid flag" of an order, and rows
    /// without a value are neither paid nor not paid.
    fn says_flags(&self, template: &QueryTemplate, binding: &Binding, is_negated: bool) -> bool {
        let schema = &self.described.schema;
        let flag_of = |id: &ColumnId| match &schema.column(*id).spec.drafted {
            DraftedPhrases::Flag { yes, .. } => Some(yes),
            _ => None,
        };
        let slots = template.bind.iter();
        slots.zip(binding).all(|(slot, (_, filler))| match filler {
            Filler::Column(id) if flag_of(id).is_some() => {
                let is_condition = slot.kind == SlotKind::Category && is_filtered(binding, *id);
                is_condition && !is_negated
            }
            Filler::Value(id, value) => flag_of(id).is_none_or(|yes| {
                !self.described.statistics(*id).has_gaps() || render::plain(value) == *yes
            }),
            _ => true,
        })
    }

    /// Whether a question asks for a full name and for a part of it.
    fn repeats_name(&self, binding: &Binding) -> bool {
        let schema = &self.described.schema;
        let nouns = binding.iter().filter_map(|(_, filler)| match filler {
            Filler::Column(id) => Some((id.table, schema.column(*id).noun.as_str())),
            _ => None,
        });
        let nouns: Vec<(usize, &str)> = nouns.collect();
        let has_part = |table: usize| {
            let mut parts = nouns.iter().filter(|(other, _)| *other == table);
            parts.any(|(_, noun)| ["first name", "last name", "surname"].contains(noun))
        };
        let mut full = nouns.iter().filter(|(_, noun)| *noun == "full name");
        full.any(|(table, _)| has_part(*table))
    }

    /// Whether a value can stand in a question.
    fn is_plain(&self, id: ColumnId, value: &SqlValue, kind: SlotKind, binding: &Binding) -> bool {
        if matches!(kind, SlotKind::Threshold | SlotKind::Extreme) {
            return self.is_inside(id, value);
        }
        let is_part = matches!(kind, SlotKind::Word | SlotKind::Letter);
        let noun = &self.described.schema.column(id).noun;
        if is_part && ["code", "number", "id"].iter().any(|it| noun.ends_with(it)) {
            return false;
        }
        match value {
            SqlValue::Text(text) => {
                let is_short = text.chars().count() <= MOST_VALUE_CHARACTERS;
                let is_clean = text.trim() == text
                    && !text.contains(['"', '\n', '\r', '\t', '{', '}'])
                    && !text.contains("  ");
                is_short && is_clean && !is_missing(text) && !repeats_value(binding, value)
            }
            SqlValue::Integer(_) => true,
            _ => false,
        }
    }

    /// Whether a bound divides the values of a column: some are smaller, and some are greater.
    fn is_inside(&self, id: ColumnId, bound: &SqlValue) -> bool {
        let statistics = self.described.statistics(id);
        match bound {
            SqlValue::Text(date) => self.divides_days(id, date),
            SqlValue::Integer(number) => {
                let number = *number as f64;
                statistics.least < number && number < statistics.greatest
            }
            _ => false,
        }
    }

    /// Whether some values are before the day `date`, some are after it, and none is a time of this
    /// day. Such a time is after the day for SQL and not for a person.
    fn divides_days(&self, id: ColumnId, date: &str) -> bool {
        let (mut has_earlier, mut has_later) = (false, false);
        for row in &self.described.rows[id.table] {
            let SqlValue::Text(text) = &row[id.column] else {
                continue;
            };
            if text.len() > date.len() && text.starts_with(date) {
                return false;
            }
            has_earlier |= text.as_str() < date;
            has_later |= text.as_str() > date;
        }
        has_earlier && has_later
    }
}

/// Whether two slots have one value of different columns: "whose origin is Rome and whose
/// destination is Rome".
fn repeats_value(binding: &Binding, value: &SqlValue) -> bool {
    let same =
        |(_, filler): &&(char, Filler)| matches!(filler, Filler::Value(_, it) if it == value);
    binding.iter().filter(same).count() > 1
}

/// Whether a binding compares the column with a value.
fn is_filtered(binding: &Binding, column: ColumnId) -> bool {
    let is_it = |filler: &Filler| matches!(filler, Filler::Value(id, _) if *id == column);
    binding.iter().any(|(_, filler)| is_it(filler))
}
