//! Columns that say when something was done to a row, such as `date_placed` or `held_on`.

use super::dictionary::Dictionary;
use super::name_lists::ends_with;
use super::statistics::ColumnStatistics;
use crate::generator::domain::DraftedPhrases;

/// Words that say that a name is one of a moment, and say no more.
const MOMENT_WORDS: [&str; 11] = [
    "date",
    "datetime",
    "time",
    "timestamp",
    "year",
    "day",
    "on",
    "at",
    "in",
    "when",
    "was",
];

/// The number of different days from which a column of numbers has days.
const FEWEST_DAYS: usize = 12;

/// A moment at which something was done.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DoneMoment {
    pub(super) noun: String,
    pub(super) phrases: DraftedPhrases,
}

/// Reads the name of a column of dates or years, `unit`, in a table whose rows are called `own`.
pub(super) fn done(
    words: &[String],
    own: &str,
    unit: &str,
    dictionary: &Dictionary,
) -> Option<DoneMoment> {
    let is_plain = |word: &&str| !MOMENT_WORDS.contains(word);
    let rest: Vec<&str> = words.iter().map(String::as_str).filter(is_plain).collect();
    let (done, subject) = rest.split_last()?;
    if !dictionary.is_participle(done) {
        return None;
    }
    let own_words: Vec<&str> = own.split(' ').collect();
    let is_own = |subject: &[&str]| own_words.ends_with(subject) || subject.ends_with(&own_words);
    let adverb = match subject.last() {
        Some(word) if ["first", "last"].contains(word) => Some(*word),
        _ => None,
    };
    let subject = &subject[..subject.len() - usize::from(adverb.is_some())];
    let of_row = subject.is_empty() || is_own(subject);
    // "Ordered" in "date product ordered" is done to the product.
    let subject = (!of_row).then(|| subject.join(" "));
    let done = match adverb {
        Some(adverb) => format!("{adverb} {done}"),
        None => (*done).to_owned(),
    };
    let noun = match (&subject, dictionary.lists.moments.get(&done)) {
        (None, Some(name)) => format!("{name} {unit}"),
        (None, None) => format!("{unit} {done}"),
        (Some(subject), Some(name)) => format!("{subject} {name} {unit}"),
        (Some(subject), None) => format!("{unit} {subject} {done}"),
    };
    Some(DoneMoment {
        noun,
        phrases: DraftedPhrases::Moment { subject, done },
    })
}

/// Returns the noun of a moment whose name has none, or has "date" in an odd place: "date held" for
/// `held_on`, "last hire date" for `date_last_hire`, "start date" for `date_from`.
pub(super) fn time_noun(
    unit: &str,
    words: &[String],
    own: &str,
    dictionary: &Dictionary,
) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = match words.as_slice() {
        [words @ .., "from" | "start" | "begin"] => [words, &["start"]].concat(),
        [words @ .., "to" | "end" | "until"] => [words, &["end"]].concat(),
        [words @ .., "on" | "at" | "in"] if !words.is_empty() => words.to_vec(),
        words => words.to_vec(),
    };
    if let ["date", rest @ ..] = words.as_slice()
        && !rest.is_empty()
        && !rest.contains(&"of")
        && !["time", "and", "range"].contains(&rest[0])
    {
        let own: Vec<&str> = own.split(' ').collect();
        let rest = match rest.strip_prefix(own.as_slice()) {
            Some(rest) if !rest.is_empty() => rest,
            _ => rest,
        };
        return Some(format!("{} date", rest.join(" ")));
    }
    if let [.., "start" | "end"] = words.as_slice() {
        return Some(format!("{} {unit}", words.join(" ")));
    }
    let is_time = |word: &&&str| dictionary.lists.times.iter().any(|it| it == **word);
    match words.iter().find(is_time) {
        Some(_) => None,
        None => Some(format!("{unit} {}", words.join(" "))),
    }
}

/// Whether numbers are days such as 20200119, whatever their column is called. A few numbers may
/// look like days by chance.
pub(super) fn are_days(statistics: &ColumnStatistics) -> bool {
    statistics.days == statistics.values() && statistics.distinct >= FEWEST_DAYS
}

/// Whether whole numbers are days, months or moments by their name: `order_date` with 20200119,
/// `period` with 202001, `start` with 1704067200.
pub(super) fn are_numbers(
    words: &[String],
    statistics: &ColumnStatistics,
    dictionary: &Dictionary,
) -> bool {
    /// Days as YYYYMMDD, and seconds and milliseconds since 1970, of about the last two centuries.
    const MOMENTS: [[f64; 2]; 3] = [[18_000_101.0, 21_001_231.0], [1e8, 4.2e9], [1e11, 4.2e12]];
    // Nothing else is called by these, while "time" may be a number of seconds.
    let names = [
        "date",
        "birthday",
        "timestamp",
        "deadline",
        "anniversary",
        "until",
        "expires",
        "expiry",
    ];
    let is_one_of = |list: &[&str]| words.last().is_some_and(|it| list.contains(&it.as_str()));
    let [least, greatest] = [statistics.least, statistics.greatest];
    let has_moments = MOMENTS
        .iter()
        .any(|[first, last]| *first <= least && greatest <= *last);
    let has_months = statistics.months == statistics.values();
    let is_time = ends_with(words, &dictionary.lists.times);
    let are_moments = is_one_of(&names) || is_time && has_moments;
    let are_months = is_one_of(&["month", "period"]) && has_months;
    (are_moments || are_months) && !statistics.has_fractions
}

#[cfg(test)]
mod tests {
    use rusqlite::types::Value as SqlValue;

    use super::*;

    #[test]
    fn whole_numbers_under_the_name_of_a_moment_are_one() {
        let dictionary = Dictionary::read();
        for (name, numbers, expected) in [
            ("order_date", [20200119, 20211231], true),
            ("date_of_birth", [19800315, 20011231], true),
            ("date", [43831, 44000], true),
            ("start_time", [1577836800, 1609459200], true),
            ("deadline", [1577836800000, 1609459200000], true),
            ("best_time", [83, 97], false),
            ("start", [1200, 56000], false),
            ("expires", [20200119, 20211231], true),
            ("valid_until", [1577836800, 1609459200], true),
            ("period", [202001, 202112], true),
            ("billing_month", [202001, 202112], true),
            ("period", [1, 12], false),
            ("price", [20200119, 20211231], false),
            ("birthplace", [20200119, 20211231], false),
        ] {
            let values = numbers.map(SqlValue::Integer);
            let statistics = ColumnStatistics::count(values.iter());
            let found = are_numbers(&dictionary.words(name), &statistics, &dictionary);
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn what_was_done_is_divided_from_the_row() {
        let dictionary = Dictionary::read();
        for (name, own, noun, subject, is_done) in [
            ("date_placed", "order", "date placed", None, "placed"),
            ("held_on", "event", "date held", None, "held"),
            (
                "date_problem_closed",
                "problem",
                "closing date",
                None,
                "closed",
            ),
            (
                "problem_closed_at",
                "tracked problem",
                "closing date",
                None,
                "closed",
            ),
            (
                "date_claim_settled",
                "settlement",
                "claim settlement date",
                Some("claim"),
                "settled",
            ),
            (
                "last_updated_at",
                "page",
                "last update date",
                None,
                "last updated",
            ),
        ] {
            let found = done(&dictionary.words(name), own, "date", &dictionary).unwrap();
            let phrases = DraftedPhrases::Moment {
                subject: subject.map(str::to_owned),
                done: is_done.to_owned(),
            };
            assert_eq!(
                (found.noun.as_str(), found.phrases),
                (noun, phrases),
                "{name}"
            );
        }
        for name in ["date_of_birth", "start_date", "date"] {
            assert_eq!(
                done(&dictionary.words(name), "order", "date", &dictionary),
                None
            );
        }
    }
}
