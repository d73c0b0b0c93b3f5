//! The words that names of tables and columns consist of: which words are nouns, which are
//! measures, and what abbreviations stand for. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::name_lists::NameLists;
use crate::generator::render::irregular_singular;
use crate::words::{
    ABBREVIATIONS, DESCRIBERS, PARTICIPLES, THINGS, attributes, embedded, lines, pairs,
};

const NAMES: &str = include_str!("../../words/names_in_schemas.toml");

/// Plurals that stand before nouns as they are.
const PLURAL_MODIFIERS: [&str; 6] = ["sports", "games", "arts", "works", "systems", "operations"];

/// The words of names, compiled in.
pub(super) struct Dictionary {
    things: BTreeSet<String>,
    /// Nouns of columns that hold numbers.
    numbers: BTreeSet<String>,
    texts: BTreeSet<String>,
    describers: BTreeSet<String>,
    participles: BTreeSet<String>,
    /// What a shortened word stands for, if there is one such word.
    full: BTreeMap<String, String>,
    pub(super) lists: NameLists,
}

impl Dictionary {
    /// Reads the lists that are compiled in.
    pub(super) fn read() -> Self {
        let lists: NameLists = embedded("names_in_schemas", NAMES);
        let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        let attributes = |kind| attributes(kind).map(str::to_owned).collect();
        let mut full: BTreeMap<String, String> = BTreeMap::new();
        let mut ambiguous = BTreeSet::new();
        for (word, short) in pairs(ABBREVIATIONS) {
            if let Some(other) = full.insert(short.to_owned(), word.to_owned())
                && other != word
            {
                ambiguous.insert(short.to_owned());
            }
        }
        full.retain(|short, _| !ambiguous.contains(short));
        full.extend(lists.abbreviations.clone());
        Self {
            things: lines(THINGS).map(first).collect(),
            numbers: attributes("number"),
            texts: attributes("text"),
            describers: lines(DESCRIBERS).map(first).collect(),
            participles: lines(PARTICIPLES).map(first).collect(),
            full,
            lists,
        }
    }

    /// Returns the words of a column's name without a letter before them that stands for a table:
    /// `pName` in a table of players or next to one.
    pub(super) fn column_words(&self, name: &str, initials: &[char]) -> Vec<String> {
        let mut words = self.words(name);
        let is_initial = |word: &String| {
            let mut letters = word.chars();
            let first = letters.next().is_some_and(|it| initials.contains(&it));
            first && letters.next().is_none()
        };
        if words.len() > 1 && words.first().is_some_and(is_initial) {
            words.remove(0);
        }
        words
    }

    /// Splits a name into words in lower case, and spells out what is shortened: `Cust_FName`
    /// becomes "customer first name".
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let name = &name.replace('%', " percentage ").replace('&', " and ");
        for token in tokens(name) {
            let lower = token.to_lowercase();
            if let Some(full) = self.full.get(&lower) {
                words.extend(full.split(' ').map(str::to_owned));
            } else if self.is_known(&lower) || lower.len() < 5 {
                let is_upper = token.chars().all(char::is_uppercase);
                let is_alone = token.len() == name.len() || name.chars().any(char::is_lowercase);
                let is_acronym = self.lists.acronyms.contains(&token.to_uppercase())
                    || ((2..=5).contains(&token.len())
                        && is_upper
                        && is_alone
                        && !self.is_known(&lower));
                let upper = token.to_uppercase();
                words.push(if is_acronym { upper } else { lower });
            } else {
                match self.parts(&lower, 3) {
                    Some(parts) => words.extend(parts.iter().flat_map(|part| self.spelled(part))),
                    None => words.push(lower),
                }
            }
        }
        merged(&words)
    }

    fn spelled(&self, part: &str) -> Vec<String> {
        let full = self.full.get(part).map_or(part, String::as_str);
        full.split(' ').map(str::to_owned).collect()
    }

    /// Whether a word in lower case is in a list, in the singular or in the plural.
    pub(super) fn is_known(&self, word: &str) -> bool {
        let is_listed = |word: &str| {
            self.things.contains(word)
                || self.numbers.contains(word)
                || self.texts.contains(word)
                || self.lists.words.iter().any(|it| it == word)
        };
        is_listed(word)
            || self.describers.contains(word)
            || irregular_singular(word).is_some()
            || singular_forms(word).iter().any(|it| is_listed(it))
    }

    /// Divides a word without separators into known words, as few as possible: "countryname".
    fn parts(&self, word: &str, most: usize) -> Option<Vec<String>> {
        const SHORT: &[&str] = &["id", "no", "of", "is"];
        // Others occur in words: "lat" in "latest".
        const SHORTENED: &[&str] = &["acct", "addr", "cust", "dept", "emp", "num", "prod", "stu"];
        let is_part = |part: &str| {
            SHORT.contains(&part)
                || (part.len() >= 3 && (self.is_known(part) && !self.describers.contains(part)))
                || SHORTENED.contains(&part)
                || self.lists.words.iter().any(|it| it == part)
        };
        if is_part(word) {
            return Some(vec![word.to_owned()]);
        }
        if most < 2 {
            return None;
        }
        let cuts = (2..word.len().saturating_sub(1)).rev();
        let cuts = cuts.filter(|cut| word.is_char_boundary(*cut));
        let mut found: Option<Vec<String>> = None;
        for cut in cuts {
            let (head, tail) = word.split_at(cut);
            if !is_part(head) {
                continue;
            }
            if let Some(rest) = self.parts(tail, most - 1) {
                let parts = [vec![head.to_owned()], rest].concat();
                if found.as_ref().is_none_or(|it| parts.len() < it.len()) {
                    found = Some(parts);
                }
            }
        }
        found
    }

    /// Returns the singular of a noun of several words: its last one, or the one before "of".
    pub(super) fn singular(&self, noun: &str) -> String {
        if let Some((head, tail)) = noun.split_once(" of ") {
            return format!("{} of {tail}", self.singular(head));
        }
        let (before, last) = noun.rsplit_once(' ').unwrap_or(("", noun));
        let one = self.singular_word(last);
        // "people addresses" are addresses of persons.
        fn first(word: &str) -> &str {
            match word {
                "people" => "person",
                "children" => "child",
                word => word,
            }
        }
        // "Customers policies" are policies of customers, but "sports" stays before a noun.
        let alone = |word: &str| match self.singular_word(first(word)) {
            one if self.things.contains(&one) && !PLURAL_MODIFIERS.contains(&word) => one,
            _ => first(word).to_owned(),
        };
        let before: Vec<String> = before.split_whitespace().map(alone).collect();
        [before, vec![one]].concat().join(" ")
    }

    pub(super) fn singular_word(&self, word: &str) -> String {
        if let Some(one) = irregular_singular(word) {
            return one.to_owned();
        }
        if self.lists.singulars.iter().any(|it| it == word) {
            return word.to_owned();
        }
        let forms = singular_forms(word);
        // "Votes" is in a list of nouns itself, but each is a vote.
        let is_amount = self.lists.amounts.iter().any(|it| it == word);
        let is_counted = |form: &String| !is_amount && self.lists.measures.contains(form);
        let is_one = |form: &&String| self.is_noun(form) || is_counted(form);
        if let Some(known) = forms.iter().find(is_one) {
            return known.clone();
        }
        let is_singular =
            self.is_noun(word) || ["ss", "us", "is"].iter().any(|it| word.ends_with(it));
        match forms.last() {
            Some(form) if !is_singular => form.clone(),
            _ => word.to_owned(),
        }
    }

    /// Whether the last word of a noun can only describe one: "is a member", "enrolled".
    pub(super) fn is_no_noun(&self, last: &str) -> bool {
        let is_listed = self.things.contains(last) || self.texts.contains(last);
        !is_listed && !self.numbers.contains(last) && self.describers.contains(last)
    }

    /// Whether a word says how a row is: "active", "male".
    pub(super) fn is_describer(&self, word: &str) -> bool {
        let is_thing = self.things.contains(word) || self.texts.contains(word);
        let is_own = self.lists.adjectives.iter().any(|it| it == word);
        is_own || (self.describers.contains(word) && !is_thing)
    }

    /// Whether a word can say how a row is, even if it is also a noun: "official".
    pub(super) fn can_describe(&self, word: &str) -> bool {
        self.describers.contains(word)
    }

    /// Whether a word says what was done to a row: "placed", "held".
    pub(super) fn is_participle(&self, word: &str) -> bool {
        let is_own = self.lists.participles.iter().any(|it| it == word);
        let is_other = self.lists.not_participles.iter().any(|it| it == word);
        let is_regular = word.len() > 4 && word.ends_with("ed");
        is_own || (!is_other && (is_regular || self.participles.contains(word)))
    }

    /// Whether a word names a thing or what a column holds.
    pub(super) fn is_noun(&self, word: &str) -> bool {
        self.things.contains(word) || self.texts.contains(word) || self.numbers.contains(word)
    }

    /// Whether a word takes an article: "phone", but not "insurance" or "children".
    pub(super) fn is_countable(&self, word: &str) -> bool {
        !self.lists.uncountable.iter().any(|it| it == word) && self.singular_word(word) == word
    }

    /// Whether a word names things that can be counted.
    pub(super) fn is_thing(&self, word: &str) -> bool {
        self.things.contains(word)
    }

    /// Whether a word names a number: "height".
    pub(super) fn is_number(&self, word: &str) -> bool {
        let one = self.singular_word(word);
        self.numbers.contains(&one) || self.lists.measures.contains(&one)
    }
}

/// Returns the possible singulars of a word that ends with s, the most likely one last.
fn singular_forms(word: &str) -> Vec<String> {
    if let Some(stem) = word.strip_suffix("ies")
        && stem.len() > 1
    {
        return vec![format!("{stem}ie"), format!("{stem}y")];
    }
    if let Some(stem) = word.strip_suffix("es") {
        let ends = |endings: &[&str]| endings.iter().any(|it| stem.ends_with(it));
        if ends(&["us"]) {
            // "campus", but also "house".
            return vec![format!("{stem}e"), stem.to_owned()];
        }
        if ends(&["ss", "x", "ch", "sh", "zz"]) {
            return vec![stem.to_owned()];
        }
        if ends(&["s", "z"]) {
            // "house", "size", but also "bus".
            return vec![stem.to_owned(), format!("{stem}e")];
        }
    }
    match word.strip_suffix('s') {
        Some(stem) if stem.len() > 2 && !stem.ends_with(['s', 'u', 'i']) => vec![stem.to_owned()],
        _ => Vec::new(),
    }
}

/// Splits a name at what is no letter or digit, and where the case or the kind changes.
fn tokens(name: &str) -> Vec<String> {
    let characters: Vec<char> = name.chars().collect();
    let mut tokens = vec![String::new()];
    for (index, character) in characters.iter().enumerate() {
        if !character.is_alphanumeric() {
            tokens.push(String::new());
            continue;
        }
        let before = index.checked_sub(1).map(|index| characters[index]);
        let after = characters.get(index + 1);
        let begins = before.is_some_and(|before| {
            let is_hump = character.is_uppercase()
                && (before.is_lowercase()
                    || (before.is_uppercase() && after.is_some_and(|it| it.is_lowercase())));
            is_hump || (before.is_alphabetic() && character.is_numeric())
        });
        if begins {
            tokens.push(String::new());
        }
        if let Some(token) = tokens.last_mut() {
            token.push(*character);
        }
    }
    tokens.retain(|token| !token.is_empty());
    tokens
}

/// Joins what was split too far: "l name" is a last name.
fn merged(words: &[String]) -> Vec<String> {
    let text = format!(" {} ", words.join(" "));
    let text = [
        (" l name ", " last name "),
        (" f name ", " first name "),
        (" m name ", " middle name "),
        (" e mail ", " email "),
        (" zip code ", " postal code "),
        (" date time ", " time "),
        (" company 2 ", " CO2 "),
        (" state province county ", " state "),
    ]
    .iter()
    .fold(text, |text, (from, to)| text.replace(from, to));
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words() {
        let dictionary = Dictionary::read();
        for (name, words) in [
            ("order_details", "order details"),
            ("OrderDetails", "order details"),
            ("Cust_FName", "customer first name"),
            ("LName", "last name"),
            ("StuID", "student id"),
            ("countryname", "country name"),
            ("employeeid", "employee id"),
            ("Line Total (net)", "line total net"),
            ("MPG", "MPG"),
            ("co2_g", "CO2 g"),
            ("CUSTOMER_NAME", "customer name"),
            ("address2", "address 2"),
            ("therapist", "therapist"),
        ] {
            assert_eq!(dictionary.words(name).join(" "), words, "{name}");
        }
    }

    #[test]
    fn plurals_become_singulars() {
        let dictionary = Dictionary::read();
        for (many, one) in [
            ("students", "student"),
            ("cities", "city"),
            ("addresses", "address"),
            ("address", "address"),
            ("classes", "class"),
            ("courses", "course"),
            ("people", "person"),
            ("series", "series"),
            ("status", "status"),
            ("buses", "bus"),
            ("boxes", "box"),
            ("movies", "movie"),
            ("news", "news"),
            ("types of rooms", "type of rooms"),
            ("student", "student"),
            ("analyses", "analysis"),
            ("zorbs", "zorb"),
            ("sizes", "size"),
            ("votes", "vote"),
            ("prizes", "prize"),
            ("houses", "house"),
            ("campus", "campus"),
            ("campuses", "campus"),
        ] {
            assert_eq!(dictionary.singular(many), one, "{many}");
        }
    }
}
