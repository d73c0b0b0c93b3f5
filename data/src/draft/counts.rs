//! Nouns of columns that count things. Pure.

use super::dictionary::Dictionary;
use crate::generator::render::plural_of_any;

/// Returns the noun for the number of things that a name counts: "num pets", "pet count".
pub(super) fn count_noun(words: &[String], dictionary: &Dictionary) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let thing = match words.as_slice() {
        ["number", "of", thing @ ..] | ["number", thing @ ..] if !thing.is_empty() => thing,
        [thing @ .., "count"] if !thing.is_empty() => thing,
        [things, "in" | "on" | "for" | "against" | "per", _, ..]
            if is_plural(&[things], dictionary) =>
        {
            return Some(format!("number of {}", words.join(" ")));
        }
        [things, done] if is_plural(&[things], dictionary) && is_participle(done) => {
            return Some(format!("number of {things} {done}"));
        }
        plural if is_plural(plural, dictionary) => {
            const PARTS: [&str; 4] = ["average", "maximum", "minimum", "total"];
            return Some(match plural.split_first() {
                Some((part, things)) if PARTS.contains(part) && !things.is_empty() => {
                    format!("{part} number of {}", things.join(" "))
                }
                _ => format!("number of {}", plural.join(" ")),
            });
        }
        _ => return None,
    };
    if let [things @ .., done] = thing
        && is_participle(done)
        && !things.is_empty()
    {
        let one = dictionary.singular(&things.join(" "));
        return Some(format!("number of {} {done}", plural_of_any(&one)));
    }
    let one = dictionary.singular(&thing.join(" "));
    let is_countable = dictionary.is_thing(one.rsplit(' ').next()?);
    is_countable.then(|| format!("number of {}", plural_of_any(&one)))
}

/// Whether a word says what was done to things: "played".
fn is_participle(word: &str) -> bool {
    word.ends_with("ed")
        || [
            "won",
            "lost",
            "made",
            "sold",
            "sent",
            "held",
            "available",
            "free",
            "left",
        ]
        .contains(&word)
}

/// Whether the words of a name are the plural of what is counted: "cylinders".
fn is_plural(words: &[&str], dictionary: &Dictionary) -> bool {
    let Some(last) = words.last() else {
        return false;
    };
    let is_one = |list: &[String]| list.iter().any(|it| it == last);
    let is_amount = is_one(&dictionary.lists.amounts) || is_one(&dictionary.lists.singulars);
    !is_amount && !words.contains(&"of") && dictionary.singular_word(last) != *last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_numbers_of_things() {
        let dictionary = Dictionary::read();
        let noun = |name: &str| count_noun(&dictionary.words(name), &dictionary);
        assert_eq!(noun("num_pets").as_deref(), Some("number of pets"));
        assert_eq!(noun("pet_count").as_deref(), Some("number of pets"));
        assert_eq!(noun("no_of_seats").as_deref(), Some("number of seats"));
        assert_eq!(noun("Cylinders").as_deref(), Some("number of cylinders"));
        assert_eq!(
            noun("GamesPlayed").as_deref(),
            Some("number of games played")
        );
        assert_eq!(
            noun("bottles in stock").as_deref(),
            Some("number of bottles in stock")
        );
        assert_eq!(
            noun("total_passengers").as_deref(),
            Some("total number of passengers")
        );
        assert_eq!(
            noun("Number_city_affected").as_deref(),
            Some("number of cities affected")
        );
        assert_eq!(noun("phone_number"), None);
        assert_eq!(noun("sales"), None);
    }
}
