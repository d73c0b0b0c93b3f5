//! Keys and the columns that refer to them: declared ones, and ones inferred by name and inclusion.

use rusqlite::Connection;

use super::dictionary::Dictionary;
use super::keys::{key, without_key};
use super::source::{self, SourceDatabase, SourceTable};
use super::word_file::WordFile;

/// The share of values, per mille, that must refer to a row for a declared key to be used.
const FEWEST_FOUND: u64 = 800;

/// A column that refers to the key of another table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) table: usize,
    pub(super) column: usize,
    pub(super) parent: usize,
    /// Whether the schema or the file of words says so.
    pub(super) is_declared: bool,
}

/// The keys and links of a database.
#[derive(Debug, Clone, Default)]
pub(super) struct Links {
    /// The column by which rows of a table are referred to, by table.
    pub(super) keys: Vec<Option<usize>>,
    pub(super) links: Vec<Link>,
    /// The words of the keys, by table; none where there is no key.
    key_words: Vec<Vec<String>>,
    /// The names of the tables as nouns of one row, by table.
    pub(super) nouns: Vec<String>,
    /// What was inferred, and what was declared and is not used.
    pub(super) notes: Vec<String>,
}

impl Links {
    /// Returns the link of a column.
    pub(super) fn of(&self, table: usize, column: usize) -> Option<&Link> {
        let mut links = self.links.iter();
        links.find(|link| (link.table, link.column) == (table, column))
    }
}

/// Finds the keys and links of a database.
pub(super) fn find(
    connection: &Connection,
    database: &SourceDatabase,
    file: &WordFile,
    dictionary: &Dictionary,
) -> rusqlite::Result<Links> {
    let noun = |it: &SourceTable| dictionary.singular(&dictionary.words(&it.name).join(" "));
    let mut links = Links {
        nouns: database.tables.iter().map(noun).collect(),
        ..Links::default()
    };
    for index in 0..database.tables.len() {
        let key = key(database, index, dictionary, &mut links);
        let name = key.map(|key| &database.tables[index].columns[key].name);
        let words = name.map(|name| dictionary.words(name));
        links.key_words.push(words.unwrap_or_default());
        links.keys.push(key);
    }
    for index in 0..database.tables.len() {
        named(connection, database, index, file, &mut links)?;
        declared(connection, database, index, &mut links)?;
        inferred(connection, database, index, dictionary, &mut links)?;
    }
    Ok(links)
}

/// Adds the links that the file of words names.
fn named(
    connection: &Connection,
    database: &SourceDatabase,
    index: usize,
    file: &WordFile,
    links: &mut Links,
) -> rusqlite::Result<()> {
    let table = &database.tables[index];
    for column in 0..table.columns.len() {
        let words = file.column(&table.name, &table.columns[column].name);
        let Some(wanted) = words.and_then(|words| words.refers_to.as_ref()) else {
            continue;
        };
        let tables = database.tables.iter();
        let parent = tables
            .into_iter()
            .position(|it| it.name.eq_ignore_ascii_case(wanted));
        add(connection, database, (index, column), parent, links)?;
    }
    Ok(())
}

fn declared(
    connection: &Connection,
    database: &SourceDatabase,
    index: usize,
    links: &mut Links,
) -> rusqlite::Result<()> {
    let table = &database.tables[index];
    for foreign in &table.foreign_keys {
        if links.of(index, foreign.column).is_some() {
            continue;
        }
        let is_parent = |it: &SourceTable| it.name.eq_ignore_ascii_case(&foreign.table);
        let parent = database.tables.iter().position(is_parent);
        let refers_to_key = parent.is_some_and(|parent| {
            let key = links.keys[parent].map(|key| &database.tables[parent].columns[key].name);
            let to = foreign.to.as_ref();
            key.is_some_and(|key| to.is_none_or(|to| to.eq_ignore_ascii_case(key)))
        });
        if !refers_to_key {
            links.notes.push(format!(
                "key not used: {}.{} refers to no key of {}",
                table.name, table.columns[foreign.column].name, foreign.table
            ));
            continue;
        }
        add(connection, database, (index, foreign.column), parent, links)?;
    }
    Ok(())
}

/// Adds a link that is declared, or named by the file of words, if enough of its values refer to a
/// row of another table.
fn add(
    connection: &Connection,
    database: &SourceDatabase,
    (index, column): (usize, usize),
    parent: Option<usize>,
    links: &mut Links,
) -> rusqlite::Result<()> {
    let Some(parent) = parent else { return Ok(()) };
    let table = &database.tables[index];
    let name = format!("{}.{}", table.name, table.columns[column].name);
    let parent_name = &database.tables[parent].name;
    if links.keys[parent].is_none() {
        let note =
            format!("key not used: {name} refers to {parent_name}, which has no key of one column");
        links.notes.push(note);
        return Ok(());
    }
    if parent == index {
        let note = format!("key not used: {name} refers to its own table");
        links.notes.push(note);
        return Ok(());
    }
    match share(connection, database, (index, column), parent, links)? {
        Some(found) if found >= FEWEST_FOUND => links.links.push(Link {
            table: index,
            column,
            parent,
            is_declared: true,
        }),
        Some(found) => links.notes.push(format!(
            "key not used: only {} % of the values of {name} are in {parent_name}{}",
            found / 10,
            table.sample_note()
        )),
        None => {}
    }
    Ok(())
}

fn share(
    connection: &Connection,
    database: &SourceDatabase,
    (table, column): (usize, usize),
    parent: usize,
    links: &Links,
) -> rusqlite::Result<Option<u64>> {
    let Some(key) = links.keys[parent] else {
        return Ok(None);
    };
    let (table, parent) = (&database.tables[table], &database.tables[parent]);
    source::inclusion(connection, (table, column), (parent, key))
}

/// Adds links of columns that are named like the key of one other table and contain only its
/// values.
fn inferred(
    connection: &Connection,
    database: &SourceDatabase,
    index: usize,
    dictionary: &Dictionary,
    links: &mut Links,
) -> rusqlite::Result<()> {
    let table = &database.tables[index];
    for column in 0..table.columns.len() {
        let is_taken = links.of(index, column).is_some() || links.keys[index] == Some(column);
        let is_refused = table.foreign_keys.iter().any(|it| it.column == column);
        if is_taken || is_refused {
            continue;
        }
        let mut found: Vec<(usize, usize)> = Vec::new();
        let name = ColumnName::new(&table.columns[column].name, dictionary);
        for parent in (0..database.tables.len()).filter(|parent| *parent != index) {
            let Some(score) = name.likeness(parent, links) else {
                continue;
            };
            if share(connection, database, (index, column), parent, links)? == Some(1000) {
                found.push((score, parent));
            }
        }
        found.sort_unstable();
        let name = format!("{}.{}", table.name, table.columns[column].name);
        match found.as_slice() {
            [] => {}
            [(best, _), (second, _), ..] if best == second => {
                let note = format!("no key inferred: {name} could refer to several tables");
                links.notes.push(note);
            }
            [(_, parent), ..] => {
                let parent_name = &database.tables[*parent].name;
                links
                    .notes
                    .push(format!("key inferred: {name} refers to {parent_name}"));
                links.links.push(Link {
                    table: index,
                    column,
                    parent: *parent,
                    is_declared: false,
                });
            }
        }
    }
    Ok(())
}

/// The name of a column, taken apart: a database of many tables compares it with many keys.
struct ColumnName {
    words: Vec<String>,
    /// Its words without that of a key, such as `id`.
    stem: String,
    has_suffix: bool,
}

impl ColumnName {
    fn new(name: &str, dictionary: &Dictionary) -> Self {
        let words = dictionary.words(name);
        let stem = without_key(&words, dictionary).join(" ");
        let has_suffix = stem.split(' ').count() < words.len();
        Self {
            words,
            stem,
            has_suffix,
        }
    }

    /// Returns how well the name fits the key of a table, 0 for the best, or none.
    fn likeness(&self, parent: usize, links: &Links) -> Option<usize> {
        links.keys[parent]?;
        let key_words = &links.key_words[parent];
        // The same words, however they are spelled: `cust nr` and `custNr`.
        if self.words == *key_words && key_words.len() > 1 {
            return Some(0);
        }
        let one = links.nouns[parent].as_str();
        match self.stem.as_str() {
            "" => None,
            stem if stem == one && self.has_suffix => Some(1),
            stem if stem == one => Some(2),
            stem if self.has_suffix && ends_with_word(stem, one) => Some(3),
            _ => None,
        }
    }
}

/// Returns whether a text has other words before these.
fn ends_with_word(text: &str, words: &str) -> bool {
    let before = text.strip_suffix(words);
    before.is_some_and(|before| before.ends_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(schema: &str, words: &str) -> Links {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("PRAGMA foreign_keys = OFF")
            .unwrap();
        connection.execute_batch(schema).unwrap();
        let database = source::read(&connection).unwrap();
        let file = WordFile::parse("words.toml".as_ref(), words, &database).unwrap();
        find(&connection, &database, &file, &Dictionary::read()).unwrap()
    }

    /// Tables are sorted by name: authors are 0, books are 1.
    fn links(schema: &str, words: &str) -> Vec<(usize, usize, usize, bool)> {
        let links = found(schema, words).links.into_iter();
        links
            .map(|it| (it.table, it.column, it.parent, it.is_declared))
            .collect()
    }

    const AUTHORS: &str = "CREATE TABLE authors (id INTEGER PRIMARY KEY, name TEXT);
        INSERT INTO authors VALUES (1, 'Ann'), (2, 'Bo');";

    #[test]
    fn a_name_and_its_values_make_a_key() {
        for (column, values, expected) in [
            ("author_id", "1), (2), (2", vec![(1, 0, 0, false)]),
            ("AuthorId", "1), (NULL", vec![(1, 0, 0, false)]),
            ("lead_author_id", "1", vec![(1, 0, 0, false)]),
            ("author", "2", vec![(1, 0, 0, false)]),
            ("author_id", "1), (3", vec![]),
            ("editor_id", "1", vec![]),
            ("author_age", "1", vec![]),
            ("id", "1", vec![]),
            ("author_id", "NULL", vec![]),
        ] {
            let books =
                format!("CREATE TABLE books ({column}); INSERT INTO books VALUES ({values})");
            assert_eq!(
                links(&[AUTHORS, &books].concat(), ""),
                expected,
                "{column}: {values}"
            );
        }
    }

    #[test]
    fn equal_words_make_a_key_however_they_are_spelled() {
        let customers = "CREATE TABLE tblCustomer (custNr INT, city TEXT);
            INSERT INTO tblCustomer VALUES (7, 'Rome'), (8, 'Rome');";
        let orders = "CREATE TABLE \"Order\" (\"cust nr\" INT);
            INSERT INTO \"Order\" VALUES (7), (7), (8);";
        assert_eq!(links(&[customers, orders].concat(), ""), [(0, 0, 1, false)]);
    }

    #[test]
    fn declared_keys_are_used_if_their_values_are_there() {
        let books = |values: &str| {
            let table = "CREATE TABLE books (writer REFERENCES authors, again REFERENCES books)";
            format!("{AUTHORS}{table}; INSERT INTO books (writer) VALUES {values}")
        };
        let good = found(&books("(1), (2), (1), (2), (9)"), "");
        assert_eq!(good.links.len(), 1);
        assert!(good.links[0].is_declared);
        let bad = found(&books("(1), (8), (9)"), "");
        assert_eq!(bad.links, []);
        let note = "key not used: only 33 % of the values of books.writer are in authors";
        assert!(bad.notes.iter().any(|it| it == note), "{:?}", bad.notes);
    }

    #[test]
    fn words_name_a_key_that_nothing_else_shows() {
        let books = "CREATE TABLE books (writer); INSERT INTO books VALUES (1), (2)";
        let schema = [AUTHORS, books].concat();
        assert_eq!(links(&schema, ""), []);
        let words = "[tables.books.columns.writer]\nrefers_to = \"Authors\"";
        assert_eq!(links(&schema, words), [(1, 0, 0, true)]);

        let authors = "CREATE TABLE authors (a, b, PRIMARY KEY (a, b)); \
                       INSERT INTO authors VALUES (1, 1), (2, 1); ";
        let found = found(&[authors, books].concat(), words);
        assert_eq!(found.links, []);
        let note = "key not used: books.writer refers to authors, which has no key of one column";
        assert!(found.notes.iter().any(|it| it == note), "{:?}", found.notes);
    }

    #[test]
    fn a_table_without_a_declared_key_has_a_unique_column_that_is_named_like_one() {
        let table = |definition: &str| {
            let rows = "INSERT INTO t VALUES (1, 1), (2, 1)";
            found(&format!("CREATE TABLE t ({definition}); {rows}"), "").keys
        };
        assert_eq!(table("code, n"), [Some(0)]);
        assert_eq!(table("n, code"), [None]);
        assert_eq!(table("height, n"), [None]);
        assert_eq!(table("a, b, PRIMARY KEY (a, b)"), [None]);
        assert_eq!(table("a PRIMARY KEY, b"), [Some(0)]);
    }
}
