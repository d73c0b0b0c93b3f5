//! The name that a misspelled one probably means. Pure.

/// Returns the candidate that needs the fewest changes to become `name`.
pub(super) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .min_by_key(|candidate| distance(&name.to_lowercase(), &candidate.to_lowercase()))
}

/// The Levenshtein distance of two texts.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, from) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, to) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_needs_the_fewest_changes() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(nearest("nuon", ["says", "noun", "also"]), Some("noun"));
        assert_eq!(nearest("x", []), None);
    }
}
