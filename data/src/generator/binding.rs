//! Enumerates what can fill the slots of a query template, given a schema and its rows. Pure.

use rusqlite::types::Value as SqlValue;

use super::domain::ColumnKind;
use super::rng::RngStream;
use super::rows::DatabaseRows;
use super::schema::{ColumnId, GrammarColumn, GrammarSchema};
use super::template::{QueryTemplate, Slot, SlotKind};

/// The approximate number of rows whose labels are used as values.
const LABEL_SAMPLES: usize = 12;
/// The approximate number of rows whose other values are used.
const VALUE_SAMPLES: usize = 500;
/// The approximate number of rows in which thresholds are sought.
const THRESHOLD_SAMPLES: usize = 2000;
/// The length of the shortest word that a question searches for.
const SHORTEST_WORD: usize = 3;
/// The largest number of rows beyond an extreme bound, if all values differ.
const MAX_BEYOND: usize = 4;
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
    /// A value of a column, or a part of one.
    Value(ColumnId, SqlValue),
    /// The smallest and the largest value of a range.
    Range(ColumnId, SqlValue, SqlValue),
    Count(i64),
}

/// The fillers of all slots of a template, by letter.
pub(crate) type Binding = Vec<(char, Filler)>;

/// Returns every way to fill a template's slots, in an order that `rng` shuffles.
pub(crate) fn bindings(
    template: &QueryTemplate,
    schema: &GrammarSchema,
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
    schema: &GrammarSchema,
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
    schema: &GrammarSchema,
    rows: &DatabaseRows,
) -> Vec<Filler> {
    let of = slot.of.map(|letter| find(binding, letter));
    let mut fillers: Vec<Filler> = match (slot.kind, of) {
        (SlotKind::Table, None) => (0..schema.tables.len()).map(Filler::Table).collect(),
        (SlotKind::Few, None) => [2, 3, 4, 5, 8, 10].map(Filler::Count).to_vec(),
        (SlotKind::Parent, Some(of)) => parents(table_of(of), schema),
        (SlotKind::Value, Some(Filler::Column(id))) => values(*id, schema, rows),
        (SlotKind::Other, Some(Filler::Value(id, value))) => {
            let mut values = values(*id, schema, rows).into_iter();
            let is_value = |filler: &Filler| *filler == Filler::Value(*id, value.clone());
            values.by_ref().find(is_value);
            values.collect()
        }
        (SlotKind::Threshold | SlotKind::Extreme, Some(Filler::Column(id))) => {
            let indices = match slot.kind {
                SlotKind::Threshold => quantiles,
                _ => ends,
            };
            let bounds = bounds(*id, schema, rows, indices).into_iter();
            bounds.map(|bound| Filler::Value(*id, bound)).collect()
        }
        (SlotKind::Range, Some(Filler::Column(id))) => ranges(*id, schema, rows),
        (SlotKind::Word | SlotKind::Letter, Some(Filler::Column(id))) => {
            fragments(slot.kind, *id, schema, rows)
        }
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
        Filler::Column(id) | Filler::Value(id, _) | Filler::Range(id, ..) => id.table,
        Filler::Count(_) => panic!("a count belongs to no table: this is a bug in the grammar"),
    }
}

/// Returns the columns of a table with their ids.
fn columns_of(
    schema: &GrammarSchema,
    table: usize,
) -> impl Iterator<Item = (ColumnId, &GrammarColumn)> {
    let columns = schema.tables[table].columns.iter().enumerate();
    columns.map(move |(column, it)| (ColumnId { table, column }, it))
}

fn parents(child: usize, schema: &GrammarSchema) -> Vec<Filler> {
    let parent = |(foreign_key, column): (ColumnId, &GrammarColumn)| {
        let table = column.parent?;
        Some(Filler::Parent { foreign_key, table })
    };
    columns_of(schema, child).filter_map(parent).collect()
}

fn columns(kind: SlotKind, table: usize, schema: &GrammarSchema) -> Vec<Filler> {
    let is_label = |column: &GrammarColumn| column.spec.kind.is_label();
    let has_label = schema.tables[table].columns.iter().any(is_label);
    let fits = |column: &GrammarColumn| {
        let is_number = column.spec.kind.is_number();
        match (kind, &column.spec.kind) {
            (SlotKind::Nullable, _) => column.spec.nulls > 0,
            (SlotKind::Key, kind) => *kind == ColumnKind::Key,
            (SlotKind::Any, ColumnKind::Key | ColumnKind::Parent(_) | ColumnKind::Hidden) => false,
            (SlotKind::Any, _) => true,
            (SlotKind::Name, ColumnKind::Key) => !has_label,
            (SlotKind::Label | SlotKind::Name, ColumnKind::Label(_))
            | (SlotKind::Category, ColumnKind::Words(_) | ColumnKind::OneOf(_))
            | (SlotKind::Number, ColumnKind::Year(_) | ColumnKind::Date(_)) => true,
            (SlotKind::Number | SlotKind::Measure, _) => is_number,
            (SlotKind::Additive, _) => is_number && column.spec.additive,
            _ => false,
        }
    };
    let fitting = columns_of(schema, table).filter(|(_, column)| fits(column));
    fitting.map(|(id, _)| Filler::Column(id)).collect()
}

/// Returns distinct values of a column, in the order of their first row.
fn values(id: ColumnId, schema: &GrammarSchema, rows: &DatabaseRows) -> Vec<Filler> {
    let samples = match schema.column(id).spec.kind {
        ColumnKind::Label(_) => LABEL_SAMPLES,
        _ => VALUE_SAMPLES,
    };
    let mut values: Vec<&SqlValue> = Vec::new();
    for value in sampled(id, rows, samples) {
        if *value != SqlValue::Null && !values.contains(&value) {
            values.push(value);
        }
    }
    let filler = |value: &SqlValue| Filler::Value(id, value.clone());
    values.into_iter().map(filler).collect()
}

/// Returns the values of about `samples` rows.
fn sampled(id: ColumnId, rows: &DatabaseRows, samples: usize) -> impl Iterator<Item = &SqlValue> {
    let rows = &rows[id.table];
    let step = (rows.len() / samples).max(1);
    rows.iter().step_by(step).map(move |row| &row[id.column])
}

/// Returns round numbers of a column, or the first days of years for dates. `indices` chooses among
/// the sorted values of so many rows.
fn bounds(
    id: ColumnId,
    schema: &GrammarSchema,
    rows: &DatabaseRows,
    indices: impl Fn(usize) -> Vec<usize>,
) -> Vec<SqlValue> {
    let kind = &schema.column(id).spec.kind;
    let values = sampled(id, rows, THRESHOLD_SAMPLES);
    let mut numbers: Vec<i64> = match kind {
        ColumnKind::Date(_) => values.filter_map(year).collect(),
        _ => values.filter_map(whole).collect(),
    };
    numbers.sort_unstable();
    let indices = indices(numbers.len()).into_iter();
    let mut bounds: Vec<SqlValue> = indices
        .filter_map(|index| numbers.get(index))
        .map(|number| match kind {
            ColumnKind::Date(_) => SqlValue::Text(format!("{number}-01-01")),
            ColumnKind::Year(_) => SqlValue::Integer(*number),
            _ => SqlValue::Integer(two_digits(*number)),
        })
        .collect();
    bounds.dedup();
    bounds
}

/// Returns the indices that divide so many values into equal parts.
fn quantiles(count: usize) -> Vec<usize> {
    (1..PARTS).map(|part| part * count / PARTS).collect()
}

/// Returns the indices of the smallest and the largest of so many values, without the very ends.
fn ends(count: usize) -> Vec<usize> {
    let low = 1..=MAX_BEYOND.min(count);
    let high = count.saturating_sub(MAX_BEYOND + 1)..count.saturating_sub(1);
    low.chain(high).collect()
}

/// Returns the pairs of thresholds.
fn ranges(id: ColumnId, schema: &GrammarSchema, rows: &DatabaseRows) -> Vec<Filler> {
    let bounds = bounds(id, schema, rows, quantiles);
    let range =
        |(low, high): (usize, usize)| Filler::Range(id, bounds[low].clone(), bounds[high].clone());
    let highs = |low| (low + 1..bounds.len()).map(move |high| (low, high));
    (0..bounds.len()).flat_map(highs).map(range).collect()
}

/// Returns distinct words or first letters of a column's values.
fn fragments(
    kind: SlotKind,
    id: ColumnId,
    schema: &GrammarSchema,
    rows: &DatabaseRows,
) -> Vec<Filler> {
    let mut fragments: Vec<String> = Vec::new();
    for value in values(id, schema, rows) {
        let Filler::Value(_, SqlValue::Text(text)) = value else {
            continue;
        };
        match kind {
            SlotKind::Letter => fragments.extend(text.chars().next().map(String::from)),
            _ => fragments.extend(text.split_whitespace().map(str::to_owned)),
        }
    }
    let is_plain = |text: &String| text.chars().all(char::is_alphanumeric);
    let is_long = |text: &String| kind == SlotKind::Letter || text.len() >= SHORTEST_WORD;
    fragments.retain(|text| is_plain(text) && is_long(text));
    fragments.sort();
    fragments.dedup();
    let filler = |text| Filler::Value(id, SqlValue::Text(text));
    fragments.into_iter().map(filler).collect()
}

/// Truncates a number to two significant digits, since people choose round bounds.
fn two_digits(number: i64) -> i64 {
    let mut unit = 1;
    while (number / unit).abs() >= 100 {
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

    /// No template is dead, and each has three wordings wherever it applies.
    #[test]
    fn every_template_applies_somewhere_in_the_known_domains() {
        let words = domain::word_lists();
        let mut used = vec![0; templates().len()];
        for domain in domain::domains()
            .iter()
            .filter(|domain| domain.tables.iter().all(|table| table.rows[1] < 1000))
        {
            let schema =
                GrammarSchema::draw(domain, &mut RngStream::new(1, &[&domain.name]), false);
            let rows = rows::fill(&schema, &words, &domain.name, 1);
            for (index, template) in templates().iter().enumerate() {
                let bindings = bindings(template, &schema, &rows, &mut RngStream::new(1, &[]));
                used[index] += bindings.len();
                for binding in bindings.iter().take(20) {
                    let mut rng = RngStream::new(1, &["words"]);
                    let wordings = render::wordings(template, binding, &schema, &mut rng);
                    assert!(
                        wordings.len() >= 3,
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
    fn extreme_bounds_leave_few_values_beyond() {
        assert_eq!(ends(20), [1, 2, 3, 4, 15, 16, 17, 18]);
        assert_eq!(ends(2), [1, 2, 0]);
        assert_eq!(quantiles(12), [2, 4, 6, 8, 10]);
    }

    #[test]
    fn bounds_are_round_numbers() {
        let cases = [
            (7, 7),
            (42, 42),
            (199, 190),
            (4_567, 4_500),
            (0, 0),
            (-199, -190),
        ];
        for (number, expected) in cases {
            assert_eq!(two_digits(number), expected);
        }
    }
}
