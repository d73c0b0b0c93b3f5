//! Checks an answer, by answer type. Pure.
//!
//! Invariant: pure, exact (decimal arithmetic, no floats) and total: any text and any gold value
//! have a result.
//! Source: `SQLEnv`'s published verifier rules. Where they are silent, the project's golden vectors
//! decide (`tests/golden/verifier.json`).

use std::{collections::BTreeSet, fmt, slice};

use data::{AnswerType, real_text};
use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};

use crate::decimal::Decimal;

/// Tables with more rows must have the gold rows' order: matching more could take minutes.
const MAX_UNORDERED_ROWS: usize = 1_000;
/// Bytes of a list or an object within an answered list that are parsed, since a tree of values
/// takes many times the memory of its text. A longer one equals no gold element.
const MAX_NESTED_BYTES: usize = 64 << 10;

/// Which order the rows of an answered table may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// Any, for tables of up to [`MAX_UNORDERED_ROWS`] rows.
    Any,
    /// That of the gold rows.
    Gold,
}

/// Returns whether `predicted` is correct. A blank answer never is, and no answer to a missing or
/// empty gold value is.
///
/// `answer` is the recorded answer: a number, a text, a list, or a list of rows. `answer_type`
/// chooses the rule; an unknown type is compared as text. `rows` are all rows of the gold SQL. For
/// lists (first column) and tables they replace `answer`.
pub(crate) fn verify_answer(
    predicted: &str,
    answer: &Value,
    answer_type: AnswerType,
    rows: Option<&[Vec<Value>]>,
    order: RowOrder,
) -> bool {
    let predicted = predicted.trim();
    let inner = unwrapped(predicted);
    if inner.is_empty() || is_empty(answer) {
        return false;
    }
    // What looks like a wrapper may belong to the answer, such as the quotes of a title. In SQLEnv
    // the outer quotes of a list never do.
    let is_list = answer_type == AnswerType::List;
    let is_right = |predicted| matches(predicted, answer, answer_type, rows, order);
    is_right(inner) || (!is_list && is_right(predicted))
}

fn matches(
    predicted: &str,
    answer: &Value,
    answer_type: AnswerType,
    rows: Option<&[Vec<Value>]>,
    order: RowOrder,
) -> bool {
    let text = || text_of(answer);
    let scalar = match answer_type {
        AnswerType::Integer => GoldCell::Integer(Decimal::parse(&text())),
        AnswerType::Float => GoldCell::Float(Decimal::parse(&text())),
        AnswerType::String | AnswerType::Unknown => GoldCell::Text(folded(&text())),
        AnswerType::List => return matches_list(predicted, answer, rows),
        AnswerType::Table => return matches_table(predicted, answer, rows, order),
    };
    scalar.matches(&AnswerCell::new(predicted))
}

fn is_empty(gold: &Value) -> bool {
    match gold {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Removes, once each and in this order: a code fence, a leading `Answer:`, a pair of quotes.
fn unwrapped(text: &str) -> &str {
    unquoted(without_prefix(without_fence(text)))
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

/// Returns the text in lower case, with each run of white space as one blank.
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

/// Returns a scalar as an observation shows it.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) if number.is_f64() => real_text(number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// A list element: numbers by value, everything else as folded text.
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

fn matches_list(predicted: &str, answer: &Value, rows: Option<&[Vec<Value>]>) -> bool {
    let gold = match (rows, answer) {
        (Some(rows), _) => elements(rows.iter().filter_map(|row| row.first())),
        (None, Value::Array(items)) => elements(items),
        (None, Value::String(text)) => elements_of_text(text, usize::MAX),
        (None, scalar) => elements([scalar]),
    };
    !gold.is_empty() && elements_of_text(predicted, gold.len()) == gold
}

fn elements<'a>(values: impl IntoIterator<Item = &'a Value>) -> BTreeSet<Element> {
    values.into_iter().map(element_of).collect()
}

fn element_of(value: &Value) -> Element {
    let value = match value {
        // A list stored as one-column rows.
        Value::Array(row) => row.first().unwrap_or(&Value::Null),
        value => value,
    };
    Element::new(&text_of(value))
}

/// Reads a JSON array, or text with commas, in brackets or not. Of more than `most` elements it
/// keeps one more, which shows that there are too many.
fn elements_of_text(text: &str, most: usize) -> BTreeSet<Element> {
    let text = text.trim();
    if let Some(elements) = elements_of_json(text, most) {
        return elements;
    }
    let mut elements = BTreeSet::new();
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    for part in inner.split(',').filter(|part| !part.trim().is_empty()) {
        elements.insert(Element::new(part));
        if elements.len() > most {
            break;
        }
    }
    elements
}

/// Reads a JSON array element by element. Returns `None` if the text is not one.
fn elements_of_json(text: &str, most: usize) -> Option<BTreeSet<Element>> {
    let mut json = serde_json::Deserializer::from_str(text);
    let elements = json.deserialize_seq(JsonElements { most }).ok()?;
    json.end().ok()?;
    Some(elements)
}

struct JsonElements {
    most: usize,
}

impl<'de> Visitor<'de> for JsonElements {
    type Value = BTreeSet<Element>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<BTreeSet<Element>, S::Error> {
        let mut elements = BTreeSet::new();
        // A text that is no list counts as one with commas, so it is read to its end.
        while let Some(json) = list.next_element::<&RawValue>()? {
            let json = json.get();
            let is_nested = json.starts_with(['[', '{']);
            let element = if is_nested && json.len() > MAX_NESTED_BYTES {
                Element::Text(json.to_owned())
            } else {
                element_of(&serde_json::from_str(json).map_err(S::Error::custom)?)
            };
            if elements.len() <= self.most {
                elements.insert(element);
            }
        }
        Ok(elements)
    }
}

fn matches_table(
    predicted: &str,
    answer: &Value,
    rows: Option<&[Vec<Value>]>,
    order: RowOrder,
) -> bool {
    let gold_row = |row: &[Value]| row.iter().map(GoldCell::new).collect();
    let gold_rows: Vec<Vec<GoldCell>> = match (rows, answer) {
        (Some(rows), _) => rows.iter().map(|row| gold_row(row)).collect(),
        (None, Value::Array(rows)) => rows
            .iter()
            .map(|row| {
                row.as_array()
                    .map_or_else(|| gold_row(slice::from_ref(row)), |row| gold_row(row))
            })
            .collect(),
        (None, scalar) => {
            let cell = |text: &str| GoldCell::Text(folded(text));
            let cells = |row: &str| row.split('|').map(cell).collect();
            rows_of_text(&text_of(scalar)).map(cells).collect()
        }
    };
    if rows_of_text(predicted).count() != gold_rows.len() {
        return false;
    }
    // Of a row that is too wide, only as many cells are read as show that.
    let widest = gold_rows.iter().map(Vec::len).max().unwrap_or_default();
    let cells = |row: &str| {
        row.split('|')
            .take(widest + 1)
            .map(AnswerCell::new)
            .collect()
    };
    let rows: Vec<Vec<AnswerCell>> = rows_of_text(predicted).map(cells).collect();
    if order == RowOrder::Gold || rows.len() > MAX_UNORDERED_ROWS {
        return rows
            .iter()
            .zip(&gold_rows)
            .all(|(row, gold)| matches_row(row, gold));
    }
    RowMatching::new(&rows, &gold_rows).is_complete()
}

fn rows_of_text(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty())
}

/// A scalar answer, or a cell of an answered table.
struct AnswerCell {
    folded: String,
    number: Option<Decimal>,
}

impl AnswerCell {
    fn new(text: &str) -> Self {
        Self {
            folded: folded(text),
            number: Decimal::parse(text.trim()),
        }
    }
}

/// A gold scalar, or a cell of a gold row.
enum GoldCell {
    Null,
    Integer(Option<Decimal>),
    Float(Option<Decimal>),
    Text(String),
}

impl GoldCell {
    fn new(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Number(number) if number.is_f64() => {
                Self::Float(Decimal::parse(&number.to_string()))
            }
            Value::Number(number) => Self::Integer(Decimal::parse(&number.to_string())),
            other => Self::Text(folded(&text_of(other))),
        }
    }

    fn matches(&self, cell: &AnswerCell) -> bool {
        match self {
            Self::Null => ["", "null", "none"].contains(&cell.folded.as_str()),
            Self::Integer(gold) => cell.number.is_some() && cell.number == *gold,
            Self::Float(gold) => match (&cell.number, gold) {
                (Some(number), Some(gold)) => number.is_within_one_percent_of(gold),
                _ => false,
            },
            Self::Text(gold) => cell.folded == *gold,
        }
    }
}

fn matches_row(row: &[AnswerCell], gold: &[GoldCell]) -> bool {
    row.len() == gold.len() && row.iter().zip(gold).all(|(cell, gold)| gold.matches(cell))
}

/// A bipartite matching of rows with gold rows. Float cells match within a tolerance, so a row may
/// fit several gold rows and a greedy choice can block a later one. Augmenting paths (Kuhn's
/// algorithm) undo such choices.
struct RowMatching<'a> {
    rows: &'a [Vec<AnswerCell>],
    gold: &'a [Vec<GoldCell>],
    /// For each row and gold row whether they match, once that was asked.
    known: Vec<Option<bool>>,
    taken_by: Vec<Option<usize>>,
}

impl<'a> RowMatching<'a> {
    /// Takes as many rows as gold rows.
    fn new(rows: &'a [Vec<AnswerCell>], gold: &'a [Vec<GoldCell>]) -> Self {
        Self {
            rows,
            gold,
            known: vec![None; rows.len() * gold.len()],
            taken_by: vec![None; gold.len()],
        }
    }

    fn is_complete(&mut self) -> bool {
        (0..self.rows.len()).all(|row| self.assign(row, &mut vec![false; self.gold.len()]))
    }

    fn fits(&mut self, row: usize, place: usize) -> bool {
        let known = &mut self.known[row * self.gold.len() + place];
        *known.get_or_insert_with(|| matches_row(&self.rows[row], &self.gold[place]))
    }

    fn assign(&mut self, row: usize, visited: &mut [bool]) -> bool {
        // The same place comes first: an answer copied in order is matched without a search.
        for place in (row..visited.len()).chain(0..row) {
            if visited[place] || !self.fits(row, place) {
                continue;
            }
            visited[place] = true;
            let is_free = match self.taken_by[place] {
                None => true,
                Some(other) => self.assign(other, visited),
            };
            if is_free {
                self.taken_by[place] = Some(row);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn table(predicted: &str, gold: &Value) -> bool {
        verify_answer(predicted, gold, AnswerType::Table, None, RowOrder::Any)
    }

    #[test]
    fn overlapping_tolerances_need_a_matching_not_a_greedy_choice() {
        // 100.5 fits both gold rows, 99.5 only the first.
        assert!(table("100.5\n99.5", &json!([[100.1], [101.2]])));
        assert!(!table("99.5\n99.5", &json!([[100.1], [101.2]])));
    }

    #[test]
    fn only_a_long_table_must_have_golds_order() {
        for (rows, is_order_free) in [(MAX_UNORDERED_ROWS, true), (MAX_UNORDERED_ROWS + 1, false)] {
            let gold: Value = (0..rows).map(|row| json!([row])).collect();
            let mut lines: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
            assert!(table(&lines.join("\n"), &gold));
            lines.swap(0, rows - 1);
            assert_eq!(table(&lines.join("\n"), &gold), is_order_free);
        }
    }

    #[test]
    fn a_fence_needs_its_own_line() {
        let verify =
            |it: &str| verify_answer(it, &json!("a b"), AnswerType::String, None, RowOrder::Any);
        assert!(verify("```text\na b\n```"));
        assert!(!verify("```a b```"));
    }

    #[test]
    fn what_looks_like_a_wrapper_may_belong_to_the_answer() {
        use AnswerType::{Integer, List, String};
        for (predicted, answer, answer_type, correct) in [
            ("\"Heroes\"", json!("\"Heroes\""), String, true),
            ("\"\"Heroes\"\"", json!("\"Heroes\""), String, true),
            ("Heroes", json!("\"Heroes\""), String, false),
            ("'n'", json!("'n'"), String, true),
            ("Answer: 42", json!("Answer: 42"), String, true),
            ("\"a\", \"b\"", json!(["a", "b"]), List, false),
            ("\"3\"", json!(3), Integer, true),
            ("\"\"", json!("\"\""), String, false),
        ] {
            let is_correct = verify_answer(predicted, &answer, answer_type, None, RowOrder::Any);
            assert_eq!(is_correct, correct, "{predicted} for {answer}");
        }
        assert!(table(
            "\"Heroes\" | \"Help!\"",
            &json!([["\"Heroes\"", "\"Help!\""]])
        ));
    }

    /// SQLite and JSON write some numbers in different ways.
    #[test]
    fn a_real_number_as_text_is_the_one_that_observations_show() {
        for (predicted, answer) in [
            ("5.0e-05", json!(0.00005)),
            ("-1.5e+15", json!(-1.5e15)),
            ("0.0001", json!(0.0001)),
            ("3.0", json!(3.0)),
        ] {
            let is_right =
                verify_answer(predicted, &answer, AnswerType::String, None, RowOrder::Any);
            assert!(is_right, "{predicted} for {answer}");
        }
    }

    #[test]
    fn a_list_is_a_set_of_values() {
        let answer = json!(["a", 2, "{\"b\":[1]}"]);
        let nested = format!("[[{}1]]", "0,".repeat(MAX_NESTED_BYTES));
        for (predicted, is_right) in [
            (r#"["A", 2.0, {"b": [1]}, [2, 9]]"#, true),
            (r#"["a", 2, {"b": [1]}, 3, 4, 5]"#, false),
            (r#"["a", 2]"#, false),
            // These are no JSON, so their parts are those between commas.
            (r#"[a, 2, {"b":[1]}]"#, true),
            (r#"["a", 2, {"b":[1]}, 3, oops]"#, false),
            ("a, 2, 3, 4, 5", false),
            (nested.as_str(), false),
        ] {
            let verdict = verify_answer(predicted, &answer, AnswerType::List, None, RowOrder::Any);
            assert_eq!(verdict, is_right, "{predicted:.80}");
        }
    }

    proptest! {
        /// No input makes the verifier panic, and a quoted copy of a text gold is right unless it
        /// is blank.
        #[test]
        fn total(predicted in "\\PC{0,40}", gold in "\\PC{0,20}") {
            let answer = Value::from(gold.clone());
            let verdict = |predicted: &str, answer_type| {
                verify_answer(predicted, &answer, answer_type, None, RowOrder::Any)
            };
            for answer_type in
                [AnswerType::Integer, AnswerType::Float, AnswerType::List, AnswerType::Table]
            {
                verdict(&predicted, answer_type);
            }
            let quoted = format!("\"{gold}\"");
            prop_assert_eq!(verdict(&quoted, AnswerType::String), !gold.trim().is_empty());
        }

        /// Without a gold order, the order of rows and lists never matters; a changed integer does.
        #[test]
        fn order_is_free(
            rows in proptest::collection::vec((0..50_i64, "[a-z]{1,3}"), 1..8),
            seed in 0..100_usize,
        ) {
            let value = |(number, word): &(i64, String)| json!([number, word]);
            let gold: Vec<Value> = rows.iter().map(value).collect();
            let line = |(number, word): &(i64, String)| format!("{number} | {word}");
            let mut turned = rows.clone();
            turned.rotate_left(seed % rows.len());
            let text: Vec<String> = turned.iter().map(line).collect();
            prop_assert!(table(&text.join("\n"), &Value::from(gold.clone())));
            turned[0].0 += 100;
            let text: Vec<String> = turned.iter().map(line).collect();
            prop_assert!(!table(&text.join("\n"), &Value::from(gold)));
        }
    }
}
