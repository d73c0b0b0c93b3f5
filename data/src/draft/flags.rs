//! Columns that say yes or no, and what questions call their rows: "orders that are paid".

use super::dictionary::Dictionary;
use super::name_lists::ends_with;
use crate::generator::domain::DraftedPhrases;
use crate::generator::render::{plural_of_any, with_article};

/// Pairs of values that say no and yes, in lower case.
const FLAGS: &[[&str; 2]] = &[
    ["0", "1"],
    ["f", "t"],
    ["n", "y"],
    ["no", "yes"],
    ["false", "true"],
];

/// Returns the value that says yes, if two values say yes and no.
pub(super) fn yes_of(pair: &[String]) -> Option<&str> {
    let [first, second] = pair else { return None };
    let lower = [first, second].map(|it| it.to_lowercase());
    FLAGS
        .iter()
        .find_map(|[no, yes]| match lower.each_ref().map(String::as_str) {
            [a, b] if a == *no && b == *yes => Some(second.as_str()),
            [a, b] if a == *yes && b == *no => Some(first.as_str()),
            _ => None,
        })
}

/// Returns what the rows are called for which a flag with these words says yes, and no.
pub(super) fn phrases(words: &[String], yes: &str, dictionary: &Dictionary) -> DraftedPhrases {
    let lists = &dictionary.lists;
    let mut rest: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_ending = |last: &&str| *last == "flag" || lists.flag_endings.iter().any(|it| it == last);
    while rest.len() > 1 && rest.last().is_some_and(is_ending) {
        rest.pop();
    }
    let verb = match rest.split_first() {
        Some((first, after)) if !after.is_empty() && lists.flags.iter().any(|it| it == first) => {
            rest = after.to_vec();
            words[0].as_str()
        }
        _ => "",
    };
    let (are, are_not) = predicates(verb, &rest, dictionary);
    DraftedPhrases::Flag {
        yes: yes.to_owned(),
        are,
        are_not,
    }
}

/// Returns the predicates of several rows and of one, and their opposites.
fn predicates(verb: &str, rest: &[&str], dictionary: &Dictionary) -> ([String; 2], [String; 2]) {
    let text = rest.join(" ");
    let last = rest.last().copied().unwrap_or_default();
    let forms = |many: &str, one: &str, thing: [String; 2]| {
        let [things, thing] = thing;
        (
            [format!("{many} {things}"), format!("{one} {thing}")],
            [format!("{many} not {things}"), format!("{one} not {thing}")],
        )
    };
    let same = [text.clone(), text.clone()];
    let describes = dictionary.is_describer(last) || dictionary.is_participle(last);
    // After "is" an adjective is one even if it is a noun elsewhere: "official".
    let is_noun = dictionary.is_thing(last) && !describes && !dictionary.can_describe(last);
    let is_negated = rest.contains(&"not") || rest.contains(&"no");
    let noun = || {
        let one = dictionary.singular(
            rest.join(" ")
                .trim_start_matches("a ")
                .trim_start_matches("an "),
        );
        [plural_of_any(&one), with_article(&one)]
    };
    match verb {
        _ if is_negated => set(&text),
        "is" if is_noun => forms("are", "is", noun()),
        "was" if is_noun => forms("were", "was", noun()),
        "is" => forms("are", "is", same),
        "was" => forms("were", "was", same),
        "can" => {
            let phrase = |can: &str| [format!("{can} {text}"), format!("{can} {text}")];
            (phrase("can"), phrase("cannot"))
        }
        "will" | "should" | "did" => {
            let phrase = |not: &str| [format!("{verb} {not}{text}"), format!("{verb} {not}{text}")];
            (phrase(""), phrase("not "))
        }
        "has" if dictionary.is_participle(last) => forms("have", "has", same),
        "has" if dictionary.is_countable(last) => having(&with_article(&text)),
        "has" => having(&text),
        // "Toll paid" is said of the toll, not of the row.
        "" if rest.len() > 1 && dictionary.is_participle(last) && dictionary.is_noun(rest[0]) => {
            having(&format!("the {text}"))
        }
        "" if describes => forms("are", "is", same),
        _ => set(&text),
    }
}

/// The phrases for a name without a customary way to say it.
fn set(text: &str) -> ([String; 2], [String; 2]) {
    having(&format!("the {text} flag set"))
}

fn having(thing: &str) -> ([String; 2], [String; 2]) {
    let with = |verbs: [&str; 2]| verbs.map(|verb| format!("{verb} {thing}"));
    (
        with(["have", "has"]),
        with(["do not have", "does not have"]),
    )
}

/// Whether a column whose values are those of a flag is one: its name counts or measures nothing.
pub(super) fn is_flag(words: &[String], is_measure: bool, dictionary: &Dictionary) -> bool {
    let lists = &dictionary.lists;
    let is_named = words.len() > 1 && lists.flags.contains(&words[0]);
    let is_marked =
        words.last().is_some_and(|it| it == "flag") || ends_with(words, &lists.flag_endings);
    !words.iter().any(|it| lists.not_flags.contains(it)) && (!is_measure || is_named || is_marked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_a_person_says_them() {
        let dictionary = Dictionary::read();
        for (name, are, is_not) in [
            ("is_paid", "are paid", "is not paid"),
            ("paid", "are paid", "is not paid"),
            ("available_yn", "are available", "is not available"),
            ("Is_male", "are male", "is not male"),
            ("is_member", "are members", "is not a member"),
            ("is_a_manager", "are managers", "is not a manager"),
            ("was_returned", "were returned", "was not returned"),
            ("has_phone", "have a phone", "does not have a phone"),
            ("has_insurance", "have insurance", "does not have insurance"),
            ("is_official", "are official", "is not official"),
            (
                "returned_late_yn",
                "are returned late",
                "is not returned late",
            ),
            (
                "toll_paid",
                "have the toll paid",
                "does not have the toll paid",
            ),
            ("has_expired", "have expired", "has not expired"),
            ("can_drive", "can drive", "cannot drive"),
            ("did_vote", "did vote", "did not vote"),
            (
                "transfer",
                "have the transfer flag set",
                "does not have the transfer flag set",
            ),
        ] {
            let found = phrases(&dictionary.words(name), "1", &dictionary);
            let DraftedPhrases::Flag {
                are: found_are,
                are_not,
                ..
            } = found
            else {
                panic!("{name}")
            };
            assert_eq!(
                (found_are[0].as_str(), are_not[1].as_str()),
                (are, is_not),
                "{name}"
            );
        }
    }

    #[test]
    fn one_of_two_values_says_yes() {
        let of = |a: &str, b: &str| yes_of(&[a.to_owned(), b.to_owned()]).map(str::to_owned);
        assert_eq!(of("0", "1").as_deref(), Some("1"));
        assert_eq!(of("Yes", "No").as_deref(), Some("Yes"));
        assert_eq!(of("F", "T").as_deref(), Some("T"));
        assert_eq!(of("F", "M"), None);
    }
}
