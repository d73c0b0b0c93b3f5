//! What the rows of tables are called. Pure.

use super::dictionary::Dictionary;
use super::source::{SourceDatabase, SourceTable};
use super::word_file::WordFile;
use crate::generator::render::{is_plural_only, plural_of_any};

/// The nouns for the rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableNouns {
    pub(super) one: String,
    pub(super) many: String,
}
/// Infers what the rows of the tables are called.
pub(super) fn all_table_nouns(
    database: &SourceDatabase,
    file: &WordFile,
    dictionary: &Dictionary,
) -> Vec<TableNouns> {
    let nouns = |table: &SourceTable, is_short: bool| {
        let words = file.table(&table.name);
        let own = words.and_then(|words| words.one.clone());
        let one = own.unwrap_or_else(|| row_noun(&table.name, is_short, dictionary));
        let many = words.and_then(|words| words.many.clone());
        TableNouns {
            many: many.unwrap_or_else(|| plural_of_any(&one)),
            one,
        }
    };
    let tables = database.tables.iter();
    let mut found: Vec<TableNouns> = tables.map(|table| nouns(table, true)).collect();
    for (index, table) in database.tables.iter().enumerate() {
        let same = found.iter().filter(|other| other.one == found[index].one);
        if same.count() > 1 {
            found[index] = nouns(table, false);
        }
    }
    found
}

/// Infers what the rows of a table are called. A short noun lacks words such as "data".
pub(super) fn row_noun(name: &str, is_short: bool, dictionary: &Dictionary) -> String {
    let lists = &dictionary.lists;
    let mut words = dictionary.words(name);
    if words.len() > 1 && lists.table_prefixes.contains(&words[0]) {
        words.remove(0);
    }
    // A row of "document type codes" is a document type.
    let is_coded = |words: &[String]| match words {
        [.., thing, code] => {
            ["code", "codes"].contains(&code.as_str()) && lists.coded.contains(thing)
        }
        _ => false,
    };
    if is_coded(&words) {
        words.pop();
    }
    let is_grouping = |words: &[String]| {
        words.len() > 1
            && words
                .last()
                .is_some_and(|last| lists.groupings.contains(last))
    };
    let mut is_record = false;
    if is_grouping(&words) {
        is_record = !is_short;
        words.truncate(words.len() - usize::from(is_short));
    }
    let Some(last) = words.last().cloned() else {
        return format!("'{name}' record");
    };
    if let Some(noun) = relation(&words, dictionary) {
        return noun;
    }
    // "Visits" and "engineer visits" are visits, but "visits restaurant" is a sentence.
    let one = dictionary.singular_word(&last);
    let is_plural = one != last && dictionary.is_thing(&one);
    let others = &words[..words.len() - usize::from(is_plural)];
    let is_sentence = others.iter().any(|word| lists.not_nouns.contains(word))
        || lists.prepositions.contains(&last);
    let is_collection = lists.collections.contains(&last)
        || lists.groupings.contains(&last)
        || is_plural_only(&last);
    let words = words.join(" ");
    match () {
        () if is_sentence || !words.is_ascii() || dictionary.is_no_noun(&last) => {
            format!("'{words}' record")
        }
        () if is_collection || is_record => format!("{words} record"),
        () => dictionary.singular(&words),
    }
}

/// Returns the noun of a table whose name is a plural with more behind it: "booked product" for
/// `Products_Booked`, "product for hire" for `Products_for_Hire`.
fn relation(words: &[String], dictionary: &Dictionary) -> Option<String> {
    let things = words.first()?;
    let thing = dictionary.singular_word(things);
    if thing == *things || !dictionary.is_thing(&thing) {
        return None;
    }
    match &words[1..] {
        [done] if dictionary.is_participle(done) => Some(format!("{done} {thing}")),
        [link, rest @ ..] if link == "for" && !rest.is_empty() => {
            Some(format!("{thing} for {}", rest.join(" ")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_called_by_the_name_of_their_table() {
        let dictionary = Dictionary::read();
        for (name, one) in [
            ("tbl_Customers", "customer"),
            ("order lines", "order line"),
            ("singer_in_concert", "'singer in concert' record"),
            ("cars_data", "car"),
            ("model_list", "model"),
            ("people", "person"),
            ("Problem_Category_Codes", "problem category"),
            ("Products_Booked", "booked product"),
            ("Products_for_Hire", "product for hire"),
            ("Customers_Policies", "customer policy"),
            ("visits", "visit"),
            ("Engineer_Visits", "engineer visit"),
            ("Member_of", "'member of' record"),
            ("Catalog_Contents", "catalog contents record"),
            ("list", "list record"),
            ("visits_restaurant", "'visits restaurant' record"),
            ("postal_codes", "postal code"),
            ("job_history", "job history record"),
            ("Ref_Document_Types", "document type"),
            ("!!", "'!!' record"),
        ] {
            assert_eq!(row_noun(name, true, &dictionary), one, "{name}");
        }
        assert_eq!(
            row_noun("cars_data", false, &dictionary),
            "cars data record"
        );
    }
}
