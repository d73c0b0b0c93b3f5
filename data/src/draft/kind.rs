//! Infers what a column means from its name and its values.

use super::counts::count_noun;
use super::dictionary::Dictionary;
use super::statistics::ColumnStatistics;
use crate::generator::domain::ColumnKind;

/// The longest text that questions show.
const MOST_CHARACTERS: usize = 60;
/// The most words of a text that is a name or a category.
const MOST_WORDS: usize = 8;
/// The most values of a category.
const MOST_CATEGORIES: usize = 60;
/// The number of distinct integers from which a column of unknown meaning counts something.
const FEWEST_NUMBERS: usize = 12;
/// The percentage of rows without a value from which a column is not asked about.
const MOSTLY_MISSING_PERCENT: usize = 90;

/// Pairs of values that say yes and no, in lower case.
const FLAGS: &[[&str; 2]] = &[
    ["0", "1"],
    ["f", "t"],
    ["n", "y"],
    ["no", "yes"],
    ["false", "true"],
];

/// What questions may do with a column, and its noun.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InferredColumn {
    pub(super) kind: ColumnKind,
    pub(super) noun: String,
    /// Whether a sum over rows has a meaning.
    pub(super) is_additive: bool,
}

/// Infers the kind and the noun of a column that is no key, or says why it is not asked about.
pub(super) fn infer(
    words: &[String],
    statistics: &ColumnStatistics,
    is_unique: bool,
    dictionary: &Dictionary,
) -> Result<InferredColumn, &'static str> {
    let noun = words.join(" ");
    if noun.is_empty() {
        return Err("has no words in its name");
    }
    if let Some(problem) = unusable(words, statistics, dictionary) {
        return Err(problem);
    }
    if let Some(noun) = flag(words, statistics, dictionary) {
        return Ok(InferredColumn {
            kind: ColumnKind::OneOf(Vec::new()),
            noun,
            is_additive: false,
        });
    }
    let numbers = statistics.integers + statistics.reals;
    let kind = if numbers == statistics.values() {
        number(words, statistics, dictionary, is_unique)
    } else if statistics.number_texts == statistics.values() {
        match number(words, statistics, dictionary, is_unique) {
            ColumnKind::Integer(range) => ColumnKind::TextInteger(range),
            kind => kind,
        }
    } else {
        text(words, statistics, is_unique, dictionary)
    };
    let is_number = matches!(
        kind,
        ColumnKind::Integer(_) | ColumnKind::Decimal(_) | ColumnKind::TextInteger(_)
    );
    let noun = match count_noun(words, dictionary) {
        Some(counted) if is_number => counted,
        _ if is_number && ends_with(words, &dictionary.lists.amounts) => format!("{noun} figure"),
        _ => match words {
            // "amount payment" is a payment amount.
            [first, thing] if is_number && first == "amount" && dictionary.is_thing(thing) => {
                format!("{thing} amount")
            }
            _ if is_number => noun,
            _ => time_noun(&kind, words, dictionary).unwrap_or_else(|| dictionary.singular(&noun)),
        },
    };
    let is_part = [
        "percentage",
        "percent",
        "rate",
        "average",
        "ratio",
        "maximum",
        "minimum",
    ];
    Ok(InferredColumn {
        is_additive: is_number
            && (noun.starts_with("number of ") || ends_with(words, &dictionary.lists.additive))
            && !words.iter().any(|word| is_part.contains(&word.as_str())),
        kind,
        noun,
    })
}

/// Returns the noun of a moment whose name has none: "date held" for `held_on`.
fn time_noun(kind: &ColumnKind, words: &[String], dictionary: &Dictionary) -> Option<String> {
    let unit = match kind {
        ColumnKind::Date(_) => "date",
        ColumnKind::Year(_) => "year",
        _ => return None,
    };
    if words
        .iter()
        .any(|word| dictionary.lists.times.contains(word))
    {
        return None;
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = match words.as_slice() {
        [words @ .., "on" | "at" | "in"] if !words.is_empty() => words,
        words => words,
    };
    Some(format!("{unit} {}", words.join(" ")))
}

/// Returns why a column is not asked about.
fn unusable(
    words: &[String],
    statistics: &ColumnStatistics,
    dictionary: &Dictionary,
) -> Option<&'static str> {
    let missing = statistics.nulls + statistics.blanks;
    if words
        .iter()
        .all(|word| dictionary.lists.no_columns.contains(word))
    {
        return Some("has no noun in its name; give it words");
    }
    let is_open = words
        .last()
        .is_some_and(|it| dictionary.lists.prepositions.contains(it));
    let is_moment = statistics.dates + statistics.years > 0;
    if is_open && !is_moment {
        return Some("has a name that is no noun; give it words");
    }
    if statistics.values() == 0 {
        return Some("has no value");
    }
    if missing * 100 >= statistics.rows * MOSTLY_MISSING_PERCENT {
        return Some("is nearly always missing");
    }
    if statistics.blobs > 0 {
        return Some("has binary values or text that is not UTF-8");
    }
    if statistics.longest > MOST_CHARACTERS || statistics.most_words > MOST_WORDS {
        return Some("is free text");
    }
    let is_secret = |word: &String| ["password", "hash", "token", "salt"].contains(&word.as_str());
    if words.iter().any(is_secret) {
        return Some("is a secret");
    }
    let is_key = ends_with(
        words,
        &["id".to_owned(), "uuid".to_owned(), "guid".to_owned()],
    );
    if is_key && !ends_with(words, &dictionary.lists.labels) {
        return Some("is an id that refers to no table");
    }
    None
}

/// Returns the noun of a column that says yes or no: "active flag" for `is_active`.
fn flag(
    words: &[String],
    statistics: &ColumnStatistics,
    dictionary: &Dictionary,
) -> Option<String> {
    let mut pair: Vec<String> = statistics.pair.iter().map(|it| it.to_lowercase()).collect();
    pair.sort();
    let is_pair = FLAGS.iter().any(|flag| pair == flag.map(str::to_owned));
    let (first, rest) = words.split_first()?;
    let is_named = dictionary.lists.flags.contains(first) && !rest.is_empty();
    if !is_pair || ends_with(words, &dictionary.lists.not_flags) {
        return None;
    }
    let noun = if is_named {
        rest.join(" ")
    } else {
        words.join(" ")
    };
    let is_measure = dictionary.is_number(words.last()?);
    let noun = match noun.rsplit_once(' ') {
        Some((before, last)) if dictionary.lists.flag_endings.iter().any(|it| it == last) => {
            before.to_owned()
        }
        _ => noun,
    };
    match () {
        () if noun.ends_with("flag") => Some(noun),
        // A column of few small counts is no flag.
        () if (is_measure || count_noun(words, dictionary).is_some()) && !is_named => None,
        () => Some(format!("{noun} flag")),
    }
}

fn number(
    words: &[String],
    statistics: &ColumnStatistics,
    dictionary: &Dictionary,
    is_unique: bool,
) -> ColumnKind {
    let lists = &dictionary.lists;
    let range = [statistics.least as i64, statistics.greatest as i64];
    let last = words.last().map_or("", String::as_str);
    let says_year = words.iter().any(|word| lists.years.contains(word));
    let is_counted = count_noun(words, dictionary).is_some();
    if statistics.years == statistics.values() && says_year {
        return ColumnKind::Year(range);
    }
    let is_code = ends_with(words, &lists.codes) || ends_with(words, &lists.free_texts);
    if (is_code || ends_with(words, &lists.ranks)) && !is_counted {
        return ColumnKind::Text;
    }
    if statistics.reals > 0 {
        return ColumnKind::Decimal(range);
    }
    let is_measure = is_counted || dictionary.is_number(last) || ends_with(words, &lists.measures);
    match is_measure || (statistics.distinct >= FEWEST_NUMBERS && !is_unique) {
        true => ColumnKind::Integer(range),
        false => ColumnKind::Text,
    }
}

fn text(
    words: &[String],
    statistics: &ColumnStatistics,
    is_unique: bool,
    dictionary: &Dictionary,
) -> ColumnKind {
    let values = statistics.values();
    if statistics.dates == values {
        return ColumnKind::Date([0, 0]);
    }
    let is_category = statistics.texts == values
        && statistics.lettered * 2 > values
        && statistics.dates == 0
        && !is_unique
        && (2..=MOST_CATEGORIES).contains(&statistics.distinct)
        && statistics.distinct == statistics.distinct_folded
        && statistics.distinct * 10 <= values * 8
        && !ends_with(words, &dictionary.lists.free_texts);
    match is_category {
        true => ColumnKind::OneOf(Vec::new()),
        false => ColumnKind::Text,
    }
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

#[cfg(test)]
mod tests {
    use rusqlite::types::Value as SqlValue;

    use super::*;

    fn inferred(name: &str, values: &[SqlValue]) -> Result<InferredColumn, &'static str> {
        let dictionary = Dictionary::read();
        let statistics = ColumnStatistics::count(values.iter());
        let is_unique = statistics.distinct == values.len();
        infer(&dictionary.words(name), &statistics, is_unique, &dictionary)
    }

    fn texts(values: &[&str]) -> Vec<SqlValue> {
        values
            .iter()
            .map(|it| SqlValue::Text((*it).to_owned()))
            .collect()
    }

    fn integers(values: &[i64]) -> Vec<SqlValue> {
        values.iter().map(|it| SqlValue::Integer(*it)).collect()
    }

    #[test]
    fn kinds_follow_from_names_and_values() {
        let kind = |name, values: &[SqlValue]| inferred(name, values).map(|it| it.kind);
        let category = Ok(ColumnKind::OneOf(Vec::new()));
        let colours = texts(&["red", "blue", "red", "blue", "red"]);
        assert_eq!(kind("colour", &colours), category);
        assert_eq!(
            kind("colour", &texts(&["red", "Red", "blue", "blue", "red"])),
            Ok(ColumnKind::Text)
        );
        assert_eq!(
            kind("age", &integers(&[3, 4, 3, 9])),
            Ok(ColumnKind::Integer([3, 9]))
        );
        assert_eq!(
            kind("age", &texts(&["3", "4", "3"])),
            Ok(ColumnKind::TextInteger([3, 4]))
        );
        assert_eq!(
            kind("zip", &integers(&[10115, 10117, 10115])),
            Ok(ColumnKind::Text)
        );
        assert_eq!(kind("rank", &integers(&[1, 2, 3])), Ok(ColumnKind::Text));
        let years = integers(&[1990, 2001]);
        assert_eq!(
            kind("release_year", &years),
            Ok(ColumnKind::Year([1990, 2001]))
        );
        assert_eq!(
            kind("born", &texts(&["2020-01-05"])),
            Ok(ColumnKind::Date([0, 0]))
        );
        assert_eq!(kind("born", &texts(&["5 May 2020"])), Ok(ColumnKind::Text));
        assert_eq!(
            kind("legacy_id", &integers(&[1, 2])),
            Err("is an id that refers to no table")
        );
        assert_eq!(kind("price", &[SqlValue::Null]), Err("has no value"));
        assert_eq!(
            kind("photo", &[SqlValue::Blob(vec![1])]),
            Err("has binary values or text that is not UTF-8")
        );
        assert_eq!(
            kind("plot", &texts(&["a b c d e f g h i"])),
            Err("is free text")
        );
    }

    #[test]
    fn flags_and_counts_have_nouns() {
        let noun = |name, values: &[SqlValue]| inferred(name, values).map(|it| it.noun);
        assert_eq!(
            noun("is_active", &integers(&[0, 1, 1])),
            Ok("active flag".to_owned())
        );
        assert_eq!(
            noun("Retired", &texts(&["Y", "N"])),
            Ok("retired flag".to_owned())
        );
        assert_eq!(
            noun("num_pets", &integers(&[0, 1, 1])),
            Ok("number of pets".to_owned())
        );
    }

    #[test]
    fn only_amounts_are_added_up() {
        let is_additive =
            |name| inferred(name, &integers(&[5, 7, 9])).is_ok_and(|it| it.is_additive);
        assert!(is_additive("total_sales") && is_additive("num_pets"));
        assert!(!is_additive("age") && !is_additive("discount_rate"));
    }
}
