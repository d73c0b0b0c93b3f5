//! Lists of words of names, by what they say about a table or a column.

use std::collections::BTreeMap;

/// Lists of words by what they say about a column.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NameLists {
    /// Shortened words of schemas, with what they stand for.
    pub(super) abbreviations: BTreeMap<String, String>,
    /// Words that names contain and the other lists lack.
    pub(super) words: Vec<String>,
    /// Words at the end of a name that identifies a row.
    pub(super) keys: Vec<String>,
    /// Words at the end of a name of a number that means nothing as a number.
    pub(super) codes: Vec<String>,
    /// Words at the end of a name that rows are called by, the best one first.
    pub(super) labels: Vec<String>,
    /// Words of columns whose text no question searches for.
    pub(super) free_texts: Vec<String>,
    /// Words of numbers that can be added up.
    pub(super) additive: Vec<String>,
    /// Words of numbers that can be averaged.
    pub(super) measures: Vec<String>,
    /// Words of numbers where the least is the best, or where the order says nothing.
    pub(super) ranks: Vec<String>,
    /// Words of columns that say in which year something happened.
    pub(super) years: Vec<String>,
    /// Words that are written in capital letters.
    pub(super) acronyms: Vec<String>,
    /// Words that say nothing without a noun.
    pub(super) no_columns: Vec<String>,
    /// Plurals that are amounts, not numbers of things.
    pub(super) amounts: Vec<String>,
    /// Words that end with s and are singular.
    pub(super) singulars: Vec<String>,
    /// Words that say that a name is one of a moment.
    pub(super) times: Vec<String>,
    /// Words of columns of two values that do not say yes and no.
    pub(super) not_flags: Vec<String>,
    /// Names of persons that other persons share.
    pub(super) person_names: Vec<String>,
    /// Words at the end of the name of a flag.
    pub(super) flag_endings: Vec<String>,
    /// Words at the start of the name of a flag.
    pub(super) flags: Vec<String>,
    /// Words at the start of a table's name that say nothing about its rows.
    pub(super) table_prefixes: Vec<String>,
    /// Adjectives that the other lists lack.
    pub(super) adjectives: Vec<String>,
    /// Participles that do not end with "ed".
    pub(super) participles: Vec<String>,
    /// Words that end with "ed" and are no participles.
    pub(super) not_participles: Vec<String>,
    /// Things of which there is no plural: "insurance".
    pub(super) uncountable: Vec<String>,
    /// What the moment is called at which something was done: "creation" for "created".
    pub(super) moments: BTreeMap<String, String>,
    /// Words that leave a noun open.
    pub(super) prepositions: Vec<String>,
    /// Words in a table's name that make it no noun.
    pub(super) not_nouns: Vec<String>,
    /// Words at the end of a table's name that can be left out: "cars data" are cars.
    pub(super) groupings: Vec<String>,
    /// Words before "codes" in a table's name that are the rows.
    pub(super) coded: Vec<String>,
    /// Words at the end of a table's name that stand for no single row.
    pub(super) collections: Vec<String>,
}

/// Whether the words of a name end with an entry of a list.
pub(super) fn ends_with(words: &[String], list: &[String]) -> bool {
    ending(words, list).is_some()
}

/// Returns the index of the first entry of a list that the words of a name end with.
pub(super) fn ending(words: &[String], list: &[String]) -> Option<usize> {
    let text = words.join(" ");
    let is_end = |entry: &String| {
        text.strip_suffix(entry.as_str())
            .is_some_and(|before| before.is_empty() || before.ends_with(' '))
    };
    list.iter().position(is_end)
}
