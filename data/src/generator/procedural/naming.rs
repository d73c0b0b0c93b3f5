//! Naming styles: how a database spells the names of its tables and columns.

use super::super::rng::RngStream;
use super::lexicon::{Lexicon, Noun};

/// Names that SQLite reads as keywords, and the names that abbreviations could produce.
const RESERVED: &[&str] = &[
    "add", "all", "alter", "and", "as", "asc", "avg", "between", "by", "case", "cast", "check",
    "column", "count", "cross", "date", "default", "desc", "distinct", "drop", "else", "end",
    "exists", "from", "full", "group", "having", "if", "in", "index", "inner", "into", "is",
    "join", "key", "left", "like", "limit", "max", "min", "natural", "not", "null", "of", "on",
    "or", "order", "outer", "over", "primary", "replace", "right", "row", "rows", "select", "set",
    "sum", "table", "then", "to", "trigger", "union", "unique", "update", "using", "values",
    "view", "when", "where", "with",
];

/// How the words of a name are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// `net_price`
    Snake,
    /// `netPrice`
    Camel,
    /// `NetPrice`
    Pascal,
    /// `netprice`
    Flat,
    /// `NET_PRICE`
    Upper,
}

/// How the key column of a table is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyName {
    /// `id` in every table.
    Plain,
    /// The table's noun and this word: `vessel_id`.
    OfTable(&'static str),
}

/// The names of one database.
#[derive(Debug, Clone)]
pub(super) struct NamingStyle {
    case: Case,
    plural_tables: bool,
    /// Stands before every table name.
    table_prefix: Option<String>,
    key: KeyName,
    /// The percentage of words in column names that are abbreviated.
    abbreviated_percent: u32,
    /// Whether column names begin with the first letters of their table.
    column_prefix: bool,
}

impl NamingStyle {
    /// Draws a style. Most databases have the plain one that tutorials teach.
    pub(super) fn draw(rng: &mut RngStream) -> Self {
        let case = match rng.below(100) {
            0..50 => Case::Snake,
            50..66 => Case::Camel,
            66..80 => Case::Pascal,
            80..90 => Case::Flat,
            _ => Case::Upper,
        };
        let table_prefix = rng.chance(15).then(|| match rng.below(4) {
            0 => "tbl".to_owned(),
            1 => "t".to_owned(),
            2 => "dim".to_owned(),
            _ => (0..2)
                .map(|_| char::from(b'a' + rng.below(26) as u8))
                .collect(),
        });
        let key = match rng.below(100) {
            0..35 => KeyName::Plain,
            35..80 => KeyName::OfTable("id"),
            80..88 => KeyName::OfTable("no"),
            88..94 => KeyName::OfTable("code"),
            _ => KeyName::OfTable("key"),
        };
        Self {
            case,
            plural_tables: rng.chance(65),
            table_prefix,
            key,
            abbreviated_percent: if rng.chance(20) { 60 } else { 0 },
            column_prefix: rng.chance(6),
        }
    }

    /// Names a table.
    pub(super) fn table(&self, noun: &Noun) -> String {
        let noun = if self.plural_tables {
            &noun.many
        } else {
            &noun.one
        };
        let words = self.table_prefix.iter().map(String::as_str);
        self.join(words.chain(noun.split(' ')))
    }

    /// Names a column of a table by its words.
    pub(super) fn column(
        &self,
        table: &Noun,
        words: &str,
        lexicon: &Lexicon,
        rng: &mut RngStream,
    ) -> String {
        let shorten = |word: &str| match rng.chance(self.abbreviated_percent) {
            true => lexicon.abbreviated(word, rng),
            false => word.to_owned(),
        };
        let words: Vec<String> = words.split(' ').map(shorten).collect();
        let prefix: String = table.one.chars().take(3).collect();
        let prefix = self.column_prefix.then_some(prefix.as_str());
        self.join(prefix.into_iter().chain(words.iter().map(String::as_str)))
    }

    /// Names the key column of a table.
    pub(super) fn key(&self, table: &Noun) -> String {
        match self.key {
            KeyName::Plain => self.join(["id"]),
            KeyName::OfTable(word) => self.join(table.one.split(' ').chain([word])),
        }
    }

    /// Names a column that refers to the key of a table.
    pub(super) fn foreign_key(&self, parent: &Noun) -> String {
        match self.key {
            KeyName::Plain => self.join(parent.one.split(' ').chain(["id"])),
            KeyName::OfTable(_) => self.key(parent),
        }
    }

    fn join<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> String {
        let words: Vec<&str> = words.into_iter().collect();
        let first = usize::from(self.case == Case::Camel);
        let name = match self.case {
            Case::Snake => words.join("_"),
            Case::Flat => words.concat(),
            Case::Upper => words.join("_").to_uppercase(),
            Case::Camel | Case::Pascal => {
                let later = words[first..].iter().map(|word| capitalized(word));
                words[..first].concat() + &later.collect::<String>()
            }
        };
        match RESERVED.contains(&&*name.to_lowercase()) {
            true => format!("{name}_1"),
            false => name,
        }
    }
}

/// Returns a word with a capital first letter.
pub(super) fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::super::lexicon::WordShare;
    use super::*;

    fn style(case: Case) -> NamingStyle {
        NamingStyle {
            case,
            plural_tables: true,
            table_prefix: None,
            key: KeyName::OfTable("id"),
            abbreviated_percent: 0,
            column_prefix: false,
        }
    }

    fn noun() -> Noun {
        Noun {
            one: "red fox".to_owned(),
            many: "red foxes".to_owned(),
        }
    }

    #[test]
    fn every_case_spells_names_as_databases_do() {
        let lexicon = Lexicon::read(WordShare::Training);
        let cases = [
            (
                Case::Snake,
                "red_foxes",
                "red_fox_id",
                "net_price",
                "date_1",
            ),
            (Case::Camel, "redFoxes", "redFoxId", "netPrice", "date_1"),
            (Case::Pascal, "RedFoxes", "RedFoxId", "NetPrice", "Date_1"),
            (Case::Flat, "redfoxes", "redfoxid", "netprice", "date_1"),
            (
                Case::Upper,
                "RED_FOXES",
                "RED_FOX_ID",
                "NET_PRICE",
                "DATE_1",
            ),
        ];
        for (case, table, key, column, reserved) in cases {
            let style = style(case);
            let rng = &mut RngStream::new(1, &["naming"]);
            let mut name = |words| style.column(&noun(), words, &lexicon, rng);
            let (found, keyword) = (name("net price"), name("date"));
            assert_eq!((&*style.table(&noun()), &*style.key(&noun())), (table, key));
            assert_eq!((&*found, &*keyword), (column, reserved));
        }
    }

    #[test]
    fn prefixes_and_plain_keys() {
        let style = NamingStyle {
            table_prefix: Some("tbl".to_owned()),
            plural_tables: false,
            key: KeyName::Plain,
            column_prefix: true,
            ..style(Case::Snake)
        };
        let lexicon = Lexicon::read(WordShare::Training);
        let rng = &mut RngStream::new(1, &["naming"]);
        assert_eq!(style.table(&noun()), "tbl_red_fox");
        assert_eq!(
            (style.key(&noun()), style.foreign_key(&noun())),
            ("id".to_owned(), "red_fox_id".to_owned())
        );
        assert_eq!(style.column(&noun(), "height", &lexicon, rng), "red_height");
    }
}
