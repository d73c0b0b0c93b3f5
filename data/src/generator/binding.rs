//! Enumerates what can fill the slots of a query template, given a schema and its rows.

use rusqlite::types::Value as SqlValue;

use super::domain::ColumnKind;
use super::rng::RngStream;
use super::rows::DatabaseRows;
use super::schema::{ColumnId, GeneratedColumn, GeneratedSchema};
use super::template::{QueryTemplate, Slot, SlotKind};

/// The approximate number of rows whose labels are used as values.
const LABEL_SAMPLES: usize = 12;
/// The approximate number of rows whose other values are used.
const VALUE_SAMPLES: usize = 500;
/// The number of parts into which thresholds divide a column.
const PARTS: usize = 6;

/// What fills a slot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Filler {
    Table(usize),
    /// A table and the foreign key that refers to it.
    Parent {
        foreign_key: ColumnId,
        table: usize,
    },
    Column(ColumnId),
    Value(ColumnId, SqlValue),
    Count(i64),
}

/// The fillers of all slots of a template, by letter.
pub(crate) type Binding = Vec<(char, Filler)>;

/// Returns every way to fill a template's slots, in an order that `rng` shuffles.
pub(crate) fn bindings(
    template: &QueryTemplate,
    schema: &GeneratedSchema,
    rows: &DatabaseRows,
    rng: &mut RngStream,
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
    rng.shuffle(&mut bindings);
    bindings
}

/// Draws one way to fill a template's slots, or returns none if a slot that it comes to has no
/// filler.
pub(crate) fn draw_binding(
    template: &QueryTemplate,
    schema: &GeneratedSchema,
    rows: &DatabaseRows,
    rng: &mut RngStream,
) -> Option<Binding> {
    let mut binding = Binding::new();
    for slot in &template.bind {
        let mut fillers = fillers(slot, &binding, schema, rows);
        let drawn = (!fillers.is_empty()).then(|| rng.below(fillers.len()))?;
        binding.push((slot.letter, fillers.swap_remove(drawn)));
    }
    Some(binding)
}

fn fillers(
    slot: &Slot,
    binding: &Binding,
    schema: &GeneratedSchema,
    rows: &DatabaseRows,
) -> Vec<Filler> {
    let of = slot.of.map(|letter| find(binding, letter));
    let mut fillers: Vec<Filler> = match (slot.kind, of) {
        (SlotKind::Table, None) => (0..schema.tables.len()).map(Filler::Table).collect(),
        (SlotKind::Few, None) => [2, 3, 4, 5, 8, 10].map(Filler::Count).to_vec(),
        (SlotKind::Parent, Some(of)) => parents(table_of(of), schema),
        (SlotKind::Value, Some(Filler::Column(id))) => values(*id, schema, rows),
        (SlotKind::Threshold, Some(Filler::Column(id))) => thresholds(*id, schema, rows),
        (kind, Some(of)) => columns(kind, table_of(of), schema),
        _ => panic!("slot {}: this is a bug in the grammar", slot.letter),
    };
    fillers.retain(|filler| binding.iter().all(|(_, other)| other != filler));
    fillers
}

/// Returns the filler of a slot.
pub(crate) fn find(binding: &Binding, letter: char) -> &Filler {
    let found = binding.iter().find(|(other, _)| *other == letter);
    &found
        .unwrap_or_else(|| panic!("slot {letter} is not bound: this is a bug in the grammar"))
        .1
}

/// Returns the table that a filler is or belongs to.
pub(crate) fn table_of(filler: &Filler) -> usize {
    match filler {
        Filler::Table(table) | Filler::Parent { table, .. } => *table,
        Filler::Column(id) | Filler::Value(id, _) => id.table,
        Filler::Count(_) => panic!("a count belongs to no table: this is a bug in the grammar"),
    }
}

/// Returns the columns of a table with their ids.
fn columns_of(
    schema: &GeneratedSchema,
    table: usize,
) -> impl Iterator<Item = (ColumnId, &GeneratedColumn)> {
    let columns = schema.tables[table].columns.iter().enumerate();
    columns.map(move |(column, it)| (ColumnId { table, column }, it))
}

fn parents(child: usize, schema: &GeneratedSchema) -> Vec<Filler> {
    let parent = |(foreign_key, column): (ColumnId, &GeneratedColumn)| {
        let table = column.parent?;
        Some(Filler::Parent { foreign_key, table })
    };
    columns_of(schema, child).filter_map(parent).collect()
}

fn columns(kind: SlotKind, table: usize, schema: &GeneratedSchema) -> Vec<Filler> {
    let fits = |column: &GeneratedColumn| {
        let is_number = matches!(
            column.spec.kind,
            ColumnKind::Integer(_) | ColumnKind::Decimal(_) | ColumnKind::TextInteger(_)
        );
        match (kind, &column.spec.kind) {
            (SlotKind::Nullable, _) => column.spec.nulls > 0,
            (SlotKind::Label, ColumnKind::Label(_))
            | (SlotKind::Category, ColumnKind::Words(_) | ColumnKind::OneOf(_))
            | (SlotKind::Number, ColumnKind::Year(_))
            | (SlotKind::Date, ColumnKind::Date(_)) => true,
            (SlotKind::Number | SlotKind::Measure, _) => is_number,
            (SlotKind::Additive, _) => is_number && column.spec.additive,
            _ => false,
        }
    };
    let fitting = columns_of(schema, table).filter(|(_, column)| fits(column));
    fitting.map(|(id, _)| Filler::Column(id)).collect()
}

/// Returns distinct values of a column, in the order of their first row.
fn values(id: ColumnId, schema: &GeneratedSchema, rows: &DatabaseRows) -> Vec<Filler> {
    let rows = &rows[id.table];
    let samples = match schema.column(id).spec.kind {
        ColumnKind::Label(_) => LABEL_SAMPLES,
        _ => VALUE_SAMPLES,
    };
    let mut values: Vec<&SqlValue> = Vec::new();
    for row in rows.iter().step_by((rows.len() / samples).max(1)) {
        let value = &row[id.column];
        if *value != SqlValue::Null && !values.contains(&value) {
            values.push(value);
        }
    }
    let filler = |value: &SqlValue| Filler::Value(id, value.clone());
    values.into_iter().map(filler).collect()
}

/// Returns round numbers near the quantiles of a column, or the first days of years for dates.
fn thresholds(id: ColumnId, schema: &GeneratedSchema, rows: &DatabaseRows) -> Vec<Filler> {
    let kind = &schema.column(id).spec.kind;
    let values = rows[id.table].iter().map(|row| &row[id.column]);
    let mut numbers: Vec<i64> = match kind {
        ColumnKind::Date(_) => values.filter_map(year).collect(),
        _ => values.filter_map(whole).collect(),
    };
    numbers.sort_unstable();
    let quantiles = (1..PARTS).filter_map(|part| numbers.get(part * numbers.len() / PARTS));
    let mut thresholds: Vec<SqlValue> = quantiles
        .map(|number| match kind {
            ColumnKind::Date(_) => SqlValue::Text(format!("{number}-01-01")),
            ColumnKind::Year(_) => SqlValue::Integer(*number),
            _ => SqlValue::Integer(two_digits(*number)),
        })
        .collect();
    thresholds.dedup();
    let filler = |value| Filler::Value(id, value);
    thresholds.into_iter().map(filler).collect()
}

/// Truncates a number to two significant digits, since people choose round bounds.
fn two_digits(number: i64) -> i64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    number / unit * unit
}

fn year(date: &SqlValue) -> Option<i64> {
    match date {
        SqlValue::Text(text) => text.get(..4)?.parse().ok(),
        _ => None,
    }
}

fn whole(value: &SqlValue) -> Option<i64> {
    match value {
        SqlValue::Integer(number) => Some(*number),
        SqlValue::Real(number) => Some(*number as i64),
        SqlValue::Text(text) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::template::templates;
    use super::super::{domain, render, rows};
    use super::*;

    /// No template is dead, and each has two wordings wherever it applies.
    #[test]
    fn every_template_applies_somewhere_in_the_known_domains() {
        let words = domain::word_lists();
        let mut used = vec![0; templates().len()];
        for domain in domain::domains()
            .iter()
            .filter(|domain| domain.tables.iter().all(|table| table.rows[1] < 1000))
        {
            let schema =
                GeneratedSchema::draw(domain, &mut RngStream::new(1, &[&domain.name]), false);
            let rows = rows::fill(&schema, &words, &domain.name, 1);
            for (index, template) in templates().iter().enumerate() {
                let bindings = bindings(template, &schema, &rows, &mut RngStream::new(1, &[]));
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
    fn bounds_are_round_numbers() {
        let cases = [(7, 7), (42, 42), (199, 190), (4_567, 4_500), (0, 0)];
        for (number, expected) in cases {
            assert_eq!(two_digits(number), expected);
        }
    }
}
