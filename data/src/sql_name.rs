//! SQL names: which need quotation marks.

use crate::sql_text::quoted;

/// SQLite's keywords.
pub(crate) const KEYWORDS: &str = "
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

/// Returns whether SQL needs quotation marks around a name: it is a keyword or no plain word.
pub fn needs_quotes(name: &str) -> bool {
    let is_letter = |it: char| it.is_ascii_alphabetic() || it == '_';
    let is_plain = name.starts_with(is_letter)
        && name.chars().all(|it| is_letter(it) || it.is_ascii_digit())
        && !is_keyword(name);
    !is_plain
}

/// Returns whether a word is a keyword of SQLite, some of which it reads as names as well.
pub fn is_keyword(word: &str) -> bool {
    let mut keywords = KEYWORDS.split_ascii_whitespace();
    keywords.any(|keyword| keyword.eq_ignore_ascii_case(word))
}

/// Returns a name as gold SQL has it: in quotation marks if it needs them.
pub fn as_needed(name: &str) -> String {
    match needs_quotes(name) {
        true => quoted(name),
        false => name.to_owned(),
    }
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
}
