//! A small parser of paths in Rust code: `a::b::{c, d::e as f}`.

/// Returns all paths in `code` that begin with one of `roots`, with braces expanded. A path ends
/// before `*`, `self` and generic arguments.
pub(crate) fn paths(code: &str, roots: &[&str]) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut paths = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let continues = index > 0 && matches!(tokens[index - 1], "::" | ".");
        let is_visibility = index > 2 && tokens[index - 3..index] == ["pub", "(", "in"];
        let is_path = tokens.get(index + 1) == Some(&"::");
        if roots.contains(token) && is_path && !continues && !is_visibility {
            expand(&tokens, index, &mut Vec::new(), &mut paths);
        }
    }
    paths
}

fn tokens(code: &str) -> Vec<&str> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) {
            rest.find(|character| !is_word(character))
                .unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if !first.is_whitespace() {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

/// Expands the path that begins at `index` and returns the index after it.
fn expand(
    tokens: &[&str],
    mut index: usize,
    prefix: &mut Vec<String>,
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let depth = prefix.len();
    while let Some(token) = tokens.get(index) {
        if *token == "{" {
            index += 1;
            while !matches!(tokens.get(index), None | Some(&"}")) {
                index = match tokens[index] {
                    "," => index + 1,
                    _ => expand(tokens, index, prefix, paths),
                };
            }
            prefix.truncate(depth);
            return index + 1;
        }
        if !matches!(*token, "self" | "*" | "<") || prefix.is_empty() {
            prefix.push((*token).to_owned());
        }
        index += 1;
        if tokens.get(index) != Some(&"::") {
            break;
        }
        index += 1;
    }
    paths.push(prefix.clone());
    prefix.truncate(depth);
    // An alias belongs to the path.
    match tokens.get(index) {
        Some(&"as") => index + 2,
        _ => index,
    }
}

#[test]
fn paths_are_expanded() {
    let code = "use crate::{a::{B, c::D as E}, f::*, self}; fn g() { crate::h::i::<u8>(super::J) } pub(in crate::k) struct L;";
    let found = paths(code, &["crate", "super"]);
    let found: Vec<String> = found.iter().map(|path| path.join("::")).collect();
    assert_eq!(
        found,
        [
            "crate::a::B",
            "crate::a::c::D",
            "crate::f",
            "crate",
            "crate::h::i",
            "super::J"
        ]
    );
}
