//! Naming styles: how a database spells the names of its tables and columns.

use super::super::render::capitalized;
use super::super::rng::RngStream;
use super::lexicon::{Lexicon, Noun, draw};
use crate::sql_name::as_needed;

/// Names that SQLite reads as keywords, and names of functions. Invented words and abbreviations
/// may be some, such as "delete".
const RESERVED: &str = "
    add all alter and as asc autoincrement avg between by case cast check collate column commit
    constraint count create cross date default deferrable delete desc distinct drop else end escape
    except exists foreign from full group having if in index inner insert intersect into is isnull
    join key left like limit max min natural not nothing notnull null of on or order outer over
    primary references replace returning right row rows select set sum table then to transaction
    trigger union unique update using values view when where with
";

/// What stands behind the name of a number in a spreadsheet.
const UNITS: [&str; 8] = ["(kg)", "(m)", "(km)", "($)", "(%)", "(h)", "(days)", "#"];
/// The percentage of numbers in spreadsheets that have one.
const UNIT_PERCENT: u32 = 25;

/// How carefully a schema was designed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tidiness {
    /// As tutorials teach: few tables, one style, names that SQL reads as they are.
    Tidy,
    /// As databases grow in practice: more tables and columns, tables that are spelled in several
    /// ways, names that repeat their table's, and names that SQL reads in quotation marks only
    /// (blanks, hyphens, units, keywords).
    Messy,
}

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
    /// `Net_Price`
    TitleSnake,
    /// `Net_price`
    FirstSnake,
    /// `net price`
    Words,
    /// `Net Price`
    Title,
    /// `net-price`
    Kebab,
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
    /// The percentage of columns whose name begins with their table's: `customer_name`.
    table_name_percent: u32,
    tidiness: Tidiness,
}

impl NamingStyle {
    /// Draws a style.
    pub(super) fn draw(tidiness: Tidiness, rng: &mut RngStream) -> Self {
        match tidiness {
            Tidiness::Tidy => Self::tidy(rng),
            Tidiness::Messy => Self::messy(rng),
        }
    }

    /// Whether the style is one of a messy schema.
    pub(super) fn is_messy(&self) -> bool {
        self.tidiness == Tidiness::Messy
    }

    fn messy(rng: &mut RngStream) -> Self {
        let tidy = Self::tidy(rng);
        let case = match rng.below(100) {
            0..20 => Case::Title,
            20..34 => Case::Words,
            34..40 => Case::Kebab,
            40..60 => Case::TitleSnake,
            60..68 => Case::FirstSnake,
            _ => tidy.case,
        };
        let table_prefix = match case {
            Case::Title | Case::Words | Case::Kebab => None,
            _ if rng.chance(25) => Some("tbl".to_owned()),
            _ => tidy.table_prefix,
        };
        let key = match case {
            Case::TitleSnake | Case::FirstSnake if rng.chance(50) => KeyName::OfTable("ID"),
            _ => tidy.key,
        };
        Self {
            case,
            table_prefix,
            key,
            // A singular may be a keyword, such as "order".
            plural_tables: rng.chance(40),
            table_name_percent: if rng.chance(35) { 50 } else { 0 },
            tidiness: Tidiness::Messy,
            ..tidy
        }
    }

    /// Draws the style of a tidy schema. Most have the one that tutorials teach.
    fn tidy(rng: &mut RngStream) -> Self {
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
            table_name_percent: 0,
            tidiness: Tidiness::Tidy,
        }
    }

    /// Names a table, as SQL writes the name.
    pub(super) fn table(&self, noun: &Noun) -> String {
        let noun = if self.plural_tables {
            &noun.many
        } else {
            &noun.one
        };
        let words = self.table_prefix.iter().map(String::as_str);
        self.join(words.chain(noun.split(' ')))
    }

    /// Names a column of a table by its words, as SQL writes the name. Numbers may have a unit.
    pub(super) fn column(
        &self,
        table: &Noun,
        words: &str,
        is_number: bool,
        lexicon: &Lexicon,
        rng: &mut RngStream,
    ) -> String {
        let shorten = |word: &str| match rng.chance(self.abbreviated_percent) {
            true => lexicon.abbreviated(word, rng),
            false => word.to_owned(),
        };
        let words: Vec<String> = words.split(' ').map(shorten).collect();
        let start: String = table.one.chars().take(3).collect();
        let prefix: Vec<&str> = match self.column_prefix {
            true => vec![&start],
            false if self.repeats_table(rng) => table.one.split(' ').collect(),
            false => Vec::new(),
        };
        let is_spreadsheet = matches!(self.case, Case::Words | Case::Title);
        let unit =
            (is_number && is_spreadsheet && rng.chance(UNIT_PERCENT)).then(|| draw(&UNITS, rng));
        let words = words.iter().map(String::as_str);
        self.join(prefix.into_iter().chain(words).chain(unit))
    }

    /// Draws whether a column's name begins with that of its table. Tidy schemas draw nothing, so
    /// that their bytes stay.
    fn repeats_table(&self, rng: &mut RngStream) -> bool {
        self.table_name_percent > 0 && rng.chance(self.table_name_percent)
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
        let capitalized = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| capitalized(word)).collect()
        };
        let name = match self.case {
            Case::Snake => words.join("_"),
            Case::Flat => words.concat(),
            Case::Upper => words.join("_").to_uppercase(),
            Case::TitleSnake => capitalized(&words).join("_"),
            Case::FirstSnake => self::capitalized(&words.join("_")),
            Case::Camel => words[0].to_owned() + &capitalized(&words[1..]).concat(),
            Case::Pascal => capitalized(&words).concat(),
            Case::Words => words.join(" "),
            Case::Title => capitalized(&words).join(" "),
            Case::Kebab => words.join("-"),
        };
        match self.tidiness {
            Tidiness::Messy => as_needed(&name),
            Tidiness::Tidy if is_reserved(&name) => format!("{name}_1"),
            Tidiness::Tidy => name,
        }
    }
}

fn is_reserved(name: &str) -> bool {
    let mut words = RESERVED.split_ascii_whitespace();
    words.any(|word| word.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::super::lexicon::WordShare;
    use super::*;
    use crate::sql_name::KEYWORDS;

    fn style(case: Case) -> NamingStyle {
        NamingStyle {
            case,
            plural_tables: true,
            table_prefix: None,
            key: KeyName::OfTable("id"),
            abbreviated_percent: 0,
            column_prefix: false,
            table_name_percent: 0,
            tidiness: Tidiness::Tidy,
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
            let mut name = |words| style.column(&noun(), words, false, &lexicon, rng);
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
        assert_eq!(
            style.column(&noun(), "height", true, &lexicon, rng),
            "red_height"
        );
    }

    #[test]
    fn columns_may_repeat_the_name_of_their_table() {
        let style = NamingStyle {
            table_name_percent: 100,
            ..style(Case::TitleSnake)
        };
        let lexicon = Lexicon::read(WordShare::Training);
        let rng = &mut RngStream::new(1, &["naming"]);
        let column = style.column(&noun(), "height", true, &lexicon, rng);
        assert_eq!(column, "Red_Fox_Height");
    }

    #[test]
    fn sqlite_reads_each_name_of_a_tidy_schema() {
        let lexicon = Lexicon::read(WordShare::Training);
        let rng = &mut RngStream::new(1, &["naming"]);
        let style = style(Case::Snake);
        let sqlite = rusqlite::Connection::open_in_memory().unwrap();
        for keyword in KEYWORDS.split_ascii_whitespace() {
            let column = style.column(&noun(), keyword, false, &lexicon, rng);
            let noun = Noun {
                one: keyword.to_owned(),
                many: keyword.to_owned(),
            };
            let table = style.table(&noun);
            let sql = format!("CREATE TABLE {table} (id INTEGER, {column} TEXT)");
            assert_eq!(sqlite.execute(&sql, []), Ok(0), "{sql}");
        }
    }

    #[test]
    fn names_that_need_quotation_marks_have_them() {
        let lexicon = Lexicon::read(WordShare::Training);
        let rng = &mut RngStream::new(1, &["naming"]);
        let cases = [
            (Case::Words, "\"red foxes\"", "\"net price\""),
            (Case::Title, "\"Red Foxes\"", "\"Net Price\""),
            (Case::Kebab, "\"red-foxes\"", "\"net-price\""),
            (Case::Snake, "red_foxes", "net_price"),
            (Case::TitleSnake, "Red_Foxes", "Net_Price"),
            (Case::FirstSnake, "Red_foxes", "Net_price"),
        ];
        for (case, table, column) in cases {
            let style = NamingStyle {
                tidiness: Tidiness::Messy,
                ..style(case)
            };
            assert_eq!(style.table(&noun()), table);
            let found = style.column(&noun(), "net price", false, &lexicon, rng);
            assert_eq!(found, column);
            let keyword = style.column(&noun(), "order", false, &lexicon, rng);
            assert!(keyword.eq_ignore_ascii_case("\"order\""), "{keyword}");
        }
    }
}
