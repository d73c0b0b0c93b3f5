//! Infers what a column means from its name and its values. Pure.

use super::counts::count_noun;
use super::dictionary::Dictionary;
use super::name_lists::ends_with;
use super::statistics::ColumnStatistics;
use super::{flags, moments, units, unusable};
use crate::generator::domain::{ColumnKind, DraftedPhrases};

/// The most values of a category.
pub(super) const MOST_CATEGORIES: usize = 60;
/// The number of distinct integers from which a column of unknown meaning counts something.
const FEWEST_NUMBERS: usize = 12;

/// Why a column of days such as 20200119 is not asked about: an average of them is no day.
const DATES_AS_NUMBERS: &str =
    "has dates as numbers; store them as text (YYYY-MM-DD) to ask about them";
/// Why a year such as 2019.0 is not asked about: any answer within one per cent would be right.
const INTEGERS_AS_REALS: &str =
    "has whole numbers as real numbers; store them as integers to ask about them";

/// What questions may do with a column, and its noun.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InferredColumn {
    pub(super) kind: ColumnKind,
    pub(super) noun: String,
    /// Whether a sum over rows has a meaning.
    pub(super) is_additive: bool,
    /// What the name says besides.
    pub(super) phrases: DraftedPhrases,
}

/// What the schema says about a column.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnPlace<'a> {
    /// The noun of a row of its table.
    pub(super) own: &'a str,
    pub(super) is_unique: bool,
    /// Whether it refers to a table by a declared key or by its name, even if that table has no
    /// key.
    pub(super) is_reference: bool,
    /// Whether its words are those of the file of words.
    pub(super) is_worded: bool,
}

/// Infers the kind and the noun of a column that is no key, or says why it is not asked about.
pub(super) fn infer(
    words: &[String],
    statistics: &ColumnStatistics,
    place: ColumnPlace<'_>,
    dictionary: &Dictionary,
) -> Result<InferredColumn, &'static str> {
    if words.is_empty() {
        return Err("has no words in its name; give it words");
    }
    if let Some(problem) = unusable::reason(words, statistics, place.is_worded, dictionary) {
        return Err(problem);
    }
    if let Some(flag) = flag(words, statistics, dictionary) {
        return Ok(flag);
    }
    let is_numeric = statistics.integers + statistics.reals == statistics.values();
    let is_number_text = statistics.number_texts == statistics.values();
    if is_numeric || is_number_text {
        if moments::are_days(statistics) {
            return Err(DATES_AS_NUMBERS);
        }
        let (base, unit) = match units::divided(words, dictionary) {
            Some((base, unit)) => (base, Some(unit)),
            None => (words, None),
        };
        let kind = match number(base, unit.is_some(), statistics, place, dictionary)? {
            ColumnKind::Year(_) | ColumnKind::Text
                if statistics.reals > 0 && !statistics.has_fractions =>
            {
                return Err(INTEGERS_AS_REALS);
            }
            ColumnKind::Integer(range) if is_number_text && !is_numeric => {
                ColumnKind::TextInteger(range)
            }
            kind => kind,
        };
        if kind.is_number() {
            return Ok(InferredColumn {
                is_additive: is_additive(base, dictionary),
                kind,
                noun: number_noun(base, unit, dictionary),
                phrases: DraftedPhrases::None,
            });
        }
        return Ok(described(kind, words, place.own, dictionary));
    }
    let kind = text(words, statistics, place.is_unique, dictionary);
    Ok(described(kind, words, place.own, dictionary))
}

/// Returns the noun of a column of numbers: "number of pets", "weight in kg".
fn number_noun(words: &[String], unit: Option<&str>, dictionary: &Dictionary) -> String {
    let noun = words.join(" ").replace(" in percentage", " in percent");
    let is_amount = ends_with(words, &dictionary.lists.amounts);
    let noun = match (count_noun(words, dictionary), words) {
        (Some(counted), _) if unit.is_none() => counted,
        _ if is_amount => match dictionary.singular(&noun) {
            one if one == noun => format!("{noun} figure"),
            one if one.ends_with("asset") => format!("{one} value"),
            one => one,
        },
        // "amount payment" is a payment amount.
        (_, [first, thing]) if first == "amount" && dictionary.is_thing(thing) => {
            format!("{thing} amount")
        }
        _ => noun,
    };
    match unit {
        Some(unit) => format!("{noun} in {unit}"),
        None => noun,
    }
}

fn is_additive(words: &[String], dictionary: &Dictionary) -> bool {
    let is_part = [
        "percentage",
        "percent",
        "rate",
        "average",
        "ratio",
        "maximum",
        "minimum",
    ];
    let is_summed = count_noun(words, dictionary).is_some_and(|it| it.starts_with("number of "))
        || ends_with(words, &dictionary.lists.additive);
    is_summed && !words.iter().any(|word| is_part.contains(&word.as_str()))
}

/// Returns a column that is no number, under its noun.
fn described(
    kind: ColumnKind,
    words: &[String],
    own: &str,
    dictionary: &Dictionary,
) -> InferredColumn {
    let unit = match kind {
        ColumnKind::Date(_) => Some("date"),
        ColumnKind::Year(_) => Some("year"),
        _ => None,
    };
    let done = unit.and_then(|unit| moments::done(words, own, unit, dictionary));
    let (noun, phrases) = match done {
        Some(moment) => (moment.noun, moment.phrases),
        None => {
            let noun = unit.and_then(|unit| moments::time_noun(unit, words, own, dictionary));
            let other = || match units::divided(words, dictionary) {
                Some((base, unit)) => format!("{} in {unit}", dictionary.singular(&base.join(" "))),
                None => dictionary.singular(&words.join(" ")),
            };
            (noun.unwrap_or_else(other), DraftedPhrases::None)
        }
    };
    InferredColumn {
        kind,
        noun,
        is_additive: false,
        phrases,
    }
}

/// Describes a column that says yes or no.
fn flag(
    words: &[String],
    statistics: &ColumnStatistics,
    dictionary: &Dictionary,
) -> Option<InferredColumn> {
    let yes = flags::yes_of(&statistics.pair)?;
    let is_measure = dictionary.is_number(words.last()?) || count_noun(words, dictionary).is_some();
    // A column of few small counts is no flag.
    flags::is_flag(words, is_measure, dictionary).then(|| InferredColumn {
        kind: ColumnKind::OneOf(Vec::new()),
        noun: words.join(" "),
        is_additive: false,
        phrases: flags::phrases(words, yes, dictionary),
    })
}

fn number(
    words: &[String],
    has_unit: bool,
    statistics: &ColumnStatistics,
    place: ColumnPlace<'_>,
    dictionary: &Dictionary,
) -> Result<ColumnKind, &'static str> {
    let lists = &dictionary.lists;
    let range = [statistics.least as i64, statistics.greatest as i64];
    let last = words.last().map_or("", String::as_str);
    let says_year = words.iter().any(|word| lists.years.contains(word));
    let is_counted = count_noun(words, dictionary).is_some();
    if statistics.years == statistics.values() && says_year {
        return Ok(ColumnKind::Year(range));
    }
    if !has_unit && !is_counted && moments::are_numbers(words, statistics, dictionary) {
        return Err(DATES_AS_NUMBERS);
    }
    let is_code = ends_with(words, &lists.codes) || ends_with(words, &lists.free_texts);
    if (is_code || ends_with(words, &lists.ranks)) && !is_counted && !has_unit {
        return Ok(ColumnKind::Text);
    }
    let is_measure =
        has_unit || is_counted || dictionary.is_number(last) || ends_with(words, &lists.measures);
    // "The highest spent" lacks what was spent.
    if let [word] = words
        && !place.is_worded
        && dictionary.is_participle(word)
        && !dictionary.is_noun(word)
    {
        return Err("has no noun in its name; give it words");
    }
    // Nor does "the lowest final table made".
    if let [.., thing, done] = words
        && !place.is_worded
        && dictionary.is_participle(done)
        && !dictionary.is_noun(done)
        && !is_counted
        && !dictionary.is_number(thing)
        && !ends_with(&words[..words.len() - 1], &lists.additive)
    {
        return Err("has a name that few readers would understand; give it words");
    }
    // "The highest user" makes no sense: a column that is called like a thing has its id.
    let is_reference = place.is_reference || dictionary.is_thing(last);
    if is_reference && !is_measure && !statistics.has_fractions {
        if place.is_worded {
            return Ok(ColumnKind::Text);
        }
        return Err("seems to have ids of what it is called like; give it words if it has numbers");
    }
    if statistics.reals > 0 {
        return Ok(ColumnKind::Decimal(range));
    }
    Ok(
        match is_measure || (statistics.distinct >= FEWEST_NUMBERS && !place.is_unique) {
            true => ColumnKind::Integer(range),
            false => ColumnKind::Text,
        },
    )
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

#[cfg(test)]
mod tests {
    use rusqlite::types::Value as SqlValue;

    use super::*;

    fn inferred(name: &str, values: &[SqlValue]) -> Result<InferredColumn, &'static str> {
        let dictionary = Dictionary::read();
        let statistics = ColumnStatistics::count(values.iter());
        let is_unique = statistics.distinct == values.len();
        infer(
            &dictionary.words(name),
            &statistics,
            ColumnPlace {
                own: "order",
                is_unique,
                is_reference: false,
                is_worded: false,
            },
            &dictionary,
        )
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

    fn reals(values: &[f64]) -> Vec<SqlValue> {
        values.iter().map(|it| SqlValue::Real(*it)).collect()
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
        let versions = reals(&[1.5, 2.0]);
        assert_eq!(kind("version", &versions), Ok(ColumnKind::Text));
        let numbers: Vec<i64> = (20200101..=20200132).collect();
        assert_eq!(
            kind("visits", &integers(&numbers)),
            Ok(ColumnKind::Integer([20200101, 20200132]))
        );
    }

    #[test]
    fn a_column_that_is_not_asked_about_has_a_reason() {
        let days: Vec<i64> = (20200101..=20200112).collect();
        let seconds = integers(&[1577836800, 1609459200]);
        for (name, values, reason) in [
            (
                "legacy_id",
                integers(&[1, 2]),
                "is an id that refers to no table",
            ),
            ("price", vec![SqlValue::Null], "has no value"),
            ("release_year", reals(&[1990.0, 2001.0]), INTEGERS_AS_REALS),
            ("zip", reals(&[10115.0, 10117.0]), INTEGERS_AS_REALS),
            (
                "order_date",
                integers(&[20200119, 20211231]),
                DATES_AS_NUMBERS,
            ),
            (
                "order_date",
                texts(&["20200119", "20211231"]),
                DATES_AS_NUMBERS,
            ),
            ("expires", seconds, DATES_AS_NUMBERS),
            ("visits", integers(&days), DATES_AS_NUMBERS),
            (
                "photo",
                vec![SqlValue::Blob(vec![1])],
                "has binary values or text that is not UTF-8",
            ),
            ("plot", texts(&["a b c d e f g h i"]), "is free text"),
        ] {
            assert_eq!(inferred(name, &values), Err(reason), "{name}");
        }
    }

    #[test]
    fn moments_have_nouns_that_a_person_says() {
        let day = texts(&["2020-01-05", "2021-01-05"]);
        for (name, noun) in [
            ("held_on", "date held"),
            ("date_last_hire", "last hire date"),
            ("date_order_first_available", "first available date"),
            ("date_of_birth", "date of birth"),
            ("date_from", "start date"),
            ("date_to", "end date"),
            ("End", "end date"),
            ("order_date", "order date"),
            ("created_at", "creation date"),
        ] {
            let found = inferred(name, &day).map(|it| it.noun);
            assert_eq!(found.as_deref(), Ok(noun), "{name}");
        }
        let sentence = inferred("how_to_get_there", &texts(&["bus", "walk", "bus"]));
        assert!(sentence.unwrap_err().contains("no noun"));
    }

    #[test]
    fn flags_and_counts_have_nouns() {
        let noun = |name, values: &[SqlValue]| inferred(name, values).map(|it| it.noun);
        assert_eq!(
            noun("is_active", &integers(&[0, 1, 1])),
            Ok("is active".to_owned())
        );
        assert_eq!(
            noun("Retired", &texts(&["Y", "N"])),
            Ok("retired".to_owned())
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
