//! English nouns: articles and plurals.

/// Returns a noun with "a" or "an". The sound decides, so some beginnings are exceptions.
pub(crate) fn with_article(noun: &str) -> String {
    let starts = |beginnings: &[&str]| beginnings.iter().any(|it| noun.starts_with(it));
    let is_vowel = match starts(&["a", "e", "i", "o", "u"]) {
        true => !starts(&["eu", "one", "once", "uni", "use", "usu", "uti"]),
        false => starts(&["heir", "honest", "honor", "hour"]),
    };
    format!("{} {noun}", if is_vowel { "an" } else { "a" })
}

/// Returns the plural of a noun. "type of room" becomes "types of room".
pub(crate) fn plural(noun: &str) -> String {
    if let Some((head, tail)) = noun.split_once(" of ") {
        return format!("{} of {tail}", plural(head));
    }
    let ends = |endings: &[&str]| endings.iter().any(|it| noun.ends_with(it));
    if ends(&["species", "series"]) {
        return noun.to_owned();
    }
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ if ends(&["sis"]) => format!("{}es", &noun[..noun.len() - 2]),
        _ if ends(&["s", "x", "z", "ch", "sh"]) => format!("{noun}es"),
        _ => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plurals_follow_the_head_of_a_noun() {
        let cases = [
            ("city", "cities"),
            ("day", "days"),
            ("class", "classes"),
            ("type of room", "types of room"),
            ("price", "prices"),
            ("species", "species"),
            ("analysis", "analyses"),
        ];
        for (noun, expected) in cases {
            assert_eq!(plural(noun), expected);
        }
    }

    #[test]
    fn articles_follow_the_sound() {
        let cases = [
            "an age", "a price", "an hour", "a unit", "an uncle", "a hotel", "an id",
        ];
        for expected in cases {
            let noun = expected.split_once(' ').unwrap().1;
            assert_eq!(with_article(noun), expected);
        }
    }
}
