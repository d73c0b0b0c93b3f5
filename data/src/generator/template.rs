//! The query grammar: templates of SQL with their wordings. Pure.
//!
//! A template declares its slots in order. Each slot refers to a slot before it: `t = table`, `p =
//! parent t`, `c = category p`, `v = value c`. [`bindings`](super::binding::bindings) fills them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

use crate::words::embedded;

/// Texts of files of the grammar, read at compile time.
macro_rules! grammar_files {
    ($($name:literal)*) => {
        &[$(include_str!(concat!("../../domains/grammar/", $name, ".toml"))),*]
    };
}

/// The wordings of drafted questions.
const DRAFTING: &str = include_str!("../../domains/drafting/wordings.toml");

/// The files of the grammar: the ways to ask for a thing, and the templates by level.
const FRAMES: &str = include_str!("../../domains/grammar/frames.toml");
const FILES: &[&str] = grammar_files!(
    "level-0" "level-1" "level-2-conditions" "level-2-groups" "level-2-order" "level-2-rows"
    "level-3-aggregates" "level-3-groups" "level-3-links" "level-3-rows" "level-4-groups"
    "level-4-nesting" "level-4-sets"
);

/// One form of query with its wordings in English.
#[derive(Debug, Clone, Deserialize)]
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
    /// Whole sentences, as texts with slots.
    #[serde(default, rename = "words")]
    sentences: Vec<String>,
    /// Names of one thing to ask for: "the price of {x}". A frame makes a sentence of them.
    #[serde(default)]
    is: Vec<String>,
    /// Names of several things to ask for: "the names of the {t}".
    #[serde(default)]
    are: Vec<String>,
    /// All of these as sentences. Those of one group differ only in their frame.
    #[serde(skip)]
    pub(crate) wordings: Vec<Vec<String>>,
}

/// Sentences with `{}` for the name of a thing, or `{bare}` for the name without its article.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Frames {
    is: Vec<String>,
    are: Vec<String>,
}

fn default_weight() -> usize {
    1
}

/// A slot: its letter, what may fill it, and the slot that it depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
    /// A number, a year or a date: what can be compared.
    Number,
    /// A number that can be averaged. A year cannot.
    Measure,
    /// A number that can be added up.
    Additive,
    Nullable,
    /// The key of a table whose key is one column.
    Key,
    /// The label of a table, or the key if it has none.
    Name,
    /// Any column but keys.
    Any,
    /// A value that occurs in a column.
    Value,
    /// A value of the same column that comes after another value.
    Other,
    /// A number inside a column's range.
    Threshold,
    /// A number near an end of a column's range: few rows are beyond it.
    Extreme,
    /// Two numbers inside a column's range.
    Range,
    /// A word of a label.
    Word,
    /// The first letter of a label.
    Letter,
    /// A small count.
    Few,
}

/// Parses the templates of the grammar.
pub(crate) fn templates() -> Vec<QueryTemplate> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TemplateFile {
        templates: Vec<QueryTemplate>,
    }
    let frames: Frames = embedded("frames", FRAMES);
    let files = FILES
        .iter()
        .map(|text| embedded::<TemplateFile>("of the grammar", text).templates);
    let mut templates: Vec<QueryTemplate> = files.flatten().collect();
    for template in &mut templates {
        template.wordings = wordings(template, &frames);
    }
    templates
}

/// Parses the templates that are drafted, with the wordings that fit any database.
pub(crate) fn drafting_templates() -> Vec<QueryTemplate> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Drafting {
        is: Vec<String>,
        are: Vec<String>,
        templates: BTreeMap<String, Wordings>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wordings {
        #[serde(default, rename = "words")]
        sentences: Vec<String>,
        #[serde(default)]
        is: Vec<String>,
        #[serde(default)]
        are: Vec<String>,
    }
    let drafting: Drafting = embedded("wordings", DRAFTING);
    let frames = Frames {
        is: drafting.is,
        are: drafting.are,
    };
    let mut own = drafting.templates;
    let mut templates = templates();
    templates.retain_mut(|template| {
        let Some(texts) = own.remove(&template.name) else {
            return false;
        };
        (template.sentences, template.is, template.are) = (texts.sentences, texts.is, texts.are);
        template.wordings = wordings(template, &frames);
        true
    });
    assert!(
        own.is_empty(),
        "wordings for unknown templates: {:?}: this is a bug",
        own.keys()
    );
    templates
}

fn wordings(template: &QueryTemplate, frames: &Frames) -> Vec<Vec<String>> {
    let framed = |thing: &String, frames: &[String]| {
        let bare = thing.strip_prefix("the ").unwrap_or(thing);
        let frame = |frame: &String| frame.replace("{}", thing).replace("{bare}", bare);
        frames.iter().map(frame).collect()
    };
    let sentences = template.sentences.iter().map(|text| vec![text.clone()]);
    let is = template.is.iter().map(|thing| framed(thing, &frames.is));
    let are = template.are.iter().map(|thing| framed(thing, &frames.are));
    sentences.chain(is).chain(are).collect()
}

/// Returns the texts of the grammar's files.
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    FILES.iter().copied().chain([FRAMES])
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
