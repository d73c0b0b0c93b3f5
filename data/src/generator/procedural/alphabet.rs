//! Letters beyond ASCII: Latin ones with accents, and other scripts.
//!
//! Words in them are random. A policy has only to copy them, and what they mean does not help.

use super::super::rng::RngStream;
use super::lexicon::{Lexicon, draw};

/// Letters that replace a Latin one. Languages differ in which they have.
const ACCENTED: [(char, &str); 17] = [
    ('a', "àáâãäåāăąæ"),
    ('c', "çćč"),
    ('d', "ďđð"),
    ('e', "èéêëēėęě"),
    ('g', "ğģ"),
    ('i', "ìíîïīıį"),
    ('k', "ķ"),
    ('l', "łļľ"),
    ('n', "ñńňņ"),
    ('o', "òóôõöøōőœ"),
    ('r', "řŕ"),
    ('s', "śšşș"),
    ('t', "ťțþ"),
    ('u', "ùúûüūůűų"),
    ('w', "ŵ"),
    ('y', "ýÿŷ"),
    ('z', "źżž"),
];
/// The percentage of such letters that are replaced in a word with accents.
const ACCENTED_PERCENT: u32 = 30;

const CYRILLIC: &str = "абвгдежзийклмнопрстуфхцчшщыьэюяіїєґў";
const GREEK: &str = "αβγδεζηθικλμνξοπρστυφχψωάέήίόύώς";
const ARABIC: &str = "ابتثجحخدذرزسشصضطظعغفقكلمنهويةىءآأپچگ";
const HEBREW: &str = "אבגדהוזחטיכלמנסעפצקרשתםןףץ";
const DEVANAGARI: &str = "अआइईउएओकखगघचछजटठडतथदधनपफबभमयरलवशसहािीुूेो";
const THAI: &str = "กขคงจชซญดตถทธนบปผพฟมยรลวสหอาิีุูเแโ";

/// What the words of a database that are not English are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// English words some of whose letters have accents.
    Accented,
    /// Letters, and the shortest and the longest word.
    Letters(&'static str, [usize; 2]),
    /// The first and the last of the characters, and the shortest and the longest word.
    Characters([char; 2], [usize; 2]),
}

impl Alphabet {
    /// Draws an alphabet. Every second one is Latin.
    pub(super) fn draw(rng: &mut RngStream) -> Self {
        match rng.below(100) {
            0..50 => Self::Accented,
            50..65 => Self::Letters(CYRILLIC, [3, 9]),
            65..70 => Self::Letters(GREEK, [3, 9]),
            70..74 => Self::Letters(ARABIC, [3, 7]),
            74..77 => Self::Letters(HEBREW, [3, 6]),
            77..80 => Self::Letters(DEVANAGARI, [3, 7]),
            80..82 => Self::Letters(THAI, [3, 7]),
            82..92 => Self::Characters(['一', '龥'], [1, 4]),
            92..94 => Self::Characters(['ぁ', 'ゖ'], [2, 6]),
            94..96 => Self::Characters(['ァ', 'ヶ'], [2, 6]),
            _ => Self::Characters(['가', '힣'], [1, 4]),
        }
    }

    /// Whether nouns have the plural of English ones.
    pub(super) fn has_plurals(self) -> bool {
        self == Self::Accented
    }

    /// Draws a word in small letters. Its hash decides which share it belongs to.
    pub(super) fn word(self, lexicon: &Lexicon, rng: &mut RngStream) -> String {
        loop {
            let word = match self {
                Self::Accented => accented(draw(&lexicon.values, rng), rng),
                Self::Letters(letters, length) => {
                    let letters: Vec<char> = letters.chars().collect();
                    letters_of(length, rng, |rng| draw(&letters, rng))
                }
                Self::Characters([first, last], length) => letters_of(length, rng, |rng| {
                    let code = rng.between(i64::from(u32::from(first)), i64::from(u32::from(last)));
                    // No surrogate stands between the two.
                    char::from_u32(code as u32).unwrap_or(first)
                }),
            };
            if !word.is_ascii() && lexicon.owns(&word) {
                return word;
            }
        }
    }
}

fn letters_of(
    [shortest, longest]: [usize; 2],
    rng: &mut RngStream,
    mut letter: impl FnMut(&mut RngStream) -> char,
) -> String {
    let length = shortest + rng.below(longest - shortest + 1);
    (0..length).map(|_| letter(rng)).collect()
}

/// Replaces some letters of a word.
fn accented(word: &str, rng: &mut RngStream) -> String {
    let replaced = |letter: char| {
        let found = ACCENTED.iter().find(|(plain, _)| *plain == letter);
        match found {
            Some((_, others)) if rng.chance(ACCENTED_PERCENT) => {
                draw(&others.chars().collect::<Vec<_>>(), rng)
            }
            _ => letter,
        }
    };
    word.chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::lexicon::WordShare;
    use super::*;

    fn words(share: WordShare) -> BTreeSet<String> {
        let lexicon = Lexicon::read(share);
        let rng = &mut RngStream::new(1, &["alphabet"]);
        let word = |rng: &mut RngStream| Alphabet::draw(rng).word(&lexicon, rng);
        (0..3000).map(|_| word(rng)).collect()
    }

    #[test]
    fn every_word_has_a_letter_beyond_ascii_and_none_is_shared() {
        let (training, held_out) = (words(WordShare::Training), words(WordShare::HeldOut));
        assert!(training.len() > 2500 && held_out.len() > 2000);
        for word in training.iter().chain(&held_out) {
            assert!(
                !word.is_ascii() && !word.contains(char::is_whitespace),
                "{word}"
            );
            assert!(
                word.chars().all(|it| it.is_alphabetic() || !it.is_ascii()),
                "{word}"
            );
        }
        let shared: Vec<_> = training.intersection(&held_out).collect();
        assert!(shared.is_empty(), "{shared:?}");
    }

    #[test]
    fn accents_keep_the_other_letters() {
        let rng = &mut RngStream::new(1, &["accents"]);
        let words: Vec<String> = (0..50).map(|_| accented("bob", rng)).collect();
        assert!(
            words
                .iter()
                .all(|it| it.starts_with('b') && it.ends_with('b'))
        );
        assert!(words.iter().any(|it| it == "bob") && words.iter().any(|it| it != "bob"));
    }
}
