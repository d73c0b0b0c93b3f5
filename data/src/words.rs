//! The lists in `words/` that both the generator of databases and drafting read, and the parser of
//! TOML files that are compiled in. Pure.

use serde::de::DeserializeOwned;

pub(crate) const THINGS: &str = include_str!("../words/things.txt");
pub(crate) const ATTRIBUTES: &str = include_str!("../words/attributes.txt");
pub(crate) const DESCRIBERS: &str = include_str!("../words/describers.txt");
pub(crate) const PARTICIPLES: &str = include_str!("../words/participles.txt");
pub(crate) const ABBREVIATIONS: &str = include_str!("../words/abbreviations.txt");

/// Parses a TOML file that is compiled in.
pub(crate) fn embedded<T: DeserializeOwned>(name: &str, text: &str) -> T {
    toml::from_str(text)
        .unwrap_or_else(|error| panic!("embedded file {name}: {error}: this is a bug"))
}

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
