//! Composes the columns of a procedural table beside its keys.

use super::super::render::with_article;
use super::super::schema::GrammarColumn;
use super::column_kind::{self, ColumnRole, Vocabulary};
use super::compose::{Composer, INVENTED_PERCENT, Size, has_column};
use super::lexicon::{Noun, draw};
use super::naming::NamingStyle;

/// The percentage of columns that are SQL keywords in messy schemas.
const KEYWORD_PERCENT: u32 = 10;
/// The percentage of columns for which questions use a synonym of the schema's word.
const SYNONYM_PERCENT: u32 = 12;
/// The percentage of columns for which questions use a word that says nothing about the schema's.
/// The other columns of the table must tell which column is meant.
const UNRELATED_PERCENT: u32 = 10;
/// The percentage of columns for which questions use one more word than the schema.
const LONGER_PERCENT: u32 = 5;
/// The percentage of numeric columns that are years.
const YEAR_PERCENT: u32 = 10;
/// The percentage of columns with values missing.
const NULLABLE_PERCENT: u32 = 10;

/// The percentage of columns that tell rows apart whose name is one of [`LABELS`].
const LABEL_PERCENT: u32 = 85;
/// What databases call the column that tells rows apart. The frequent names come more than once.
const LABELS: [&str; 10] = [
    "name",
    "name",
    "name",
    "title",
    "title",
    "label",
    "full name",
    "code",
    "caption",
    "nickname",
];

impl Composer<'_> {
    /// Draws which columns a table has beside its keys.
    pub(super) fn roles(&mut self) -> Vec<ColumnRole> {
        let most = match self.size {
            Size::Small => 1,
            Size::Full if self.style.is_messy() => 3,
            Size::Full => 2,
        };
        let mut roles = Vec::new();
        if self.rng.chance(85) {
            roles.push(ColumnRole::Label);
        }
        let categories = self
            .rng
            .below(most + 1)
            .max(usize::from(self.rng.chance(60)));
        roles.extend((0..categories).map(|_| ColumnRole::Category));
        let numbers = 1 + self.rng.below(most);
        roles.extend((0..numbers).map(|_| match self.rng.chance(YEAR_PERCENT) {
            true => ColumnRole::Year,
            false => ColumnRole::Number,
        }));
        if self.size == Size::Full && self.rng.chance(25) {
            roles.push(ColumnRole::Date);
        }
        roles
    }

    /// Composes a column, or returns none if its name is taken.
    pub(super) fn column(
        &mut self,
        table: &Noun,
        (style, table_name): (&NamingStyle, &str),
        role: ColumnRole,
        before: &[GrammarColumn],
    ) -> Option<GrammarColumn> {
        let words = self.column_words(role);
        let is_number = role == ColumnRole::Number;
        let name = style.column(table, &words, is_number, self.lexicon, self.rng);
        if has_column(before, &name) {
            return None;
        }
        let noun = self.spoken(role, &words);
        let list = format!("{table_name}.{name}");
        let vocabulary = Vocabulary {
            lexicon: self.lexicon,
            alphabet: self.alphabet,
        };
        let mut spec = column_kind::draw_spec(role, &list, vocabulary, &mut self.words, self.rng);
        for phrase in [&mut spec.says, &mut spec.above, &mut spec.below]
            .into_iter()
            .flatten()
        {
            *phrase = phrase
                .replace("{noun}", &noun)
                .replace("{a}", &with_article(&noun));
        }
        if role != ColumnRole::Label && self.rng.chance(NULLABLE_PERCENT) {
            spec.nulls = 10;
        }
        Some(GrammarColumn {
            name,
            noun,
            spec,
            parent: None,
        })
    }

    /// Draws the words of a column's name.
    fn column_words(&mut self, role: ColumnRole) -> String {
        let lexicon = self.lexicon;
        let may_be_keyword = matches!(role, ColumnRole::Category | ColumnRole::Number);
        if may_be_keyword && self.style.is_messy() && self.rng.chance(KEYWORD_PERCENT) {
            let named = match role {
                ColumnRole::Number => "number",
                _ => "text",
            };
            return lexicon.keyword(named, self.rng).to_owned();
        }
        if may_be_keyword && let Some(word) = self.word_of_alphabet() {
            return word;
        }
        let attribute = match role {
            ColumnRole::Label if self.rng.chance(LABEL_PERCENT) => {
                return draw(&LABELS, self.rng).to_owned();
            }
            ColumnRole::Date if self.rng.chance(70) => {
                let thing = lexicon.thing(self.rng);
                let word = draw(&["date", "day"], self.rng);
                return format!("{} {word}", thing.one);
            }
            ColumnRole::Year if self.rng.chance(70) => {
                let word = draw(&lexicon.participles, self.rng);
                return match self.rng.below(3) {
                    0 => word.to_owned(),
                    1 => format!("year {word}"),
                    _ => format!("{} year", lexicon.thing(self.rng).one),
                };
            }
            _ if self.rng.chance(INVENTED_PERCENT) => return lexicon.invented_word(self.rng),
            ColumnRole::Label | ColumnRole::Category | ColumnRole::Date => {
                draw(&lexicon.texts, self.rng)
            }
            ColumnRole::Number | ColumnRole::Year => draw(&lexicon.numbers, self.rng),
        };
        match self.rng.below(100) {
            0..18 => format!("{} {attribute}", draw(&lexicon.describers, self.rng)),
            18..34 => format!("{} {attribute}", lexicon.thing(self.rng).one),
            34..50 => lexicon.thing(self.rng).one.clone(),
            _ => attribute.to_owned(),
        }
    }

    /// Returns how questions name a column: by its words, by a synonym of the last one, by one more
    /// word, or by words that have nothing to do with them.
    fn spoken(&mut self, role: ColumnRole, words: &str) -> String {
        const LAST_SYNONYM: u32 = SYNONYM_PERCENT;
        const LAST_UNRELATED: u32 = LAST_SYNONYM + UNRELATED_PERCENT;
        const LAST_LONGER: u32 = LAST_UNRELATED + LONGER_PERCENT;
        match self.rng.below(100) as u32 {
            0..LAST_SYNONYM => {
                let (before, last) = words.rsplit_once(' ').unwrap_or(("", words));
                let synonym = self.lexicon.synonym(last, self.rng);
                format!("{before} {synonym}").trim().to_owned()
            }
            LAST_SYNONYM..LAST_UNRELATED => self.column_words(role),
            LAST_UNRELATED..LAST_LONGER => {
                format!("{} {words}", draw(&self.lexicon.describers, self.rng))
            }
            _ => words.to_owned(),
        }
    }
}
