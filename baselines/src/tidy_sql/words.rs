//! The words of a query, and what they stand for.

use data::{
    sql_name::{as_needed, is_keyword},
    sql_text::{SqlToken, sql_tokens},
};

use crate::observation::DescribedTable;

/// What a word of a query is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// The name of a table that is shown.
    Table,
    /// The name of a column that is shown.
    Column,
    Keyword,
    Function,
    /// A name or a text in double quotes, or a name in backticks or brackets.
    Quoted,
    /// A text in single quotes.
    Text,
    /// An alias, a number or another bare word.
    Other,
    Symbol,
}

/// A word of a query.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// Whether a blank stands before it.
    pub(super) gap: bool,
}

impl Word {
    /// Returns whether this is a keyword or a symbol.
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Keyword | Kind::Symbol) && self.text.eq_ignore_ascii_case(text)
    }

    pub(super) fn is_quoted(&self) -> bool {
        matches!(self.kind, Kind::Quoted | Kind::Text)
    }

    /// Returns whether this is an alias, as far as its letters tell.
    pub(super) fn is_bare_name(&self) -> bool {
        let is_letter = |it: char| it.is_alphabetic() || it == '_';
        self.kind == Kind::Other && self.text.starts_with(is_letter)
    }

    /// Returns whether what follows is read.
    pub(super) fn reads(&self) -> bool {
        self.is("FROM") || self.is("JOIN")
    }

    pub(super) fn is_set_operation(&self) -> bool {
        ["UNION", "INTERSECT", "EXCEPT"]
            .iter()
            .any(|it| self.is(it))
    }

    /// Returns whether a clause begins that ends a FROM clause.
    pub(super) fn ends_from(&self) -> bool {
        let clauses = [
            "SELECT", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "WINDOW",
        ];
        self.is_set_operation() || clauses.iter().any(|it| self.is(it))
    }
}

/// Returns whether a query has a query in parentheses.
pub(super) fn is_nested(words: &[Word]) -> bool {
    let mut pairs = words.windows(2);
    pairs.any(|two| two[0].is("(") && two[1].is("SELECT"))
}

/// Splits a query into words. Bare names are spelled as they are shown.
pub(super) fn split(sql: &str, tables: &[DescribedTable]) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut gap = false;
    let mut last_quote = None;
    for token in sql_tokens(sql) {
        let quote = match token {
            SqlToken::Gap(_) => {
                gap = true;
                last_quote = None;
                continue;
            }
            SqlToken::Quoted(text) => text.chars().next(),
            _ => None,
        };
        match (quote, words.last_mut()) {
            // A doubled quotation mark, which reads as the end of a text and another text.
            (Some(_), Some(last)) if quote == last_quote => last.text.push_str(token.text()),
            _ => words.push(Word {
                kind: match token {
                    SqlToken::Symbol(_) => Kind::Symbol,
                    SqlToken::Quoted(text) if text.starts_with('\'') => Kind::Text,
                    SqlToken::Quoted(_) => Kind::Quoted,
                    _ => Kind::Other,
                },
                text: token.text().to_owned(),
                gap: std::mem::take(&mut gap),
            }),
        }
        last_quote = quote;
    }
    while words.last().is_some_and(|word| word.is(";")) {
        words.pop();
    }
    for at in 0..words.len() {
        let is_called = words.get(at + 1).is_some_and(|next| next.is("("));
        classify(&mut words[at], is_called, tables);
    }
    // A table in quotation marks.
    for at in 1..words.len() {
        let is_read = words[at - 1].reads();
        let is_qualifier = words.get(at + 1).is_some_and(|next| next.is("."));
        if words[at].kind == Kind::Quoted
            && (is_read || is_qualifier)
            && let Some(table) = table(&unquoted(&words[at].text), tables)
        {
            words[at].kind = Kind::Table;
            words[at].text = as_needed(table);
        }
    }
    words
}

/// Says what a bare word is.
fn classify(word: &mut Word, is_called: bool, tables: &[DescribedTable]) {
    let is_bare = word
        .text
        .starts_with(|it: char| it.is_alphabetic() || it == '_');
    if word.kind != Kind::Other || !is_bare {
        return;
    }
    let shown_table = table(&word.text, tables);
    let shown = shown_table.or_else(|| column(&word.text, tables));
    if is_keyword(&word.text) {
        word.kind = Kind::Keyword;
        // SQLite reads some keywords as names.
        if shown.is_none() {
            word.text = word.text.to_ascii_uppercase();
        }
    } else if is_called {
        word.kind = Kind::Function;
        word.text = word.text.to_ascii_lowercase();
    } else if let Some(shown) = shown {
        word.kind = match shown_table {
            Some(_) => Kind::Table,
            None => Kind::Column,
        };
        word.text = as_needed(shown);
    }
}

/// Returns how the table of this name is shown.
pub(super) fn table<'a>(name: &str, tables: &'a [DescribedTable]) -> Option<&'a str> {
    let mut names = tables.iter().map(|table| table.name.as_str());
    names.find(|shown| shown.eq_ignore_ascii_case(name))
}

/// Returns how the first column of this name is shown.
pub(super) fn column<'a>(name: &str, tables: &'a [DescribedTable]) -> Option<&'a str> {
    let mut columns = tables.iter().flat_map(|table| &table.columns);
    let column = columns.find(|shown| shown.eq_ignore_ascii_case(name));
    column.map(String::as_str)
}

/// Returns the name or text that stands in quotation marks.
pub(super) fn unquoted(text: &str) -> String {
    let inner = |quote: char| {
        let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
        Some(inner.replace(&format!("{quote}{quote}"), &quote.to_string()))
    };
    let bracketed = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner('"')
        .or_else(|| inner('`'))
        .or_else(|| bracketed.map(str::to_owned))
        .unwrap_or_else(|| text.to_owned())
}
