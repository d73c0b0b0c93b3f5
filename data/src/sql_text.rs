//! SQL as text: tokens, normal forms and the first keyword.
//!
//! Invariant: pure and total, and the tokens of a text concatenate to the text. There is no grammar
//! here: SQLite decides whether a statement is valid, and its authorizer what the statement may do.

/// One token of SQL text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlToken<'a> {
    /// A run of white space, or a comment.
    Gap(&'a str),
    /// A quoted string or name, quotes included. The end may be missing.
    Quoted(&'a str),
    /// A run of letters, digits, underscores and characters beyond ASCII: a keyword, a name or a
    /// number.
    Word(&'a str),
    /// An operator or any other character.
    Symbol(&'a str),
}

impl<'a> SqlToken<'a> {
    /// Returns the text of the token.
    pub fn text(self) -> &'a str {
        match self {
            Self::Gap(text) | Self::Quoted(text) | Self::Word(text) | Self::Symbol(text) => text,
        }
    }
}

/// Splits SQL into tokens.
pub fn sql_tokens(sql: &str) -> impl Iterator<Item = SqlToken<'_>> {
    let mut rest = sql;
    std::iter::from_fn(move || {
        let (token, tail) = first_token(rest)?;
        rest = tail;
        Some(token)
    })
}

/// Operators of more than one character, longer ones first.
const OPERATORS: [&str; 10] = ["->>", "->", "<=", "<>", "<<", ">=", ">>", "!=", "==", "||"];

fn first_token<'a>(text: &'a str) -> Option<(SqlToken<'a>, &'a str)> {
    let first = text.chars().next()?;
    let run = |belongs: fn(char) -> bool| text.find(|c| !belongs(c)).unwrap_or(text.len());
    let (length, token): (usize, fn(&'a str) -> SqlToken<'a>) = match first {
        _ if text.starts_with("--") => (text.find('\n').unwrap_or(text.len()), SqlToken::Gap),
        _ if text.starts_with("/*") => {
            let end = text[2..].find("*/");
            (end.map_or(text.len(), |end| end + 4), SqlToken::Gap)
        }
        '\'' | '"' | '`' => (quoted_bytes(text, first), SqlToken::Quoted),
        '[' => (quoted_bytes(text, ']'), SqlToken::Quoted),
        _ if is_space(first) => (run(is_space), SqlToken::Gap),
        _ if is_word(first) => (run(is_word), SqlToken::Word),
        _ => {
            let mut operators = OPERATORS.iter();
            let operator = operators.find(|operator| text.starts_with(**operator));
            let length = operator.map_or(first.len_utf8(), |operator| operator.len());
            (length, SqlToken::Symbol)
        }
    };
    let (text, tail) = text.split_at(length);
    Some((token(text), tail))
}

fn is_space(character: char) -> bool {
    character.is_ascii_whitespace()
}

/// Whether a character belongs to a word. For SQLite all characters beyond ASCII do.
fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || !character.is_ascii()
}

/// Returns the length of quoted text that begins `text` and ends with the next `close`. A doubled
/// quote reads as two quoted texts, which concatenate to the same.
fn quoted_bytes(text: &str, close: char) -> usize {
    text[1..].find(close).map_or(text.len(), |end| end + 2)
}

/// Returns the statement without comments and trailing semicolons, each gap folded to one blank.
/// Statements of equal normal form mean the same.
pub fn normal_form(sql: &str) -> String {
    normalized(sql, |normal, text| normal.push_str(text))
}

/// Returns the normal form with words in lower case. Statements of equal form mean the same, since
/// SQLite folds the case of keywords and unquoted names, in ASCII only.
pub fn case_folded_form(sql: &str) -> String {
    normalized(sql, |normal, text| {
        normal.push_str(&text.to_ascii_lowercase());
    })
}

fn normalized(sql: &str, push: impl Fn(&mut String, &str)) -> String {
    let mut normal = String::with_capacity(sql.len());
    let mut gap = false;
    for token in sql_tokens(sql) {
        if matches!(token, SqlToken::Gap(_)) {
            gap = true;
            continue;
        }
        if std::mem::take(&mut gap) && !normal.is_empty() {
            normal.push(' ');
        }
        match token {
            SqlToken::Quoted(text) => normal.push_str(text),
            token => push(&mut normal, token.text()),
        }
    }
    without_end(normal)
}

/// Returns what all spellings of a statement have in common: the tokens with one blank between each
/// two, without comments and trailing semicolons, and words in lower case. It may be no valid SQL.
pub fn query_key(sql: &str) -> String {
    let mut key = String::with_capacity(2 * sql.len());
    let mut before = SqlToken::Gap("");
    for token in sql_tokens(sql) {
        let is_one_text = matches!(
            (before, token),
            (SqlToken::Quoted(half), SqlToken::Quoted(other)) if is_doubled(half, other)
        );
        before = token;
        if matches!(token, SqlToken::Gap(_)) {
            continue;
        }
        if !is_one_text && !key.is_empty() {
            key.push(' ');
        }
        match token {
            SqlToken::Quoted(text) => key.push_str(text),
            token => key.push_str(&token.text().to_ascii_lowercase()),
        }
    }
    without_end(key)
}

/// Whether two quoted texts with nothing between them are one text with a doubled quote.
fn is_doubled(half: &str, other: &str) -> bool {
    let quote = other.chars().next();
    quote != Some('[') && half.chars().next() == quote
}

/// Removes the semicolons at the end of a statement.
fn without_end(mut statement: String) -> String {
    let kept = statement.trim_end_matches([';', ' ']).len();
    statement.truncate(kept);
    statement
}

/// Returns the first word in upper case; empty if the statement does not begin with one.
pub fn first_keyword(sql: &str) -> String {
    let mut tokens = sql_tokens(sql).skip_while(|token| matches!(token, SqlToken::Gap(_)));
    match tokens.next() {
        Some(SqlToken::Word(word)) => word.to_uppercase(),
        _ => String::new(),
    }
}

/// Returns whether the statement itself, and not only a part of it in parentheses, has `ORDER BY`.
pub fn is_ordered(sql: &str) -> bool {
    let (mut depth, mut previous) = (0_usize, "");
    for token in sql_tokens(sql).filter(|token| !matches!(token, SqlToken::Gap(_))) {
        match token {
            SqlToken::Symbol("(") => depth += 1,
            SqlToken::Symbol(")") => depth = depth.saturating_sub(1),
            SqlToken::Word(word)
                if depth == 0
                    && word.eq_ignore_ascii_case("by")
                    && previous.eq_ignore_ascii_case("order") =>
            {
                return true;
            }
            _ => {}
        }
        previous = token.text();
    }
    false
}

/// Returns whether anything but comments, white space and semicolons follows the first semicolon.
///
/// rusqlite compiles each further statement in a call within another, so that many of them overflow
/// the stack. Whoever compiles SQL of others asks this first.
pub fn has_another_statement(sql: &str) -> bool {
    // SQLite skips the vertical tab after other white space, and the byte order mark.
    const SKIPPED: [char; 3] = [';', '\u{b}', '\u{feff}'];
    let mut rest = sql_tokens(sql).skip_while(|token| *token != SqlToken::Symbol(";"));
    rest.any(|token| match token {
        SqlToken::Gap(_) => false,
        token => !token.text().trim_start_matches(SKIPPED).is_empty(),
    })
}

/// Quotes a name for SQL.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a text for SQL.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_that_of_the_whole_statement() {
        for (sql, ordered) in [
            ("SELECT a FROM t ORDER BY a DESC LIMIT 3", true),
            ("select (1) from t order/* */\nby a", true),
            ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", true),
            ("SELECT a FROM (SELECT a FROM t ORDER BY a)", false),
            ("SELECT rank() OVER (ORDER BY a) FROM t", false),
            (
                "SELECT 'ORDER BY', \"order\" FROM t GROUP BY a -- ORDER BY a",
                false,
            ),
            ("SELECT a FROM t", false),
        ] {
            assert_eq!(is_ordered(sql), ordered, "{sql}");
        }
    }

    #[test]
    fn normal_forms() {
        for (sql, normal) in [
            ("SELECT 1", "SELECT 1"),
            ("  SELECT\n\t1 ; ; ", "SELECT 1"),
            ("SELECT/* a */1 -- b", "SELECT 1"),
            ("-- only\nSELECT 1", "SELECT 1"),
            ("SELECT '--  x'", "SELECT '--  x'"),
            ("SELECT 'it''s  ;'", "SELECT 'it''s  ;'"),
            (
                "SELECT \"a  b\", `c  d`, [e  f]",
                "SELECT \"a  b\", `c  d`, [e  f]",
            ),
            ("SELECT 'open  end", "SELECT 'open  end"),
            ("select 1", "select 1"),
            ("/* open", ""),
            ("", ""),
        ] {
            assert_eq!(normal_form(sql), normal, "{sql}");
        }
    }

    #[test]
    fn the_case_folded_form_keeps_literals() {
        for (sql, normal) in [
            ("SELECT  Name\nFROM T ;", "select name from t"),
            (
                "select name from t where c = 'A  B'",
                "select name from t where c = 'A  B'",
            ),
            ("SELECT \"Name\" FROM t", "select \"Name\" from t"),
            ("SELECT 'it''s' FROM T", "select 'it''s' from t"),
        ] {
            assert_eq!(case_folded_form(sql), normal);
            assert_eq!(case_folded_form(normal), normal, "it is idempotent");
        }
    }

    #[test]
    fn the_key_of_a_query_is_that_of_all_its_spellings() {
        for (sql, other, key) in [
            (
                "SELECT COUNT(*) FROM o",
                "select count( * )\nfrom O ;",
                "select count ( * ) from o",
            ),
            (
                "SELECT a,b FROM t WHERE a<=1",
                "SELECT a , b FROM t /* all */ WHERE a <= 1",
                "select a , b from t where a <= 1",
            ),
            (
                "SELECT t.a FROM t WHERE b='it''s'",
                "SELECT t . a FROM t WHERE b = 'it''s' -- end",
                "select t . a from t where b = 'it''s'",
            ),
            (
                "SELECT \"A\"\"b\",[c][d]",
                "SELECT \"A\"\"b\" , [c] [d]",
                "select \"A\"\"b\" , [c] [d]",
            ),
        ] {
            assert_eq!(query_key(sql), key);
            assert_eq!(query_key(other), key);
            assert_eq!(query_key(key), key, "it is idempotent");
        }
        for (sql, other) in [
            ("SELECT 'a b'", "SELECT 'a  b'"),
            ("SELECT 'a''b'", "SELECT 'a' 'b'"),
            ("SELECT \"a\"", "SELECT \"A\""),
            ("SELECT ab", "SELECT a b"),
            // SQLite keeps the case of these letters, and this blank is a letter.
            ("SELECT É", "SELECT é"),
            ("SELECT a\u{a0}b", "SELECT a b"),
            ("SELECT a\u{a0}b", "SELECT a \u{a0} b"),
        ] {
            assert_ne!(query_key(sql), query_key(other), "{sql}");
            assert_ne!(case_folded_form(sql), case_folded_form(other), "{sql}");
        }
    }

    #[test]
    fn first_keywords() {
        for (sql, keyword) in [
            ("select 1", "SELECT"),
            ("/**/ -- x\n With a", "WITH"),
            ("(SELECT 1)", ""),
            ("'SELECT'", ""),
            ("", ""),
            ("DROP_TABLE x", "DROP_TABLE"),
        ] {
            assert_eq!(first_keyword(sql), keyword, "{sql}");
        }
    }

    #[test]
    fn what_ends_a_statement_is_no_other_statement() {
        for (sql, has_another) in [
            ("SELECT 1", false),
            ("SELECT 1;", false),
            ("SELECT 1 ;; /* a; b */ ; -- c; d\n;", false),
            ("SELECT 1; /* open; end", false),
            ("SELECT ';' || \";\" || `;` || [;] -- ; a\n", false),
            ("SELECT 1; \u{b}\u{feff}", false),
            ("SELECT 1; SELECT 2", true),
            ("SELECT 1;SELECT", true),
            ("SELECT 1; -- a\n;b", true),
            ("SELECT 1; ''", true),
            ("SELECT 1;\u{feff}SELECT 2", true),
            (";SELECT 1", true),
            ("", false),
        ] {
            assert_eq!(has_another_statement(sql), has_another, "{sql}");
        }
    }

    #[test]
    fn operators_are_one_token() {
        let sql = "a->>'$.b'<=c||d->1<<2==3!=4<>5>>6>=7=8<9";
        let symbols = sql_tokens(sql).filter_map(|token| match token {
            SqlToken::Symbol(symbol) => Some(symbol),
            _ => None,
        });
        let expected = [
            "->>", "<=", "||", "->", "<<", "==", "!=", "<>", ">>", ">=", "=", "<",
        ];
        assert_eq!(symbols.collect::<Vec<_>>(), expected);
    }

    proptest::proptest! {
        #[test]
        fn total_and_idempotent(sql in "[ -~\\né'\"]{0,40}") {
            let normal = normal_form(&sql);
            proptest::prop_assert_eq!(normal_form(&normal), normal);
            let key = query_key(&sql);
            proptest::prop_assert_eq!(query_key(&key), key);
            first_keyword(&sql);
            let text: String = sql_tokens(&sql).map(SqlToken::text).collect();
            proptest::prop_assert_eq!(text, sql);
        }
    }
}
