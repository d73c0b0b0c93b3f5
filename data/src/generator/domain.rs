//! Domains as data: what tables a kind of business has, what their columns hold, and how people speak of them.
//!
//! The files lie in `domains/` and are part of the program. A domain is a stock to draw from: each database of it keeps
//! some of the optional columns, and a new database may use the other names (`also`).

use std::collections::BTreeMap;

use serde::Deserialize;

/// The domain files, in the order in which databases are built.
const FILES: [(&str, &str); DOMAINS] = include!("../../domains/files.rs");
const WORDS: &str = include_str!("../../domains/words.toml");
const DOMAINS: usize = 15;

/// Word lists that several domains share, by name.
pub(crate) type Words = BTreeMap<String, Vec<String>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Domain {
    pub(crate) name: String,
    /// Never trained on.
    #[serde(default)]
    pub(crate) held_out: bool,
    pub(crate) tables: Vec<TableSpec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableSpec {
    pub(crate) name: String,
    /// Singular noun; the key column is named after it.
    pub(crate) one: String,
    #[serde(default)]
    pub(crate) also: Vec<TableName>,
    /// Smallest and largest number of rows.
    pub(crate) rows: [i64; 2],
    /// Names of the columns that together make the key; without it the table has a key column of its own.
    #[serde(default)]
    pub(crate) key: Vec<String>,
    pub(crate) columns: Vec<ColumnSpec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableName {
    pub(crate) name: String,
    pub(crate) one: String,
}

/// One column. Phrases have one `{}` for the value.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ColumnSpec {
    pub(crate) name: String,
    /// How people call it; the name with blanks unless given.
    pub(crate) noun: Option<String>,
    #[serde(default)]
    pub(crate) also: Vec<ColumnName>,
    /// Absent in some databases.
    #[serde(default)]
    pub(crate) optional: bool,
    /// Per cent of rows without a value.
    #[serde(default)]
    pub(crate) nulls: u32,
    #[serde(flatten)]
    pub(crate) holds: Holds,
    /// Small values are more frequent; for a parent: few parents have most children.
    #[serde(default)]
    pub(crate) skewed: bool,
    /// Values differ in case.
    #[serde(default)]
    pub(crate) mixed_case: bool,
    /// A sum over rows has a meaning.
    #[serde(default)]
    pub(crate) additive: bool,
    /// "from {}", "in the genre {}"; for a parent the word before it: "by".
    pub(crate) says: Option<String>,
    /// "with more than {} pages".
    pub(crate) above: Option<String>,
    /// "with fewer than {} pages".
    pub(crate) below: Option<String>,
    /// "longest".
    pub(crate) most: Option<String>,
    /// "shortest".
    pub(crate) least: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnName {
    pub(crate) name: String,
    pub(crate) noun: Option<String>,
}

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holds {
    /// The table's own key. Not in domain files; every table without a composite key gets one.
    #[serde(skip)]
    Key,
    /// The key of a row of that table.
    Parent(String),
    /// Names that differ from row to row, one word of each list.
    Label(Vec<String>),
    /// One of a word list.
    Words(String),
    /// One of these.
    OneOf(Vec<String>),
    /// A whole number in a range.
    Integer([i64; 2]),
    /// A whole number in a range, kept as text.
    TextInteger([i64; 2]),
    /// An amount with two decimals in a range of whole numbers.
    Decimal([i64; 2]),
    /// A year in a range.
    Year([i64; 2]),
    /// A date, `YYYY-MM-DD`, in a range of years.
    Date([i64; 2]),
}

/// All domains, parsed.
pub(crate) fn domains() -> Vec<Domain> {
    FILES.iter().map(|(name, text)| parse(name, text)).collect()
}

/// The shared word lists.
pub(crate) fn words() -> Words {
    parse("words", WORDS)
}

/// The texts that decide what is built.
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(_, text)| *text).chain([WORDS])
}

fn parse<T: for<'a> Deserialize<'a>>(name: &str, text: &str) -> T {
    toml::from_str(text)
        .unwrap_or_else(|error| panic!("embedded domain file {name}: {error}: this is a bug"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn twelve_domains_are_trained_on_and_three_are_not() {
        let (held_out, known): (Vec<_>, Vec<_>) =
            domains().into_iter().partition(|domain| domain.held_out);
        assert_eq!((known.len(), held_out.len()), (12, 3));
        for domain in known.iter().chain(&held_out) {
            assert!((3..=5).contains(&domain.tables.len()), "{}", domain.name);
        }
    }

    /// `flatten` keeps serde from refusing unknown fields, so a slip of the pen is caught here.
    #[test]
    fn columns_have_known_fields_only() {
        let known = BTreeSet::from([
            "name",
            "noun",
            "also",
            "optional",
            "nulls",
            "skewed",
            "mixed_case",
            "additive",
            "says",
            "above",
            "below",
            "most",
            "least",
            "parent",
            "label",
            "words",
            "one_of",
            "integer",
            "text_integer",
            "decimal",
            "year",
            "date",
        ]);
        for (name, text) in FILES {
            let domain: toml::Value = toml::from_str(text).unwrap();
            for table in domain["tables"].as_array().unwrap() {
                for column in table["columns"].as_array().unwrap() {
                    for field in column.as_table().unwrap().keys() {
                        assert!(
                            known.contains(field.as_str()),
                            "{name}: unknown field {field} in {column}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn references_resolve_and_labels_suffice() {
        let words = words();
        for domain in domains() {
            for table in &domain.tables {
                for column in &table.columns {
                    let place = format!("{}.{}.{}", domain.name, table.name, column.name);
                    match &column.holds {
                        Holds::Parent(parent) => {
                            let parent = domain.tables.iter().find(|table| table.name == *parent);
                            assert!(
                                parent.is_some_and(|parent| parent.key.is_empty()),
                                "{place}"
                            );
                        }
                        Holds::Label(lists) => {
                            let total: usize = lists.iter().map(|list| words[list].len()).product();
                            assert!(total as i64 >= table.rows[1], "{place}: {total} labels");
                        }
                        Holds::Words(list) => assert!(words.contains_key(list), "{place}"),
                        _ => {}
                    }
                    for phrase in [&column.above, &column.below].into_iter().flatten() {
                        assert_eq!(phrase.matches("{}").count(), 1, "{place}: {phrase}");
                    }
                }
            }
        }
    }
}
