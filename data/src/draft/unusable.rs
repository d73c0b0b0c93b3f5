//! Columns that questions are not about.

use super::dictionary::Dictionary;
use super::name_lists::ends_with;
use super::statistics::ColumnStatistics;
use super::units;

/// The longest text that questions show.
const MOST_CHARACTERS: usize = 60;
/// The most words of a text that is a name or a category.
const MOST_WORDS: usize = 8;
/// The percentage of rows without a value from which a column is not asked about.
const MOSTLY_MISSING_PERCENT: usize = 90;
/// Reasons that other rows of the table may contradict.
const WITHOUT_VALUE: &str = "has no value";
const MOSTLY_MISSING: &str = "is nearly always missing";
/// The reason of an id without a key.
pub(super) const WITHOUT_TABLE: &str = "is an id that refers to no table";

/// Whether a reason is about all rows of a table, so that it may be wrong if not all were read.
pub(super) fn is_about_all_rows(reason: &str) -> bool {
    [WITHOUT_VALUE, MOSTLY_MISSING].contains(&reason)
}

/// Whether a reason asks the user for words.
pub(super) fn asks_for_words(reason: &str) -> bool {
    reason.contains("give it words")
}

/// Returns why a column is not asked about. `is_worded`: its words are those of the file of words,
/// which are not judged.
pub(super) fn reason(
    words: &[String],
    statistics: &ColumnStatistics,
    is_worded: bool,
    dictionary: &Dictionary,
) -> Option<&'static str> {
    // This comes first, because other words do not make a secret public.
    let is_secret = |word: &String| ["password", "hash", "token", "salt"].contains(&word.as_str());
    if words.iter().any(is_secret) {
        return Some("is a secret");
    }
    if !is_worded && let Some(problem) = unclear_name(words, statistics, dictionary) {
        return Some(problem);
    }
    if statistics.values() == 0 {
        return Some(WITHOUT_VALUE);
    }
    let missing = statistics.nulls + statistics.blanks;
    if missing * 100 >= statistics.rows * MOSTLY_MISSING_PERCENT {
        return Some(MOSTLY_MISSING);
    }
    if statistics.blobs > 0 {
        return Some("has binary values or text that is not UTF-8");
    }
    if statistics.longest > MOST_CHARACTERS || statistics.most_words > MOST_WORDS {
        return Some("is free text");
    }
    let is_key = ends_with(
        words,
        &["id".to_owned(), "uuid".to_owned(), "guid".to_owned()],
    );
    if is_key && !ends_with(words, &dictionary.lists.labels) {
        return Some(WITHOUT_TABLE);
    }
    None
}

/// Returns why the name of a column does not say what its values are.
fn unclear_name(
    words: &[String],
    statistics: &ColumnStatistics,
    dictionary: &Dictionary,
) -> Option<&'static str> {
    if words
        .iter()
        .all(|word| dictionary.lists.no_columns.contains(word))
    {
        return Some("has no noun in its name; give it words");
    }
    let is_open = words
        .last()
        .is_some_and(|it| dictionary.lists.prepositions.contains(it));
    let values = statistics.values();
    // If some values are no moments, "held on" has no better noun.
    let is_moment = values > 0 && statistics.dates + statistics.years == values;
    let is_sentence = |word: &String| {
        ["how", "what", "where", "which", "who", "why", "or", "since"].contains(&word.as_str())
    };
    if (is_open && !is_moment) || words.iter().any(is_sentence) {
        return Some("has a name that is no noun; give it words");
    }
    // "Date joined staff" needs a sentence, and "enr" or "y card" need an explanation.
    let is_story = matches!(words, [date, verb, _, ..] if date == "date"
        && (verb == "became" || dictionary.is_participle(verb)));
    // "Meter 100" is a race, not a length.
    let is_numbered = matches!(words, [unit, number] if units::is_unit(unit)
        && number.chars().all(|it| it.is_ascii_digit()));
    // "Fastest qualifying" lacks a noun as well.
    let is_doing = words
        .last()
        .is_some_and(|last| last.ends_with("ing") && last.len() > 5 && !dictionary.is_noun(last));
    if is_story || is_numbered || is_doing || words.iter().any(|word| is_opaque(word, dictionary)) {
        return Some("has a name that few readers would understand; give it words");
    }
    None
}

/// Whether a word is a short form that nothing explains: "enr", "y".
fn is_opaque(word: &str, dictionary: &Dictionary) -> bool {
    let lists = &dictionary.lists;
    let is_listed = [
        &lists.keys,
        &lists.codes,
        &lists.labels,
        &lists.measures,
        &lists.additive,
        &lists.ranks,
        &lists.free_texts,
        &lists.prepositions,
        &lists.flags,
        &lists.flag_endings,
        &lists.no_columns,
        &lists.not_flags,
        &lists.times,
    ];
    let is_listed = is_listed
        .iter()
        .any(|list| list.iter().any(|it| it == word));
    // Capitals that no list has, such as "CID", are an abbreviation of this schema alone.
    let is_upper = word.chars().all(|it| it.is_ascii_uppercase());
    if is_upper && word.len() > 1 {
        return !dictionary.lists.acronyms.iter().any(|it| it == word);
    }
    let is_short = word.len() <= 3 && word.chars().all(|it| it.is_ascii_lowercase());
    is_short
        && !is_listed
        && !["a", "an", "and", "or", "per"].contains(&word)
        && !dictionary.is_known(word)
        && !units::is_unit(word)
}
