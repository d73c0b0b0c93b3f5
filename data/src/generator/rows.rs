//! The rows of a generated database: skewed, incomplete and uneven, like the rows of real
//! databases. Pure.
//!
//! The data seed decides which values a column keeps and how often they occur. Under a second seed
//! the numbers, the most frequent category and the number of categories differ.

use std::collections::BTreeSet;

use rusqlite::types::Value as SqlValue;

use super::domain::{ColumnKind, WordLists};
use super::rng::RngStream;
use super::schema::{GrammarColumn, GrammarSchema, GrammarTable};

/// Rows by table, in the schema's order of tables and columns.
pub(crate) type DatabaseRows = Vec<Vec<Vec<SqlValue>>>;

/// The percentage of parents without a child.
const CHILDLESS_PERCENT: usize = 8;
const FEWEST_VALUES: usize = 4;
const MOST_VALUES: usize = 10;

/// Fills a schema with rows. The result depends only on the schema, `name` and `seed`.
pub(crate) fn fill(
    schema: &GrammarSchema,
    words: &WordLists,
    name: &str,
    seed: u64,
) -> DatabaseRows {
    let count = |table: &GrammarTable| {
        let [fewest, most] = table.rows;
        RngStream::new(seed, &[name, &table.name, "count"]).between(fewest, most) as usize
    };
    let counts: Vec<usize> = schema.tables.iter().map(count).collect();
    let fill_table = |(table, count): (&GrammarTable, &usize)| {
        let fill_column = |column: &GrammarColumn| {
            let mut rng = RngStream::new(seed, &[name, &table.name, &column.name]);
            fill_column(column, *count, &counts, words, &mut rng)
        };
        let columns: Vec<Vec<SqlValue>> = table.columns.iter().map(fill_column).collect();
        let row = |row: usize| columns.iter().map(|column| column[row].clone()).collect();
        distinct_by_key((0..*count).map(row), table)
    };
    schema.tables.iter().zip(&counts).map(fill_table).collect()
}

/// Drops rows whose composite key occurred before. Composite keys are drawn like any other column.
fn distinct_by_key(
    rows: impl Iterator<Item = Vec<SqlValue>>,
    table: &GrammarTable,
) -> Vec<Vec<SqlValue>> {
    if table.key.len() == 1 {
        return rows.collect();
    }
    let mut keys = BTreeSet::new();
    rows.filter(|row| {
        let key = table.key.iter().map(|column| format!("{:?}", row[*column]));
        keys.insert(key.collect::<Vec<_>>())
    })
    .collect()
}

fn fill_column(
    column: &GrammarColumn,
    count: usize,
    counts: &[usize],
    words: &WordLists,
    rng: &mut RngStream,
) -> Vec<SqlValue> {
    let spec = &column.spec;
    let values: Vec<SqlValue> = match &spec.kind {
        ColumnKind::Key => (1..=count as i64).map(SqlValue::Integer).collect(),
        ColumnKind::Label(lists) => labels(lists, words, count, rng),
        ColumnKind::Parent(_) => {
            let parents = column.parent.map_or(0, |parent| counts[parent]);
            parent_keys(parents, spec.skewed, count, rng)
        }
        ColumnKind::Words(list) => categories(&words[list], spec.mixed_case, count, rng),
        ColumnKind::OneOf(values) => categories(values, spec.mixed_case, count, rng),
        kind => (0..count)
            .map(|_| measure(kind, spec.skewed, rng))
            .collect(),
    };
    let mut or_null = |value| match spec.nulls > 0 && rng.chance(spec.nulls) {
        true => SqlValue::Null,
        false => value,
    };
    values.into_iter().map(&mut or_null).collect()
}

fn labels(lists: &[String], words: &WordLists, count: usize, rng: &mut RngStream) -> Vec<SqlValue> {
    let total: usize = lists.iter().map(|list| words[list].len()).product();
    assert!(
        count <= total,
        "word lists {lists:?} give {total} labels, {count} are needed: this is a bug"
    );
    // Each label occurs at most once: the labels are a prefix of all combinations, shuffled.
    let mut combinations: Vec<usize> = (0..total).collect();
    rng.shuffle(&mut combinations);
    let label = |mut combination: usize| {
        let word = |list: &String| {
            let list = &words[list];
            let word = &list[combination % list.len()];
            combination /= list.len();
            word.as_str()
        };
        SqlValue::Text(lists.iter().map(word).collect::<Vec<_>>().join(" "))
    };
    combinations.into_iter().take(count).map(label).collect()
}

fn parent_keys(parents: usize, skewed: bool, count: usize, rng: &mut RngStream) -> Vec<SqlValue> {
    let mut keys: Vec<i64> = (1..=parents as i64).collect();
    rng.shuffle(&mut keys);
    let childless = parents * CHILDLESS_PERCENT / 100;
    keys.truncate((parents - childless).max(1));
    let mut draw = || match skewed {
        true => rng.zipf(keys.len()),
        false => rng.below(keys.len()),
    };
    (0..count)
        .map(|_| SqlValue::Integer(keys[draw()]))
        .collect()
}

fn categories(
    values: &[String],
    mixed_case: bool,
    count: usize,
    rng: &mut RngStream,
) -> Vec<SqlValue> {
    let mut kept: Vec<String> = values.to_vec();
    rng.shuffle(&mut kept);
    let most = kept.len().min(MOST_VALUES);
    let fewest = FEWEST_VALUES.min(most);
    kept.truncate(rng.between(fewest as i64, most as i64) as usize);
    if mixed_case {
        for value in &mut kept {
            match rng.below(3) {
                0 => *value = value.to_uppercase(),
                1 => *value = value.to_lowercase(),
                _ => {}
            }
        }
    }
    (0..count)
        .map(|_| SqlValue::Text(kept[rng.zipf(kept.len())].clone()))
        .collect()
}

fn measure(kind: &ColumnKind, skewed: bool, rng: &mut RngStream) -> SqlValue {
    match kind {
        ColumnKind::Integer([low, high]) | ColumnKind::Year([low, high]) => {
            SqlValue::Integer(number(*low, *high, skewed, rng))
        }
        ColumnKind::TextInteger([low, high]) => {
            SqlValue::Text(number(*low, *high, skewed, rng).to_string())
        }
        ColumnKind::Decimal([low, high]) => {
            SqlValue::Real(number(low * 100, high * 100, skewed, rng) as f64 / 100.0)
        }
        ColumnKind::Date([first, last]) => {
            let year = rng.between(*first, *last);
            let (month, day) = (rng.between(1, 12), rng.between(1, 28));
            SqlValue::Text(format!("{year}-{month:02}-{day:02}"))
        }
        _ => unreachable!("{kind:?} is filled elsewhere: this is a bug"),
    }
}

fn number(low: i64, high: i64, skewed: bool, rng: &mut RngStream) -> i64 {
    let first = rng.between(low, high);
    if skewed {
        first.min(rng.between(low, high))
    } else {
        first
    }
}
