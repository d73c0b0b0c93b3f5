//! The query grammar: templates of SQL with their wordings, and the enumeration of what can fill their slots.
//!
//! A template declares its slots in order, each over the slots before it: `t = table`, `p = parent t`,
//! `c = category p`, `v = value c`. Every way to fill them by a schema and its rows is a [`Binding`].

use serde::Deserialize;

use rusqlite::types::Value as Cell;

use super::domain::Holds;
use super::rows::Rows;
use super::schema::{Column, Schema};
use super::stream::Stream;

const GRAMMAR: &str = include_str!("../../domains/grammar.toml");
/// Labels of rows to ask about, for each slot.
const LABEL_SAMPLES: usize = 12;
/// Thresholds cut a column into this many parts.
const PARTS: usize = 6;

/// One form of query with the ways to ask for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Template {
    pub(crate) name: String,
    /// 0 (count of a table) to 4 (nesting, set operations, lists).
    pub(crate) level: usize,
    /// How many of its queries are drawn for one of the others.
    #[serde(default = "one")]
    pub(crate) weight: usize,
    #[serde(deserialize_with = "slots")]
    pub(crate) bind: Vec<Slot>,
    pub(crate) select: String,
    pub(crate) from: String,
    /// Conditions, all to hold; one that renders as nothing is dropped.
    #[serde(default, rename = "where")]
    pub(crate) conditions: Vec<String>,
    pub(crate) group: Option<String>,
    pub(crate) having: Option<String>,
    /// The one sort key, without direction.
    pub(crate) order: Option<String>,
    #[serde(default)]
    pub(crate) descending: bool,
    pub(crate) limit: Option<usize>,
    /// A set operation with a second query.
    pub(crate) then: Option<String>,
    pub(crate) words: Vec<String>,
}

fn one() -> usize {
    1
}

/// A slot: its letter, what may fill it, and the slot that it depends on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slot {
    pub(crate) letter: char,
    pub(crate) kind: SlotKind,
    pub(crate) of: Option<char>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotKind {
    Table,
    Parent,
    Label,
    Category,
    /// A number that can be compared.
    Number,
    /// A number that can be averaged; not a year.
    Measure,
    /// A number that can be added up.
    Additive,
    Date,
    Nullable,
    /// A value that occurs in a column.
    Value,
    /// A number inside a column's range.
    Threshold,
    /// A small count.
    Few,
}

/// What fills a slot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Filler {
    Table(usize),
    /// A foreign key: the table that has it, its column, the table it refers to.
    Parent {
        child: usize,
        column: usize,
        table: usize,
    },
    Column {
        table: usize,
        column: usize,
    },
    Value {
        table: usize,
        column: usize,
        cell: Cell,
    },
    Count(i64),
}

/// All slots of a template, filled.
pub(crate) type Binding = Vec<(char, Filler)>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grammar {
    templates: Vec<Template>,
}

/// The templates of the grammar file.
pub(crate) fn templates() -> Vec<Template> {
    let grammar: Grammar = toml::from_str(GRAMMAR)
        .unwrap_or_else(|error| panic!("embedded grammar: {error}: this is a bug"));
    grammar.templates
}

/// The text of the grammar.
pub(crate) fn source() -> &'static str {
    GRAMMAR
}

/// Every way to fill a template's slots, in an order that the stream shuffles.
pub(crate) fn bindings(
    template: &Template,
    schema: &Schema,
    rows: &Rows,
    stream: &mut Stream,
) -> Vec<Binding> {
    let mut bindings: Vec<Binding> = vec![Vec::new()];
    for slot in &template.bind {
        let extend = |binding: Binding| {
            let fillers = fillers(slot, &binding, schema, rows);
            fillers
                .into_iter()
                .map(move |filler| [binding.clone(), vec![(slot.letter, filler)]].concat())
        };
        bindings = bindings.into_iter().flat_map(extend).collect();
    }
    stream.shuffle(&mut bindings);
    bindings
}

fn fillers(slot: &Slot, binding: &Binding, schema: &Schema, rows: &Rows) -> Vec<Filler> {
    let of = slot.of.map(|letter| find(binding, letter));
    let fillers: Vec<Filler> = match (slot.kind, of) {
        (SlotKind::Table, None) => (0..schema.tables.len()).map(Filler::Table).collect(),
        (SlotKind::Few, None) => [2, 3, 4, 5, 8, 10].map(Filler::Count).to_vec(),
        (SlotKind::Parent, Some(of)) => parents(of, schema),
        (SlotKind::Value, Some(Filler::Column { table, column })) => {
            values(*table, *column, schema, rows)
        }
        (SlotKind::Threshold, Some(Filler::Column { table, column })) => {
            thresholds(*table, *column, schema, rows)
        }
        (kind, Some(of)) => columns(kind, table_of(of), schema),
        _ => panic!("slot {}: this is a bug in the grammar", slot.letter),
    };
    fillers
        .into_iter()
        .filter(|filler| binding.iter().all(|(_, other)| other != filler))
        .collect()
}

/// The filler of a slot.
pub(crate) fn find(binding: &Binding, letter: char) -> &Filler {
    let found = binding.iter().find(|(other, _)| *other == letter);
    &found
        .unwrap_or_else(|| panic!("slot {letter} is not bound: this is a bug in the grammar"))
        .1
}

/// The table that a filler is or lies in.
pub(crate) fn table_of(filler: &Filler) -> usize {
    match filler {
        Filler::Table(table)
        | Filler::Parent { table, .. }
        | Filler::Column { table, .. }
        | Filler::Value { table, .. } => *table,
        Filler::Count(_) => panic!("a count lies in no table: this is a bug in the grammar"),
    }
}

fn parents(of: &Filler, schema: &Schema) -> Vec<Filler> {
    let child = table_of(of);
    let columns = schema.tables[child].columns.iter().enumerate();
    columns
        .filter_map(|(column, spec)| {
            spec.parent.map(|table| Filler::Parent {
                child,
                column,
                table,
            })
        })
        .collect()
}

fn columns(kind: SlotKind, table: usize, schema: &Schema) -> Vec<Filler> {
    let fits = |column: &Column| match (kind, &column.spec.holds) {
        (SlotKind::Nullable, _) => column.spec.nulls > 0,
        (SlotKind::Label, Holds::Label(_))
        | (SlotKind::Category, Holds::Words(_) | Holds::OneOf(_)) => true,
        (SlotKind::Number, Holds::Year(_)) | (SlotKind::Date, Holds::Date(_)) => true,
        (
            SlotKind::Number | SlotKind::Measure,
            Holds::Integer(_) | Holds::Decimal(_) | Holds::TextInteger(_),
        ) => true,
        (SlotKind::Additive, Holds::Integer(_) | Holds::Decimal(_) | Holds::TextInteger(_)) => {
            column.spec.additive
        }
        _ => false,
    };
    let columns = schema.tables[table]
        .columns
        .iter()
        .enumerate()
        .filter(|(_, column)| fits(column));
    columns
        .map(|(column, _)| Filler::Column { table, column })
        .collect()
}

/// The values that occur, in the order of their first row; of labels only those of some rows.
fn values(table: usize, column: usize, schema: &Schema, rows: &Rows) -> Vec<Filler> {
    let rows = &rows[table];
    let step = match schema.tables[table].columns[column].spec.holds {
        Holds::Label(_) => (rows.len() / LABEL_SAMPLES).max(1),
        _ => (rows.len() / 500).max(1),
    };
    let mut cells: Vec<&Cell> = Vec::new();
    for row in rows.iter().step_by(step) {
        let cell = &row[column];
        if *cell != Cell::Null && !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells
        .into_iter()
        .map(|cell| Filler::Value {
            table,
            column,
            cell: cell.clone(),
        })
        .collect()
}

/// Round numbers near the quantiles of a column; of dates the first day of a year.
fn thresholds(table: usize, column: usize, schema: &Schema, rows: &Rows) -> Vec<Filler> {
    let holds = &schema.tables[table].columns[column].spec.holds;
    let cells = rows[table].iter().map(|row| &row[column]);
    let mut numbers: Vec<i64> = match holds {
        Holds::Date(_) => cells.filter_map(year).collect(),
        _ => cells.filter_map(whole).collect(),
    };
    numbers.sort_unstable();
    let quantiles = (1..PARTS).filter_map(|part| numbers.get(part * numbers.len() / PARTS));
    let mut thresholds: Vec<Cell> = quantiles
        .map(|number| match holds {
            Holds::Date(_) => Cell::Text(format!("{number}-01-01")),
            Holds::Year(_) => Cell::Integer(*number),
            _ => Cell::Integer(two_digits(*number)),
        })
        .collect();
    thresholds.dedup();
    thresholds
        .into_iter()
        .map(|cell| Filler::Value {
            table,
            column,
            cell,
        })
        .collect()
}

/// Cut to two significant digits, as people choose a bound.
fn two_digits(number: i64) -> i64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    number / unit * unit
}

fn year(date: &Cell) -> Option<i64> {
    match date {
        Cell::Text(text) => text.get(..4)?.parse().ok(),
        _ => None,
    }
}

fn whole(cell: &Cell) -> Option<i64> {
    match cell {
        Cell::Integer(number) => Some(*number),
        Cell::Real(number) => Some(*number as i64),
        Cell::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn slots<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Slot>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts
        .iter()
        .map(|text| {
            slot(text).ok_or_else(|| serde::de::Error::custom(format!("bind: `{text}` is no slot")))
        })
        .collect()
}

fn slot(text: &str) -> Option<Slot> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (letter, kind, of) = match words.as_slice() {
        [letter, "=", kind] => (letter, kind, None),
        [letter, "=", kind, of] => (letter, kind, of.chars().next()),
        _ => return None,
    };
    let kind = match *kind {
        "table" => SlotKind::Table,
        "parent" => SlotKind::Parent,
        "label" => SlotKind::Label,
        "category" => SlotKind::Category,
        "number" => SlotKind::Number,
        "measure" => SlotKind::Measure,
        "additive" => SlotKind::Additive,
        "date" => SlotKind::Date,
        "nullable" => SlotKind::Nullable,
        "value" => SlotKind::Value,
        "threshold" => SlotKind::Threshold,
        "few" => SlotKind::Few,
        _ => return None,
    };
    Some(Slot {
        letter: letter.chars().next()?,
        kind,
        of,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{domain, render, rows};
    use super::*;

    /// No template is dead, and each has two wordings wherever it applies.
    #[test]
    fn every_template_applies_somewhere_in_the_known_domains() {
        let words = domain::words();
        let mut used = vec![0; templates().len()];
        for domain in domain::domains()
            .iter()
            .filter(|domain| domain.tables.iter().all(|table| table.rows[1] < 1000))
        {
            let schema = Schema::draw(domain, &mut Stream::new(1, &[&domain.name]), false);
            let rows = rows::fill(&schema, &words, &domain.name, 1);
            for (index, template) in templates().iter().enumerate() {
                let bindings = bindings(template, &schema, &rows, &mut Stream::new(1, &[]));
                used[index] += bindings.len();
                for binding in bindings.iter().take(20) {
                    let wordings = render::wordings(template, binding, &schema);
                    assert!(
                        wordings.len() >= 2,
                        "{} in {}: {wordings:?}",
                        template.name,
                        domain.name
                    );
                }
            }
        }
        for (template, used) in templates().iter().zip(used) {
            assert!(used > 0, "{} applies nowhere", template.name);
            assert!(template.level <= 4, "{}", template.name);
        }
    }

    #[test]
    fn slots_are_read_as_written() {
        let slot_of = |text: &str| slot(text).map(|slot| (slot.letter, slot.kind, slot.of));
        assert_eq!(slot_of("t = table"), Some(('t', SlotKind::Table, None)));
        assert_eq!(
            slot_of("v = value c"),
            Some(('v', SlotKind::Value, Some('c')))
        );
        assert_eq!(slot_of("v is value c"), None);
        assert_eq!(slot_of("v = colour c"), None);
    }

    #[test]
    fn bounds_are_round_numbers() {
        let cases = [(7, 7), (42, 42), (199, 190), (4_567, 4_500), (0, 0)];
        for (number, expected) in cases {
            assert_eq!(two_digits(number), expected);
        }
    }
}
