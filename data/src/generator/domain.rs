//! Domains: the tables and columns that a kind of business has, and the English words for them.
//! Pure.
//!
//! The TOML files in `domains/` are compiled into the program. Each database of a domain keeps a
//! random selection of the optional columns, and a renamed database may use the alternative names
//! (`also`).

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::words::embedded;

/// Names and texts of domain files, read at compile time.
macro_rules! domain_files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../domains/", $name, ".toml")))),*]
    };
}

/// The domain files, in the order in which databases are built.
const FILES: &[(&str, &str)] = domain_files!(
    "airline" "bank" "brewery" "callcenter" "chess" "cinema" "clinic" "company" "court" "farm"
    "festival" "forum" "fossils" "gym" "harbor" "hospital" "hotel" "huts" "insurance" "league"
    "library" "metro" "museum" "newspaper" "orchestra" "postal" "powergrid" "realty" "rental"
    "restaurant" "school" "shop" "space" "tracker" "trial" "university" "warehouse" "weather"
    "wildlife" "workshop" "zoo"
);
const WORDS: &str = include_str!("../../domains/words.toml");

/// Word lists that several domains share, by name.
pub(crate) type WordLists = BTreeMap<String, Vec<String>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Domain {
    pub(crate) name: String,
    #[serde(default, rename = "use")]
    pub(crate) domain_use: DomainUse,
    pub(crate) tables: Vec<TableSpec>,
}

impl Domain {
    /// Returns the names of tables and columns, the nouns for them, and the values that the domain
    /// lists.
    pub(crate) fn texts(&self) -> Vec<&str> {
        let mut texts = Vec::new();
        for table in &self.tables {
            texts.extend([table.name.as_str(), &table.one]);
            texts.extend(
                table
                    .also
                    .iter()
                    .flat_map(|also| [also.name.as_str(), &also.one]),
            );
            for column in &table.columns {
                texts.push(&column.name);
                texts.extend(column.noun.as_deref());
                for also in &column.also {
                    texts.push(&also.name);
                    texts.extend(also.noun.as_deref());
                }
                if let ColumnKind::OneOf(values) = &column.kind {
                    texts.extend(values.iter().map(String::as_str));
                }
            }
        }
        texts
    }
}

/// What the databases of a domain are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DomainUse {
    /// The training of the base policy.
    #[default]
    Base,
    /// The training of a run, which starts from a base policy that does not know the domain.
    Run,
    /// Evaluations. No policy is trained on the domain.
    Unseen,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableSpec {
    pub(crate) name: String,
    /// The singular noun. The key column is named after it.
    pub(crate) one: String,
    #[serde(default)]
    pub(crate) also: Vec<TableName>,
    /// The smallest and the largest number of rows.
    pub(crate) rows: [i64; 2],
    /// Names of the columns that form a composite key. Without it the table has a key column of its
    /// own.
    #[serde(default)]
    pub(crate) key: Vec<String>,
    pub(crate) columns: Vec<ColumnSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableName {
    pub(crate) name: String,
    pub(crate) one: String,
}

/// One column. Phrases contain one `{}` for the value.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ColumnSpec {
    pub(crate) name: String,
    /// The column's name in English. The default is the name with blanks for underscores.
    pub(crate) noun: Option<String>,
    #[serde(default)]
    pub(crate) also: Vec<ColumnName>,
    /// Whether some databases lack the column.
    #[serde(default)]
    pub(crate) optional: bool,
    /// The percentage of rows without a value.
    #[serde(default)]
    pub(crate) nulls: u32,
    #[serde(flatten)]
    pub(crate) kind: ColumnKind,
    /// Whether small values are more frequent. For a parent: whether few parents have most
    /// children.
    #[serde(default)]
    pub(crate) skewed: bool,
    /// Whether values differ in case.
    #[serde(default)]
    pub(crate) mixed_case: bool,
    /// Whether a sum over rows has a meaning.
    #[serde(default)]
    pub(crate) additive: bool,
    /// "from {}", "in the genre {}". For a parent, the word before it: "by".
    pub(crate) says: Option<String>,
    /// "with more than {} pages".
    pub(crate) above: Option<String>,
    /// "with fewer than {} pages".
    pub(crate) below: Option<String>,
    /// "longest".
    pub(crate) most: Option<String>,
    /// "shortest".
    pub(crate) least: Option<String>,
    /// What drafting inferred. Domain files do not contain it.
    #[serde(skip)]
    pub(crate) drafted: DraftedPhrases,
}

impl ColumnSpec {
    /// Whether the column says yes or no.
    pub(crate) fn is_flag(&self) -> bool {
        matches!(self.drafted, DraftedPhrases::Flag { .. })
    }

    /// Whether a column of moments has only a makeshift noun, such as "date raised".
    pub(crate) fn is_unnamed_moment(&self, noun: &str) -> bool {
        let is_moment = matches!(self.drafted, DraftedPhrases::Moment { .. });
        is_moment && (noun.starts_with("date ") || noun.starts_with("year "))
    }
}

/// What a name says about a column besides its noun.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum DraftedPhrases {
    #[default]
    None,
    /// The column says yes or no.
    Flag {
        /// The value that says yes.
        yes: String,
        /// Predicates of several rows and of one: "are paid", "is paid".
        are: [String; 2],
        /// "are not paid", "is not paid".
        are_not: [String; 2],
    },
    /// The column says when something was done: "placed" for `date_placed`.
    Moment {
        /// To what it was done, if that is not the row: "claim" for `date_claim_settled`.
        subject: Option<String>,
        done: String,
    },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnName {
    pub(crate) name: String,
    pub(crate) noun: Option<String>,
}

/// What a column contains.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ColumnKind {
    /// The table's own key. Domain files do not contain it: every table without a composite key
    /// gets one.
    #[default]
    #[serde(skip)]
    Key,
    /// A foreign key that refers to the named table.
    Parent(String),
    /// Names that differ from row to row, composed of one word of each list.
    Label(Vec<String>),
    /// A word of the named list.
    Words(String),
    /// One of these values.
    OneOf(Vec<String>),
    /// An integer in a range.
    Integer([i64; 2]),
    /// An integer in a range, stored as text.
    TextInteger([i64; 2]),
    /// An amount with two decimals in a range of whole numbers.
    Decimal([i64; 2]),
    /// A year in a range.
    Year([i64; 2]),
    /// A date, `YYYY-MM-DD`, in a range of years.
    Date([i64; 2]),
    /// What is only shown or looked up. Domain files do not contain it: real databases do.
    #[serde(skip)]
    Text,
    /// What questions never ask for and never filter by, and columns that refer to a table of a
    /// real database. Domain files do not contain it.
    #[serde(skip)]
    Hidden,
}

impl ColumnKind {
    /// Whether the column has the names of rows.
    pub(crate) fn is_label(&self) -> bool {
        matches!(self, Self::Label(_))
    }

    /// Whether the column has numbers to calculate with, which years are not.
    pub(crate) fn is_number(&self) -> bool {
        matches!(
            self,
            Self::Integer(_) | Self::Decimal(_) | Self::TextInteger(_)
        )
    }

    /// Whether the column has years or dates.
    pub(crate) fn is_time(&self) -> bool {
        matches!(self, Self::Year(_) | Self::Date(_))
    }
}

/// Parses all domain files.
pub(crate) fn domains() -> Vec<Domain> {
    let files = FILES.iter();
    files.map(|(name, text)| embedded(name, text)).collect()
}

/// Parses the shared word lists.
pub(crate) fn word_lists() -> WordLists {
    embedded("words", WORDS)
}

/// Returns the texts that determine a build.
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(_, text)| *text).chain([WORDS])
}

#[cfg(test)]
mod tests {
    use super::super::schema::key_name;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn most_domains_are_for_the_base_policy() {
        let domains = domains();
        let count = |wanted| domains.iter().filter(|it| it.domain_use == wanted).count();
        let counts = [DomainUse::Base, DomainUse::Run, DomainUse::Unseen].map(count);
        assert_eq!(counts, [32, 3, 6]);
        for domain in &domains {
            assert!((3..=5).contains(&domain.tables.len()), "{}", domain.name);
        }
    }

    /// `flatten` is incompatible with `deny_unknown_fields`, so this test rejects unknown fields.
    #[test]
    fn columns_have_known_fields_only() {
        let known = "name noun also optional nulls skewed mixed_case additive says above below most \
                     least parent label words one_of integer text_integer decimal year date";
        let known: BTreeSet<&str> = known.split_whitespace().collect();
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
        let words = word_lists();
        for domain in domains() {
            for table in &domain.tables {
                for column in &table.columns {
                    let path = format!("{}.{}.{}", domain.name, table.name, column.name);
                    match &column.kind {
                        ColumnKind::Parent(parent) => {
                            let parent = domain.tables.iter().find(|table| table.name == *parent);
                            let parent = parent.filter(|parent| parent.key.is_empty());
                            let key = parent.map(|parent| key_name(&parent.one));
                            assert!(
                                key.is_some_and(|key| key == column.name || column.noun.is_some()),
                                "{path}: no table has this key, or the column's role has no noun"
                            );
                        }
                        ColumnKind::Label(lists) => {
                            let total: usize = lists.iter().map(|list| words[list].len()).product();
                            assert!(total as i64 >= table.rows[1], "{path}: {total} labels");
                        }
                        ColumnKind::Words(list) => assert!(words.contains_key(list), "{path}"),
                        _ => {}
                    }
                    for phrase in [&column.above, &column.below].into_iter().flatten() {
                        assert_eq!(phrase.matches("{}").count(), 1, "{path}: {phrase}");
                    }
                }
            }
        }
    }
}
