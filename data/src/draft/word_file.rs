//! The file of words: what a person calls the tables and columns of a database.
//!
//! It stands beside the database, `shop.words.toml` for `shop.sqlite`. Unknown keys, tables and
//! columns are refused with the nearest name.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use super::names::nearest;
use super::source::SourceDatabase;
use crate::DataError;

const TABLE_KEYS: [&str; 5] = ["one", "many", "also", "skip", "columns"];
const COLUMN_KEYS: [&str; 5] = ["noun", "also", "says", "skip", "refers_to"];

/// The words for a database, by names in lower case.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct WordFile {
    tables: BTreeMap<String, TableWords>,
}

/// The words for a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TableWords {
    /// The singular noun for a row.
    pub(super) one: Option<String>,
    /// The plural noun for rows.
    pub(super) many: Option<String>,
    /// Other singular nouns.
    pub(super) also: Vec<String>,
    /// Whether no question is about the table.
    pub(super) skip: bool,
    columns: BTreeMap<String, ColumnWords>,
}

/// The words for a column.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ColumnWords {
    pub(super) noun: Option<String>,
    /// Other nouns.
    pub(super) also: Vec<String>,
    /// What follows the noun of the table, with `{}` for the value: "from {}".
    pub(super) says: Option<String>,
    /// Whether no question is about the column.
    pub(super) skip: bool,
    /// The table whose key the values are.
    pub(super) refers_to: Option<String>,
}

impl WordFile {
    /// Returns the words for a table.
    pub(super) fn table(&self, table: &str) -> Option<&TableWords> {
        self.tables.get(&table.to_lowercase())
    }

    /// Returns the words for a column.
    pub(super) fn column(&self, table: &str, column: &str) -> Option<&ColumnWords> {
        self.table(table)?.columns.get(&column.to_lowercase())
    }

    /// Parses a file of words for a database.
    ///
    /// # Errors
    /// Names the key that is unknown or has the wrong form, and the nearest one.
    pub(super) fn parse(
        path: &Path,
        text: &str,
        database: &SourceDatabase,
    ) -> Result<Self, DataError> {
        parse(text, database).map_err(|problem| DataError::format(path, problem))
    }
}

fn parse(text: &str, database: &SourceDatabase) -> Result<WordFile, String> {
    let root: Table = text
        .parse()
        .map_err(|error| format!("not TOML ({error}); correct the file"))?;
    known_keys(&root, "", &["tables"])?;
    let mut file = WordFile::default();
    let Some(tables) = root.get("tables") else {
        return Ok(file);
    };
    for (name, value) in section(tables, "tables")? {
        let place = format!("tables.{name}");
        let mut names = database.tables.iter();
        let Some(table) = names.find(|it| it.name.eq_ignore_ascii_case(name)) else {
            let names = database.tables.iter().map(|it| it.name.as_str());
            return Err(unknown(&place, "table", name, names));
        };
        let columns: Vec<&str> = table.columns.iter().map(|it| it.name.as_str()).collect();
        let mut words = table_words(section(value, &place)?, &place, &columns)?;
        for column in words.columns.values_mut() {
            let Some(wanted) = &column.refers_to else {
                continue;
            };
            let names = || database.tables.iter().map(|it| it.name.as_str());
            if !names().any(|it| it.eq_ignore_ascii_case(wanted)) {
                return Err(unknown(
                    &format!("{place}.columns"),
                    "table",
                    wanted,
                    names(),
                ));
            }
        }
        file.tables.insert(name.to_lowercase(), words);
    }
    Ok(file)
}

fn table_words(section_of: &Table, place: &str, columns: &[&str]) -> Result<TableWords, String> {
    known_keys(section_of, place, &TABLE_KEYS)?;
    let mut words = TableWords {
        one: noun(section_of, place, "one")?,
        many: noun(section_of, place, "many")?,
        also: nouns(section_of, place)?,
        skip: flag(section_of, place)?,
        columns: BTreeMap::new(),
    };
    let Some(listed) = section_of.get("columns") else {
        return Ok(words);
    };
    for (name, value) in section(listed, &format!("{place}.columns"))? {
        let place = format!("{place}.columns.{name}");
        if !columns.iter().any(|it| it.eq_ignore_ascii_case(name)) {
            return Err(unknown(&place, "column", name, columns.iter().copied()));
        }
        let column = column_words(section(value, &place)?, &place)?;
        words.columns.insert(name.to_lowercase(), column);
    }
    Ok(words)
}

fn column_words(section_of: &Table, place: &str) -> Result<ColumnWords, String> {
    known_keys(section_of, place, &COLUMN_KEYS)?;
    let says = noun(section_of, place, "says")?;
    if says
        .as_ref()
        .is_some_and(|it| it.matches("{}").count() != 1)
    {
        return Err(format!(
            "{place}.says: must contain {{}} once, for the value: \"from {{}}\""
        ));
    }
    Ok(ColumnWords {
        noun: noun(section_of, place, "noun")?,
        also: nouns(section_of, place)?,
        says,
        skip: flag(section_of, place)?,
        refers_to: noun(section_of, place, "refers_to")?,
    })
}

fn known_keys(section_of: &Table, place: &str, keys: &[&str]) -> Result<(), String> {
    match section_of.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(key) => {
            let place = [place, key].join(".");
            let place = place.trim_start_matches('.');
            Err(unknown(place, "key", key, keys.iter().copied()))
        }
        None => Ok(()),
    }
}

fn unknown<'a>(
    place: &str,
    kind: &str,
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> String {
    match nearest(name, candidates) {
        Some(nearest) => format!("{place}: no {kind} `{name}`; did you mean `{nearest}`?"),
        None => format!("{place}: no {kind} `{name}`; remove it"),
    }
}

fn section<'a>(value: &'a Value, place: &str) -> Result<&'a Table, String> {
    value
        .as_table()
        .ok_or_else(|| format!("{place}: must be a table of TOML, such as [{place}]"))
}

fn noun(section_of: &Table, place: &str, key: &str) -> Result<Option<String>, String> {
    let Some(value) = section_of.get(key) else {
        return Ok(None);
    };
    let place = format!("{place}.{key}");
    let word = value
        .as_str()
        .ok_or_else(|| format!("{place}: must be a text in quotation marks"))?;
    plain_word(word, &place, key).map(Some)
}

/// Returns a word without blanks around it.
fn plain_word(word: &str, place: &str, key: &str) -> Result<String, String> {
    match word.trim() {
        "" | "{}" => Err(format!(
            "{place}: `{word}` has no word; write one, or remove `{key}`"
        )),
        word => Ok(word.to_owned()),
    }
}

fn nouns(section_of: &Table, place: &str) -> Result<Vec<String>, String> {
    let place = format!("{place}.also");
    let problem = || format!("{place}: must be a list of texts, such as [\"customer\"]");
    let Some(value) = section_of.get("also") else {
        return Ok(Vec::new());
    };
    let texts = value.as_array().ok_or_else(problem)?.iter();
    let text = |value: &Value| plain_word(value.as_str().ok_or_else(problem)?, &place, "also");
    texts.map(text).collect()
}

fn flag(section_of: &Table, place: &str) -> Result<bool, String> {
    match section_of.get("skip") {
        None => Ok(false),
        Some(value) => value
            .as_bool()
            .ok_or_else(|| format!("{place}.skip: must be true or false")),
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
            one = "line"
            also = ["item"]
            [tables."order lines".columns.QTY]
            noun = "quantity"
            says = "for {} pieces"
        "#;
        let file = parse(text, &database()).unwrap();
        let table = file.table("ORDER LINES").unwrap();
        assert_eq!((table.one.as_deref(), table.also.len()), (Some("line"), 1));
        let column = file.column("Order Lines", "qty").unwrap();
        assert_eq!(column.noun.as_deref(), Some("quantity"));
        assert_eq!(file.column("Order Lines", "status"), None);
    }

    #[test]
    fn what_is_unknown_or_malformed_is_refused_with_the_nearest_name() {
        for (text, problem) in [
            ("table = 1", "table: no key `table`; did you mean `tables`?"),
            (
                "tables = 1",
                "tables: must be a table of TOML, such as [tables]",
            ),
            (
                "[tables.orders]",
                "tables.orders: no table `orders`; did you mean `Order Lines`?",
            ),
            (
                "[tables.\"order lines\"]\nonne = \"x\"",
                "tables.order lines.onne: no key `onne`; did you mean `one`?",
            ),
            (
                "[tables.\"order lines\".columns.stattus]",
                "tables.order lines.columns.stattus: no column `stattus`; did you mean `status`?",
            ),
            (
                "[tables.\"order lines\".columns.status]\nsays = \"in state\"",
                "tables.order lines.columns.status.says: must contain {} once",
            ),
            (
                "[tables.\"order lines\"]\nskip = 1",
                "skip: must be true or false",
            ),
            (
                "[tables.\"order lines\"]\nalso = \"x\"",
                "also: must be a list of texts",
            ),
            (
                "[tables.\"order lines\".columns.qty]\nrefers_to = \"lines\"",
                "no table `lines`; did you mean `Order Lines`?",
            ),
            ("tables = [", "not TOML"),
            (
                "[tables.\"order lines\"]\none = \"  \"",
                "tables.order lines.one: `  ` has no word; write one, or remove `one`",
            ),
            (
                "[tables.\"order lines\"]\nalso = [\"item\", \"\"]",
                "tables.order lines.also: `` has no word; write one, or remove `also`",
            ),
            (
                "[tables.\"order lines\".columns.qty]\nnoun = \"\\t\"",
                "columns.qty.noun: ",
            ),
            (
                "[tables.\"order lines\".columns.qty]\nsays = \" {} \"",
                "columns.qty.says: ` {} ` has no word",
            ),
        ] {
            let found = parse(text, &database()).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
