//! The words that procedural databases are composed of.
//!
//! Invariant: a word belongs either to training or to the held-out databases, in whatever list and
//! form it stands. The words of domain files belong to training; of the others the hash decides.
//! Only relations, abbreviations, SQL keywords, the words for keys and labels, and values of the
//! lists that all domains share (`domains/words.toml`), such as Chicago, are shared.

use std::collections::{BTreeMap, BTreeSet};

use super::super::domain::{self, Domain, DomainUse};
use super::super::render::plural;
use super::super::rng::RngStream;
use crate::hash;
use crate::words::{
    ABBREVIATIONS, ATTRIBUTES, DESCRIBERS, PARTICIPLES, THINGS, attributes, lines, pairs,
};

/// The share of words that occur only in held-out databases.
const HELD_OUT_PERCENT: u64 = 20;
const CONSONANTS: &[u8] = b"bcdfghjklmnprstvwz";
const VOWELS: &[u8] = b"aeiou";

const VALUES: &str = include_str!("../../../words/values.txt");
const FIRST_NAMES: &str = include_str!("../../../words/first_names.txt");
const SURNAMES: &str = include_str!("../../../words/surnames.txt");
const PLACES: &str = include_str!("../../../words/places.txt");
const RELATIONS: &str = include_str!("../../../words/relations.txt");
const SUPERLATIVES: &str = include_str!("../../../words/superlatives.txt");
const SYNONYMS: &str = include_str!("../../../words/synonyms.txt");
const KEYWORDS: &str = include_str!("../../../words/keywords.txt");

/// Returns the texts that determine a build.
pub(crate) fn sources() -> [&'static str; 13] {
    [
        THINGS,
        ATTRIBUTES,
        DESCRIBERS,
        VALUES,
        FIRST_NAMES,
        SURNAMES,
        PLACES,
        RELATIONS,
        PARTICIPLES,
        SUPERLATIVES,
        ABBREVIATIONS,
        SYNONYMS,
        KEYWORDS,
    ]
}

/// Which databases the words are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordShare {
    /// The words of training.
    Training,
    /// The words that training never uses.
    HeldOut,
}

/// A noun that counts things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Noun {
    pub(crate) one: String,
    pub(crate) many: String,
}

/// The word lists of one share.
pub(crate) struct Lexicon {
    share: WordShare,
    pub(crate) things: Vec<Noun>,
    /// Attributes whose values are numbers.
    pub(crate) numbers: Vec<&'static str>,
    /// Attributes whose values are texts.
    pub(crate) texts: Vec<&'static str>,
    pub(crate) describers: Vec<&'static str>,
    pub(crate) values: Vec<&'static str>,
    pub(crate) first_names: Vec<&'static str>,
    pub(crate) surnames: Vec<&'static str>,
    pub(crate) places: Vec<&'static str>,
    /// What links a row to the row that it refers to: "owned by".
    pub(crate) relations: Vec<&'static str>,
    /// What has been done to a row: "painted".
    pub(crate) participles: Vec<&'static str>,
    /// The words for the row with the largest number: "longest".
    pub(crate) largest: Vec<&'static str>,
    /// The words for the row with the smallest number: "shortest".
    pub(crate) smallest: Vec<&'static str>,
    /// SQL keywords, with what each may name.
    keywords: Vec<(&'static str, &'static str)>,
    domain_words: DomainWords,
    abbreviations: BTreeMap<&'static str, &'static str>,
    synonyms: BTreeMap<&'static str, Vec<&'static str>>,
}

impl Lexicon {
    /// Reads the lists that are compiled in.
    pub(crate) fn read(share: WordShare) -> Self {
        let domain_words = DomainWords::read();
        let own = |word: &str| domain_words.share_of(word) == share;
        let list = |text| -> Vec<&'static str> { lines(text).filter(|word| own(word)).collect() };
        let own_attributes = |kind| attributes(kind).filter(|word| own(word)).collect();
        let superlatives = |side: fn((&'static str, &'static str)) -> &'static str| {
            let words = pairs(SUPERLATIVES).map(side);
            words.filter(|word| own(word)).collect()
        };
        let synonyms = pairs(SYNONYMS)
            .map(|(word, others)| (word, others.split(' ').filter(|other| own(other)).collect()));
        Self {
            share,
            things: lines(THINGS)
                .map(noun)
                .filter(|noun| own(&noun.one))
                .collect(),
            numbers: own_attributes("number"),
            texts: own_attributes("text"),
            describers: list(DESCRIBERS),
            values: list(VALUES),
            first_names: list(FIRST_NAMES),
            surnames: list(SURNAMES),
            places: list(PLACES),
            relations: lines(RELATIONS).collect(),
            participles: list(PARTICIPLES),
            largest: superlatives(|(largest, _)| largest),
            smallest: superlatives(|(_, smallest)| smallest),
            abbreviations: pairs(ABBREVIATIONS).collect(),
            synonyms: synonyms.collect(),
            keywords: pairs(KEYWORDS)
                .filter(|(word, _)| !domain_words.of_others.contains(*word))
                .collect(),
            domain_words,
        }
    }

    /// Draws what the rows of a table are.
    pub(crate) fn thing(&self, rng: &mut RngStream) -> &Noun {
        &self.things[rng.below(self.things.len())]
    }

    /// Draws a SQL keyword that may name a `thing`, a `number` or a `text`.
    pub(crate) fn keyword(&self, named: &str, rng: &mut RngStream) -> &'static str {
        let may_name = |(_, names): &&(&str, &str)| names.split(' ').any(|it| it == named);
        let words: Vec<_> = self.keywords.iter().filter(may_name).collect();
        draw(&words, rng).0
    }

    /// Draws a word that no list has. Its hash decides which share it belongs to, too.
    pub(crate) fn invented_word(&self, rng: &mut RngStream) -> String {
        loop {
            let word = syllables(rng);
            if self.owns(&word) {
                return word;
            }
        }
    }

    /// Whether a word that no list has belongs to this share.
    pub(super) fn owns(&self, word: &str) -> bool {
        share_by_hash(&singular(word)) == self.share
    }

    /// Draws a thing whose name begins with `first`: "spacewalk" for "space".
    pub(crate) fn compound(&self, first: &str, rng: &mut RngStream) -> Noun {
        loop {
            let Noun { one, many } = self.thing(rng);
            let compound = Noun {
                one: format!("{first}{one}"),
                many: format!("{first}{many}"),
            };
            if self.domain_words.share_of(&compound.one) == self.share {
                return compound;
            }
        }
    }

    /// Draws another word for `word`, or returns `word` if it has no synonym.
    pub(crate) fn synonym<'a>(&'a self, word: &'a str, rng: &mut RngStream) -> &'a str {
        match self.synonyms.get(word) {
            Some(others) if !others.is_empty() => draw(others, rng),
            _ => word,
        }
    }

    /// Shortens a word as people do in schemas: by a customary abbreviation, to its first letters,
    /// or without its vowels. Words with letters beyond ASCII stay as they are.
    pub(crate) fn abbreviated(&self, word: &str, rng: &mut RngStream) -> String {
        if let Some(short) = self.abbreviations.get(word) {
            return (*short).to_owned();
        }
        if word.len() < 5 || !word.is_ascii() {
            return word.to_owned();
        }
        if rng.chance(50) {
            return word[..3 + rng.below(2)].to_owned();
        }
        let is_kept = |(index, letter): &(usize, char)| *index == 0 || !"aeiou".contains(*letter);
        let short: String = word
            .char_indices()
            .filter(is_kept)
            .map(|(_, letter)| letter)
            .collect();
        short[..short.len().min(5)].to_owned()
    }
}

/// Draws an item of a list.
pub(crate) fn draw<T: Copy>(list: &[T], rng: &mut RngStream) -> T {
    list[rng.below(list.len())]
}

/// The words of the declared domains, in the singular.
struct DomainWords {
    of_base: BTreeSet<String>,
    of_others: BTreeSet<String>,
}

impl DomainWords {
    fn read() -> Self {
        let (base, others): (Vec<Domain>, Vec<Domain>) = domain::domains()
            .into_iter()
            .partition(|domain| domain.domain_use == DomainUse::Base);
        let words = |domains: &[Domain]| {
            let texts = domains.iter().flat_map(Domain::texts);
            let words = texts.flat_map(|text| {
                let words = text.split(|letter: char| !letter.is_ascii_alphabetic());
                words
                    .map(|word| singular(&word.to_lowercase()))
                    .collect::<Vec<_>>()
            });
            words.collect()
        };
        Self {
            of_base: words(&base),
            of_others: words(&others),
        }
    }

    /// Returns the share that a word belongs to.
    fn share_of(&self, word: &str) -> WordShare {
        let one = singular(word);
        if self.of_base.contains(&one) {
            WordShare::Training
        } else if self.of_others.contains(&one) {
            WordShare::HeldOut
        } else {
            share_by_hash(&one)
        }
    }
}

fn share_by_hash(word: &str) -> WordShare {
    match hash::percentile(&["word", word]) < HELD_OUT_PERCENT {
        true => WordShare::HeldOut,
        false => WordShare::Training,
    }
}

/// Returns the singular of a regular plural, or another word as it is.
fn singular(word: &str) -> String {
    if let Some(stem) = word.strip_suffix("ies") {
        return format!("{stem}y");
    }
    let has_long_ending = ["sses", "xes", "ches", "shes"]
        .iter()
        .any(|ending| word.ends_with(ending));
    match word.strip_suffix(if has_long_ending { "es" } else { "s" }) {
        Some(stem) if !stem.ends_with('s') || has_long_ending => stem.to_owned(),
        _ => word.to_owned(),
    }
}

/// Draws syllables, two or three.
fn syllables(rng: &mut RngStream) -> String {
    let mut word = String::new();
    for _ in 0..2 + rng.below(2) {
        word.push(char::from(draw(CONSONANTS, rng)));
        word.push(char::from(draw(VOWELS, rng)));
        if rng.chance(40) {
            word.push(char::from(draw(CONSONANTS, rng)));
        }
    }
    word
}

/// Parses `singular` or `singular plural`.
fn noun(line: &str) -> Noun {
    let (one, many) = match line.split_once(' ') {
        Some((one, many)) => (one, many.to_owned()),
        None => (line, plural(line)),
    };
    Noun {
        one: one.to_owned(),
        many,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn words(lexicon: &Lexicon) -> BTreeSet<String> {
        let things = lexicon
            .things
            .iter()
            .flat_map(|noun| [noun.one.clone(), noun.many.clone()]);
        let lists = [
            &lexicon.numbers,
            &lexicon.texts,
            &lexicon.describers,
            &lexicon.values,
            &lexicon.first_names,
            &lexicon.surnames,
            &lexicon.places,
            &lexicon.participles,
            &lexicon.largest,
            &lexicon.smallest,
        ];
        let lists = lists.into_iter().flatten().map(|word| (*word).to_owned());
        let synonyms = lexicon
            .synonyms
            .values()
            .flatten()
            .map(|word| (*word).to_owned());
        things.chain(lists).chain(synonyms).collect()
    }

    #[test]
    fn no_word_is_both_trained_on_and_held_out() {
        let training = words(&Lexicon::read(WordShare::Training));
        let held_out = words(&Lexicon::read(WordShare::HeldOut));
        let shared: Vec<_> = training.intersection(&held_out).collect();
        assert!(shared.is_empty(), "{shared:?}");
        assert!(training.len() > 4_000 && held_out.len() > 1_000);
    }

    #[test]
    fn every_list_suffices_for_a_database() {
        for share in [WordShare::Training, WordShare::HeldOut] {
            let lexicon = Lexicon::read(share);
            assert!(lexicon.things.len() >= 200, "{share:?}");
            assert!(lexicon.values.len() >= 200, "{share:?}");
            for list in [&lexicon.numbers, &lexicon.texts, &lexicon.describers] {
                assert!(list.len() >= 30, "{share:?}: {list:?}");
            }
            for list in [
                &lexicon.first_names,
                &lexicon.surnames,
                &lexicon.places,
                &lexicon.participles,
            ] {
                assert!(list.len() >= 30, "{share:?}: {list:?}");
            }
            for list in [&lexicon.largest, &lexicon.smallest] {
                assert!(list.len() >= 5, "{share:?}: {list:?}");
            }
        }
    }

    #[test]
    fn plurals_count_as_the_same_word() {
        let cases = [
            ("balconies", "balcony"),
            ("boxes", "box"),
            ("classes", "class"),
            ("glass", "glass"),
            ("rooms", "room"),
            ("height", "height"),
        ];
        for (word, expected) in cases {
            assert_eq!(singular(word), expected);
        }
    }

    #[test]
    fn words_of_domains_that_are_not_trained_on_are_held_out() {
        let training = words(&Lexicon::read(WordShare::Training));
        let training: BTreeSet<String> = training.iter().map(|word| singular(word)).collect();
        let domains = DomainWords::read();
        let held_out: Vec<_> = domains.of_others.difference(&domains.of_base).collect();
        let in_training: Vec<_> = held_out
            .iter()
            .filter(|word| training.contains(**word))
            .collect();
        assert!(in_training.is_empty(), "{in_training:?}");
        assert!(held_out.len() > 200, "{}", held_out.len());
        // The words that this rule is about, in case the lists are read wrongly.
        for word in ["pallet", "cohort", "hotline", "harvest", "vessel"] {
            assert!(held_out.iter().any(|it| *it == word), "{word}");
        }
    }

    #[test]
    fn abbreviations_are_customary_or_short() {
        let lexicon = Lexicon::read(WordShare::Training);
        let mut rng = RngStream::new(1, &["abbreviation"]);
        assert_eq!(lexicon.abbreviated("quantity", &mut rng), "qty");
        assert_eq!(lexicon.abbreviated("tone", &mut rng), "tone");
        assert_eq!(lexicon.abbreviated("größe", &mut rng), "größe");
        for _ in 0..20 {
            let short = lexicon.abbreviated("harvester", &mut rng);
            assert!(["har", "harv", "hrvst"].contains(&&*short), "{short}");
        }
    }
}
