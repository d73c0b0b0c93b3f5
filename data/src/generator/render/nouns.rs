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

/// Nouns whose plural is irregular, or that have none, with their plural.
const IRREGULAR: &[(&str, &str)] = &[
    ("aircraft", "aircraft"),
    ("alumnus", "alumni"),
    ("analysis", "analyses"),
    ("axis", "axes"),
    ("baggage", "baggage"),
    ("child", "children"),
    ("crisis", "crises"),
    ("criterion", "criteria"),
    ("curriculum", "curricula"),
    ("data", "data"),
    ("deer", "deer"),
    ("diagnosis", "diagnoses"),
    ("equipment", "equipment"),
    ("fish", "fish"),
    ("foot", "feet"),
    ("furniture", "furniture"),
    ("goose", "geese"),
    ("half", "halves"),
    ("hypothesis", "hypotheses"),
    ("information", "information"),
    ("knife", "knives"),
    ("leaf", "leaves"),
    ("life", "lives"),
    ("luggage", "luggage"),
    ("man", "men"),
    ("medium", "media"),
    ("money", "money"),
    ("mouse", "mice"),
    ("person", "people"),
    ("phenomenon", "phenomena"),
    ("quiz", "quizzes"),
    ("sheep", "sheep"),
    ("shelf", "shelves"),
    ("software", "software"),
    ("stimulus", "stimuli"),
    ("thesis", "theses"),
    ("thief", "thieves"),
    ("tooth", "teeth"),
    ("wife", "wives"),
    ("wolf", "wolves"),
    ("woman", "women"),
];

/// Nouns that are plurals already.
const PLURALS: &[&str] = &[
    "arrears",
    "contents",
    "details",
    "earnings",
    "goods",
    "headquarters",
    "premises",
    "remarks",
    "sales",
    "savings",
    "statistics",
    "winnings",
];

/// Whether a noun is a plural without a singular: "details".
pub(crate) fn is_plural_only(noun: &str) -> bool {
    let last = noun.rsplit(' ').next();
    last.is_some_and(|last| PLURALS.contains(&last))
}

/// Returns the plural of any noun, irregular ones included. The data of the project were generated
/// with [`plural`], so their nouns keep its plurals.
pub(crate) fn plural_of_any(noun: &str) -> String {
    if let Some((head, tail)) = noun.split_once(" of ") {
        return format!("{} of {tail}", plural_of_any(head));
    }
    for link in [" for ", " from "] {
        if let Some((head, tail)) = noun.split_once(link) {
            return format!("{}{link}{tail}", plural_of_any(head));
        }
    }
    if let Some((head, tail)) = moment(noun) {
        return format!("{head}s {tail}");
    }
    let (before, last) = noun.rsplit_once(' ').unwrap_or(("", noun));
    if PLURALS.contains(&last) {
        return noun.to_owned();
    }
    let found = IRREGULAR.iter().find(|(one, _)| *one == last);
    // "policeman", "stepchild".
    let ending = || {
        let endings = [("woman", "women"), ("man", "men"), ("child", "children")];
        let exceptions = ["human", "german", "roman"];
        let (one, many) = endings.iter().find(|(one, _)| last.ends_with(one))?;
        let stem = last.strip_suffix(one)?;
        (!exceptions.contains(&last)).then(|| format!("{stem}{many}"))
    };
    let many = match found {
        Some((_, many)) => (*many).to_owned(),
        None => ending().unwrap_or_else(|| plural(last)),
    };
    match before {
        "" => many,
        before => format!("{before} {many}"),
    }
}

/// Divides a noun whose head comes first: "date claimed", "year opened".
fn moment(noun: &str) -> Option<(&str, &str)> {
    const HEADS: &[&str] = &["amount", "date", "time", "year"];
    const ENDINGS: &[&str] = &[
        "begun", "born", "bought", "built", "from", "held", "left", "lost", "made", "paid", "sent",
        "sold", "taken", "to", "won",
    ];
    let (head, tail) = noun.split_once(' ')?;
    let last = tail.rsplit(' ').next()?;
    let is_participle = last.ends_with("ed") || ENDINGS.contains(&last);
    (HEADS.contains(&head) && is_participle).then_some((head, tail))
}

/// Returns the singular of a noun whose plural is irregular.
pub(crate) fn irregular_singular(many: &str) -> Option<&'static str> {
    let found = IRREGULAR.iter().find(|(_, plural)| *plural == many);
    found.map(|(one, _)| *one)
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
    fn plurals_of_any_noun() {
        let cases = [
            ("child", "children"),
            ("sales person", "sales people"),
            ("policeman", "policemen"),
            ("human", "humans"),
            ("product for hire", "products for hire"),
            ("man of honor", "men of honor"),
            ("date claimed", "dates claimed"),
            ("date effective to", "dates effective to"),
            ("date range", "date ranges"),
            ("other details", "other details"),
            ("fish", "fish"),
            ("city", "cities"),
        ];
        for (noun, expected) in cases {
            assert_eq!(plural_of_any(noun), expected);
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
