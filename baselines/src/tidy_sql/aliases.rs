//! The names of tables in place of their aliases.

use super::words::{Kind, Word, is_nested, unquoted};

/// An alias, and the table that it stands for.
type Alias = (String, String);

/// Puts the names of tables in place of their aliases, if all of them can be: within its part of
/// the query each table is read once and each alias is given once, and an alias stands nowhere but
/// behind its table and before a column.
pub(super) fn resolve(words: &mut Vec<Word>) {
    let is_nested = is_nested(words);
    let is_compound = words.iter().any(Word::is_set_operation);
    // The ORDER BY of a compound query reads the names of its first part.
    if is_compound && words.iter().any(|word| word.is("ORDER")) || names_tables(words) {
        return;
    }
    let starts = words.iter().enumerate();
    let starts = starts.filter(|(_, word)| !is_nested && word.is_set_operation());
    let mut bounds: Vec<usize> = [0].into_iter().chain(starts.map(|(at, _)| at)).collect();
    bounds.push(words.len());
    let parts: Vec<&[Word]> = bounds
        .windows(2)
        .map(|two| &words[two[0]..two[1]])
        .collect();
    let resolved: Option<Vec<Vec<Word>>> = parts.into_iter().map(without_aliases).collect();
    if let Some(resolved) = resolved {
        *words = resolved.concat();
    }
}

/// Returns whether the name of a table stands anywhere but behind FROM or JOIN, or as a column.
/// There it may be what a part of the query calls by this name.
fn names_tables(words: &[Word]) -> bool {
    let is_qualifier = |at: usize| words.get(at + 1).is_some_and(|next| next.is("."));
    let mut tables = (0..words.len()).filter(|&at| words[at].kind == Kind::Table);
    tables.any(|at| {
        let is_column = at > 0 && words[at - 1].is(".") && !is_qualifier(at);
        !is_column && (at == 0 || !words[at - 1].reads())
    })
}

/// Returns a part of a query without aliases, or none if they cannot be resolved.
fn without_aliases(part: &[Word]) -> Option<Vec<Word>> {
    let aliases = aliases(part)?;
    let table_of = |word: &Word| {
        let is_alias = |(alias, _): &&Alias| word.kind == Kind::Other && is_same(alias, &word.text);
        aliases.iter().find(is_alias).map(|(_, table)| table)
    };
    let mut resolved: Vec<Word> = Vec::with_capacity(part.len());
    for word in part {
        match table_of(word) {
            Some(_) if resolved.last().is_some_and(|before| before.is("AS")) => {
                resolved.pop();
            }
            Some(table) => resolved.push(Word {
                kind: Kind::Table,
                text: table.clone(),
                gap: word.gap,
            }),
            None => resolved.push(word.clone()),
        }
    }
    Some(resolved)
}

/// Returns the aliases of the tables of a part, or none if they cannot be resolved.
fn aliases(part: &[Word]) -> Option<Vec<Alias>> {
    let mut aliases: Vec<Alias> = Vec::new();
    let mut tables: Vec<&str> = Vec::new();
    // The places behind a table where its alias stands.
    let mut places = Vec::new();
    for (at, two) in part.windows(2).enumerate() {
        if two[1].kind != Kind::Table || !two[0].reads() {
            continue;
        }
        let table = two[1].text.as_str();
        tables.push(table);
        if let Some([between, alias]) = part.get(at + 2..at + 4)
            && between.is("AS")
            && alias.is_bare_name()
        {
            aliases.push((alias.text.clone(), table.to_owned()));
            places.push(at + 3);
        }
    }
    let stands_well = |(at, word): (usize, &Word)| {
        let names = |alias: &str| word.kind != Kind::Text && is_same(alias, &unquoted(&word.text));
        let is_alias = aliases.iter().any(|(alias, _)| names(alias));
        let is_before_column = part.get(at + 1).is_some_and(|next| next.is("."));
        let is_qualified = at > 0 && part[at - 1].is(".");
        let is_qualifier = word.kind == Kind::Other && is_before_column && !is_qualified;
        !is_alias || places.contains(&at) || is_qualifier
    };
    let is_once = |name: &str, names: &mut dyn Iterator<Item = &str>| {
        names.filter(|other| is_same(name, other)).count() == 1
    };
    let are_clear = aliases.iter().all(|(alias, table)| {
        is_once(table, &mut tables.iter().copied())
            && is_once(alias, &mut aliases.iter().map(|(alias, _)| alias.as_str()))
    });
    (are_clear && part.iter().enumerate().all(stands_well)).then_some(aliases)
}

fn is_same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}
