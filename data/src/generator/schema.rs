//! The schema that the query grammar is applied to, and how one is drawn from a domain: which
//! columns a database keeps and which names it uses. Drafting describes other databases. Pure.

use super::domain::{ColumnKind, ColumnName, ColumnSpec, Domain, TableSpec};
use super::rng::RngStream;

const KEEP_OPTIONAL_PERCENT: u32 = 75;
const RENAME_PERCENT: u32 = 60;

/// The tables of a database and the words for them.
#[derive(Clone)]
pub(crate) struct GrammarSchema {
    pub(crate) tables: Vec<GrammarTable>,
    pub(crate) phrasing: Phrasing,
    pub(crate) types: TypeNames,
}

/// What columns are declared as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TypeNames {
    pub(crate) integer: &'static str,
    pub(crate) decimal: &'static str,
    pub(crate) text: &'static str,
    pub(crate) date: &'static str,
}

impl TypeNames {
    /// Those of SQLite's storage classes.
    pub(crate) const SQLITE: Self = Self {
        integer: "INTEGER",
        decimal: "REAL",
        text: "TEXT",
        date: "TEXT",
    };
}

/// How questions speak of values. The bytes of generated data depend on the first way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phrasing {
    /// With every phrase that a reader understands: "have the month September".
    Generated,
    /// With the phrases that fit any noun: "have September as their month".
    Drafted,
}

/// A table. `columns[0]` is the key unless the key is composite.
#[derive(Clone)]
pub(crate) struct GrammarTable {
    pub(crate) name: String,
    /// The singular noun for a row.
    pub(crate) one: String,
    /// The plural noun for rows.
    pub(crate) many: String,
    /// Indices of the key's columns.
    pub(crate) key: Vec<usize>,
    pub(crate) rows: [i64; 2],
    pub(crate) columns: Vec<GrammarColumn>,
}

impl GrammarTable {
    /// Whether a row says no more than that two or more rows of other tables belong together.
    pub(crate) fn is_link(&self) -> bool {
        let is_key = |column: &GrammarColumn| {
            matches!(
                column.spec.kind,
                ColumnKind::Key | ColumnKind::Parent(_) | ColumnKind::Hidden
            )
        };
        let parents = self.columns.iter().filter(|it| it.parent.is_some());
        parents.count() > 1 && self.columns.iter().all(is_key)
    }
}

#[derive(Clone)]
pub(crate) struct GrammarColumn {
    pub(crate) name: String,
    pub(crate) noun: String,
    pub(crate) spec: ColumnSpec,
    /// For a foreign key, the index of the table it refers to.
    pub(crate) parent: Option<usize>,
}

/// A column, by the index of its table and its index in that table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ColumnId {
    pub(crate) table: usize,
    pub(crate) column: usize,
}

impl GrammarSchema {
    /// Draws a schema. `renamed` allows the alternative names that a domain declares.
    pub(crate) fn draw(domain: &Domain, rng: &mut RngStream, renamed: bool) -> Self {
        // All tables are named before any column is drawn: a foreign key uses its parent's name.
        let names: Vec<(String, String)> = domain
            .tables
            .iter()
            .map(|spec| table_name(spec, rng, renamed))
            .collect();
        let table = |(index, spec): (usize, &TableSpec)| {
            let columns = draw_columns(domain, spec, &names, index, rng, renamed);
            let position = |name: &String| columns.iter().position(|it| it.spec.name == *name);
            let key = match spec.key.as_slice() {
                [] => vec![0],
                key => key.iter().filter_map(position).collect(),
            };
            let (name, one) = names[index].clone();
            GrammarTable {
                many: name.replace('_', " "),
                name,
                one,
                key,
                rows: spec.rows,
                columns,
            }
        };
        Self {
            tables: domain.tables.iter().enumerate().map(table).collect(),
            phrasing: Phrasing::Generated,
            types: TypeNames::SQLITE,
        }
    }

    pub(crate) fn column(&self, id: ColumnId) -> &GrammarColumn {
        &self.tables[id.table].columns[id.column]
    }

    /// Returns the first key column of a table.
    pub(crate) fn key(&self, table: usize) -> ColumnId {
        let column = self.tables[table].key[0];
        ColumnId { table, column }
    }
}

fn table_name(spec: &TableSpec, rng: &mut RngStream, renamed: bool) -> (String, String) {
    let index = alternative(spec.also.len(), rng);
    match spec.also.get(index) {
        Some(also) if renamed && rng.chance(RENAME_PERCENT) => {
            (also.name.clone(), also.one.clone())
        }
        _ => (spec.name.clone(), spec.one.clone()),
    }
}

/// Draws which alternative name to use. Databases that keep their names draw it too: the bytes of
/// the default build depend on it.
fn alternative(count: usize, rng: &mut RngStream) -> usize {
    if count == 0 { 0 } else { rng.below(count) }
}

fn draw_columns(
    domain: &Domain,
    spec: &TableSpec,
    names: &[(String, String)],
    table: usize,
    rng: &mut RngStream,
    renamed: bool,
) -> Vec<GrammarColumn> {
    let mut columns = Vec::new();
    if spec.key.is_empty() {
        columns.push(key_column(&names[table].1));
    }
    for column in &spec.columns {
        let is_kept = !column.optional || rng.chance(KEEP_OPTIONAL_PERCENT);
        let renamed = renamed && rng.chance(RENAME_PERCENT);
        if !is_kept {
            continue;
        }
        let parent = match &column.kind {
            ColumnKind::Parent(name) => domain.tables.iter().position(|table| table.name == *name),
            _ => None,
        };
        columns.push(match parent {
            // A foreign key follows its table when that is renamed.
            Some(parent) if column.name == key_name(&domain.tables[parent].one) => GrammarColumn {
                name: key_name(&names[parent].1),
                noun: names[parent].1.clone(),
                spec: column.clone(),
                parent: Some(parent),
            },
            _ => named_column(column, parent, renamed, rng),
        });
    }
    columns
}

fn named_column(
    spec: &ColumnSpec,
    parent: Option<usize>,
    renamed: bool,
    rng: &mut RngStream,
) -> GrammarColumn {
    let index = alternative(spec.also.len(), rng);
    let ColumnName { name, noun } = match spec.also.get(index) {
        Some(also) if renamed => also.clone(),
        _ => ColumnName {
            name: spec.name.clone(),
            noun: spec.noun.clone(),
        },
    };
    GrammarColumn {
        noun: noun.unwrap_or_else(|| name.replace('_', " ")),
        name,
        spec: spec.clone(),
        parent,
    }
}

/// Returns the name of a table's key column.
pub(crate) fn key_name(one: &str) -> String {
    format!("{}_id", one.replace(' ', "_"))
}

fn key_column(one: &str) -> GrammarColumn {
    GrammarColumn {
        name: key_name(one),
        noun: "id".to_owned(),
        spec: ColumnSpec {
            kind: ColumnKind::Key,
            ..ColumnSpec::default()
        },
        parent: None,
    }
}
