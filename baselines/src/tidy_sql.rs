//! Gold SQL written as a small model can learn it.
//!
//! People write the same query in many ways: `t2.clubname  =  "Chess"` for a column that DESCRIBE
//! shows as `ClubName`. A model that copies names must then also change their letters, keep aliases
//! in mind, and escape quotation marks within a tool call. So demonstrations have keywords in
//! capitals, names as DESCRIBE shows them, text in single quotes, single blanks, and the name of a
//! table in place of its alias, wherever the meaning stays the same.

use actor::proto::v1::Observation;
use data::{
    Question, needs_quotes,
    sql_text::{SqlToken, sql_tokens},
};

use crate::observation::{DescribedTable, described_tables, is_described};

/// Words that end the reach of an alias where no query is nested.
const SET_OPERATIONS: [&str; 3] = ["UNION", "INTERSECT", "EXCEPT"];
const COMPARISONS: [&str; 8] = ["=", "<", ">", "<=", ">=", "<>", "!=", "=="];

/// Returns the gold SQL of a question in a tidy form, or as it is if a table of it has not been
/// described: a text in double quotes might be the name of its column.
pub(crate) fn tidy_gold_sql(question: &Question, observation: &Observation) -> String {
    let mut tables = question.tables_involved.iter();
    match tables.all(|table| is_described(observation, table)) {
        true => tidy_sql(&question.gold_sql, &described_tables(observation)),
        false => question.gold_sql.clone(),
    }
}

/// Returns a query in a tidy form, or as it is if it reads other tables.
fn tidy_sql(sql: &str, tables: &[DescribedTable]) -> String {
    let mut words = words(sql, tables);
    let reads = |two: &[Word]| two[0].is("FROM") || two[0].is("JOIN");
    let is_known = |two: &[Word]| two[1].kind == Kind::Table || two[1].is("(");
    if words.windows(2).any(|two| reads(two) && !is_known(two)) {
        return sql.to_owned();
    }
    resolve_aliases(&mut words);
    spell_columns(&mut words, tables);
    joined(&words)
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Table,
    Column,
    Keyword,
    Function,
    /// An alias, a number or a text.
    Other,
    Symbol,
}

#[derive(Clone, Debug)]
struct Word {
    kind: Kind,
    text: String,
    /// Whether a blank stands before it.
    gap: bool,
}

impl Word {
    fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Keyword | Kind::Symbol) && self.text.eq_ignore_ascii_case(text)
    }
}

/// Splits a query into words, with names as they are shown.
fn words(sql: &str, tables: &[DescribedTable]) -> Vec<Word> {
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
                kind: Kind::Other,
                text: token.text().to_owned(),
                gap: std::mem::take(&mut gap),
            }),
        }
        last_quote = quote;
    }
    while words.last().is_some_and(|word| word.text == ";") {
        words.pop();
    }
    let before_parenthesis: Vec<bool> = (1..=words.len())
        .map(|next| words.get(next).is_some_and(|next| next.text == "("))
        .collect();
    for (word, is_called) in words.iter_mut().zip(before_parenthesis) {
        classify(word, is_called, tables);
    }
    words
}

fn classify(word: &mut Word, is_called: bool, tables: &[DescribedTable]) {
    let first = word.text.chars().next().unwrap_or(' ');
    let name = unquoted(&word.text);
    let is_plain = first.is_alphabetic() || first == '_';
    let is_name = matches!(first, '"' | '`' | '[') || is_plain && !is_called;
    if is_plain && needs_quotes(&word.text) {
        word.kind = Kind::Keyword;
        // SQLite reads some keywords as names.
        if shown(&name, tables).is_none() {
            word.text = word.text.to_uppercase();
        }
    } else if is_plain && is_called {
        word.kind = Kind::Function;
        word.text = word.text.to_lowercase();
    } else if let Some((kind, name)) = is_name.then(|| shown(&name, tables)).flatten() {
        word.kind = kind;
        word.text = name;
    } else if first == '"' {
        word.text = format!("'{}'", name.replace('\'', "''"));
    } else if !is_plain && !first.is_ascii_digit() && first != '\'' {
        word.kind = Kind::Symbol;
    }
}

fn unquoted(text: &str) -> String {
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

/// Returns what a name stands for, and how it is shown.
fn shown(name: &str, tables: &[DescribedTable]) -> Option<(Kind, String)> {
    let is_same = |shown: &&String| shown.eq_ignore_ascii_case(name);
    let mut columns = tables.iter().flat_map(|table| &table.columns);
    if let Some(table) = tables.iter().map(|table| &table.name).find(is_same) {
        return Some((Kind::Table, as_sql(table)));
    }
    let column = columns.find(is_same)?;
    Some((Kind::Column, as_sql(column)))
}

fn as_sql(name: &str) -> String {
    match needs_quotes(name) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}

/// Puts the names of tables in place of their aliases, where a part of the query has one alias for
/// each table.
fn resolve_aliases(words: &mut Vec<Word>) {
    let selects = words.windows(2);
    let is_nested = selects
        .into_iter()
        .any(|two| two[0].is("(") && two[1].is("SELECT"));
    let mut parts: Vec<Vec<Word>> = vec![Vec::new()];
    for word in words.drain(..) {
        let ends_part = !is_nested && SET_OPERATIONS.iter().any(|it| word.is(it));
        if ends_part {
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push(word);
        }
    }
    words.extend(parts.into_iter().flat_map(without_aliases));
}

fn without_aliases(part: Vec<Word>) -> Vec<Word> {
    let mut aliases: Vec<(String, String)> = Vec::new();
    let mut tables: Vec<&str> = Vec::new();
    for (at, word) in part.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &part[before]);
        let is_read = before.is_some_and(|it| it.is("FROM") || it.is("JOIN") || it.is(","));
        let is_qualifier = part.get(at + 1).is_some_and(|next| next.is("."));
        if word.kind != Kind::Table || !is_read || is_qualifier {
            continue;
        }
        tables.push(&word.text);
        if let Some([between, alias]) = part.get(at + 1..at + 3)
            && between.is("AS")
            && alias.kind == Kind::Other
        {
            aliases.push((alias.text.clone(), word.text.clone()));
        }
    }
    let occurs_once = |name: &String, names: &mut dyn Iterator<Item = &str>| {
        names.filter(|it| it.eq_ignore_ascii_case(name)).count() == 1
    };
    let is_clear = aliases.iter().all(|(alias, table)| {
        occurs_once(table, &mut tables.iter().copied())
            && occurs_once(alias, &mut aliases.iter().map(|(alias, _)| alias.as_str()))
    });
    if !is_clear {
        return part;
    }
    let table_of = |word: &Word| {
        let is_same =
            |alias: &str| word.kind == Kind::Other && alias.eq_ignore_ascii_case(&word.text);
        let named = aliases.iter().find(|(alias, _)| is_same(alias));
        named.map(|(_, table)| table.clone())
    };
    let mut resolved: Vec<Word> = Vec::with_capacity(part.len());
    for mut word in part {
        if let Some(table) = table_of(&word) {
            if resolved.last().is_some_and(|before| before.is("AS")) {
                resolved.pop();
                continue;
            }
            word.kind = Kind::Table;
            word.text = table;
        }
        resolved.push(word);
    }
    resolved
}

/// Spells each column that follows the name of its table as that table shows it.
fn spell_columns(words: &mut [Word], tables: &[DescribedTable]) {
    for at in 2..words.len() {
        if words[at].kind == Kind::Column
            && words[at - 1].is(".")
            && words[at - 2].kind == Kind::Table
            && let Some(table) = tables
                .iter()
                .find(|it| as_sql(&it.name) == words[at - 2].text)
        {
            let name = unquoted(&words[at].text);
            let mut columns = table.columns.iter();
            if let Some(column) = columns.find(|column| column.eq_ignore_ascii_case(&name)) {
                words[at].text = as_sql(column);
            }
        }
    }
}

fn joined(words: &[Word]) -> String {
    let mut sql = String::new();
    for (at, word) in words.iter().enumerate() {
        if at > 0 && has_blank(&words[at - 1], word) {
            sql.push(' ');
        }
        sql.push_str(&word.text);
    }
    sql
}

fn has_blank(before: &Word, word: &Word) -> bool {
    let is_comparison = |word: &Word| COMPARISONS.iter().any(|it| word.is(it));
    if before.is("(") || before.is(".") || [")", ",", "."].iter().any(|it| word.is(it)) {
        false
    } else if before.is(",") || is_comparison(before) || is_comparison(word) {
        true
    } else if word.is("(") {
        before.kind != Kind::Function && word.gap
    } else {
        word.gap || before.kind != Kind::Symbol && word.kind != Kind::Symbol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Vec<DescribedTable> {
        let table = |name: &str, columns: &[&str]| DescribedTable {
            name: name.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
        };
        vec![
            table("Club", &["ClubID", "ClubName", "Net Price"]),
            table("member_of_club", &["StuID", "clubid", "position"]),
            table("Order", &["plan", "year"]),
        ]
    }

    #[test]
    fn queries_become_tidy() {
        for (sql, tidy) in [
            (
                "select  clubname from club where clubid  =  5 ;",
                "SELECT ClubName FROM Club WHERE ClubID = 5",
            ),
            (
                "SELECT t2.POSITION ,  COUNT( * ) FROM club AS t1 JOIN member_of_club AS t2 \
                 ON t1.clubid  =  t2.CLUBID GROUP BY t2.position",
                "SELECT member_of_club.position, count(*) FROM Club JOIN member_of_club \
                 ON Club.ClubID = member_of_club.clubid GROUP BY member_of_club.position",
            ),
            // Text in double quotes, with marks of both kinds, and a name that needs them.
            (
                "SELECT `net price` FROM club WHERE clubname = \"Bob's \"\"A\"\"\"",
                "SELECT \"Net Price\" FROM Club WHERE ClubName = 'Bob''s \"A\"'",
            ),
            ("SELECT \"clubname\" FROM club", "SELECT ClubName FROM Club"),
            ("SELECT 'clubname' FROM club", "SELECT 'clubname' FROM Club"),
            (
                "SELECT clubname FROM club WHERE clubname = 'a  ;''b' -- why\n",
                "SELECT ClubName FROM Club WHERE ClubName = 'a  ;''b'",
            ),
            // SQLite reads `plan` as a name, and the keyword of the table called Order stays one.
            (
                "select plan, -1.5 from \"order\" order by plan limit 3",
                "SELECT plan, -1.5 FROM \"Order\" order BY plan LIMIT 3",
            ),
            // An alias in each part of a compound query.
            (
                "SELECT t1.year FROM \"Order\" AS t1 EXCEPT SELECT t1.year FROM \"Order\" AS t1",
                "SELECT \"Order\".year FROM \"Order\" EXCEPT SELECT \"Order\".year FROM \"Order\"",
            ),
        ] {
            assert_eq!(tidy_sql(sql, &tables()), tidy);
            assert_eq!(tidy_sql(tidy, &tables()), tidy, "it is idempotent");
        }
    }

    #[test]
    fn aliases_stay_where_a_table_is_read_twice() {
        for sql in [
            "SELECT a.ClubName FROM Club AS a JOIN Club AS b ON a.ClubID = b.ClubID",
            "SELECT a.ClubName FROM Club AS a WHERE a.ClubID IN (SELECT ClubID FROM Club)",
            "SELECT a.year FROM \"Order\" AS a, \"Order\" AS b",
        ] {
            assert_eq!(tidy_sql(sql, &tables()), sql);
        }
    }

    #[test]
    fn a_query_of_other_tables_stays() {
        for sql in [
            "SELECT x.a  FROM other AS x WHERE x.b = \"c\"",
            "select clubname from club join other",
        ] {
            assert_eq!(tidy_sql(sql, &tables()), sql);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken(sql in "[ -~\\né]{0,60}|(SELECT|FROM|club|AS|\\.|,|\"|'| ){0,20}") {
            tidy_sql(&sql, &tables());
        }
    }
}
