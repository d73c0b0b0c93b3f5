//! What the columns of a procedural database contain, and how questions speak of their values.

use super::super::domain::{ColumnKind, ColumnSpec, WordLists};
use super::super::render::capitalized;
use super::super::rng::RngStream;
use super::lexicon::{Lexicon, draw};

/// The percentage of category columns that questions do not name: "from Lima" for a city.
const IMPLIED_PERCENT: u32 = 14;
/// The percentage of numeric columns whose extremes have a word: "the longest".
const SUPERLATIVE_PERCENT: u32 = 20;
/// The percentage of years that questions do not name: "built after 1990".
const IMPLIED_YEAR_PERCENT: u32 = 60;

/// A column before its words and values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnRole {
    Label,
    Category,
    Number,
    Year,
    Date,
}

/// Draws the kind and the phrases of a column, in which `{noun}` and `{a}` stand for its noun
/// without and with an article. The words of labels go into `words` under names that begin with
/// `list`.
pub(super) fn draw_spec(
    role: ColumnRole,
    list: &str,
    lexicon: &Lexicon,
    words: &mut WordLists,
    rng: &mut RngStream,
) -> ColumnSpec {
    match role {
        ColumnRole::Label => label(list, lexicon, words, rng),
        ColumnRole::Category => category(lexicon, rng),
        ColumnRole::Number => number(lexicon, rng),
        ColumnRole::Year => year(lexicon, rng),
        ColumnRole::Date => {
            let first = rng.between(1960, 2019);
            let last = first + rng.between(1, 2024 - first);
            ColumnSpec {
                kind: ColumnKind::Date([first, last]),
                ..ColumnSpec::default()
            }
        }
    }
}

fn label(list: &str, lexicon: &Lexicon, words: &mut WordLists, rng: &mut RngStream) -> ColumnSpec {
    let values = |count, rng: &mut RngStream| {
        distinct(count, rng, |rng| capitalized(draw(&lexicon.values, rng)))
    };
    let lists: Vec<Vec<String>> = match rng.below(100) {
        0..30 => vec![values(12, rng), values(12, rng)],
        30..55 => vec![
            distinct(20, rng, |rng| capitalized(draw(&lexicon.first_names, rng))),
            distinct(20, rng, |rng| capitalized(draw(&lexicon.surnames, rng))),
        ],
        55..75 => vec![values(70, rng)],
        75..88 => {
            let prefix = code_prefix(rng);
            vec![distinct(70, rng, |rng| {
                format!("{prefix}{}", rng.between(100, 999))
            })]
        }
        _ => vec![distinct(70, rng, |rng| {
            capitalized(&lexicon.invented_word(rng))
        })],
    };
    let mut names = Vec::with_capacity(lists.len());
    for (part, values) in lists.into_iter().enumerate() {
        let name = format!("{list}.{part}");
        words.insert(name.clone(), values);
        names.push(name);
    }
    ColumnSpec {
        kind: ColumnKind::Label(names),
        ..ColumnSpec::default()
    }
}

fn category(lexicon: &Lexicon, rng: &mut RngStream) -> ColumnSpec {
    let count = 4 + rng.below(6);
    let word = |rng: &mut RngStream| draw(&lexicon.values, rng);
    let values = match rng.below(100) {
        0..25 => distinct(count, rng, |rng| word(rng).to_owned()),
        25..50 => distinct(count, rng, |rng| capitalized(word(rng))),
        50..58 => distinct(count, rng, |rng| word(rng).to_uppercase()),
        58..70 => distinct(count, rng, |rng| {
            format!("{} {}", capitalized(word(rng)), word(rng))
        }),
        70..85 => distinct(count, rng, |rng| capitalized(draw(&lexicon.places, rng))),
        85..92 => {
            let prefix = code_prefix(rng);
            distinct(count, rng, |rng| format!("{prefix}{}", rng.between(1, 40)))
        }
        _ => distinct(count, rng, |rng| lexicon.invented_word(rng)),
    };
    ColumnSpec {
        kind: ColumnKind::OneOf(values),
        mixed_case: rng.chance(6),
        says: rng.chance(60).then(|| phrase(lexicon, rng)),
        ..ColumnSpec::default()
    }
}

/// Draws what questions say of the rows with a value of a category.
fn phrase(lexicon: &Lexicon, rng: &mut RngStream) -> String {
    const IMPLIED: [&str; 7] = [
        "in {}",
        "from {}",
        "of {}",
        "marked {}",
        "listed under {}",
        "{done} {at} {}",
        "{done} {at} {}",
    ];
    const NAMED: [&str; 10] = [
        "of {noun} {}",
        "whose {noun} is {}",
        "with the {noun} {}",
        "in {noun} {}",
        "with {} {noun}",
        "of {} {noun}",
        "in the {} {noun}",
        "{done} {at} the {noun} {}",
        "{done} {at} {} {noun}",
        "with {a} that is {}",
    ];
    const PREPOSITIONS: [&str; 8] = ["with", "from", "by", "in", "on", "for", "to", "at"];
    let phrase = match rng.chance(IMPLIED_PERCENT * 100 / 60) {
        true => draw(&IMPLIED, rng),
        false => draw(&NAMED, rng),
    };
    phrase
        .replace("{done}", draw(&lexicon.participles, rng))
        .replace("{at}", draw(&PREPOSITIONS, rng))
}

fn year(lexicon: &Lexicon, rng: &mut RngStream) -> ColumnSpec {
    let first = rng.between(1900, 2010);
    let done = rng
        .chance(IMPLIED_YEAR_PERCENT)
        .then(|| draw(&lexicon.participles, rng));
    let phrase = |time| done.map(|done| format!("{done} {time} {{}}"));
    ColumnSpec {
        kind: ColumnKind::Year([first, first + rng.between(8, 14.max(2024 - first))]),
        above: phrase("after"),
        below: phrase("before"),
        ..ColumnSpec::default()
    }
}

fn number(lexicon: &Lexicon, rng: &mut RngStream) -> ColumnSpec {
    let high = draw(&[10, 20, 50, 100, 300, 1_000, 5_000, 20_000, 100_000], rng);
    let range = |high: i64, rng: &mut RngStream| [draw(&[0, 1, high / 10, high / 5], rng), high];
    let kind = match rng.below(100) {
        0..68 => ColumnKind::Integer(range(high, rng)),
        68..92 => ColumnKind::Decimal(range(high.min(5_000), rng)),
        _ => ColumnKind::TextInteger(range(high, rng)),
    };
    let above = [
        "with {a} over {}",
        "with {noun} greater than {}",
        "whose {noun} exceeds {}",
    ];
    let below = [
        "with {a} under {}",
        "with {noun} less than {}",
        "whose {noun} is below {}",
    ];
    let mut phrase = |phrases: &[&str]| rng.chance(60).then(|| draw(phrases, rng).to_owned());
    let (above, below) = (phrase(&above), phrase(&below));
    let mut superlative = |words: &[&'static str]| {
        let is_drawn = rng.chance(SUPERLATIVE_PERCENT);
        is_drawn.then(|| draw(words, rng).to_owned())
    };
    let (most, least) = (
        superlative(&lexicon.largest),
        superlative(&lexicon.smallest),
    );
    ColumnSpec {
        most,
        least,
        additive: matches!(kind, ColumnKind::Integer(_) | ColumnKind::Decimal(_)),
        skewed: rng.chance(30),
        kind,
        above,
        below,
        ..ColumnSpec::default()
    }
}

fn code_prefix(rng: &mut RngStream) -> String {
    let letters: String = (0..1 + rng.below(3))
        .map(|_| char::from(b'A' + rng.below(26) as u8))
        .collect();
    letters + draw(&["", "-"], rng)
}

/// Draws `count` values that differ, also without regard to case.
fn distinct(
    count: usize,
    rng: &mut RngStream,
    mut value: impl FnMut(&mut RngStream) -> String,
) -> Vec<String> {
    let mut values: Vec<String> = Vec::with_capacity(count);
    while values.len() < count {
        let drawn = value(rng);
        if !values
            .iter()
            .any(|known| known.eq_ignore_ascii_case(&drawn))
        {
            values.push(drawn);
        }
    }
    values
}
