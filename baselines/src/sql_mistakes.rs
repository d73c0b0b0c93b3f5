//! Mistakes in SQL: plausible statements that ask for something else, or name a missing table.
//!
//! The functions edit the words of a statement and never cut a literal or a quoted name. They do
//! not check whether a mistake changes the result: a wrong query is sometimes right by chance, as
//! in the logs of people.

use std::ops::Range;

use data::{
    sql_name::needs_quotes,
    sql_text::{SqlToken, sql_tokens},
};

/// A word, its replacement, and whether the next word (blanks aside) permits the replacement.
type Swap = (&'static str, &'static str, fn(&str) -> bool);

/// Replaces an aggregate function, or removes DISTINCT.
const AGGREGATE_SWAPS: [Swap; 5] = [
    ("AVG", "MAX", is_parenthesis),
    ("MAX", "MIN", is_parenthesis),
    ("MIN", "MAX", is_parenthesis),
    ("SUM", "AVG", is_parenthesis),
    ("DISTINCT", "", |_| true),
];
/// Reverses a comparison or an order.
const COMPARISON_SWAPS: [Swap; 7] = [
    ("=", "!=", |next| {
        next.starts_with(|c: char| c == '\'' || c.is_ascii_digit())
    }),
    (">", "<", |_| true),
    ("<", ">", |_| true),
    (">=", "<=", |_| true),
    ("<=", ">=", |_| true),
    ("ASC", "DESC", |_| true),
    ("DESC", "ASC", |_| true),
];
/// Words that end a WHERE clause.
const AFTER_WHERE: [&str; 7] = [
    "GROUP",
    "ORDER",
    "LIMIT",
    "HAVING",
    "UNION",
    "INTERSECT",
    "EXCEPT",
];

/// Returns all subtly wrong variants: with another aggregate, a reversed comparison, without the
/// filter, or with another column of the same table. `tables` has the columns of each table.
pub(crate) fn wrong_variants(sql: &str, tables: &[Vec<String>]) -> Vec<String> {
    let words = words(sql);
    // Demonstrations draw a variant by its index, so the order is part of their definition.
    let mut variants: Vec<String> = swapped(&words, &AGGREGATE_SWAPS).collect();
    variants.extend(swapped(&words, &COMPARISON_SWAPS));
    variants.extend(without_filter(&words));
    variants.extend(with_other_columns(&words, tables));
    variants
}

/// Returns the statement with its first table name misspelled, so that it fails. A name that needs
/// quotation marks loses them. `tables` are those of the statement, and `all` those of the
/// database.
pub(crate) fn with_wrong_table_name(sql: &str, tables: &[String], all: &[&str]) -> String {
    let words = words(sql);
    let is_table = |word: &&str| {
        let name = word.trim_matches('"');
        tables.iter().any(|table| table.eq_ignore_ascii_case(name))
    };
    let Some(index) = words.iter().position(is_table) else {
        return format!("{sql})");
    };
    let name = words[index].trim_matches('"');
    if needs_quotes(name) {
        return replaced(&words, index..index + 1, name);
    }
    let mut wrong = match name.strip_suffix('s') {
        Some(singular) => singular.to_owned(),
        None => format!("{name}s"),
    };
    while all.iter().any(|it| it.eq_ignore_ascii_case(&wrong)) {
        wrong.push('s');
    }
    replaced(&words, index..index + 1, &wrong)
}

/// Returns variants of the statement that fail, with its first column named as the question might
/// name it, spelled wrongly, or without the quotation marks that it needs. `tables` has the columns
/// of each table.
pub(crate) fn with_wrong_column_names(
    sql: &str,
    tables: &[Vec<String>],
    question_text: &str,
) -> Vec<String> {
    let words = words(sql);
    let is_column = |name: &str| {
        let mut columns = tables.iter().flatten();
        columns.any(|column| column.eq_ignore_ascii_case(name))
    };
    let is_quoted = |word: &str| word.starts_with('"') && is_column(word.trim_matches('"'));
    let Some(index) = words.iter().position(|it| is_column(it) || is_quoted(it)) else {
        return Vec::new();
    };
    if is_quoted(words[index]) {
        let bare = words[index].trim_matches('"');
        return vec![replaced(&words, index..index + 1, bare)];
    }
    let spoken: Vec<&str> = question_text
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .collect();
    let after_the = spoken.windows(2).filter_map(|pair| {
        // SQLite knows these without a declaration.
        let is_built_in = ["rowid", "null", "true", "false"].contains(&pair[1]);
        let is_noun = pair[0] == "the" && pair[1].len() >= 4 && !is_built_in;
        is_noun.then(|| pair[1].to_owned())
    });
    let misspelled = ["s", "_id", "_name"].map(|ending| format!("{}{ending}", words[index]));
    after_the
        .chain(misspelled)
        .filter(|name| !is_column(name) && !words.contains(&name.as_str()))
        .map(|name| replaced(&words, index..index + 1, &name))
        .collect()
}

/// Splits a statement into tokens. Concatenated, they are the statement.
fn words(sql: &str) -> Vec<&str> {
    sql_tokens(sql).map(SqlToken::text).collect()
}

fn is_parenthesis(word: &str) -> bool {
    word == "("
}

fn replaced(words: &[&str], range: Range<usize>, replacement: &str) -> String {
    let (before, after) = (&words[..range.start], &words[range.end.min(words.len())..]);
    [before, &[replacement], after].concat().concat()
}

/// Returns a variant for each word that a swap applies to.
fn swapped(words: &[&str], swaps: &[Swap]) -> impl Iterator<Item = String> {
    let variant = move |(index, word): (usize, &&str)| {
        let (_, replacement, permits) = swaps
            .iter()
            .find(|(name, ..)| word.eq_ignore_ascii_case(name))?;
        let rest = &words[index + 1..];
        let next = rest.iter().find(|word| !word.trim().is_empty());
        // The blank after a removed word goes as well.
        let end = index + 1 + usize::from(replacement.is_empty());
        permits(next.unwrap_or(&"")).then(|| replaced(words, index..end, replacement))
    };
    words.iter().enumerate().filter_map(variant)
}

/// Returns the statement without its first WHERE clause.
fn without_filter(words: &[&str]) -> Option<String> {
    let is = |word: &str, names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
    let start = words.iter().position(|word| is(word, &["WHERE"]))?;
    let mut depth = 0;
    let length = words[start..].iter().position(|word| {
        match *word {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && is(word, &AFTER_WHERE))
    });
    let end = length.map_or(words.len(), |length| start + length);
    Some(replaced(words, start..end, "").trim_end().to_owned())
}

/// Returns a variant for each column, with the next column of its table in its place.
fn with_other_columns<'a>(words: &[&'a str], tables: &'a [Vec<String>]) -> Vec<String> {
    let mut variants = Vec::new();
    for columns in tables {
        for (column, other) in columns.iter().zip(columns.iter().cycle().skip(1)) {
            if other != column && words.contains(&column.as_str()) {
                let swap = |word: &&'a str| if *word == column { other } else { *word };
                variants.push(words.iter().map(swap).collect());
            }
        }
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_variants_are_the_known_mistakes() {
        let book = [vec!["title".to_owned(), "pages".to_owned()]];
        let cases: &[(&str, &[&str])] = &[
            ("SELECT COUNT(*) FROM book", &[]),
            (
                "SELECT AVG(pages) FROM book WHERE title = 'a > b'",
                &[
                    "SELECT MAX(pages) FROM book WHERE title = 'a > b'",
                    "SELECT AVG(pages) FROM book WHERE title != 'a > b'",
                    "SELECT AVG(pages) FROM book",
                    "SELECT AVG(pages) FROM book WHERE pages = 'a > b'",
                    "SELECT AVG(title) FROM book WHERE title = 'a > b'",
                ],
            ),
            (
                "SELECT title FROM book WHERE pages >= 10 ORDER BY pages DESC LIMIT 1",
                &[
                    "SELECT title FROM book WHERE pages <= 10 ORDER BY pages DESC LIMIT 1",
                    "SELECT title FROM book WHERE pages >= 10 ORDER BY pages ASC LIMIT 1",
                    "SELECT title FROM book ORDER BY pages DESC LIMIT 1",
                    "SELECT pages FROM book WHERE pages >= 10 ORDER BY pages DESC LIMIT 1",
                    "SELECT title FROM book WHERE title >= 10 ORDER BY title DESC LIMIT 1",
                ],
            ),
            (
                "SELECT COUNT(DISTINCT x) FROM t",
                &["SELECT COUNT(x) FROM t"],
            ),
            (
                "SELECT a FROM (SELECT a FROM t WHERE a > 1) u",
                &[
                    "SELECT a FROM (SELECT a FROM t WHERE a < 1) u",
                    "SELECT a FROM (SELECT a FROM t ) u",
                ],
            ),
        ];
        for (sql, wanted) in cases {
            assert_eq!(wrong_variants(sql, &book), *wanted, "{sql}");
        }
    }

    #[test]
    fn the_wrong_table_name_does_not_exist() {
        let tables = ["book", "authors", "line items"].map(str::to_owned);
        for (sql, wanted) in [
            (
                "SELECT 1 FROM book b JOIN authors",
                "SELECT 1 FROM books b JOIN authors",
            ),
            ("SELECT 1 FROM \"authors\"", "SELECT 1 FROM author"),
            ("SELECT 1 FROM \"line items\"", "SELECT 1 FROM line items"),
            ("SELECT 1", "SELECT 1)"),
        ] {
            assert_eq!(with_wrong_table_name(sql, &tables, &[]), wanted);
        }
        let all = ["book", "BOOKS", "author", "authors"];
        for (sql, wanted) in [
            ("FROM book", "FROM bookss"),
            ("FROM authors", "FROM authorss"),
        ] {
            assert_eq!(with_wrong_table_name(sql, &tables, &all), wanted);
        }
    }

    #[test]
    fn wrong_column_names_come_from_the_question_or_are_misspelled() {
        let book = [vec!["title".to_owned(), "pages".to_owned()]];
        let sql = "SELECT max(pages) FROM book";
        assert_eq!(
            with_wrong_column_names(sql, &book, "How long is the longest book? The pages"),
            [
                "SELECT max(longest) FROM book",
                "SELECT max(pagess) FROM book",
                "SELECT max(pages_id) FROM book",
                "SELECT max(pages_name) FROM book",
            ]
        );
        assert!(with_wrong_column_names("SELECT 1", &book, "").is_empty());
        let quoted = [vec!["Net Price".to_owned()]];
        assert_eq!(
            with_wrong_column_names("SELECT MAX(\"Net Price\") FROM t", &quoted, "the highest"),
            ["SELECT MAX(Net Price) FROM t"]
        );
    }

    proptest! {
        #[test]
        fn words_concatenate_to_the_statement(sql in "(SELECT|'[a-z ]*'|\"|'|<=|!=|>|é|[a-z_]+| |\\(|\\)|,){0,20}") {
            prop_assert_eq!(words(&sql).concat(), sql.as_str());
            wrong_variants(&sql, &[vec!["a".to_owned(), "b".to_owned()]]);
            with_wrong_table_name(&sql, &["a".to_owned()], &["as"]);
        }
    }
}
