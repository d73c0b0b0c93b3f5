//! Slips that a careless author of SQL makes: plausible statements that ask for something else, or name what is not there.
//!
//! Pure text work on the words of a statement; literals and quoted names are never cut. Leaves out whether a slip changes
//! the result: now and then a wrong query is right by luck, as in real logs.

const AGGREGATES: [(&str, &str); 4] = [
    ("AVG", "MAX"),
    ("MAX", "MIN"),
    ("MIN", "MAX"),
    ("SUM", "AVG"),
];
const TURNED: [(&str, &str); 6] = [
    (">", "<"),
    ("<", ">"),
    (">=", "<="),
    ("<=", ">="),
    ("ASC", "DESC"),
    ("DESC", "ASC"),
];
const AFTER_WHERE: [&str; 7] = [
    "GROUP",
    "ORDER",
    "LIMIT",
    "HAVING",
    "UNION",
    "INTERSECT",
    "EXCEPT",
];

/// The columns of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Columns(pub(crate) Vec<String>);

/// All subtly wrong variants: another aggregate, a comparison turned round, a filter lost, another column of the same
/// table. Empty where the statement offers none.
pub(crate) fn wrong_variants(sql: &str, tables: &[Columns]) -> Vec<String> {
    let words = words(sql);
    let mut variants = other_aggregates(&words);
    variants.extend(turned_comparisons(&words));
    variants.extend(lost_filter(&words));
    variants.extend(other_columns(&words, tables));
    variants
}

/// The statement with the first name of a table misspelled, so that it fails.
pub(crate) fn misnamed(sql: &str, tables: &[String]) -> String {
    let words = words(sql);
    let is_table = |word: &str| {
        tables
            .iter()
            .any(|table| table.eq_ignore_ascii_case(word.trim_matches('"')))
    };
    match words.iter().position(|word| is_table(word)) {
        Some(index) => {
            let name = words[index].trim_matches('"');
            let other = name
                .strip_suffix('s')
                .map_or_else(|| format!("{name}s"), str::to_owned);
            replaced(&words, index, &other)
        }
        None => format!("{sql})"),
    }
}

/// Words, literals, operators and blanks; together they are the statement.
fn words(sql: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let (word, tail) = rest.split_at(word_bytes(rest, first));
        words.push(word);
        rest = tail;
    }
    words
}

fn word_bytes(rest: &str, first: char) -> usize {
    let run = |belongs: fn(char) -> bool| rest.find(|c| !belongs(c)).unwrap_or(rest.len());
    match first {
        '\'' | '"' => rest[1..].find(first).map_or(rest.len(), |end| end + 2),
        c if c.is_alphanumeric() || c == '_' => run(|c| c.is_alphanumeric() || c == '_'),
        c if c.is_whitespace() => run(char::is_whitespace),
        '<' | '>' | '!' if rest[1..].starts_with(['=', '>']) => 2,
        c => c.len_utf8(),
    }
}

fn replaced(words: &[&str], index: usize, word: &str) -> String {
    [&words[..index], &[word], &words[index + 1..]]
        .concat()
        .concat()
}

fn next_solid<'a>(words: &[&'a str], index: usize) -> &'a str {
    let mut solid = words[index + 1..]
        .iter()
        .filter(|word| !word.trim().is_empty());
    solid.next().unwrap_or(&"")
}

fn other_aggregates(words: &[&str]) -> Vec<String> {
    let swap = |(index, word): (usize, &&str)| {
        if word.eq_ignore_ascii_case("DISTINCT") {
            // The blank goes with the word.
            return Some(
                [&words[..index], &words[(index + 2).min(words.len())..]]
                    .concat()
                    .concat(),
            );
        }
        let (_, other) = AGGREGATES
            .iter()
            .find(|(name, _)| word.eq_ignore_ascii_case(name))?;
        (next_solid(words, index) == "(").then(|| replaced(words, index, other))
    };
    words.iter().enumerate().filter_map(swap).collect()
}

fn turned_comparisons(words: &[&str]) -> Vec<String> {
    let turn = |(index, word): (usize, &&str)| {
        if *word == "=" {
            let operand = next_solid(words, index);
            let is_literal = operand.starts_with(|c: char| c == '\'' || c.is_ascii_digit());
            return is_literal.then(|| replaced(words, index, "!="));
        }
        let (_, other) = TURNED
            .iter()
            .find(|(name, _)| word.eq_ignore_ascii_case(name))?;
        Some(replaced(words, index, other))
    };
    words.iter().enumerate().filter_map(turn).collect()
}

fn lost_filter(words: &[&str]) -> Option<String> {
    let start = words
        .iter()
        .position(|word| word.eq_ignore_ascii_case("WHERE"))?;
    let mut depth = 0;
    let end = words[start..].iter().position(|word| {
        match *word {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        depth < 0
            || (depth == 0
                && AFTER_WHERE
                    .iter()
                    .any(|next| word.eq_ignore_ascii_case(next)))
    });
    let end = end.map_or(words.len(), |length| start + length);
    Some(
        [&words[..start], &words[end..]]
            .concat()
            .concat()
            .trim_end()
            .to_owned(),
    )
}

fn other_columns(words: &[&str], tables: &[Columns]) -> Vec<String> {
    let mut variants = Vec::new();
    for Columns(columns) in tables {
        for (index, column) in columns.iter().enumerate() {
            let other = columns[(index + 1) % columns.len()].as_str();
            if other == column || !words.contains(&column.as_str()) {
                continue;
            }
            let swap = |word: &&str| {
                if *word == column {
                    other.to_owned()
                } else {
                    (*word).to_owned()
                }
            };
            variants.push(words.iter().map(swap).collect());
        }
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slips_are_the_known_ones() {
        let book = [Columns(vec!["title".to_owned(), "pages".to_owned()])];
        let table: &[(&str, &[&str])] = &[
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
        for (sql, wanted) in table {
            assert_eq!(wrong_variants(sql, &book), *wanted, "{sql}");
        }
    }

    #[test]
    fn a_misnamed_table_is_not_there() {
        let tables = ["book".to_owned(), "authors".to_owned()];
        for (sql, wanted) in [
            (
                "SELECT 1 FROM book b JOIN authors",
                "SELECT 1 FROM books b JOIN authors",
            ),
            ("SELECT 1 FROM \"authors\"", "SELECT 1 FROM author"),
            ("SELECT 1", "SELECT 1)"),
        ] {
            assert_eq!(misnamed(sql, &tables), wanted);
        }
    }

    proptest! {
        #[test]
        fn words_are_the_statement(sql in "(SELECT|'[a-z ]*'|\"|'|<=|!=|>|é|[a-z_]+| |\\(|\\)|,){0,20}") {
            prop_assert_eq!(words(&sql).concat(), sql.as_str());
            wrong_variants(&sql, &[Columns(vec!["a".to_owned(), "b".to_owned()])]);
            misnamed(&sql, &["a".to_owned()]);
        }
    }
}
