//! Decides which filled templates say in English what their SQL asks.

use rusqlite::types::Value as SqlValue;

use super::questions::Drafter;
use super::statistics::is_missing;
use crate::generator::binding::{Binding, Filler};
use crate::generator::domain::{ColumnKind, DraftedPhrases};
use crate::generator::filter::{AcceptedQuery, has_tie};
use crate::generator::render;
use crate::generator::schema::{ColumnId, GrammarColumn, GrammarSchema};
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
        if is_link && binding.iter().any(|(_, filler)| self.is_shared(filler)) {
            return false;
        }
        // The rows of a table that links are no things, but they can count what they link.
        let is_counted = template.name == "linked-count" && repeats;
        if is_link && (!is_linking || is_counted) {
            return false;
        }
        if self.repeats_name(binding)
            || self.confuses_references(template, binding)
            || self.hides_reference(template, binding)
        {
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
        let is_confused = |foreign_key: ColumnId, table: usize| {
            let columns = schema.tables[table].columns.iter();
            let mut back = columns.filter(|it| it.parent == Some(foreign_key.table));
            let is_plain_here = self.is_plain_reference(schema.column(foreign_key));
            back.any(|it| !is_plain_here || self.is_plain_reference(it))
        };
        binding.iter().any(|(letter, filler)| match filler {
            Filler::Parent { foreign_key, table } => {
                is_confused(*foreign_key, *table) && names_rows(template, *letter)
            }
            _ => false,
        })
    }

    /// Whether a question says only that rows "have" rows of a table that refers to them in several
    /// ways. If patients have a doctor and a second doctor, "doctors that have four patients" may
    /// be either. "Second doctors that have four patients" are clear.
    fn hides_reference(&self, template: &QueryTemplate, binding: &Binding) -> bool {
        binding.iter().any(|(letter, filler)| match filler {
            Filler::Parent { foreign_key, .. } => {
                let column = self.described.schema.column(*foreign_key);
                let is_hidden = self.is_shared(filler) && self.is_plain_reference(column);
                is_hidden && is_owner(template, *letter)
            }
            _ => false,
        })
    }

    /// Whether the table of a foreign key has several that refer to the same table.
    fn is_shared(&self, filler: &Filler) -> bool {
        let Filler::Parent { foreign_key, table } = filler else {
            return false;
        };
        let columns = self.described.schema.tables[foreign_key.table]
            .columns
            .iter();
        columns.filter(|it| it.parent == Some(*table)).count() > 1
    }

    /// Whether a foreign key is called like a row of the table that it refers to.
    fn is_plain_reference(&self, column: &GrammarColumn) -> bool {
        let tables = &self.described.schema.tables;
        column
            .parent
            .is_some_and(|parent| tables[parent].one == column.noun)
    }

    /// Whether the SQL leaves out rows that a question is about, because they have no parent. If
    /// the employee with the highest salary is in no department, a join of the two tables finds the
    /// department of another employee.
    pub(super) fn leaves_out_rows(
        &self,
        template: &QueryTemplate,
        binding: &Binding,
        schema: &GrammarSchema,
        accepted: &AcceptedQuery,
    ) -> bool {
        let Some(query) = with_orphans(template) else {
            return false;
        };
        let sql = render::sql(&query, binding, schema);
        let Ok(all) = self.database.run(&sql.text) else {
            return true;
        };
        match template.limit {
            Some(_) => all.rows != accepted.rows || has_tie(&sql, template.limit, self.database),
            // All rows that have a parent are among these, maybe in another order.
            None => all.rows.len() != accepted.rows.len(),
        }
    }

    /// Whether some row has a time of a day that the query compares with. None of the rows that
    /// were read has one, but a large table has others.
    pub(super) fn has_unread_times(&self, binding: &Binding) -> bool {
        let schema = &self.described.schema;
        let bounds = binding.iter().flat_map(|(_, filler)| match filler {
            Filler::Value(id, bound) => vec![(*id, bound)],
            Filler::Range(id, low, high) => vec![(*id, low), (*id, high)],
            _ => Vec::new(),
        });
        let is_date = |id: ColumnId| matches!(schema.column(id).spec.kind, ColumnKind::Date(_));
        let mut days = bounds.filter(|(id, _)| is_date(*id));
        days.any(|(id, day)| {
            let (of, name) = (&schema.tables[id.table].name, &schema.column(id).name);
            let day = render::plain(day);
            // A blank or a T comes before the time. An index can find these.
            let sql =
                format!("SELECT 1 FROM {of} WHERE {name} > '{day}' AND {name} < '{day}U' LIMIT 1");
            let found = self.database.run(&sql);
            !found.is_ok_and(|found| found.rows.is_empty())
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

/// Whether the words of a template speak of the rows of a parent: "teams", "each team".
fn names_rows(template: &QueryTemplate, letter: char) -> bool {
    let names = [format!("{{{letter}}}"), format!("{{{letter}.one}}")];
    let mut texts = template.wordings.iter().flatten();
    texts.any(|text| names.iter().any(|name| text.contains(name)))
}

/// Whether a question is about parents that have rows ("the team with the most users", "teams that
/// have users"). Others are about rows that have a parent ("the team of the oldest user").
fn is_owner(template: &QueryTemplate, letter: char) -> bool {
    template.group.is_some() || names_rows(template, letter)
}

/// Returns a template whose rows need no parent, or none if the question is only about rows that
/// have one.
fn with_orphans(template: &QueryTemplate) -> Option<QueryTemplate> {
    let mut query = template.clone();
    let parents = template.bind.iter();
    for slot in parents.filter(|it| it.kind == SlotKind::Parent) {
        if !is_owner(template, slot.letter) {
            let join = format!("{{{}.join}}", slot.letter);
            query.from = query.from.replace(&join, &format!("LEFT {join}"));
        }
    }
    (query.from != template.from).then_some(query)
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
