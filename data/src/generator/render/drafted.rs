//! Phrases of drafted questions. They fit any noun, and they have forms of their own for flags
//! ("that are paid"), for moments ("placed before 2020-01-01") and for units ("above 5 kg").

use super::super::domain::{ColumnKind, ColumnSpec, DraftedPhrases};
use super::super::schema::GrammarColumn;
use super::nouns::{is_plural_only, plural_of_any, with_article};
use super::phrases::{compared, declared, of_countable, of_one, predicate, with_bound};

/// How units are written behind a noun ("weight in kg") and behind a number ("5 kg").
pub(crate) const UNITS: &[(&str, &str)] = &[
    ("kg", "kg"),
    ("grams", "grams"),
    ("pounds", "pounds"),
    ("tons", "tons"),
    ("km", "km"),
    ("m", "m"),
    ("cm", "cm"),
    ("mm", "mm"),
    ("miles", "miles"),
    ("feet", "feet"),
    ("inches", "inches"),
    ("square feet", "square feet"),
    ("km/h", "km/h"),
    ("mph", "mph"),
    ("GB", "GB"),
    ("MB", "MB"),
    ("ms", "ms"),
    ("seconds", "seconds"),
    ("minutes", "minutes"),
    ("hours", "hours"),
    ("days", "days"),
    ("weeks", "weeks"),
    ("months", "months"),
    ("years", "years"),
    ("USD", "USD"),
    ("EUR", "EUR"),
    ("GBP", "GBP"),
    ("dollars", "dollars"),
    ("euros", "euros"),
    ("degrees Celsius", "degrees Celsius"),
    ("degrees Fahrenheit", "degrees Fahrenheit"),
    ("thousands of USD", "thousand USD"),
    ("millions of USD", "million USD"),
    ("billions of USD", "billion USD"),
    ("millions of EUR", "million EUR"),
    ("millions of dollars", "million dollars"),
    ("billions of dollars", "billion dollars"),
    ("thousands", "thousand"),
    ("millions", "million"),
    ("billions", "billion"),
];

/// Divides a noun with a unit: "weight in kg" is a weight, and its values are in "kg".
fn unit(noun: &str) -> Option<(&str, &'static str)> {
    let (base, unit) = noun.rsplit_once(" in ")?;
    let found = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some((base, found.1))
}

/// Returns a column under its noun without the unit, and the unit as it stands behind a number.
fn without_unit(column: &GrammarColumn) -> Option<(GrammarColumn, &'static str)> {
    let (base, unit) = unit(&column.noun)?;
    let mut plain = column.clone();
    plain.noun = base.to_owned();
    Some((plain, unit))
}

/// Returns a noun with its article, without a unit. A plural has no article.
pub(super) fn article(noun: &str) -> String {
    let noun = unit(noun).map_or(noun, |(base, _)| base);
    match is_plural_only(noun) {
        true => noun.to_owned(),
        false => with_article(noun),
    }
}

/// Returns the plural of a noun, which may have a unit: "weights in kg".
pub(super) fn plural(noun: &str) -> String {
    match noun.rsplit_once(" in ") {
        Some((base, unit)) => format!("{} in {unit}", plural_of_any(base)),
        None => plural_of_any(noun),
    }
}

/// Turns a phrase about several rows into one about a single row.
fn singular(phrase: &str) -> String {
    let rest = phrase.strip_prefix("that ");
    let one = rest.and_then(of_one);
    one.map_or_else(|| phrase.to_owned(), |one| format!("that {one}"))
}

/// Returns the phrases of an attribute about a value. Those of bounds are the shared ones, unless
/// the column is a moment or has a unit.
pub(super) fn of_value(column: &GrammarColumn, value: &str, attribute: &str) -> Vec<String> {
    if let DraftedPhrases::Flag { .. } = &column.spec.drafted {
        return of_flag(&column.spec, value, attribute);
    }
    if let Some(several) = attribute.strip_suffix("_one") {
        let phrases = of_value(column, value, several);
        return phrases.iter().map(|it| singular(it)).collect();
    }
    let noun = &column.noun;
    let own = declared(column.spec.says.as_deref(), value);
    match attribute {
        "says" | "whose" if own.is_empty() => vec![format!("whose {noun} is {value}")],
        "says" | "whose" => own,
        "and" => {
            let mut phrases = of_value(column, value, "says");
            phrases.retain(|phrase| phrase.starts_with("whose ") || phrase.starts_with("that "));
            phrases
        }
        "is" => vec![format!("'s {noun} is {value}")],
        "are" => {
            let mut phrases: Vec<String> = own.iter().filter_map(|it| predicate(it)).collect();
            if phrases.is_empty() {
                phrases.push(format!("have {value} as their {noun}"));
            }
            phrases
        }
        "not" => vec![
            format!("whose {noun} is not {value}"),
            format!("with {} other than {value}", article(noun)),
        ],
        "are_not" => vec![format!("have {} other than {value}", article(noun))],
        // After another "whose".
        "and_above" => {
            let mut phrases = of_bound(column, value, "above");
            phrases.retain(|phrase| phrase.starts_with("whose ") || phrase.starts_with("that "));
            phrases
        }
        _ => match attribute.split_once('_') {
            Some(("has", kind)) => {
                let phrases = of_value(column, value, &format!("are_{kind}"));
                phrases.iter().filter_map(|it| of_one(it)).collect()
            }
            Some(("are", kind)) => {
                let phrases = of_bound(column, value, kind);
                phrases.iter().filter_map(|it| predicate(it)).collect()
            }
            _ => of_bound(column, value, attribute),
        },
    }
}

/// Returns the phrases for a bound: "with a weight above 5 kg", "that were placed after 2020".
fn of_bound(column: &GrammarColumn, value: &str, kind: &str) -> Vec<String> {
    if let DraftedPhrases::Moment { subject, done } = &column.spec.drafted {
        let preposition = match column.spec.kind {
            ColumnKind::Year(_) => "in",
            _ => "on",
        };
        let bound = match kind {
            "above" => format!("after {value}"),
            "below" => format!("before {value}"),
            "from" => format!("{preposition} {value} or later"),
            "upto" => format!("{preposition} {value} or earlier"),
            _ => return Vec::new(),
        };
        return vec![happened(subject.as_deref(), done, &bound)];
    }
    match without_unit(column) {
        Some((plain, unit)) => compared(&plain, &format!("{value} {unit}"), kind),
        None => compared(column, value, kind),
    }
}

fn happened(subject: Option<&str>, done: &str, when: &str) -> String {
    match subject {
        Some(subject) => format!("whose {subject} was {done} {when}"),
        None => format!("that were {done} {when}"),
    }
}

/// Returns phrases for a range, or predicates: "with a price between 3 and 5 EUR".
pub(super) fn of_range(
    column: &GrammarColumn,
    low: &str,
    high: &str,
    attribute: &str,
) -> Vec<String> {
    if let Some(several) = attribute.strip_suffix("_one") {
        let phrases = of_range(column, low, high, several);
        return phrases.iter().map(|it| singular(it)).collect();
    }
    let between = format!("between {low} and {high}");
    let phrases = match (&column.spec.drafted, without_unit(column)) {
        (DraftedPhrases::Moment { subject, done }, _) => {
            vec![happened(subject.as_deref(), done, &between)]
        }
        (_, Some((plain, unit))) => with_bound(&plain, &format!("{between} {unit}"), ""),
        _ => {
            let mut phrases = with_bound(column, &between, "");
            phrases.extend(of_countable(column, &between));
            phrases
        }
    };
    match attribute {
        "says" => phrases,
        "are" => phrases.iter().filter_map(|it| predicate(it)).collect(),
        _ => Vec::new(),
    }
}

/// Returns the phrases about the value of a flag. There is none that shows the value itself.
fn of_flag(spec: &ColumnSpec, value: &str, attribute: &str) -> Vec<String> {
    let DraftedPhrases::Flag { yes, are, are_not } = &spec.drafted else {
        return Vec::new();
    };
    let value = value.trim_matches('\'');
    let [many, one] = if value == yes { are } else { are_not };
    match attribute {
        "says" | "and" => vec![format!("that {many}")],
        "says_one" | "and_one" => vec![format!("that {one}")],
        "are" => vec![many.clone()],
        "is" => vec![format!(" {one}")],
        _ => Vec::new(),
    }
}

/// Whether "highest" and "latest" cannot stand before a noun: "the highest high temperature", "the
/// latest date raised".
pub(super) fn has_no_end(column: &GrammarColumn) -> bool {
    let is_end = ["high ", "low ", "highest ", "lowest "]
        .iter()
        .any(|word| column.noun.starts_with(word));
    is_end || column.spec.is_unnamed_moment(&column.noun)
}

/// Returns phrases that say which row has the most or the least of a column, with a verb ("has the
/// highest age", "was placed last") or without one ("with the highest age", "placed last").
pub(super) fn superlative(column: &GrammarColumn, attribute: &str) -> Vec<String> {
    let (verb, end) = attribute.split_once('_').unwrap_or((attribute, ""));
    let (end, is_many) = match end.strip_suffix('s') {
        Some(end) => (end, true),
        None => (end, false),
    };
    let is_time = column.spec.kind.is_time();
    if let DraftedPhrases::Moment { subject, done } = &column.spec.drafted {
        let verb = if is_many && verb == "with" {
            "that"
        } else {
            verb
        };
        return last_or_first(subject.as_deref(), done, (verb, end));
    }
    if has_no_end(column) {
        return Vec::new();
    }
    let words: &[&str] = match (end, is_time) {
        ("top", true) => &["latest", "most recent"],
        ("bottom", true) => &["earliest"],
        ("top", false) => &["highest"],
        ("bottom", false) => &["lowest"],
        _ => &[],
    };
    let noun = match is_many {
        true => plural(&column.noun),
        false => column.noun.clone(),
    };
    let phrase = |word: &&str| format!("{verb} the {word} {noun}");
    words.iter().map(phrase).collect()
}

fn last_or_first(subject: Option<&str>, done: &str, (verb, end): (&str, &str)) -> Vec<String> {
    // "Last updated last" is no English.
    if done.contains(' ') {
        return Vec::new();
    }
    let words: &[&str] = match end {
        "top" => &["last", "most recently"],
        _ => &["first"],
    };
    let phrase = |word: &&str| match (subject, verb) {
        (Some(subject), "with" | "that") => Some(format!("whose {subject} was {done} {word}")),
        (Some(_), _) => None,
        (None, "with") => Some(format!("that was {done} {word}")),
        (None, "has") => Some(format!("was {done} {word}")),
        (None, "that") => Some(format!("that were {done} {word}")),
        (None, _) => Some(format!("were {done} {word}")),
    };
    words.iter().filter_map(phrase).collect()
}

/// Returns the words of a column that are needed to ask when something happened.
pub(super) fn moment(column: &GrammarColumn, attribute: &str) -> Vec<String> {
    let DraftedPhrases::Moment {
        subject: None,
        done,
    } = &column.spec.drafted
    else {
        return Vec::new();
    };
    let when = match column.spec.kind {
        ColumnKind::Year(_) => "in which year",
        _ => "when",
    };
    match attribute {
        "done" => vec![done.clone()],
        _ => vec![when.to_owned()],
    }
}
