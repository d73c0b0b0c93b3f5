//! The query grammar: templates of SQL with their wordings.
//!
//! A template declares its slots in order. Each slot refers to a slot before it: `t = table`, `p =
//! parent t`, `c = category p`, `v = value c`. [`bindings`](super::binding::bindings) fills them.

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

const GRAMMAR: &str = include_str!("../../domains/grammar.toml");

/// One form of query with its wordings in English.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueryTemplate {
    pub(crate) name: String,
    /// 0 (count of a table) to 4 (nesting, set operations, lists).
    pub(crate) level: usize,
    /// The number of queries that are taken from this template in each round over a level's
    /// templates.
    #[serde(default = "default_weight")]
    pub(crate) weight: usize,
    pub(crate) bind: Vec<Slot>,
    pub(crate) select: String,
    pub(crate) from: String,
    /// Conditions, joined by AND. A condition that renders as an empty text is dropped.
    #[serde(default, rename = "where")]
    pub(crate) conditions: Vec<String>,
    pub(crate) group: Option<String>,
    pub(crate) having: Option<String>,
    /// The only sort key, without its direction.
    pub(crate) order: Option<String>,
    #[serde(default)]
    pub(crate) descending: bool,
    pub(crate) limit: Option<usize>,
    /// A set operation with a second query.
    pub(crate) then: Option<String>,
    /// The wordings, as texts with slots.
    pub(crate) words: Vec<String>,
}

fn default_weight() -> usize {
    1
}

/// A slot: its letter, what may fill it, and the slot that it depends on.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Slot {
    pub(crate) letter: char,
    pub(crate) kind: SlotKind,
    pub(crate) of: Option<char>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SlotKind {
    Table,
    Parent,
    Label,
    Category,
    /// A number that can be compared.
    Number,
    /// A number that can be averaged. A year cannot.
    Measure,
    /// A number that can be added up.
    Additive,
    Date,
    Nullable,
    /// A value that occurs in a column.
    Value,
    /// A number inside a column's range.
    Threshold,
    /// A small count.
    Few,
}

/// Parses the templates of the grammar file.
pub(crate) fn templates() -> Vec<QueryTemplate> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Grammar {
        templates: Vec<QueryTemplate>,
    }
    let grammar: Grammar = toml::from_str(GRAMMAR)
        .unwrap_or_else(|error| panic!("embedded grammar: {error}: this is a bug"));
    grammar.templates
}

/// Returns the text of the grammar file.
pub(crate) fn source() -> &'static str {
    GRAMMAR
}

impl TryFrom<String> for Slot {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        slot(&text).ok_or_else(|| format!("bind: `{text}` is not a slot"))
    }
}

fn slot(text: &str) -> Option<Slot> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (letter, kind, of) = match words.as_slice() {
        [letter, "=", kind] => (letter, kind, None),
        [letter, "=", kind, of] => (letter, kind, of.chars().next()),
        _ => return None,
    };
    Some(Slot {
        letter: letter.chars().next()?,
        kind: SlotKind::deserialize(StrDeserializer::<Error>::new(kind)).ok()?,
        of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_parsed() {
        let slot_of = |text: &str| slot(text).map(|slot| (slot.letter, slot.kind, slot.of));
        assert_eq!(slot_of("t = table"), Some(('t', SlotKind::Table, None)));
        assert_eq!(
            slot_of("v = value c"),
            Some(('v', SlotKind::Value, Some('c')))
        );
        assert_eq!(slot_of("v is value c"), None);
        assert_eq!(slot_of("v = colour c"), None);
    }
}
