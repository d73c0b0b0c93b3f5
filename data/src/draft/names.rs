//! SQL names: which need quotation marks.

use crate::sql_text::quoted;

/// SQLite's keywords.
const KEYWORDS: &str = "
    abort action add after all alter always analyze and as asc attach autoincrement before begin
    between by cascade case cast check collate column commit conflict constraint create cross
    current current_date current_time current_timestamp database default deferrable deferred delete
    desc detach distinct do drop each else end escape except exclude exclusive exists explain fail
    filter first following for foreign from full generated glob group groups having if ignore
    immediate in index indexed initially inner insert instead intersect into is isnull join key last
    left like limit match materialized natural no not nothing notnull null nulls of offset on or
    order others outer over partition plan pragma preceding primary query raise range recursive
    references regexp reindex release rename replace restrict returning right rollback row rows
    savepoint select set table temp temporary then ties to transaction trigger unbounded union
    unique update using vacuum values view virtual when where window with without
";

/// Returns a name as gold SQL has it: in quotation marks if it is a keyword or no plain word.
pub(super) fn as_needed(name: &str) -> String {
    let is_letter = |it: char| it.is_ascii_alphabetic() || it == '_';
    let is_plain = name.starts_with(is_letter)
        && name.chars().all(|it| is_letter(it) || it.is_ascii_digit())
        && !KEYWORDS
            .split_ascii_whitespace()
            .any(|keyword| keyword.eq_ignore_ascii_case(name));
    match is_plain {
        true => name.to_owned(),
        false => quoted(name),
    }
}

/// Returns the candidate that needs the fewest changes to become `name`.
pub(super) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .min_by_key(|candidate| distance(&name.to_lowercase(), &candidate.to_lowercase()))
}

/// The Levenshtein distance of two texts.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, from) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, to) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_only_where_sql_needs_it() {
        for (name, expected) in [
            ("orders", "orders"),
            ("Order_2", "Order_2"),
            ("order", "\"order\""),
            ("SELECT", "\"SELECT\""),
            ("line total", "\"line total\""),
            ("2nd", "\"2nd\""),
            ("", "\"\""),
            ("a\"b", "\"a\"\"b\""),
            ("größe", "\"größe\""),
        ] {
            assert_eq!(as_needed(name), expected);
        }
    }

    #[test]
    fn the_nearest_name_needs_the_fewest_changes() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(nearest("nuon", ["says", "noun", "also"]), Some("noun"));
        assert_eq!(nearest("x", []), None);
    }
}
