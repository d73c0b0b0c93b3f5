//! The lists in `words/` that both the generator of databases and drafting read. Pure.

pub(crate) const THINGS: &str = include_str!("../words/things.txt");
pub(crate) const ATTRIBUTES: &str = include_str!("../words/attributes.txt");
pub(crate) const DESCRIBERS: &str = include_str!("../words/describers.txt");
pub(crate) const PARTICIPLES: &str = include_str!("../words/participles.txt");
pub(crate) const ABBREVIATIONS: &str = include_str!("../words/abbreviations.txt");

/// Returns the lines of a list, without empty ones and comments.
pub(crate) fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Returns the lines that have a second field, divided after the first.
pub(crate) fn pairs(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    lines(text).filter_map(|line| line.split_once(' '))
}

/// Returns the attributes whose values are of a kind: `number` or `text`.
pub(crate) fn attributes(kind: &str) -> impl Iterator<Item = &'static str> {
    let of_kind = pairs(ATTRIBUTES).filter(move |(_, found)| *found == kind);
    of_kind.map(|(word, _)| word)
}
