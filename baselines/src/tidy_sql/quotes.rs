//! Names and texts in quotation marks.
//!
//! SQLite reads `"x"` as a name if one is in reach, and else as a text. In a single SELECT the
//! columns of the tables that it reads are in reach. No other name is, if no word of the query is
//! `x` and no table has such a column.

use std::collections::BTreeSet;

use data::sql_name::as_needed;

use super::words::{Kind, Word, column, is_nested, unquoted};
use crate::observation::DescribedTable;

const ROW_NUMBERS: [&str; 3] = ["rowid", "oid", "_rowid_"];

/// Writes names without the quotation marks that they do not need, and texts in single quotes. The
/// query is plain. What may be either stays.
pub(super) fn resolve(words: &mut [Word], tables: &[DescribedTable]) {
    let is_single = !is_nested(words) && !words.iter().any(Word::is_set_operation);
    let is_read = |table: &&DescribedTable| {
        let name = as_needed(&table.name);
        words
            .windows(2)
            .any(|two| two[0].reads() && two[1].text == name)
    };
    let read: Vec<DescribedTable> = tables.iter().filter(is_read).cloned().collect();
    let bare = words.iter().filter(|word| !word.is_quoted());
    let bare: BTreeSet<String> = bare
        .map(|word| unquoted(&word.text).to_lowercase())
        .collect();
    for at in 0..words.len() {
        if words[at].kind != Kind::Quoted {
            continue;
        }
        let name = unquoted(&words[at].text);
        let is_qualified = at > 0 && words[at - 1].is(".");
        let is_name = !words[at].text.starts_with('"') || is_qualified;
        let is_row_number = ROW_NUMBERS.iter().any(|it| it.eq_ignore_ascii_case(&name));
        if let Some(shown) = column(&name, &read).filter(|_| is_name || is_single) {
            words[at].kind = Kind::Column;
            words[at].text = as_needed(shown);
        } else if !is_name
            && !is_row_number
            && column(&name, tables).is_none()
            && !bare.contains(&name.to_lowercase())
        {
            words[at].kind = Kind::Text;
            words[at].text = format!("'{}'", name.replace('\'', "''"));
        }
    }
}
