//! Phrases about values: what can follow the noun for the rows that have a value ("from Paris",
//! "whose city is Paris"), and what can follow the noun as a predicate ("are from Paris").
//!
//! Each function returns alternatives. Those that occur several times are drawn more often.

use super::super::schema::{GrammarColumn, Phrasing};
use super::drafted;
use super::nouns::with_article;

/// Nouns of labels that name a row, so that "the book Silent River" is clear.
const ROW_NAMES: &[&str] = &["name", "title", "label", "full name", "model", "variety"];

/// The number of times a phrase counts that the domain declares.
const DECLARED_WEIGHT: usize = 6;
/// The number of times a phrase for countable things counts.
const COUNTED_WEIGHT: usize = 6;

/// Returns a value as a question has it. Numbers never have quotation marks.
pub(super) fn value(value: &str, is_quoted: bool) -> String {
    if !is_quoted || value.starts_with(|first: char| first.is_ascii_digit()) {
        return value.to_owned();
    }
    match value.contains('\'') {
        true => format!("\"{value}\""),
        false => format!("'{value}'"),
    }
}

/// Returns names of the one row that has a label: "the book called Silent River".
pub(super) fn row(
    one: &str,
    column: &GrammarColumn,
    label: &str,
    phrasing: Phrasing,
) -> Vec<String> {
    let noun = &column.noun;
    if phrasing == Phrasing::Drafted {
        let with_noun = format!("the {one} whose {noun} is {label}");
        return match noun.as_str() {
            "id" => vec![format!("the {one} with the id {label}")],
            "name" | "full name" => vec![
                format!("the {one} named {label}"),
                format!("the {one} {label}"),
                with_noun,
            ],
            "title" => vec![
                format!("the {one} titled {label}"),
                format!("the {one} {label}"),
                with_noun,
            ],
            _ if noun == one => vec![format!("the {one} {label}")],
            _ => vec![with_noun],
        };
    }
    let mut phrases = vec![
        format!("the {one} with the {noun} {label}"),
        format!("the {one} whose {noun} is {label}"),
    ];
    if ROW_NAMES.contains(&noun.as_str()) {
        phrases.extend([
            label.to_owned(),
            format!("the {one} {label}"),
            format!("the {one} {label}"),
            format!("the {one} named {label}"),
            format!("the {one} called {label}"),
        ]);
    }
    phrases
}

/// Returns the phrases of an attribute: `says` (the value itself), `not`, `above`, `below`, `from`
/// (at least) or `upto` (at most). With `are` before it, they are predicates: `are`, `are_above`.
pub(super) fn of_value(
    column: &GrammarColumn,
    value: &str,
    attribute: &str,
    phrasing: Phrasing,
) -> Vec<String> {
    if phrasing == Phrasing::Drafted {
        return drafted::of_value(column, value, attribute);
    }
    let attribute = match attribute {
        "are" => "are_says",
        attribute => attribute,
    };
    let (is_predicate, kind) = match attribute.strip_prefix("are_") {
        Some(kind) => (true, kind),
        None => (false, attribute),
    };
    let phrases = match kind {
        "says" => equal(column, value),
        "not" => different(column, value),
        _ => compared(column, value, kind),
    };
    match is_predicate {
        true => phrases.iter().filter_map(|it| predicate(it)).collect(),
        false => phrases,
    }
}

/// Returns phrases for a range, or predicates: "with a price between 3 and 5".
pub(super) fn of_range(
    column: &GrammarColumn,
    low: &str,
    high: &str,
    attribute: &str,
    phrasing: Phrasing,
) -> Vec<String> {
    if phrasing == Phrasing::Drafted {
        return drafted::of_range(column, low, high, attribute);
    }
    let bare = format!("between {low} and {high}");
    let mut phrases = with_bound(column, &bare, "");
    phrases.extend(of_countable(column, &bare));
    match attribute {
        "bare" => vec![bare],
        "says" => phrases,
        "are" => phrases.iter().filter_map(|it| predicate(it)).collect(),
        _ => Vec::new(),
    }
}

fn equal(column: &GrammarColumn, value: &str) -> Vec<String> {
    let noun = &column.noun;
    let mut phrases = declared(column.spec.says.as_deref(), value);
    phrases.push(format!("whose {noun} is {value}"));
    phrases.push(format!("with the {noun} {value}"));
    phrases
}

/// Returns phrases for another value: "whose city is not Paris", "that are not from Paris".
fn different(column: &GrammarColumn, value: &str) -> Vec<String> {
    let noun = &column.noun;
    let negated = |phrase: String| {
        let predicate = predicate(&phrase)?;
        let (verb, rest) = predicate.split_once(' ')?;
        let verb = match verb {
            "have" => "do not have",
            _ => "are not",
        };
        Some(format!("that {verb} {rest}"))
    };
    let declared = declared(column.spec.says.as_deref(), value);
    let mut phrases: Vec<String> = declared.into_iter().filter_map(negated).collect();
    phrases.extend([
        format!("whose {noun} is not {value}"),
        format!("with {} other than {value}", with_article(noun)),
        format!("that do not have the {noun} {value}"),
    ]);
    phrases
}

pub(super) fn declared(phrase: Option<&str>, value: &str) -> Vec<String> {
    phrase.map_or_else(Vec::new, |phrase| {
        vec![phrase.replace("{}", value); DECLARED_WEIGHT]
    })
}

pub(super) fn compared(column: &GrammarColumn, value: &str, kind: &str) -> Vec<String> {
    let spec = &column.spec;
    let is_time = spec.kind.is_time();
    let (own, bounds, link): (Option<&str>, &[&str], &str) = match (kind, is_time) {
        ("above", false) => (
            spec.above.as_deref(),
            &["greater than", "higher than", "above", "over"],
            "",
        ),
        ("below", false) => (
            spec.below.as_deref(),
            &["less than", "lower than", "below", "under"],
            "",
        ),
        ("above", true) => (spec.above.as_deref(), &["after", "later than"], ""),
        ("below", true) => (spec.below.as_deref(), &["before", "earlier than"], ""),
        ("from", false) => (None, &["at least", "*or more", "*or higher"], "of "),
        ("upto", false) => (None, &["at most", "*or less", "*or lower"], "of "),
        ("from", true) => (None, &["*or later"], "of "),
        ("upto", true) => (None, &["*or earlier"], "of "),
        _ => return Vec::new(),
    };
    let mut phrases = declared(own, value);
    for bound in bounds {
        let bound = match bound.strip_prefix('*') {
            Some(bound) => format!("{value} {bound}"),
            None => format!("{bound} {value}"),
        };
        phrases.extend(with_bound(column, &bound, link));
    }
    if let Some(bound) = counted(kind).filter(|_| value != "1") {
        phrases.extend(of_countable(column, &format!("{bound} {value}")));
    }
    phrases
}

/// Returns phrases for a bound of things that can be counted: "with more than 3 pages".
pub(super) fn of_countable(column: &GrammarColumn, bound: &str) -> Vec<String> {
    let phrases = |thing| {
        let phrase = |start| format!("{start} {bound} {thing}");
        vec![["with", "that have"].map(phrase); COUNTED_WEIGHT].concat()
    };
    let thing = column.noun.strip_prefix("number of ");
    thing.map_or_else(Vec::new, phrases)
}

/// Returns how a bound of countable things is said.
fn counted(kind: &str) -> Option<&'static str> {
    match kind {
        "above" => Some("more than"),
        "below" => Some("fewer than"),
        "from" => Some("at least"),
        "upto" => Some("at most"),
        _ => None,
    }
}

pub(super) fn with_bound(column: &GrammarColumn, bound: &str, link: &str) -> Vec<String> {
    let noun = &column.noun;
    vec![
        format!("whose {noun} is {bound}"),
        format!("with {} {link}{bound}", with_article(noun)),
    ]
}

/// Turns a predicate of several rows into one of a single row.
pub(super) fn of_one(predicate: &str) -> Option<String> {
    let (verb, rest) = predicate.split_once(' ')?;
    let verb = match verb {
        "have" => "has",
        "are" => "is",
        "were" => "was",
        "do" => "does",
        _ => return None,
    };
    Some(format!("{verb} {rest}"))
}

/// Turns what follows a noun into a predicate of several rows. Phrases with "whose" and "of" have
/// none.
pub(super) fn predicate(phrase: &str) -> Option<String> {
    const PARTICIPLES: &[&str] = &["born ", "built ", "made "];
    const PARTICIPLE_ENDING: &str = "ed";
    if let Some(rest) = phrase.strip_prefix("with ") {
        return Some(format!("have {rest}"));
    }
    if let Some(rest) = phrase.strip_prefix("that ") {
        return Some(rest.to_owned());
    }
    if phrase.starts_with("whose ") || phrase.starts_with("of ") {
        return None;
    }
    let first = phrase.split(' ').next().unwrap_or_default();
    let is_past = phrase.contains(" after ") || phrase.contains(" before ");
    let is_participle = first.ends_with(PARTICIPLE_ENDING)
        || PARTICIPLES
            .iter()
            .any(|participle| phrase.starts_with(participle));
    match is_past && is_participle {
        true => Some(format!("were {phrase}")),
        false => Some(format!("are {phrase}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::domain::ColumnKind;
    use super::*;

    #[test]
    fn phrases_become_predicates() {
        let cases = [
            ("with more than 3 bags", Some("have more than 3 bags")),
            (
                "that do not have the city Rome",
                Some("do not have the city Rome"),
            ),
            ("from Rome", Some("are from Rome")),
            ("paid by card", Some("are paid by card")),
            ("born after 1990", Some("were born after 1990")),
            ("made after 1990", Some("were made after 1990")),
            ("whose city is Rome", None),
            ("of prime quality", None),
        ];
        for (phrase, expected) in cases {
            assert_eq!(predicate(phrase).as_deref(), expected);
        }
    }

    #[test]
    fn a_bound_is_said_as_the_kind_of_the_column_asks() {
        let column = |noun: &str, kind| GrammarColumn {
            name: noun.to_owned(),
            noun: noun.to_owned(),
            spec: super::super::super::domain::ColumnSpec {
                kind,
                ..Default::default()
            },
            parent: None,
        };
        let year = column("year", ColumnKind::Year([1990, 2000]));
        assert!(
            of_value(&year, "1995", "above", Phrasing::Generated)
                .contains(&"whose year is after 1995".to_owned())
        );
        let bags = column("number of bags", ColumnKind::Integer([0, 9]));
        let phrases = of_value(&bags, "3", "are_from", Phrasing::Generated);
        assert!(
            phrases.contains(&"have at least 3 bags".to_owned()),
            "{phrases:?}"
        );
        assert!(
            phrases.iter().all(|phrase| phrase.starts_with("have ")),
            "{phrases:?}"
        );
        assert_eq!(
            of_value(&bags, "3", "colour", Phrasing::Generated),
            Vec::<String>::new()
        );
    }

    #[test]
    fn drafted_phrases_fit_any_noun() {
        let column = |noun: &str, says: Option<&str>| GrammarColumn {
            name: noun.to_owned(),
            noun: noun.to_owned(),
            spec: super::super::super::domain::ColumnSpec {
                says: says.map(str::to_owned),
                kind: ColumnKind::Integer([0, 9]),
                ..Default::default()
            },
            parent: None,
        };
        let month = column("month", None);
        let of = |attribute| of_value(&month, "May", attribute, Phrasing::Drafted);
        assert_eq!(of("says"), ["whose month is May"]);
        assert_eq!(of("are"), ["have May as their month"]);
        assert_eq!(of("are_not"), ["have a month other than May"]);
        assert_eq!(of("is"), ["'s month is May"]);
        assert!(of("has_above").contains(&"has a month above May".to_owned()));
        assert!(of("and_above").iter().all(|it| it.starts_with("whose ")));
        let city = column("city", Some("from {}"));
        let are = of_value(&city, "Rome", "are", Phrasing::Drafted);
        assert!(are.iter().all(|it| it == "are from Rome"), "{are:?}");
        let row = |noun| row("order", &column(noun, None), "7", Phrasing::Drafted);
        assert_eq!(row("id"), ["the order with the id 7"]);
        assert_eq!(row("code"), ["the order whose code is 7"]);
    }

    #[test]
    fn a_declared_phrase_is_negated() {
        let phrases = |says: &str, attribute| {
            let column = GrammarColumn {
                name: "soil".to_owned(),
                noun: "soil".to_owned(),
                spec: super::super::super::domain::ColumnSpec {
                    says: Some(says.to_owned()),
                    ..Default::default()
                },
                parent: None,
            };
            of_value(&column, "clay", attribute, Phrasing::Generated)
        };
        assert!(phrases("in {}", "not").contains(&"that are not in clay".to_owned()));
        assert!(phrases("with {} soil", "are_not").contains(&"do not have clay soil".to_owned()));
    }
}
