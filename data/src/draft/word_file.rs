//! The file of words: what a person calls the tables and columns of a database. Pure.
//!
//! It stands beside the database, `shop.words.toml` for `shop.sqlite`. Unknown keys are refused
//! with those that there are, and unknown tables and columns with the nearest name.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::source::SourceDatabase;
use crate::DataError;

/// The words for a database, by the names of its tables.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WordFile {
    tables: BTreeMap<String, TableWords>,
}

/// The words for a table.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TableWords {
    /// The singular noun for a row.
    #[serde(deserialize_with = "word")]
    pub(super) one: Option<String>,
    /// The plural noun for rows.
    #[serde(deserialize_with = "word")]
    pub(super) many: Option<String>,
    /// Other singular nouns.
    #[serde(deserialize_with = "words")]
    pub(super) also: Vec<String>,
    /// Whether no question is about the table.
    pub(super) skip: bool,
    columns: BTreeMap<String, ColumnWords>,
}

/// The words for a column.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ColumnWords {
    #[serde(deserialize_with = "word")]
    pub(super) noun: Option<String>,
    /// Other nouns.
    #[serde(deserialize_with = "words")]
    pub(super) also: Vec<String>,
    /// What follows the noun of the table, with `{}` for the value: "from {}".
    #[serde(deserialize_with = "phrase")]
    pub(super) says: Option<String>,
    /// Whether no question is about the column.
    pub(super) skip: bool,
    /// The table whose key the values are.
    #[serde(deserialize_with = "word")]
    pub(super) refers_to: Option<String>,
}

impl WordFile {
    /// Returns the words for a table.
    pub(super) fn table(&self, table: &str) -> Option<&TableWords> {
        self.tables.get(table)
    }

    /// Returns the words for a column.
    pub(super) fn column(&self, table: &str, column: &str) -> Option<&ColumnWords> {
        self.table(table)?.columns.get(column)
    }

    /// Parses a file of words for a database.
    ///
    /// # Errors
    /// Names the line that is wrong, or the table or column that does not exist.
    pub(super) fn parse(
        path: &Path,
        text: &str,
        database: &SourceDatabase,
    ) -> Result<Self, DataError> {
        parse(text, database).map_err(|problem| DataError::format(path, problem))
    }

    /// Returns the same words by the names of tables and columns as the database has them.
    fn resolved(self, database: &SourceDatabase) -> Result<Self, String> {
        let tables = || database.tables.iter().map(|it| it.name.as_str());
        let mut file = Self::default();
        for (name, mut words) in self.tables {
            let place = format!("tables.{name}");
            let index = position("table", &name, &place, tables())?;
            let table = &database.tables[index];
            for (name, column) in std::mem::take(&mut words.columns) {
                let place = format!("{place}.columns.{name}");
                let names = table.columns.iter().map(|it| it.name.as_str());
                let index = position("column", &name, &place, names)?;
                if let Some(parent) = &column.refers_to {
                    position("table", parent, &place, tables())?;
                }
                let name = table.columns[index].name.clone();
                if words.columns.insert(name, column).is_some() {
                    return Err(twice(&place));
                }
            }
            if file.tables.insert(table.name.clone(), words).is_some() {
                return Err(twice(&place));
            }
        }
        Ok(file)
    }
}

fn parse(text: &str, database: &SourceDatabase) -> Result<WordFile, String> {
    let file: WordFile = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = 1 + before.map_or(0, |it| it.matches('\n').count());
        format!("line {line}: {}; correct the file", error.message())
    })?;
    file.resolved(database)
}

/// Returns the index of a name, whose case does not count.
fn position<'a>(
    kind: &str,
    name: &str,
    place: &str,
    mut names: impl Iterator<Item = &'a str> + Clone,
) -> Result<usize, String> {
    let all = names.clone();
    let found = names.position(|it| it.eq_ignore_ascii_case(name));
    let distance = |it: &&str| strsim::levenshtein(&it.to_lowercase(), &name.to_lowercase());
    found.ok_or_else(|| match all.min_by_key(distance) {
        Some(nearest) => format!("{place}: no {kind} `{name}`; did you mean `{nearest}`?"),
        None => format!("{place}: no {kind} `{name}`; remove it"),
    })
}

fn twice(place: &str) -> String {
    format!("{place}: the name is there twice, in another case; keep one of them")
}

/// Returns a word without blanks around it.
fn plain_word(word: &str) -> Result<String, String> {
    match word.trim() {
        "" | "{}" => Err(format!(
            "`{word}` has no word; write one, or remove the key"
        )),
        word => Ok(word.to_owned()),
    }
}

fn word<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let word = plain_word(&String::deserialize(value)?);
    word.map(Some).map_err(D::Error::custom)
}

fn words<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let texts = Vec::<String>::deserialize(value)?;
    let words = texts.iter().map(|it| plain_word(it));
    words.collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn phrase<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let says = word(value)?;
    match says.as_ref().map(|it| it.matches("{}").count()) {
        None | Some(1) => Ok(says),
        Some(_) => Err(D::Error::custom(
            "`says` must contain {} once, for the value: \"from {}\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::{SourceColumn, SourceTable};
    use super::*;

    fn database() -> SourceDatabase {
        let column = |name: &str| SourceColumn {
            name: name.to_owned(),
            ..SourceColumn::default()
        };
        let table = SourceTable {
            name: "Order Lines".to_owned(),
            columns: vec![column("Qty"), column("status")],
            ..SourceTable::default()
        };
        SourceDatabase {
            tables: vec![table],
            left_out: Vec::new(),
        }
    }

    #[test]
    fn words_are_read_by_name_without_case() {
        let text = r#"
            [tables."order lines"]
            one = " line "
            also = ["item"]
            [tables."order lines".columns.QTY]
            noun = "quantity"
            says = "for {} pieces"
        "#;
        let file = parse(text, &database()).unwrap();
        let table = file.table("Order Lines").unwrap();
        assert_eq!((table.one.as_deref(), table.also.len()), (Some("line"), 1));
        let column = file.column("Order Lines", "Qty").unwrap();
        assert_eq!(column.noun.as_deref(), Some("quantity"));
        assert_eq!(file.column("Order Lines", "status"), None);
    }

    #[test]
    fn what_is_unknown_or_malformed_is_refused_with_what_there_is() {
        for (text, problem) in [
            (
                "table = 1",
                "line 1: unknown field `table`, expected `tables`",
            ),
            ("tables = 1", "line 1: invalid type: integer `1`"),
            (
                "[tables.orders]",
                "tables.orders: no table `orders`; did you mean `Order Lines`?",
            ),
            (
                "[tables.\"order lines\"]\nonne = \"x\"",
                "line 2: unknown field `onne`, expected one of `one`, `many`",
            ),
            (
                "[tables.\"order lines\".columns.stattus]",
                "tables.order lines.columns.stattus: no column `stattus`; did you mean `status`?",
            ),
            (
                "[tables.\"order lines\".columns.status]\nsays = \"in state\"",
                "line 2: `says` must contain {} once",
            ),
            (
                "[tables.\"order lines\"]\nskip = 1",
                "line 2: invalid type: integer `1`, expected a boolean",
            ),
            (
                "[tables.\"order lines\"]\nalso = \"x\"",
                "line 2: invalid type: string \"x\", expected a sequence",
            ),
            (
                "[tables.\"order lines\".columns.qty]\nrefers_to = \"lines\"",
                "no table `lines`; did you mean `Order Lines`?",
            ),
            ("tables = [", "line 1: "),
            (
                "[tables.\"order lines\"]\n[tables.\"Order lines\"]",
                "the name is there twice",
            ),
            (
                "[tables.\"order lines\".columns]\nqty = {}\nQTY = {}",
                "columns.qty: the name is there twice",
            ),
        ] {
            let found = parse(text, &database()).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }

    #[test]
    fn words_that_are_blank_are_refused() {
        for (text, problem) in [
            (
                "[tables.\"order lines\"]\none = \"  \"",
                "line 2: `  ` has no word; write one, or remove the key",
            ),
            (
                "[tables.\"order lines\"]\nalso = [\"item\", \"\"]",
                "line 2: `` has no word",
            ),
            (
                "[tables.\"order lines\".columns.qty]\nnoun = \"\\t\"",
                "line 2: `\t` has no word",
            ),
            (
                "[tables.\"order lines\".columns.qty]\nsays = \" {} \"",
                "line 2: ` {} ` has no word",
            ),
        ] {
            let found = parse(text, &database()).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
