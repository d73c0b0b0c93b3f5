//! One database of a domain: which columns it keeps and what they are called.

use super::domain::{ColumnName, ColumnSpec, Domain, Holds, TableSpec};
use super::stream::Stream;

const KEEP_OPTIONAL_PERCENT: u32 = 75;
const RENAME_PERCENT: u32 = 60;

/// The tables of a database and the words for them.
pub(crate) struct Schema {
    pub(crate) tables: Vec<Table>,
}

/// A table; `columns[0]` is the key unless the key is composite.
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) one: String,
    /// Indices of the key's columns.
    pub(crate) key: Vec<usize>,
    pub(crate) rows: [i64; 2],
    pub(crate) columns: Vec<Column>,
}

pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) noun: String,
    pub(crate) spec: ColumnSpec,
    /// For a foreign key, the index of the table it refers to.
    pub(crate) parent: Option<usize>,
}

impl Schema {
    /// Draws a schema; `renamed` allows the other names that a domain declares.
    pub(crate) fn draw(domain: &Domain, stream: &mut Stream, renamed: bool) -> Self {
        let names: Vec<(String, String)> = domain
            .tables
            .iter()
            .map(|spec| table_name(spec, stream, renamed))
            .collect();
        let tables = domain
            .tables
            .iter()
            .zip(&names)
            .map(|(spec, (name, one))| Table {
                name: name.clone(),
                one: one.clone(),
                key: Vec::new(),
                rows: spec.rows,
                columns: Vec::new(),
            });
        let mut schema = Self {
            tables: tables.collect(),
        };
        for (index, spec) in domain.tables.iter().enumerate() {
            schema.tables[index].columns = columns(domain, spec, &names, index, stream, renamed);
            let column_index = |name: &String| {
                schema.tables[index]
                    .columns
                    .iter()
                    .position(|column| column.spec.name == *name)
            };
            schema.tables[index].key = match spec.key.as_slice() {
                [] => vec![0],
                key => key.iter().filter_map(column_index).collect(),
            };
        }
        schema
    }
}

fn table_name(spec: &TableSpec, stream: &mut Stream, renamed: bool) -> (String, String) {
    let other = if spec.also.is_empty() {
        0
    } else {
        stream.below(spec.also.len())
    };
    match spec.also.get(other) {
        Some(also) if renamed && stream.chance(RENAME_PERCENT) => {
            (also.name.clone(), also.one.clone())
        }
        _ => (spec.name.clone(), spec.one.clone()),
    }
}

fn columns(
    domain: &Domain,
    spec: &TableSpec,
    names: &[(String, String)],
    table: usize,
    stream: &mut Stream,
    renamed: bool,
) -> Vec<Column> {
    let mut columns = Vec::new();
    if spec.key.is_empty() {
        columns.push(key_column(&names[table].1));
    }
    for column in &spec.columns {
        let is_kept = !column.optional || stream.chance(KEEP_OPTIONAL_PERCENT);
        let renamed = renamed && stream.chance(RENAME_PERCENT);
        if !is_kept {
            continue;
        }
        let parent = match &column.holds {
            Holds::Parent(name) => domain.tables.iter().position(|table| table.name == *name),
            _ => None,
        };
        columns.push(match parent {
            // A foreign key follows its table when that is renamed.
            Some(parent) if column.name == key_name(&domain.tables[parent].one) => {
                let noun = names[parent].1.clone();
                Column {
                    name: key_name(&names[parent].1),
                    noun,
                    spec: column.clone(),
                    parent: Some(parent),
                }
            }
            _ => named_column(column, parent, renamed, stream),
        });
    }
    columns
}

fn named_column(
    spec: &ColumnSpec,
    parent: Option<usize>,
    renamed: bool,
    stream: &mut Stream,
) -> Column {
    let own = ColumnName {
        name: spec.name.clone(),
        noun: spec.noun.clone(),
    };
    let other = if spec.also.is_empty() {
        0
    } else {
        stream.below(spec.also.len())
    };
    let name = spec.also.get(other).filter(|_| renamed).unwrap_or(&own);
    let noun = name
        .noun
        .clone()
        .unwrap_or_else(|| name.name.replace('_', " "));
    Column {
        name: name.name.clone(),
        noun,
        spec: spec.clone(),
        parent,
    }
}

fn key_name(one: &str) -> String {
    format!("{}_id", one.replace(' ', "_"))
}

fn key_column(one: &str) -> Column {
    let spec = ColumnSpec {
        name: key_name(one),
        noun: None,
        also: Vec::new(),
        optional: false,
        nulls: 0,
        holds: Holds::Key,
        skewed: false,
        mixed_case: false,
        additive: false,
        says: None,
        above: None,
        below: None,
        most: None,
        least: None,
    };
    Column {
        name: key_name(one),
        noun: format!("{one} number"),
        spec,
        parent: None,
    }
}
