//! The rows of a database: skewed, incomplete and uneven, as real ones are.
//!
//! A column's kept values and their frequencies are drawn with the data seed, so that under a second seed not only the
//! numbers but also the most frequent category and the number of categories differ.

use std::collections::BTreeSet;

use rusqlite::types::Value as Cell;

use super::domain::{Holds, Words};
use super::schema::{Column, Schema, Table};
use super::stream::Stream;

/// Rows by table, in the schema's order of tables and columns.
pub(crate) type Rows = Vec<Vec<Vec<Cell>>>;

/// Per cent of parents that have no child.
const CHILDLESS_PERCENT: u32 = 8;
const FEWEST_VALUES: usize = 4;
const MOST_VALUES: usize = 10;

/// Fills a schema. `name` and `seed` alone decide the rows.
pub(crate) fn fill(schema: &Schema, words: &Words, name: &str, seed: u64) -> Rows {
    let counts: Vec<usize> = schema
        .tables
        .iter()
        .map(|table| {
            Stream::new(seed, &[name, &table.name, "count"]).between(table.rows[0], table.rows[1])
                as usize
        })
        .collect();
    schema
        .tables
        .iter()
        .enumerate()
        .map(|(index, table)| fill_table(table, &counts, index, words, name, seed))
        .collect()
}

fn fill_table(
    table: &Table,
    counts: &[usize],
    index: usize,
    words: &Words,
    name: &str,
    seed: u64,
) -> Vec<Vec<Cell>> {
    let columns: Vec<Vec<Cell>> = table
        .columns
        .iter()
        .map(|column| {
            let mut stream = Stream::new(seed, &[name, &table.name, &column.name]);
            fill_column(column, counts[index], counts, words, &mut stream)
        })
        .collect();
    let rows = (0..columns.first().map_or(0, Vec::len))
        .map(|row| columns.iter().map(|column| column[row].clone()).collect());
    distinct_by_key(rows, table)
}

/// Composite keys are drawn like any column; a row whose key was drawn before is dropped.
fn distinct_by_key(rows: impl Iterator<Item = Vec<Cell>>, table: &Table) -> Vec<Vec<Cell>> {
    if table.key.len() == 1 {
        return rows.collect();
    }
    let mut keys = BTreeSet::new();
    rows.filter(|row| {
        keys.insert(
            table
                .key
                .iter()
                .map(|column| format!("{:?}", row[*column]))
                .collect::<Vec<_>>(),
        )
    })
    .collect()
}

fn fill_column(
    column: &Column,
    count: usize,
    counts: &[usize],
    words: &Words,
    stream: &mut Stream,
) -> Vec<Cell> {
    let cells: Vec<Cell> = match &column.spec.holds {
        Holds::Key => (1..=count as i64).map(Cell::Integer).collect(),
        Holds::Label(lists) => labels(lists, words, count, stream),
        Holds::Parent(_) => {
            let parents = column.parent.map_or(0, |parent| counts[parent]);
            parent_keys(parents, column.spec.skewed, count, stream)
        }
        Holds::Words(list) => categories(&words[list], column, count, stream),
        Holds::OneOf(values) => categories(values, column, count, stream),
        holds => (0..count)
            .map(|_| measure(holds, column.spec.skewed, stream))
            .collect(),
    };
    let nulls = column.spec.nulls;
    cells
        .into_iter()
        .map(|cell| {
            if nulls > 0 && stream.chance(nulls) {
                Cell::Null
            } else {
                cell
            }
        })
        .collect()
}

fn labels(lists: &[String], words: &Words, count: usize, stream: &mut Stream) -> Vec<Cell> {
    let total: usize = lists.iter().map(|list| words[list].len()).product();
    assert!(
        count <= total,
        "word lists {lists:?} give {total} labels, {count} are needed: this is a bug"
    );
    // Every label at most once: a walk through a shuffled list of all combinations.
    let mut combinations: Vec<usize> = (0..total).collect();
    stream.shuffle(&mut combinations);
    let label = |mut combination: usize| {
        let parts: Vec<&str> = lists
            .iter()
            .map(|list| {
                let list = &words[list];
                let word = &list[combination % list.len()];
                combination /= list.len();
                word.as_str()
            })
            .collect();
        Cell::Text(parts.join(" "))
    };
    combinations.into_iter().take(count).map(label).collect()
}

fn parent_keys(parents: usize, skewed: bool, count: usize, stream: &mut Stream) -> Vec<Cell> {
    let mut keys: Vec<i64> = (1..=parents as i64).collect();
    stream.shuffle(&mut keys);
    let childless = parents * CHILDLESS_PERCENT as usize / 100;
    keys.truncate((parents - childless).max(1));
    let mut draw = || {
        if skewed {
            stream.zipf(keys.len())
        } else {
            stream.below(keys.len())
        }
    };
    (0..count).map(|_| Cell::Integer(keys[draw()])).collect()
}

fn categories(values: &[String], column: &Column, count: usize, stream: &mut Stream) -> Vec<Cell> {
    let mut kept: Vec<String> = values.to_vec();
    stream.shuffle(&mut kept);
    let most = kept.len().min(MOST_VALUES);
    let fewest = FEWEST_VALUES.min(most);
    kept.truncate(stream.between(fewest as i64, most as i64) as usize);
    if column.spec.mixed_case {
        for value in &mut kept {
            *value = match stream.below(3) {
                0 => value.to_uppercase(),
                1 => value.to_lowercase(),
                _ => value.clone(),
            };
        }
    }
    (0..count)
        .map(|_| Cell::Text(kept[stream.zipf(kept.len())].clone()))
        .collect()
}

fn measure(holds: &Holds, skewed: bool, stream: &mut Stream) -> Cell {
    match holds {
        Holds::Integer([low, high]) | Holds::Year([low, high]) => {
            Cell::Integer(number(*low, *high, skewed, stream))
        }
        Holds::TextInteger([low, high]) => {
            Cell::Text(number(*low, *high, skewed, stream).to_string())
        }
        Holds::Decimal([low, high]) => {
            Cell::Real(number(low * 100, high * 100, skewed, stream) as f64 / 100.0)
        }
        Holds::Date([first, last]) => {
            let (year, month, day) = (
                stream.between(*first, *last),
                stream.between(1, 12),
                stream.between(1, 28),
            );
            Cell::Text(format!("{year}-{month:02}-{day:02}"))
        }
        _ => unreachable!("{holds:?} is filled elsewhere: this is a bug"),
    }
}

fn number(low: i64, high: i64, skewed: bool, stream: &mut Stream) -> i64 {
    let first = stream.between(low, high);
    if skewed {
        first.min(stream.between(low, high))
    } else {
        first
    }
}
