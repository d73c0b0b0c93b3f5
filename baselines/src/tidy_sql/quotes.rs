//! Names and texts in quotation marks.
//!
//! SQLite reads `"x"` as the name of a column if one is in reach, and else as a text. What is in
//! reach is plain in a single SELECT from tables: the columns of these tables, the names that it
//! gives by AS, and the names of the row number.

use super::words::{Kind, Word, as_sql, column, unquoted};
use crate::observation::DescribedTable;

const ROW_NUMBERS: [&str; 3] = ["rowid", "oid", "_rowid_"];

/// Writes names without the quotation marks that they do not need, and texts in single quotes.
/// `tables` are all tables that the query reads.
pub(super) fn resolve(words: &mut [Word], tables: &[DescribedTable]) {
    let follows = |first: &[&str], second: &str| {
        let mut pairs = words.windows(2);
        pairs.any(|two| first.iter().any(|it| two[0].is(it)) && two[1].is(second))
    };
    let reads_queries = follows(&["FROM", "JOIN"], "(");
    let is_single = !follows(&["("], "SELECT") && !words.iter().any(Word::is_set_operation);
    let after_as = words.windows(2).filter(|two| two[0].is("AS"));
    let given: Vec<String> = after_as.map(|two| unquoted(&two[1].text)).collect();
    for at in 0..words.len() {
        let is_given_here = at > 0 && words[at - 1].is("AS");
        let is_qualifier = words.get(at + 1).is_some_and(|next| next.is("."));
        if words[at].kind != Kind::Quoted || is_given_here || is_qualifier {
            continue;
        }
        let name = unquoted(&words[at].text);
        let is_same = |other: &str| other.eq_ignore_ascii_case(&name);
        let is_qualified = at > 0 && words[at - 1].is(".");
        let is_name = !words[at].text.starts_with('"') || is_qualified;
        let is_given =
            given.iter().any(|it| is_same(it)) || ROW_NUMBERS.iter().any(|it| is_same(it));
        match column(&name, tables) {
            Some(shown) if is_name || (is_single && !is_given) => {
                words[at].kind = Kind::Column;
                words[at].text = as_sql(shown);
            }
            None if !is_name && !is_given && !reads_queries => {
                words[at].kind = Kind::Other;
                words[at].text = format!("'{}'", name.replace('\'', "''"));
            }
            _ => {}
        }
    }
}
