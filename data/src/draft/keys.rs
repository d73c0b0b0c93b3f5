//! The keys of tables, and names of columns that say that they refer to a key.

use super::dictionary::Dictionary;
use super::links::Links;
use super::name_lists::ends_with;
use super::source::SourceDatabase;

/// Returns the key of a table: the declared one if it is one column, a column that a foreign key
/// refers to, or a unique column that is named like a key.
pub(super) fn key(
    database: &SourceDatabase,
    index: usize,
    dictionary: &Dictionary,
    links: &mut Links,
) -> Option<usize> {
    let table = &database.tables[index];
    if let [column] = table.primary_key.as_slice() {
        return Some(*column);
    }
    let position = |name: &str| {
        let mut columns = table.columns.iter();
        columns.position(|it| it.name.eq_ignore_ascii_case(name) && it.is_unique)
    };
    let referring = database.tables.iter().flat_map(|other| &other.foreign_keys);
    let mut referring = referring.filter(|it| it.table.eq_ignore_ascii_case(&table.name));
    if let Some(column) = referring.find_map(|it| position(it.to.as_deref()?)) {
        return Some(column);
    }
    if !table.primary_key.is_empty() {
        return None;
    }
    let is_key = |column: &usize| {
        let words = dictionary.words(&table.columns[*column].name);
        let is_foreign = table.foreign_keys.iter().any(|it| it.column == *column)
            || names_other_table(&words, index, &links.nouns, dictionary);
        !is_foreign && table.columns[*column].is_unique && ends_with(&words, &dictionary.lists.keys)
    };
    let key = (0..table.columns.len()).find(is_key)?;
    let (name, column) = (&table.name, &table.columns[key].name);
    links.notes.push(format!(
        "key inferred: {name}.{column} is unique and named like a key"
    ));
    Some(key)
}

/// Whether the words of a column, without those of a key, are the noun of another table than its
/// own.
pub(super) fn names_other_table(
    words: &[String],
    own: usize,
    nouns: &[String],
    dictionary: &Dictionary,
) -> bool {
    let stem = without_key(words, dictionary).join(" ");
    let is_it = |noun: &String| stem == *noun || stem.ends_with(&format!(" {noun}"));
    let mut others = nouns.iter().enumerate().filter(|(table, _)| *table != own);
    others.any(|(_, noun)| is_it(noun))
}

/// Returns the words of a name without the words at its end that say that it is a key.
pub(super) fn without_key<'a>(words: &'a [String], dictionary: &Dictionary) -> &'a [String] {
    match words.split_last() {
        Some((last, rest)) if dictionary.lists.keys.contains(last) => rest,
        _ => words,
    }
}
