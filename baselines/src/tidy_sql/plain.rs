//! Whether the meaning of a query is plain from its words.

use super::words::{Kind, Word};

/// Keywords after which an expression begins, which a text or a name in quotation marks may be.
/// After other words it may be an alias.
const BEFORE_EXPRESSIONS: [&str; 16] = [
    "SELECT", "DISTINCT", "WHERE", "AND", "OR", "NOT", "LIKE", "BETWEEN", "BY", "ON", "HAVING",
    "CASE", "WHEN", "THEN", "ELSE", "IS",
];

/// Returns whether a query reads nothing but tables that are shown and queries in parentheses, and
/// has quotation marks only around what cannot be an alias or a function.
pub(super) fn is_plain(words: &[Word]) -> bool {
    let reads_queries = words.windows(2).any(|two| two[0].reads() && two[1].is("("));
    let has_with = words.iter().any(|word| word.is("WITH"));
    let are_plain = || {
        let mut quoted = (0..words.len()).filter(|&at| words[at].is_quoted());
        quoted.all(|at| is_plainly_quoted(words, at, reads_queries))
    };
    !words.is_empty() && !has_with && reads_only_tables(words) && are_plain()
}

/// Returns whether tables, or queries in parentheses, follow each FROM and JOIN, without a comma
/// between them.
fn reads_only_tables(words: &[Word]) -> bool {
    let mut depth = 0;
    // The depths of the FROM clauses that are open.
    let mut open: Vec<i32> = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if word.reads() {
            let is_query =
                |rest: &[Word]| rest.len() > 1 && rest[0].is("(") && rest[1].is("SELECT");
            let is_table = |rest: &[Word]| rest.first().is_some_and(|it| it.kind == Kind::Table);
            let rest = &words[at + 1..];
            let is_comparison = at > 0 && words[at - 1].is("DISTINCT");
            if is_comparison || !is_table(rest) && !is_query(rest) {
                return false;
            }
            open.push(depth);
        } else if word.is("(") {
            depth += 1;
        } else if word.is(")") {
            depth -= 1;
            open.retain(|from| *from <= depth);
        } else if word.ends_from() {
            open.retain(|from| *from < depth);
        } else if word.is(",") && open.contains(&depth) {
            return false;
        }
    }
    true
}

/// Returns whether the quoted word at `at` can only be a text or the name of a column.
fn is_plainly_quoted(words: &[Word], at: usize, reads_queries: bool) -> bool {
    let is_called = words.get(at + 1).is_some_and(|next| next.is("("));
    // A query in parentheses may give its columns names that are no words, such as "count( * )".
    if is_called || words[at].kind == Kind::Quoted && reads_queries {
        return false;
    }
    let Some(before) = at.checked_sub(1).map(|before| &words[before]) else {
        return false;
    };
    match before.kind {
        Kind::Symbol if before.is(".") => {
            let qualifier = at.checked_sub(2).map(|qualifier| &words[qualifier]);
            let is_name = |it: &Word| it.kind == Kind::Table || it.is_bare_name();
            words[at].kind == Kind::Quoted && qualifier.is_some_and(is_name)
        }
        Kind::Symbol => !before.is(")"),
        Kind::Keyword => BEFORE_EXPRESSIONS.iter().any(|it| before.is(it)),
        _ => false,
    }
}
