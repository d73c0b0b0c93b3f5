//! Composes the schema of a procedural database, and the words its rows are filled with.

use std::collections::BTreeSet;

use super::super::domain::{ColumnKind, ColumnSpec, WordLists};
use super::super::render::plural;
use super::super::rng::RngStream;
use super::super::schema::{GrammarColumn, GrammarSchema, GrammarTable, Phrasing};
use super::alphabet::Alphabet;
use super::lexicon::{Lexicon, Noun, draw};
use super::naming::{NamingStyle, Tidiness};
use super::types::draw_types;

/// The percentage of names that are words of no list.
pub(super) const INVENTED_PERCENT: u32 = 8;
/// The percentage of nouns with a describing word before them.
const DESCRIBED_PERCENT: u32 = 22;
/// The percentage of tables whose noun begins as that of an earlier table.
const KINDRED_PERCENT: u32 = 15;
/// The percentage of databases of whose texts many have letters beyond ASCII.
const ALPHABET_PERCENT: u32 = 10;
/// The percentage of names in such databases with these letters, if the schema is messy.
const ALPHABET_NAME_PERCENT: u32 = 30;
/// The percentage of tables with a style of their own in messy schemas, which grow table by table.
const OWN_STYLE_PERCENT: u32 = 30;
/// The percentage of nouns that are SQL keywords in messy schemas.
const KEYWORD_PERCENT: u32 = 25;

/// How large a procedural database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// One or two tables of few columns, for the beginning of a training.
    Small,
    /// Two to four tables, or two to seven of more columns in messy schemas.
    Full,
}

/// Composes a schema and the word lists of its columns.
pub(crate) fn compose(
    lexicon: &Lexicon,
    size: Size,
    tidiness: Tidiness,
    rng: &mut RngStream,
) -> (GrammarSchema, WordLists) {
    let style = NamingStyle::draw(tidiness, rng);
    let alphabet = rng.chance(ALPHABET_PERCENT).then(|| Alphabet::draw(rng));
    let mut composer = Composer {
        lexicon,
        alphabet,
        size,
        style,
        words: WordLists::new(),
        rng,
    };
    let count = match (size, tidiness) {
        (Size::Small, _) => 1 + composer.rng.below(2),
        (Size::Full, Tidiness::Tidy) => 2 + composer.rng.below(3),
        (Size::Full, Tidiness::Messy) => 2 + composer.rng.below(6),
    };
    let (nouns, styles) = composer.nouns(count);
    let mut tables = Vec::with_capacity(count);
    for (index, style) in styles.iter().enumerate() {
        let table = composer.table(&nouns, index, style, &tables);
        tables.push(table);
    }
    (
        GrammarSchema {
            tables,
            phrasing: Phrasing::Generated,
            types: draw_types(tidiness, composer.rng),
        },
        composer.words,
    )
}

pub(super) struct Composer<'a> {
    pub(super) lexicon: &'a Lexicon,
    /// What many texts are written in, if not in ASCII.
    pub(super) alphabet: Option<Alphabet>,
    pub(super) size: Size,
    /// The style of the database. Tables of messy schemas may have another.
    pub(super) style: NamingStyle,
    pub(super) words: WordLists,
    pub(super) rng: &'a mut RngStream,
}

impl Composer<'_> {
    /// Draws what the rows of each table are, all different, and how each table spells its names.
    fn nouns(&mut self, count: usize) -> (Vec<Noun>, Vec<NamingStyle>) {
        let (mut names, mut known) = (BTreeSet::new(), BTreeSet::new());
        let (mut nouns, mut styles) = (Vec::with_capacity(count), Vec::with_capacity(count));
        while nouns.len() < count {
            let noun = match nouns.first() {
                Some(first) if self.rng.chance(KINDRED_PERCENT) => self.kindred(first),
                _ => self.noun(),
            };
            let style = match self.style.is_messy() && self.rng.chance(OWN_STYLE_PERCENT) {
                true => NamingStyle::draw(Tidiness::Messy, self.rng),
                false => self.style.clone(),
            };
            let name = style.table(&noun).to_lowercase();
            // A table may be called what its rows are called: `singer`.
            if !names.contains(&name) && known.insert(noun.one.clone()) {
                names.insert(name);
                nouns.push(noun);
                styles.push(style);
            }
        }
        (nouns, styles)
    }

    /// Draws a word with letters beyond ASCII, for one name in so many.
    pub(super) fn word_of_alphabet(&mut self) -> Option<String> {
        let alphabet = self.alphabet.filter(|_| self.style.is_messy())?;
        let is_drawn = self.rng.chance(ALPHABET_NAME_PERCENT);
        is_drawn.then(|| alphabet.word(self.lexicon, self.rng))
    }

    fn noun(&mut self) -> Noun {
        if let Some(one) = self.word_of_alphabet() {
            let has_plurals = self.alphabet.is_some_and(Alphabet::has_plurals);
            let many = if has_plurals {
                plural(&one)
            } else {
                one.clone()
            };
            return Noun { one, many };
        }
        if self.style.is_messy() && self.rng.chance(KEYWORD_PERCENT) {
            let one = self.lexicon.keyword("thing", self.rng).to_owned();
            return Noun {
                many: plural(&one),
                one,
            };
        }
        let noun = if self.rng.chance(INVENTED_PERCENT) {
            let one = self.lexicon.invented_word(self.rng);
            Noun {
                many: plural(&one),
                one,
            }
        } else {
            self.lexicon.thing(self.rng).clone()
        };
        if !self.rng.chance(DESCRIBED_PERCENT) {
            return noun;
        }
        let describer = draw(&self.lexicon.describers, self.rng);
        Noun {
            one: format!("{describer} {}", noun.one),
            many: format!("{describer} {}", noun.many),
        }
    }

    /// Draws a noun that begins as another one: "space flight" or "spaceflight" for "space walk",
    /// "moonflight" for "moon".
    fn kindred(&mut self, other: &Noun) -> Noun {
        let first = other.one.split(' ').next().unwrap_or_default();
        if self.rng.chance(50) {
            return self.lexicon.compound(first, self.rng);
        }
        let thing = self.lexicon.thing(self.rng);
        Noun {
            one: format!("{first} {}", thing.one),
            many: format!("{first} {}", thing.many),
        }
    }

    /// Composes a table that may refer to those before it.
    fn table(
        &mut self,
        nouns: &[Noun],
        index: usize,
        style: &NamingStyle,
        before: &[GrammarTable],
    ) -> GrammarTable {
        let noun = &nouns[index];
        let name = style.table(noun);
        let mut columns = vec![GrammarColumn {
            name: style.key(noun),
            noun: format!("{} number", noun.one),
            spec: ColumnSpec {
                kind: ColumnKind::Key,
                ..ColumnSpec::default()
            },
            parent: None,
        }];
        for parent in self.parents(index) {
            let name = style.foreign_key(&nouns[parent]);
            // Two nouns may become one name: "space flight" and "spaceflight".
            if !has_column(&columns, &name) {
                columns.push(self.foreign_key(name, &nouns[parent], parent, &before[parent]));
            }
        }
        for role in self.roles() {
            if let Some(column) = self.column(noun, (style, &name), role, &columns) {
                columns.push(column);
            }
        }
        if self.rng.chance(35) {
            self.rng.shuffle(&mut columns[1..]);
        }
        let rows = match index {
            0 => [8, 30],
            _ => [20, 60],
        };
        GrammarTable {
            name,
            one: noun.one.clone(),
            many: noun.many.clone(),
            key: vec![0],
            rows,
            columns,
        }
    }

    /// Draws the tables that a table refers to, among those before it.
    fn parents(&mut self, index: usize) -> Vec<usize> {
        if index == 0 || self.rng.chance(8) {
            return Vec::new();
        }
        let mut parents: Vec<usize> = (0..index).collect();
        self.rng.shuffle(&mut parents);
        parents.truncate(if self.rng.chance(40) { 2 } else { 1 });
        parents
    }

    fn foreign_key(
        &mut self,
        name: String,
        noun: &Noun,
        parent: usize,
        table: &GrammarTable,
    ) -> GrammarColumn {
        let relation = self
            .rng
            .chance(60)
            .then(|| draw(&self.lexicon.relations, self.rng));
        GrammarColumn {
            noun: noun.one.clone(),
            spec: ColumnSpec {
                kind: ColumnKind::Parent(table.name.clone()),
                skewed: self.rng.chance(60),
                says: relation.map(str::to_owned),
                ..ColumnSpec::default()
            },
            name,
            parent: Some(parent),
        }
    }
}

/// Whether SQLite would take `name` for the name of one of the columns.
pub(super) fn has_column(columns: &[GrammarColumn], name: &str) -> bool {
    columns.iter().any(|it| it.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::super::lexicon::WordShare;
    use super::*;

    fn composed(share: WordShare, size: Size) -> Vec<(GrammarSchema, WordLists)> {
        let lexicon = Lexicon::read(share);
        let schema = |number: usize| {
            let name = number.to_string();
            let rng = &mut RngStream::new(1, &["compose", &name]);
            compose(&lexicon, size, Tidiness::Tidy, rng)
        };
        (0..300).map(schema).collect()
    }

    #[test]
    fn names_are_unique_and_foreign_keys_refer_to_earlier_tables() {
        for (schema, _) in composed(WordShare::Training, Size::Full) {
            let names: BTreeSet<String> = schema
                .tables
                .iter()
                .map(|table| table.name.to_lowercase())
                .collect();
            assert_eq!(names.len(), schema.tables.len());
            for (index, table) in schema.tables.iter().enumerate() {
                let columns: BTreeSet<String> = table
                    .columns
                    .iter()
                    .map(|column| column.name.to_lowercase())
                    .collect();
                assert_eq!(columns.len(), table.columns.len(), "{}", table.name);
                let parents = table.columns.iter().filter_map(|column| column.parent);
                assert!(parents.into_iter().all(|parent| parent < index));
            }
        }
    }

    /// In some styles "space flight" and "spaceflight" have the same key.
    #[test]
    fn two_nouns_of_one_name_give_one_foreign_key() {
        let noun = |one: &str| Noun {
            one: one.to_owned(),
            many: plural(one),
        };
        let nouns = ["space flight", "spaceflight", "crew"].map(noun);
        let lexicon = Lexicon::read(WordShare::Training);
        for number in 0..200 {
            let rng = &mut RngStream::new(1, &["two nouns", &number.to_string()]);
            let style = NamingStyle::draw(Tidiness::Tidy, rng);
            let mut composer = Composer {
                lexicon: &lexicon,
                alphabet: None,
                size: Size::Full,
                style: style.clone(),
                words: WordLists::new(),
                rng,
            };
            let mut tables = Vec::new();
            for index in 0..nouns.len() {
                tables.push(composer.table(&nouns, index, &style, &tables));
            }
            let columns = &tables[2].columns;
            let names: BTreeSet<String> = columns.iter().map(|it| it.name.to_lowercase()).collect();
            assert_eq!(names.len(), columns.len(), "{names:?}");
        }
    }

    #[test]
    fn schemas_differ_and_some_styles_are_not_plain() {
        let schemas = composed(WordShare::Training, Size::Full);
        let first: BTreeSet<&str> = schemas
            .iter()
            .map(|(schema, _)| schema.tables[0].name.as_str())
            .collect();
        assert!(first.len() > 280, "{}", first.len());
        let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase());
        let plain = first.iter().filter(|name| is_plain(name)).count();
        assert!((60..240).contains(&plain), "{plain}");
    }

    /// Before, a table could not have the name of its noun, so that databases with singular names
    /// had only tables of two words.
    #[test]
    fn tables_may_be_called_what_their_rows_are_called() {
        let schemas = composed(WordShare::Training, Size::Full);
        let tables: Vec<&GrammarTable> = schemas.iter().flat_map(|(it, _)| &it.tables).collect();
        let is_noun = |it: &&&GrammarTable| it.name.eq_ignore_ascii_case(&it.one);
        let share = tables.iter().filter(is_noun).count() * 100 / tables.len();
        assert!((10..35).contains(&share), "{share} %");
    }

    #[test]
    fn small_databases_are_small() {
        for (schema, _) in composed(WordShare::HeldOut, Size::Small) {
            assert!(schema.tables.len() <= 2);
            assert!(schema.tables.iter().all(|table| table.columns.len() <= 5));
        }
    }
}
