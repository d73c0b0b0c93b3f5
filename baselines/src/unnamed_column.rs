//! Finds the column of a filter that a question does not name: in "How many gulls from Lima are
//! there?" the column `city`. A look at some rows shows where the value stands.

use data::sql_text::{SqlToken, sql_tokens};

/// Words shorter than this say nothing about a column.
const SHORTEST_WORD: usize = 3;

/// Returns the first column that the statement compares with a text and that `question_text` does
/// not name by any of the words in the column's name.
pub(crate) fn unnamed_column<'a>(question_text: &str, sql: &'a str) -> Option<&'a str> {
    let question = question_text.to_lowercase();
    let tokens: Vec<SqlToken<'a>> = sql_tokens(sql)
        .filter(|token| !matches!(token, SqlToken::Gap(_)))
        .collect();
    let compared = tokens.windows(3).filter_map(|window| match window {
        [
            SqlToken::Word(column) | SqlToken::Quoted(column),
            SqlToken::Symbol("="),
            SqlToken::Quoted(value),
        ] if value.starts_with('\'') && !column.starts_with('\'') => Some(column.trim_matches('"')),
        _ => None,
    });
    let is_named = |column: &str| words(column).iter().any(|word| question.contains(word));
    compared.into_iter().find(|column| !is_named(column))
}

/// Splits a name at underscores, blanks and signs, and before capital letters, and returns its
/// words in lower case.
fn words(name: &str) -> Vec<String> {
    let is_between = |letter: char| letter.is_ascii() && !letter.is_ascii_alphanumeric();
    let mut words = vec![String::new()];
    let mut after_small = false;
    for letter in name.chars() {
        if is_between(letter) || (letter.is_uppercase() && after_small) {
            words.push(String::new());
        }
        after_small = letter.is_lowercase();
        if !is_between(letter) {
            words
                .last_mut()
                .expect("there is one word: this is a bug")
                .extend(letter.to_lowercase());
        }
    }
    words.retain(|word| word.len() >= SHORTEST_WORD);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_the_question_does_not_name_are_found() {
        let cases = [
            (
                "How many gulls from Lima are there?",
                "city = 'Lima'",
                Some("city"),
            ),
            (
                "How many gulls are in the city Lima?",
                "city = 'Lima'",
                None,
            ),
            ("Which have the home city Lima?", "homeCity = 'Lima'", None),
            (
                "Which are from Lima?",
                "HOME_CITY = 'Lima'",
                Some("HOME_CITY"),
            ),
            ("How many weigh more than 5?", "weight > 5", None),
            ("How many of age 5?", "x = 5", None),
            (
                "Color red and open?",
                "color = 'red' AND state='open'",
                Some("state"),
            ),
        ];
        for (question, condition, expected) in cases {
            let sql = format!("SELECT count(*) FROM gulls WHERE {condition}");
            assert_eq!(unnamed_column(question, &sql), expected, "{question}");
        }
    }
}
