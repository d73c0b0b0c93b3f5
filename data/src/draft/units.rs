//! Units at the end of names: `weight_kg` is a weight in kg.

use super::dictionary::Dictionary;
use super::name_lists::ends_with;
use crate::generator::render::UNITS;

/// What units are called in names, with their names among [`UNITS`].
const SPELLINGS: &[(&str, &str)] = &[
    ("kgs", "kg"),
    ("kilogram", "kg"),
    ("kilograms", "kg"),
    ("gram", "grams"),
    ("lb", "pounds"),
    ("lbs", "pounds"),
    ("tonnes", "tons"),
    ("kms", "km"),
    ("kilometers", "km"),
    ("kilometres", "km"),
    ("meters", "m"),
    ("metres", "m"),
    ("mi", "miles"),
    ("ft", "feet"),
    ("sqft", "square feet"),
    ("kmh", "km/h"),
    ("kph", "km/h"),
    ("gb", "GB"),
    ("mb", "MB"),
    ("millisecond", "ms"),
    ("milliseconds", "ms"),
    ("sec", "seconds"),
    ("secs", "seconds"),
    ("mins", "minutes"),
    ("hrs", "hours"),
    ("usd", "USD"),
    ("eur", "EUR"),
    ("gbp", "GBP"),
    ("dollar", "dollars"),
    ("euro", "euros"),
    ("celsius", "degrees Celsius"),
    ("fahrenheit", "degrees Fahrenheit"),
    ("thousand", "thousands"),
    ("million", "millions"),
    ("billion", "billions"),
];

/// Words that cannot stand alone before a unit: "total hours" are a number of hours.
const PARTS: [&str; 12] = [
    "total", "average", "maximum", "minimum", "number", "of", "in", "per", "and", "amount", "the",
    "count",
];

/// Nouns of times that are measured in minutes.
const TIMES: [&str; 7] = [
    "duration", "runtime", "time", "length", "delay", "wait", "stay",
];

/// Whether a word is a unit in a name.
pub(super) fn is_unit(word: &str) -> bool {
    let is_it = |name: &str| name.eq_ignore_ascii_case(word);
    SPELLINGS.iter().any(|(short, _)| is_it(short)) || UNITS.iter().any(|(unit, _)| is_it(unit))
}

/// Divides the words of a column of numbers into those of the noun and the unit.
pub(super) fn divided<'a>(
    words: &'a [String],
    dictionary: &Dictionary,
) -> Option<(&'a [String], &'static str)> {
    let (last, before) = words.split_last()?;
    let lower = last.to_lowercase();
    // "Duration min" has minutes, which names shorten like a minimum.
    let is_time = before.last().is_some_and(|it| TIMES.contains(&it.as_str()));
    let lower = match lower.as_str() {
        "minimum" if is_time => "minutes".to_owned(),
        _ => lower,
    };
    let spelled = SPELLINGS.iter().find(|(short, _)| *short == lower);
    let name = spelled.map_or(lower.as_str(), |(_, name)| name);
    // "Damage millions USD" is a damage in millions of USD.
    let scale = before.split_last().and_then(|(scale, before)| {
        let scale = scale.to_lowercase();
        let scale = match scale.ends_with('s') {
            true => scale,
            false => format!("{scale}s"),
        };
        let name = format!("{scale} of {name}");
        let (unit, _) = UNITS.iter().find(|(unit, _)| *unit == name)?;
        Some((before, *unit))
    });
    if let Some((before, unit)) = scale.filter(|(before, _)| !before.is_empty()) {
        return Some((before, unit));
    }
    let (unit, _) = UNITS
        .iter()
        .find(|(unit, _)| unit.to_lowercase() == name.to_lowercase())?;
    // "Weight in kg" and "weight kg" are the same.
    let before = match before {
        [rest @ .., link] if link == "in" => rest,
        before => before,
    };
    let noun = before.last()?;
    // "Opening hours" and "page views days" are no measures, but "weight kg" and "duration days"
    // are.
    let is_symbol = spelled.is_some() || unit.len() <= 3;
    let is_measure = dictionary.is_number(noun)
        || ends_with(before, &dictionary.lists.amounts)
        || ends_with(before, &dictionary.lists.measures);
    let is_noun = !PARTS.contains(&noun.as_str()) && (is_symbol || is_measure);
    is_noun.then_some((before, *unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_follows_a_noun() {
        let dictionary = Dictionary::read();
        for (name, expected) in [
            ("weight_kg", Some(("weight", "kg"))),
            ("Profits_billion", Some(("profits", "billions"))),
            ("duration_min", Some(("duration", "minutes"))),
            ("price_min", None),
            ("runtime_minutes", Some(("runtime", "minutes"))),
            ("Total Price (EUR)", Some(("total price", "EUR"))),
            ("height_in_cm", Some(("height", "cm"))),
            ("Damage_millions_USD", Some(("damage", "millions of USD"))),
            ("total_hours", None),
            ("opening_hours", None),
            ("kg", None),
            ("weight", None),
        ] {
            let words = dictionary.words(name);
            let found = divided(&words, &dictionary);
            let found = found.map(|(words, unit)| (words.join(" "), unit));
            let expected = expected.map(|(noun, unit)| (noun.to_owned(), unit));
            assert_eq!(found, expected, "{name}");
        }
    }
}
