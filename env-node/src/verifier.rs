//! Whether an answer is right, by answer type.
//!
//! Invariant: pure, exact (decimal arithmetic, no floats) and total: any text and any gold value give a verdict.
//! Leaves out where gold rows come from, and rewards.
//! Source: `SQLEnv`'s published verifier rules; silent spots are decided in the project's golden vectors
//! (`tests/golden/verifier.json`).

use std::collections::BTreeSet;

use data::AnswerType;
use serde_json::Value;

use crate::decimal::Decimal;

/// Beyond this many rows a table must come in gold's order: pairing off more could take minutes.
const MAX_UNORDERED_ROWS: usize = 1_000;

/// What the answer is held against.
#[derive(Clone, Copy, Debug)]
pub struct Gold<'a> {
    /// The recorded answer: number, text, list, or list of rows.
    pub answer: &'a Value,
    /// Chooses the rule; an unknown type is compared as text.
    pub answer_type: AnswerType,
    /// All rows of the gold SQL. For lists (first column) and tables they win over `answer`.
    pub rows: Option<&'a [Vec<Value>]>,
    /// Whether the rows of a table must come in gold's order; tables of more than 1,000 rows always must.
    pub ordered: bool,
}

/// Whether `predicted` is right. A missing or blank answer never is, nor is any answer to a missing or empty gold.
pub fn verify_answer(predicted: Option<&str>, gold: &Gold<'_>) -> bool {
    let predicted = unwrapped(predicted.unwrap_or_default());
    if predicted.is_empty() || is_empty(gold.answer) {
        return false;
    }
    match gold.answer_type {
        AnswerType::Integer => matches_integer(predicted, &text_of(gold.answer)),
        AnswerType::Float => matches_float(predicted, &text_of(gold.answer)),
        AnswerType::List => matches_list(predicted, gold),
        AnswerType::Table => matches_table(predicted, gold),
        AnswerType::String | AnswerType::Unknown => {
            folded(predicted) == folded(&text_of(gold.answer))
        }
    }
}

fn is_empty(gold: &Value) -> bool {
    match gold {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Takes off, once each and in this order: a code fence, a leading `Answer:`, a pair of quotes.
fn unwrapped(text: &str) -> &str {
    unquoted(without_prefix(without_fence(text.trim())))
}

fn without_fence(text: &str) -> &str {
    let inner = text
        .strip_prefix("```")
        .and_then(|rest| rest.strip_suffix("```"))
        .and_then(|inner| inner.split_once('\n'));
    match inner {
        Some((tag, body)) if !tag.trim().contains(char::is_whitespace) => body.trim(),
        _ => text,
    }
}

fn without_prefix(text: &str) -> &str {
    const PREFIX: &str = "answer:";
    match text.get(..PREFIX.len()) {
        Some(start) if start.eq_ignore_ascii_case(PREFIX) => text[PREFIX.len()..].trim(),
        _ => text,
    }
}

fn unquoted(text: &str) -> &str {
    ['"', '\'']
        .iter()
        .find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote))
        .map_or(text, str::trim)
}

/// Lower case, each run of white space one blank.
fn folded(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !folded.is_empty() {
            folded.push(' ');
        }
        folded.push_str(&word.to_lowercase());
    }
    folded
}

/// A scalar as an observation shows it.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    }
}

fn matches_integer(predicted: &str, gold: &str) -> bool {
    Decimal::parse(predicted).is_some_and(|number| Some(number) == Decimal::parse(gold))
}

fn matches_float(predicted: &str, gold: &str) -> bool {
    match (Decimal::parse(predicted), Decimal::parse(gold)) {
        (Some(predicted), Some(gold)) => predicted.is_within_one_percent_of(&gold),
        _ => false,
    }
}

/// A list element: numbers by value, all else as folded text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Element {
    Number(Decimal),
    Text(String),
}

impl Element {
    fn new(text: &str) -> Self {
        let text = unquoted(text.trim());
        Decimal::parse(text).map_or_else(|| Self::Text(folded(text)), Self::Number)
    }
}

fn matches_list(predicted: &str, gold: &Gold<'_>) -> bool {
    let gold = match (gold.rows, gold.answer) {
        (Some(rows), _) => elements(rows.iter().filter_map(|row| row.first())),
        (None, Value::Array(items)) => elements(items),
        (None, Value::String(text)) => elements_of_text(text),
        (None, scalar) => elements([scalar]),
    };
    !gold.is_empty() && elements_of_text(predicted) == gold
}

fn elements<'a>(values: impl IntoIterator<Item = &'a Value>) -> BTreeSet<Element> {
    values
        .into_iter()
        .map(|value| match value {
            // A list stored as one-column rows.
            Value::Array(row) => row.first().unwrap_or(&Value::Null),
            value => value,
        })
        .map(|value| Element::new(&text_of(value)))
        .collect()
}

/// A JSON array, or text with commas, in brackets or not.
fn elements_of_text(text: &str) -> BTreeSet<Element> {
    let text = text.trim();
    if let Ok(Value::Array(items)) = serde_json::from_str(text) {
        return elements(&items);
    }
    text.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text)
        .split(',')
        .filter(|element| !element.trim().is_empty())
        .map(Element::new)
        .collect()
}

fn matches_table(predicted: &str, gold: &Gold<'_>) -> bool {
    let predicted = rows_of_text(predicted);
    let from_text: Vec<Vec<Value>>;
    let gold_rows: Vec<&[Value]> = match (gold.rows, gold.answer) {
        (Some(rows), _) => rows.iter().map(Vec::as_slice).collect(),
        (None, Value::Array(rows)) => rows
            .iter()
            .map(|row| {
                row.as_array()
                    .map_or(std::slice::from_ref(row), Vec::as_slice)
            })
            .collect(),
        (None, scalar) => {
            from_text = rows_of_text(&text_of(scalar))
                .into_iter()
                .map(|row| row.into_iter().map(Value::from).collect())
                .collect();
            from_text.iter().map(Vec::as_slice).collect()
        }
    };
    if predicted.len() != gold_rows.len() {
        return false;
    }
    if gold.ordered || predicted.len() > MAX_UNORDERED_ROWS {
        return predicted
            .iter()
            .zip(&gold_rows)
            .all(|(row, gold)| matches_row(row, gold));
    }
    is_permutation(&predicted, &gold_rows)
}

fn rows_of_text(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.split('|').map(str::trim).collect())
        .collect()
}

fn matches_row(predicted: &[&str], gold: &[Value]) -> bool {
    predicted.len() == gold.len()
        && predicted
            .iter()
            .zip(gold)
            .all(|(cell, gold)| matches_cell(cell, gold))
}

fn matches_cell(predicted: &str, gold: &Value) -> bool {
    match gold {
        Value::Null => ["", "null", "none"].contains(&folded(predicted).as_str()),
        Value::Number(number) if number.is_f64() => matches_float(predicted, &number.to_string()),
        Value::Number(number) => matches_integer(predicted, &number.to_string()),
        other => folded(predicted) == folded(&text_of(other)),
    }
}

/// Whether the rows can be paired off. Float cells match within a tolerance, so a row may fit several gold rows and a
/// greedy choice can block a later one: augmenting paths (Kuhn) undo such choices.
fn is_permutation(predicted: &[Vec<&str>], gold: &[&[Value]]) -> bool {
    let mut taken_by: Vec<Option<usize>> = vec![None; gold.len()];
    (0..predicted.len()).all(|row| {
        let mut visited = vec![false; gold.len()];
        assign(row, predicted, gold, &mut taken_by, &mut visited)
    })
}

fn assign(
    row: usize,
    predicted: &[Vec<&str>],
    gold: &[&[Value]],
    taken_by: &mut [Option<usize>],
    visited: &mut [bool],
) -> bool {
    // Its own place first: an answer copied in order pairs off without a search.
    let places = (row..gold.len()).chain(0..row);
    for place in places {
        if visited[place] || !matches_row(&predicted[row], gold[place]) {
            continue;
        }
        visited[place] = true;
        let free = match taken_by[place] {
            None => true,
            Some(other) => assign(other, predicted, gold, taken_by, visited),
        };
        if free {
            taken_by[place] = Some(row);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn table(predicted: &str, gold: &Value) -> bool {
        verify_answer(
            Some(predicted),
            &Gold {
                answer: gold,
                answer_type: AnswerType::Table,
                rows: None,
                ordered: false,
            },
        )
    }

    #[test]
    fn overlapping_tolerances_need_a_matching_not_a_greedy_choice() {
        // 100.5 fits both gold rows, 99.5 only the first.
        assert!(table("100.5\n99.5", &json!([[100.1], [101.2]])));
        assert!(!table("99.5\n99.5", &json!([[100.1], [101.2]])));
    }

    #[test]
    fn a_fence_needs_its_own_line() {
        let gold = Gold {
            answer: &json!("a b"),
            answer_type: AnswerType::String,
            rows: None,
            ordered: false,
        };
        assert!(verify_answer(Some("```text\na b\n```"), &gold));
        assert!(!verify_answer(Some("```a b```"), &gold));
    }

    proptest! {
        /// No input makes the verifier panic, and a quoted copy of a text gold is right unless it is blank.
        #[test]
        fn total(predicted in "\\PC{0,40}", gold in "\\PC{0,20}") {
            let answer = Value::from(gold.clone());
            let verdict = |predicted: &str, answer_type| {
                verify_answer(Some(predicted), &Gold { answer: &answer, answer_type, rows: None, ordered: false })
            };
            for answer_type in [AnswerType::Integer, AnswerType::Float, AnswerType::List, AnswerType::Table] {
                verdict(&predicted, answer_type);
            }
            prop_assert_eq!(verdict(&format!("\"{gold}\""), AnswerType::String), !gold.trim().is_empty());
        }

        /// Row order and list order never matter; a changed integer always does.
        #[test]
        fn order_is_free(rows in proptest::collection::vec((0..50_i64, "[a-z]{1,3}"), 1..8), seed in 0..100_usize) {
            let gold: Vec<Value> = rows.iter().map(|(number, word)| json!([number, word])).collect();
            let mut turned = rows.clone();
            turned.rotate_left(seed % rows.len());
            let text: Vec<String> = turned.iter().map(|(number, word)| format!("{number} | {word}")).collect();
            prop_assert!(table(&text.join("\n"), &Value::from(gold.clone())));
            turned[0].0 += 100;
            let text: Vec<String> = turned.iter().map(|(number, word)| format!("{number} | {word}")).collect();
            prop_assert!(!table(&text.join("\n"), &Value::from(gold)));
        }
    }
}
