//! Checks every case of the project's golden vectors for verifier, rewards and cardinality exactly
//! (`tests/golden/README.md`).

use data::AnswerType;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    episode::{self, Action, ActionOutcome, EpisodeState, ParsedAction},
    progress::{TOP_LEVEL, cardinality},
    reward::RewardProfile,
    verifier::{RowOrder, verify_answer},
};

#[derive(Deserialize)]
struct File<C> {
    cases: Vec<C>,
}

fn cases<C: for<'a> Deserialize<'a>>(text: &str) -> Vec<C> {
    serde_json::from_str::<File<C>>(text).unwrap().cases
}

#[derive(Deserialize)]
struct VerifierCase {
    id: String,
    predicted: Option<String>,
    gold: Value,
    answer_type: Option<AnswerType>,
    gold_rows: Option<Vec<Vec<Value>>>,
    #[serde(default)]
    ordered: bool,
    expected: bool,
    rule: String,
}

#[test]
fn verifier() {
    let cases: Vec<VerifierCase> = cases(include_str!("../tests/golden/verifier.json"));
    assert_eq!(cases.len(), 222);
    for case in cases {
        let predicted = case.predicted.as_deref().unwrap_or_default();
        let answer_type = case.answer_type.unwrap_or(AnswerType::Unknown);
        let rows = case.gold_rows.as_deref();
        let order = match case.ordered {
            true => RowOrder::Gold,
            false => RowOrder::Any,
        };
        let verdict = verify_answer(predicted, &case.gold, answer_type, rows, order);
        assert_eq!(verdict, case.expected, "{}: {}", case.id, case.rule);
    }
}

#[derive(Deserialize)]
struct Sequence {
    id: String,
    profile: RewardProfile,
    budget: u32,
    post_episode_penalty: Option<f64>,
    steps: Vec<Step>,
    expected: Expected,
}

#[derive(Deserialize)]
struct Step {
    action: String,
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    sql: String,
    progress: Option<f64>,
    #[serde(default)]
    correct: bool,
}

#[derive(Deserialize)]
struct Expected {
    step_rewards: Vec<f64>,
    total: f64,
}

impl Step {
    fn action(&self) -> Action {
        Action {
            action_type: self.action.clone(),
            argument: self.sql.clone(),
        }
    }

    fn parsed(&self) -> ParsedAction<'_> {
        match self.action.as_str() {
            "DESCRIBE" => ParsedAction::Describe(0),
            "SAMPLE" => ParsedAction::Sample(0),
            "QUERY" => ParsedAction::Query(&self.sql),
            "ANSWER" => ParsedAction::Answer(""),
            other => panic!("no action {other}"),
        }
    }

    fn outcome(&self) -> ActionOutcome {
        match (self.action.as_str(), self.ok) {
            ("ANSWER", _) => ActionOutcome::Verified(self.correct),
            (_, false) => ActionOutcome::Error("failed".to_owned()),
            ("QUERY", true) => ActionOutcome::Rows {
                text: String::new(),
                level: (self.progress.unwrap() * f64::from(TOP_LEVEL)) as u32,
            },
            (_, true) => ActionOutcome::Text(String::new()),
        }
    }
}

#[test]
fn rewards() {
    let cases: Vec<Sequence> = cases(include_str!("../tests/golden/rewards.json"));
    assert_eq!(cases.len(), 72);
    for case in cases {
        let mut state = EpisodeState {
            reward_profile: case.profile as i32,
            step_budget: case.budget,
            ..EpisodeState::default()
        };
        let mut total = 0.0;
        for (index, (step, expected)) in case
            .steps
            .iter()
            .zip(&case.expected.step_rewards)
            .enumerate()
        {
            let transition = if state.done {
                episode::apply_after_end(&state, -case.post_episode_penalty.unwrap_or_default())
            } else {
                episode::apply(&state, &step.action(), &step.parsed(), step.outcome())
            };
            state = transition.state;
            let reward = transition.reward.total();
            assert!(
                (reward - expected).abs() < 1e-9,
                "{} step {index}: {reward}, not {expected}",
                case.id
            );
            total += reward;
        }
        assert!(
            (total - case.expected.total).abs() < 1e-9,
            "{}: total {total}",
            case.id
        );
    }
}

#[derive(Deserialize)]
struct Cardinality {
    predicted_rows: usize,
    gold_rows: usize,
    expected: f64,
}

#[test]
fn cardinalities() {
    let cases: Vec<Cardinality> = cases(include_str!("../tests/golden/cardinality.json"));
    assert_eq!(cases.len(), 12);
    for case in cases {
        let closeness = cardinality(case.predicted_rows, case.gold_rows);
        assert!(
            (closeness - case.expected).abs() < 1e-12,
            "{} {}",
            case.predicted_rows,
            case.gold_rows
        );
    }
}
