//! Divides drafted questions into `train` and `eval`.
//!
//! Invariant: questions that ask the same thing are in one split, also if their SQL differs: in the
//! order of conditions or columns, by `NOT IN` in place of `EXCEPT`, by a subquery in place of
//! `ORDER BY ... LIMIT 1`, by `>= 6` in place of `> 5`, or in what rows are grouped by.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::sql_name::is_keyword;
use crate::sql_text::{SqlToken, sql_tokens};
use crate::{Question, hash, is_sql_function};

/// The percentage of the questions of a level that are for evaluation.
const EVAL_PERCENT: usize = 15;

/// Divides the questions about a database by the hashes of what they mean. Each level has its share
/// for evaluation.
pub(super) fn assign(questions: &mut [Question], database: &str) {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut meanings: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, question) in questions.iter().enumerate() {
        *places.entry(question.difficulty.clone()).or_default() += 1;
        meanings.entry(meaning(question)).or_default().push(index);
    }
    for places in places.values_mut() {
        *places = eval_places(*places);
    }
    let mut groups: Vec<(String, Vec<usize>)> = meanings.into_iter().collect();
    groups.sort_by_cached_key(|(meaning, _)| hash::name_hash(&["draft", database, meaning]));
    for (_, group) in groups {
        let mut left = places.clone();
        let mut levels = group.iter().map(|index| &questions[*index].difficulty);
        // The levels of a group may differ, and each must have a place for it.
        let is_eval = levels.all(|level| take_place(&mut left, level));
        if is_eval {
            places = left;
        }
        for index in group {
            let split = if is_eval { "eval" } else { "train" };
            questions[index].split = split.to_owned();
        }
    }
}

/// Returns the number of questions for evaluation among so many of a level.
fn eval_places(count: usize) -> usize {
    match count {
        0 | 1 => 0,
        count => (count * EVAL_PERCENT / 100).max(1),
    }
}

fn take_place(places: &mut BTreeMap<String, usize>, level: &str) -> bool {
    match places.get_mut(level) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

/// Returns a text that is equal for questions that ask the same thing: the answer, and the names,
/// numbers and texts of the SQL. Either alone is equal for many different questions.
fn meaning(question: &Question) -> String {
    let names: Vec<String> = names_and_literals(&question.gold_sql).into_iter().collect();
    format!("{}\n{}", cells(&question.gold_answer), names.join("\n"))
}

/// Returns the rows of an answer without the order of rows and columns.
fn cells(answer: &Value) -> String {
    let row = |row: &Value| match row {
        Value::Array(cells) => {
            let mut cells: Vec<String> = cells.iter().map(ToString::to_string).collect();
            cells.sort();
            cells.join(" | ")
        }
        cell => cell.to_string(),
    };
    match answer {
        Value::Array(rows) => {
            let rows: BTreeSet<String> = rows.iter().map(row).collect();
            rows.into_iter().collect::<Vec<_>>().join("\n")
        }
        cell => cell.to_string(),
    }
}

/// Returns the names, numbers and texts of a query, each once. Keywords, functions, `GROUP BY` and
/// `LIMIT` are left out: the answer shows what they decide. So are numbers that are bounds: of
/// whole numbers, `> 5` and `>= 6` ask the same.
fn names_and_literals(sql: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (mut is_left_out, mut is_bound) = (false, false);
    let tokens = sql_tokens(sql).filter(|token| !matches!(token, SqlToken::Gap(_)));
    let mut tokens = tokens.peekable();
    while let Some(token) = tokens.next() {
        let is_call = tokens.peek() == Some(&SqlToken::Symbol("("));
        match token {
            SqlToken::Word(word) if is_keyword(word) => {
                is_left_out = match word.to_uppercase().as_str() {
                    "GROUP" | "LIMIT" => true,
                    "HAVING" | "ORDER" | "UNION" | "EXCEPT" | "INTERSECT" => false,
                    _ => is_left_out,
                };
            }
            SqlToken::Word(word) if is_call && is_sql_function(word) => {}
            SqlToken::Word(word)
                if is_bound && word.starts_with(|it: char| it.is_ascii_digit()) => {}
            SqlToken::Word(text) | SqlToken::Quoted(text) if !is_left_out => {
                found.insert(text.to_owned());
            }
            _ => {}
        }
        is_bound = match token {
            SqlToken::Symbol("-") => is_bound,
            token => matches!(token, SqlToken::Symbol(">" | ">=" | "<" | "<=")),
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::AnswerType;

    fn question(level: usize, sql: &str, answer: Value) -> Question {
        Question {
            question_id: String::new(),
            question_text: String::new(),
            database_name: "d".to_owned(),
            gold_sql: sql.to_owned(),
            gold_answer: answer,
            answer_type: AnswerType::Unknown,
            difficulty: format!("level-{level}"),
            tables_involved: Vec::new(),
            split: String::new(),
        }
    }

    const SAME: [[&str; 2]; 7] = [
        [
            "SELECT name FROM a ORDER BY n DESC LIMIT 1",
            "SELECT name FROM a WHERE n = (SELECT max(n) FROM a)",
        ],
        [
            "SELECT name FROM a EXCEPT SELECT name FROM b JOIN a USING (\"a id\")",
            "SELECT name FROM a WHERE \"a id\" NOT IN (SELECT \"a id\" FROM b)",
        ],
        [
            "SELECT name FROM b JOIN a USING (id) GROUP BY name ORDER BY count(*) DESC LIMIT 1",
            "SELECT name FROM b JOIN a USING (id) GROUP BY id ORDER BY count(*) DESC LIMIT 1",
        ],
        [
            "SELECT count(*) FROM a WHERE c = 'x' AND n > 5",
            "SELECT count(*) FROM a WHERE n > 5 AND c = 'x'",
        ],
        [
            "SELECT name FROM a WHERE n IS NOT NULL ORDER BY n LIMIT 1",
            "SELECT name FROM a ORDER BY n LIMIT 1",
        ],
        [
            "SELECT c FROM a GROUP BY c HAVING count(*) > 2",
            "SELECT c FROM a GROUP BY c HAVING count(*) >= 3",
        ],
        [
            "SELECT name FROM a WHERE n < -5",
            "SELECT name FROM a WHERE n <= -6",
        ],
    ];

    #[test]
    fn questions_of_one_meaning_have_one_key() {
        let meaning = |sql: &str, answer: Value| meaning(&question(1, sql, answer));
        for [sql, other] in SAME {
            assert_eq!(
                meaning(sql, json!("x")),
                meaning(other, json!("x")),
                "{sql}"
            );
            assert_ne!(
                meaning(sql, json!("x")),
                meaning(other, json!("y")),
                "{sql}"
            );
        }
        let [sql, other] = ["SELECT c, count(*) FROM a", "SELECT count(*), c FROM a"];
        let table = meaning(sql, json!([["x", 1], ["y", 2]]));
        assert_eq!(table, meaning(other, json!([[2, "y"], [1, "x"]])));
        for [sql, other] in [
            [
                "SELECT a FROM t WHERE c = 'x'",
                "SELECT a FROM t WHERE c = 'y'",
            ],
            ["SELECT a FROM t WHERE n = 5", "SELECT a FROM t WHERE n = 6"],
            ["SELECT a FROM t WHERE n > 5", "SELECT a FROM t WHERE m > 5"],
            ["SELECT a FROM t", "SELECT a FROM u"],
        ] {
            assert_ne!(meaning(sql, json!(1)), meaning(other, json!(1)), "{sql}");
        }
    }

    #[test]
    fn each_level_has_its_share_and_no_meaning_is_in_two_splits() {
        let mut questions: Vec<Question> = (0..200)
            .map(|number| {
                let sql = format!("SELECT name FROM a WHERE n = {number}");
                question(1 + number % 4, &sql, json!("x"))
            })
            .collect();
        for (index, [sql, other]) in SAME.into_iter().enumerate() {
            let level = index % 5;
            questions.push(question(level, sql, json!("x")));
            questions.push(question(4 - level, other, json!("x")));
        }
        assign(&mut questions, "d");
        for level in 1..=3 {
            let level = format!("level-{level}");
            let of_level = questions.iter().filter(|it| it.difficulty == level);
            let eval = of_level.clone().filter(|it| it.split == "eval").count();
            assert_eq!(eval, eval_places(of_level.count()), "{level}");
        }
        for pair in questions[200..].chunks(2) {
            assert_eq!(pair[0].split, pair[1].split, "{}", pair[0].gold_sql);
        }
        let mut again = questions.clone();
        assign(&mut again, "d");
        assert_eq!(again, questions);
    }
}
