//! What the columns of a procedural database contain, and how questions speak of their values.

use super::super::domain::{ColumnKind, ColumnSpec, WordLists};
use super::super::render::capitalized;
use super::super::rng::RngStream;
use super::alphabet::Alphabet;
use super::lexicon::{Lexicon, draw};

/// The percentage of category columns that questions do not name: "from Lima" for a city.
const IMPLIED_PERCENT: u32 = 14;
/// The percentage of numeric columns whose extremes have a word: "the longest".
const SUPERLATIVE_PERCENT: u32 = 20;
/// The percentage of years that questions do not name: "built after 1990".
const IMPLIED_YEAR_PERCENT: u32 = 60;
/// The percentage of text columns with letters beyond ASCII, in databases that have such.
const ALPHABET_PERCENT: u32 = 60;

/// The words that columns are filled with.
#[derive(Clone, Copy)]
pub(super) struct Vocabulary<'a> {
    pub(super) lexicon: &'a Lexicon,
    /// What many texts are written in, if not in ASCII.
    pub(super) alphabet: Option<Alphabet>,
}

impl Vocabulary<'_> {
    /// Draws the alphabet of a column.
    fn alphabet_of_column(self, rng: &mut RngStream) -> Option<Alphabet> {
        self.alphabet.filter(|_| rng.chance(ALPHABET_PERCENT))
    }
}

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
    vocabulary: Vocabulary<'_>,
    words: &mut WordLists,
    rng: &mut RngStream,
) -> ColumnSpec {
    match role {
        ColumnRole::Label => label(list, vocabulary, words, rng),
        ColumnRole::Category => category(vocabulary, rng),
        ColumnRole::Number => number(vocabulary.lexicon, rng),
        ColumnRole::Year => year(vocabulary.lexicon, rng),
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

fn label(
    list: &str,
    vocabulary: Vocabulary<'_>,
    words: &mut WordLists,
    rng: &mut RngStream,
) -> ColumnSpec {
    let lists = match vocabulary.alphabet_of_column(rng) {
        Some(alphabet) => {
            let words = |rng: &mut RngStream| {
                distinct(70, rng, |rng| {
                    capitalized(&alphabet.word(vocabulary.lexicon, rng))
                })
            };
            (0..1 + rng.below(2)).map(|_| words(rng)).collect()
        }
        None => label_parts(vocabulary.lexicon, rng),
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

/// Draws the words of each part of a label.
fn label_parts(lexicon: &Lexicon, rng: &mut RngStream) -> Vec<Vec<String>> {
    let values = |count, rng: &mut RngStream| {
        distinct(count, rng, |rng| capitalized(draw(&lexicon.values, rng)))
    };
    match rng.below(100) {
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
    }
}

fn category(vocabulary: Vocabulary<'_>, rng: &mut RngStream) -> ColumnSpec {
    let lexicon = vocabulary.lexicon;
    let count = 4 + rng.below(6);
    let alphabet = vocabulary.alphabet_of_column(rng);
    let values = match alphabet {
        Some(alphabet) => distinct(count, rng, |rng| capitalized(&alphabet.word(lexicon, rng))),
        None => category_values(count, lexicon, rng),
    };
    ColumnSpec {
        kind: ColumnKind::OneOf(values),
        // SQLite compares only ASCII letters without regard to case.
        mixed_case: alphabet.is_none() && rng.chance(6),
        says: rng.chance(60).then(|| phrase(lexicon, rng)),
        ..ColumnSpec::default()
    }
}

fn category_values(count: usize, lexicon: &Lexicon, rng: &mut RngStream) -> Vec<String> {
    let word = |rng: &mut RngStream| draw(&lexicon.values, rng);
    match rng.below(100) {
        0..25 => distinct(count, rng, |rng| word(rng).to_owned()),
        25..50 => distinct(count, rng, |rng| capitalized(word(rng))),
        50..58 => distinct(count, rng, |rng| word(rng).to_uppercase()),
        58..75 => distinct(count, rng, |rng| {
            format!("{} {}", capitalized(word(rng)), word(rng))
        }),
        75..88 => distinct(count, rng, |rng| capitalized(draw(&lexicon.places, rng))),
        88..94 => {
            let prefix = code_prefix(rng);
            distinct(count, rng, |rng| format!("{prefix}{}", rng.between(1, 40)))
        }
        _ => distinct(count, rng, |rng| lexicon.invented_word(rng)),
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
