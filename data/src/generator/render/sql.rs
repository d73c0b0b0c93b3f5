//! The SQL side of a filled template.

use rusqlite::types::Value as SqlValue;

use super::super::binding::{Binding, Filler, find};
use super::super::domain::ColumnKind;
use super::super::schema::{ColumnId, GrammarSchema};
use super::super::template::QueryTemplate;
use super::fill;
use crate::{real_text, sql_text};

/// The SQL of a filled template.
pub(crate) struct RenderedSql {
    pub(crate) text: String,
    /// The query for the sort keys without the LIMIT. Two equal keys in a row at the limit are a
    /// tie.
    pub(crate) sort_keys: Option<String>,
}

/// Renders the SQL of a filled template.
pub(crate) fn sql(
    template: &QueryTemplate,
    binding: &Binding,
    schema: &GrammarSchema,
) -> RenderedSql {
    let query = QueryNames { binding, schema };
    let render = |text: &String| {
        fill(text, |letter, attribute| {
            Some(query.slot(letter, attribute))
        })
        .unwrap_or_default()
    };
    let clause = |keyword: &str, text: &Option<String>| {
        let text = text.as_ref().map(render);
        text.map_or_else(String::new, |text| format!(" {keyword} {text}"))
    };
    let conditions = template.conditions.iter().map(render);
    let conditions: Vec<String> = conditions.filter(|text| !text.is_empty()).collect();
    let conditions = Some(conditions.join(" AND ")).filter(|text| !text.is_empty());
    let body = [
        format!(" FROM {}", render(&template.from)),
        conditions.map_or_else(String::new, |text| format!(" WHERE {text}")),
        clause("GROUP BY", &template.group),
        clause("HAVING", &template.having),
        clause("ORDER BY", &template.order),
        if template.order.is_some() && template.descending {
            " DESC".to_owned()
        } else {
            String::new()
        },
    ]
    .concat();
    let mut text = format!("SELECT {}{body}", render(&template.select));
    if let Some(limit) = template.limit {
        text.push_str(&format!(" LIMIT {limit}"));
    }
    if let Some(then) = &template.then {
        text.push_str(&format!(" {}", render(then)));
    }
    let order = template.order.as_ref().filter(|_| template.limit.is_some());
    RenderedSql {
        text,
        sort_keys: order.map(|order| format!("SELECT {}{body}", render(order))),
    }
}

/// The names of a query's tables and columns.
struct QueryNames<'a> {
    binding: &'a Binding,
    schema: &'a GrammarSchema,
}

impl QueryNames<'_> {
    fn slot(&self, letter: char, attribute: &str) -> String {
        let schema = self.schema;
        match (find(self.binding, letter), attribute) {
            (Filler::Table(table) | Filler::Parent { table, .. }, "") => {
                schema.tables[*table].name.clone()
            }
            (Filler::Table(table) | Filler::Parent { table, .. }, "key") => {
                self.column(schema.key(*table))
            }
            (Filler::Parent { foreign_key, .. }, "fk") => self.column(*foreign_key),
            (Filler::Parent { foreign_key, table }, "join") => self.join(*foreign_key, *table),
            (Filler::Column(id), "") => self.expression(*id),
            (Filler::Column(id), "raw") => self.column(*id),
            // DESCRIBE does not tell which columns have values missing, so the query is safe.
            (Filler::Column(id), "known") => format!("{} IS NOT NULL", self.column(*id)),
            (Filler::Value(_, value), "") => literal(value),
            (Filler::Value(_, value), "part") => pattern(value, "%", "%"),
            (Filler::Value(_, value), "start") => pattern(value, "", "%"),
            (Filler::Range(_, low, high), "") => {
                format!("{} AND {}", literal(low), literal(high))
            }
            (Filler::Count(count), "") => count.to_string(),
            _ => panic!("{{{letter}.{attribute}}} has no SQL: this is a bug in the grammar"),
        }
    }

    fn join(&self, foreign_key: ColumnId, table: usize) -> String {
        let child = &self.schema.tables[foreign_key.table].name;
        let parent = &self.schema.tables[table].name;
        let foreign = &self.schema.column(foreign_key).name;
        let key = &self.schema.column(self.schema.key(table)).name;
        if self.is_joined_by_using(foreign_key, table) {
            return format!("JOIN {parent} USING ({key})");
        }
        format!("JOIN {parent} ON {child}.{foreign} = {parent}.{key}")
    }

    /// Whether a join is written with USING. The key columns must have one name, and the foreign
    /// key must be the first column of that name in the query, because USING compares the first.
    fn is_joined_by_using(&self, foreign_key: ColumnId, table: usize) -> bool {
        let key = &self.schema.column(self.schema.key(table)).name;
        let mut tables = self.binding.iter().filter_map(|(_, filler)| match filler {
            Filler::Table(table) | Filler::Parent { table, .. } => Some(*table),
            _ => None,
        });
        let first = tables.find(|table| self.has_column(*table, key));
        self.schema.column(foreign_key).name == *key && first == Some(foreign_key.table)
    }

    /// Whether a table has a column of this name. SQLite folds the case of names.
    fn has_column(&self, table: usize, name: &str) -> bool {
        let mut columns = self.schema.tables[table].columns.iter();
        columns.any(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Returns a column as a number, even if it stores numbers as text.
    fn expression(&self, id: ColumnId) -> String {
        let name = self.column(id);
        match self.schema.column(id).spec.kind {
            ColumnKind::TextInteger(_) => format!("CAST({name} AS INTEGER)"),
            _ => name,
        }
    }

    /// Returns a column's name, qualified by its table if it is ambiguous otherwise.
    fn column(&self, id: ColumnId) -> String {
        let name = &self.schema.column(id).name;
        let has_same = |(_, filler): &(char, Filler)| match filler {
            Filler::Table(other) | Filler::Parent { table: other, .. } => {
                *other != id.table && self.has_column(*other, name)
            }
            _ => false,
        };
        // USING merges the two key columns into one, which needs no qualification.
        let is_joined = |(_, filler): &(char, Filler)| match filler {
            Filler::Parent { foreign_key, table } => {
                self.is_joined_by_using(*foreign_key, *table)
                    && self.schema.column(*foreign_key).name == *name
                    && (foreign_key.table == id.table || *table == id.table)
            }
            _ => false,
        };
        if self.binding.iter().any(has_same) && !self.binding.iter().any(is_joined) {
            format!("{}.{name}", self.schema.tables[id.table].name)
        } else {
            name.clone()
        }
    }
}

fn literal(value: &SqlValue) -> String {
    match value {
        SqlValue::Text(text) => sql_text::literal(text),
        value => plain(value),
    }
}

fn pattern(value: &SqlValue, before: &str, after: &str) -> String {
    literal(&SqlValue::Text(format!("{before}{}{after}", plain(value))))
}

/// Returns a value as text without quotes.
pub(crate) fn plain(value: &SqlValue) -> String {
    match value {
        SqlValue::Text(text) => text.clone(),
        SqlValue::Integer(number) => number.to_string(),
        SqlValue::Real(number) => real_text(*number),
        other => panic!("{other:?} cannot be part of a question: this is a bug"),
    }
}
