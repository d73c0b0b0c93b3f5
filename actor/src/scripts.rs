//! Policies that follow rules: the random baseline, the oracle, and demonstrators of mixed habits.
//!
//! Invariant: each action is a pure function of the question, the newest observation and the coordinates; there is no state
//! between turns. Demonstrators imitate people: some look before they answer, some guess, some slip and recover. Solutions
//! come from the caller; the environment's observations never hold them.

use std::{collections::BTreeMap, sync::Arc};

use policy::Coordinates;
use proto::v1::{Action, Observation};
use serde::{Deserialize, Serialize};

use crate::{
    policies::Script,
    sql_slips::{Columns, misnamed, wrong_variants},
    tool_call::action,
};

/// How one question is solved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The database; guesses are drawn from its answers.
    pub database_name: String,
    /// Tables to describe, in order.
    pub tables: Vec<String>,
    /// The gold SQL.
    pub sql: String,
    /// The answer as a model would write it.
    pub answer: String,
}

/// Solutions by question id.
#[derive(Clone, Debug, Default)]
pub struct Solutions {
    by_question: BTreeMap<String, Solution>,
    answers_by_database: BTreeMap<String, Vec<String>>,
}

impl FromIterator<(String, Solution)> for Solutions {
    fn from_iter<I: IntoIterator<Item = (String, Solution)>>(solutions: I) -> Self {
        let by_question: BTreeMap<_, _> = solutions.into_iter().collect();
        let mut answers_by_database: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for solution in by_question.values() {
            let answers = answers_by_database
                .entry(solution.database_name.clone())
                .or_default();
            answers.push(solution.answer.clone());
        }
        Self {
            by_question,
            answers_by_database,
        }
    }
}

/// Plays by chance over the tables it sees: the floor of every comparison.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomPolicy;

impl Script for RandomPolicy {
    fn act(
        &self,
        _question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let dice = Dice(coordinates);
        let tables = tables(observation);
        if tables.is_empty() || observation.budget_remaining <= 1 {
            return action("ANSWER", dice.guess(observation));
        }
        let table = *dice.pick(0, &tables);
        match dice.below(1, 5) {
            0 => action("DESCRIBE", table),
            1 => action("SAMPLE", table),
            2 => action("QUERY", format!("SELECT COUNT(*) FROM {}", quoted(table))),
            3 => action("QUERY", format!("SELECT * FROM {} LIMIT 5", quoted(table))),
            _ => action("ANSWER", dice.guess(observation)),
        }
    }
}

/// Knows the gold: describes each table, queries, answers. A question it does not know it answers with nothing.
#[derive(Clone, Debug)]
pub struct OraclePolicy(pub Arc<Solutions>);

impl Script for OraclePolicy {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        _coordinates: Coordinates,
    ) -> Action {
        let Some(solution) = self.0.by_question.get(question_id) else {
            return action("ANSWER", "");
        };
        match next_look(solution, observation, 0) {
            Look::Describe(table) => action("DESCRIBE", table),
            Look::Query(_) => action("QUERY", &*solution.sql),
            Look::Answer => action("ANSWER", &*solution.answer),
        }
    }
}

/// Describes one table and guesses an answer of the right kind without asking the database.
#[derive(Clone, Debug)]
pub struct HastyPolicy(pub Arc<Solutions>);

impl Script for HastyPolicy {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let dice = Dice::of_episode(coordinates);
        let Some(solution) = self.0.by_question.get(question_id) else {
            return action("ANSWER", "");
        };
        match solution.tables.first() {
            Some(table) if observation.step_count == 0 && observation.budget_remaining > 1 => {
                action("DESCRIBE", table)
            }
            _ => action("ANSWER", self.plausible_answer(solution, observation, dice)),
        }
    }
}

impl HastyPolicy {
    /// The answer to another question on the same database that looks alike; else what was last seen.
    fn plausible_answer(
        &self,
        solution: &Solution,
        observation: &Observation,
        dice: Dice,
    ) -> String {
        let answers = self.0.answers_by_database.get(&solution.database_name);
        let alike: Vec<&String> = answers
            .into_iter()
            .flatten()
            .filter(|answer| {
                **answer != solution.answer && Shape::of(answer) == Shape::of(&solution.answer)
            })
            .collect();
        if alike.is_empty() {
            dice.guess(observation)
        } else {
            (*dice.pick(GUESS, &alike)).clone()
        }
    }
}

/// How often a demonstrator falls into which habit. Shares are of all episodes, except the slips: of the careful ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Habits {
    /// Answers without a query.
    pub hasty_share: f64,
    /// Runs a subtly wrong query and answers its result.
    pub wrong_query_share: f64,
    /// Names a table that is not there, reads the error, and recovers.
    pub error_share: f64,
}

impl Default for Habits {
    /// The oracle's habits: none.
    fn default() -> Self {
        Self {
            hasty_share: 0.0,
            wrong_query_share: 0.0,
            error_share: 0.0,
        }
    }
}

impl Habits {
    /// Half careful, half hasty, with slips among the careful (the mix that `spec/tiny_policy.md` found workable).
    #[must_use]
    pub fn mixed() -> Self {
        Self {
            hasty_share: 0.5,
            wrong_query_share: 0.25,
            error_share: 0.07,
        }
    }
}

/// Solves questions as people of mixed habits do; writes what it read, not what it knows.
#[derive(Clone, Debug)]
pub struct Demonstrator {
    solutions: Arc<Solutions>,
    habits: Habits,
}

impl Demonstrator {
    /// A demonstrator; each episode's habit is drawn by its coordinates.
    #[must_use]
    pub fn new(solutions: Arc<Solutions>, habits: Habits) -> Self {
        Self { solutions, habits }
    }
}

impl Script for Demonstrator {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let dice = Dice::of_episode(coordinates);
        if dice.unit(HASTE) < self.habits.hasty_share {
            return HastyPolicy(self.solutions.clone()).act(question_id, observation, coordinates);
        }
        let Some(solution) = self.solutions.by_question.get(question_id) else {
            return action("ANSWER", "");
        };
        let errs = dice.unit(ERROR) < self.habits.error_share;
        let slips = dice.unit(SLIP) < self.habits.wrong_query_share;
        match next_look(solution, observation, usize::from(errs)) {
            Look::Describe(table) => action("DESCRIBE", table),
            Look::Query(0) if errs => action("QUERY", misnamed(&solution.sql, &solution.tables)),
            Look::Query(_) if slips => action("QUERY", slip(solution, observation, dice)),
            Look::Query(_) => action("QUERY", &*solution.sql),
            // The slip failed: the error shows it, and the right query follows.
            Look::Answer if !observation.error.is_empty() && observation.budget_remaining > 1 => {
                action("QUERY", &*solution.sql)
            }
            Look::Answer if slips => action("ANSWER", copied(&observation.result)),
            Look::Answer => action("ANSWER", &*solution.answer),
        }
    }
}

/// What a careful player does next.
enum Look<'a> {
    Describe(&'a str),
    /// The how-manieth query.
    Query(usize),
    Answer,
}

/// The steps of a careful player by the steps made: describe the tables, query (`extra_queries` more than once), answer.
/// A short budget leaves out the first ones.
fn next_look<'a>(
    solution: &'a Solution,
    observation: &Observation,
    extra_queries: usize,
) -> Look<'a> {
    let made = observation.step_count as usize;
    let budget = made + observation.budget_remaining as usize;
    let tables = solution
        .tables
        .len()
        .min(budget.saturating_sub(2 + extra_queries));
    if observation.budget_remaining <= 1 {
        Look::Answer
    } else if made < tables {
        Look::Describe(&solution.tables[made])
    } else if made <= tables + extra_queries {
        Look::Query(made - tables)
    } else {
        Look::Answer
    }
}

fn slip(solution: &Solution, observation: &Observation, dice: Dice) -> String {
    let variants = wrong_variants(&solution.sql, &described_columns(observation));
    if variants.is_empty() {
        solution.sql.clone()
    } else {
        dice.pick(SLIP_KIND, &variants).clone()
    }
}

/// Table names that an observation lists.
fn tables(observation: &Observation) -> Vec<&str> {
    let listed = observation.schema_info.lines().skip(1);
    listed.map_while(|line| line.strip_prefix("- ")).collect()
}

/// Columns of the tables described so far.
fn described_columns(observation: &Observation) -> Vec<Columns> {
    let mut tables: Vec<Columns> = Vec::new();
    for line in observation.schema_info.lines().skip(1) {
        if line.starts_with("Table '") {
            tables.push(Columns::default());
        } else if let (Some(Columns(columns)), Some(column)) =
            (tables.last_mut(), line.strip_prefix("- "))
        {
            let name = column.rsplit_once(": ").map_or(column, |(name, _)| name);
            columns.push(name.to_owned());
        }
    }
    tables
}

/// The rows of a result without their numbers; none where it is no list of rows.
fn rows(result: &str) -> Vec<&str> {
    let numbered = result.lines().enumerate();
    numbered
        .filter_map(|(index, line)| line.strip_prefix(&format!("{}. ", index + 1)))
        .collect()
}

/// A result as one copies it into an answer: a value, a comma-separated list, or rows.
fn copied(result: &str) -> String {
    let rows = rows(result);
    match rows[..] {
        [] => "[]".to_owned(),
        [row] => cut_decimals(row).to_owned(),
        _ if rows.iter().any(|row| row.contains(" | ")) => rows.join("\n"),
        _ => rows.join(", "),
    }
}

/// A long decimal without the digits that do not matter: two after the point, three significant ones below 1.
fn cut_decimals(cell: &str) -> &str {
    let Some((whole, decimals)) = cell.split_once('.') else {
        return cell;
    };
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(digits) || !is_number(decimals) {
        return cell;
    }
    let leading_zeros = decimals.len() - decimals.trim_start_matches('0').len();
    let kept = if digits == "0" { leading_zeros + 3 } else { 2 };
    &cell[..cell.len().min(whole.len() + 1 + kept)]
}

fn quoted(table: &str) -> String {
    format!("\"{}\"", table.replace('"', "\"\""))
}

/// The kind of an answer, as a guesser can tell it from the question.
#[derive(PartialEq)]
enum Shape {
    Number,
    Text,
    Several,
}

impl Shape {
    fn of(answer: &str) -> Self {
        if answer.parse::<f64>().is_ok() {
            Self::Number
        } else if answer.contains([',', '|', '\n']) {
            Self::Several
        } else {
            Self::Text
        }
    }
}

// Which of an episode's draws decides what.
const HASTE: u32 = 0;
const SLIP: u32 = 1;
const ERROR: u32 = 2;
const SLIP_KIND: u32 = 3;
const GUESS: u32 = 4;

/// Draws by number, of one turn or of the whole episode.
#[derive(Clone, Copy)]
struct Dice(Coordinates);

impl Dice {
    /// The same draws in every turn.
    fn of_episode(coordinates: Coordinates) -> Self {
        Self(Coordinates {
            turn: u32::MAX,
            ..coordinates
        })
    }

    fn unit(self, draw: u32) -> f64 {
        self.0.at(draw).uniform()
    }

    fn below(self, draw: u32, count: usize) -> usize {
        // The product can round up to `count`.
        ((self.unit(draw) * count as f64) as usize).min(count.saturating_sub(1))
    }

    fn pick<T>(self, draw: u32, choices: &[T]) -> &T {
        &choices[self.below(draw, choices.len())]
    }

    /// A row that was last seen, or the row count, or 0.
    fn guess(self, observation: &Observation) -> String {
        let rows = rows(&observation.result);
        let row_count = || {
            observation
                .result
                .lines()
                .find_map(|line| line.strip_prefix("Row count: "))
        };
        if rows.is_empty() {
            row_count().unwrap_or("0").to_owned()
        } else {
            (*self.pick(GUESS, &rows)).to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = "Available tables:\n- book\n- author";

    fn solutions() -> Arc<Solutions> {
        let solution = |answer: &str| Solution {
            database_name: "library".to_owned(),
            tables: vec!["book".to_owned()],
            sql: "SELECT MAX(pages) FROM book WHERE pages > 10".to_owned(),
            answer: answer.to_owned(),
        };
        let solutions = [("q1", "812"), ("q2", "9"), ("q3", "Moby Dick")];
        Arc::new(
            solutions
                .map(|(id, answer)| (id.to_owned(), solution(answer)))
                .into_iter()
                .collect(),
        )
    }

    /// An observation after `made` of 8 steps.
    fn seen(made: u32, result: &str, error: &str) -> Observation {
        Observation {
            schema_info: if made == 0 {
                SCHEMA.to_owned()
            } else {
                format!("{SCHEMA}\nTable 'book' columns:\n- title: TEXT\n- pages: INTEGER")
            },
            result: result.to_owned(),
            error: error.to_owned(),
            step_count: made,
            budget_remaining: 8 - made,
            ..Observation::default()
        }
    }

    fn episode(member: u32) -> Coordinates {
        Coordinates {
            run_seed: 7,
            member,
            ..Coordinates::default()
        }
    }

    fn kinds(script: &impl Script, question: &str, observations: &[Observation]) -> Vec<Action> {
        let turn = |turn: usize| Coordinates {
            turn: turn as u32,
            ..episode(0)
        };
        let acts = observations.iter().enumerate();
        acts.map(|(index, observation)| script.act(question, observation, turn(index)))
            .collect()
    }

    #[test]
    fn the_oracle_describes_queries_and_answers() {
        let oracle = OraclePolicy(solutions());
        let acts = kinds(
            &oracle,
            "q1",
            &[seen(0, "", ""), seen(1, "x", ""), seen(2, "1. 812", "")],
        );
        let wanted = [
            action("DESCRIBE", "book"),
            action("QUERY", "SELECT MAX(pages) FROM book WHERE pages > 10"),
            action("ANSWER", "812"),
        ];
        assert_eq!(acts, wanted);
        assert_eq!(
            oracle.act("unknown", &seen(0, "", ""), episode(0)),
            action("ANSWER", "")
        );
    }

    #[test]
    fn a_short_budget_leaves_out_the_describes() {
        let oracle = OraclePolicy(solutions());
        let two_left = Observation {
            budget_remaining: 2,
            ..seen(0, "", "")
        };
        assert_eq!(oracle.act("q1", &two_left, episode(0)).action_type, "QUERY");
        let one_left = Observation {
            budget_remaining: 1,
            ..seen(0, "", "")
        };
        assert_eq!(
            oracle.act("q1", &one_left, episode(0)).action_type,
            "ANSWER"
        );
    }

    #[test]
    fn the_hasty_guess_is_alike_but_not_known() {
        let hasty = HastyPolicy(solutions());
        let acts = kinds(
            &hasty,
            "q1",
            &[seen(0, "", ""), seen(1, "Row count: 3", "")],
        );
        assert_eq!(acts, [action("DESCRIBE", "book"), action("ANSWER", "9")]);
        let acts = kinds(
            &hasty,
            "q3",
            &[seen(0, "", ""), seen(1, "Row count: 3", "")],
        );
        assert_eq!(acts[1], action("ANSWER", "3"));
    }

    #[test]
    fn an_error_is_made_once_and_mended() {
        let habits = Habits {
            error_share: 1.0,
            ..Habits::default()
        };
        let script = Demonstrator::new(solutions(), habits);
        let acts = kinds(
            &script,
            "q1",
            &[
                seen(0, "", ""),
                seen(1, "x", ""),
                seen(2, "", "SQL error: no such table: books"),
                seen(3, "1. 812", ""),
            ],
        );
        assert_eq!(
            acts[1],
            action("QUERY", "SELECT MAX(pages) FROM books WHERE pages > 10")
        );
        assert_eq!(
            acts[2],
            action("QUERY", "SELECT MAX(pages) FROM book WHERE pages > 10")
        );
        assert_eq!(acts[3], action("ANSWER", "812"));
    }

    #[test]
    fn a_slip_is_answered_as_read_and_a_failed_one_is_mended() {
        let habits = Habits {
            wrong_query_share: 1.0,
            ..Habits::default()
        };
        let script = Demonstrator::new(solutions(), habits);
        let query = script.act("q1", &seen(1, "x", ""), episode(0));
        assert_eq!(query.action_type, "QUERY");
        assert_ne!(
            query.argument,
            "SELECT MAX(pages) FROM book WHERE pages > 10"
        );
        let answer = script.act("q1", &seen(2, "1. 11.25999", ""), episode(0));
        assert_eq!(answer, action("ANSWER", "11.25"));
        let mended = script.act("q1", &seen(2, "", "SQL error: x"), episode(0));
        assert_eq!(
            mended,
            action("QUERY", "SELECT MAX(pages) FROM book WHERE pages > 10")
        );
    }

    #[test]
    fn habits_come_in_their_shares() {
        let script = Demonstrator::new(solutions(), Habits::mixed());
        let described = seen(1, "Row count: 3", "");
        let hasty = (0..2_000).filter(|member| {
            script.act("q1", &described, episode(*member)).action_type == "ANSWER"
        });
        let share = hasty.count() as f64 / 2_000.0;
        assert!((0.46..0.54).contains(&share), "{share}");
    }

    #[test]
    fn the_random_policy_repeats_itself_and_ends() {
        let last = Observation {
            budget_remaining: 1,
            ..seen(0, "1. a | b\n2. c | d", "")
        };
        let mut kinds = std::collections::BTreeSet::new();
        for member in 0..100 {
            let act = RandomPolicy.act("q1", &seen(0, "", ""), episode(member));
            assert_eq!(
                act,
                RandomPolicy.act("q1", &seen(0, "", ""), episode(member))
            );
            kinds.insert(act.action_type);
            let end = RandomPolicy.act("q1", &last, episode(member));
            assert_eq!(end.action_type, "ANSWER");
            assert!(["a | b", "c | d"].contains(&end.argument.as_str()));
        }
        assert_eq!(kinds.len(), 4);
    }

    #[test]
    fn results_are_copied_as_answers() {
        for (result, answer) in [
            ("1. 42", "42"),
            ("1. 3.14159", "3.14"),
            ("1. -0.0001234567", "-0.000123"),
            ("1. 1.2.3", "1.2.3"),
            ("1. a\n2. b", "a, b"),
            ("1. a | 1\n2. b | 2", "a | 1\nb | 2"),
            ("(no rows)", "[]"),
        ] {
            assert_eq!(copied(result), answer);
        }
    }
}
