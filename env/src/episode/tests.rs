//! Tests the rules of an episode.

use super::*;
use crate::schema::Table;

const ARGUMENT_BYTES: usize = 100;

fn schema() -> Schema {
    let column = |name: &str| (name.to_owned(), "TEXT".to_owned());
    Schema {
        tables: vec![
            Table::new("cars", &[column("Id")], 3, "1. a".to_owned()),
            Table::new("Makers", &[column("Name")], 1, "1. b".to_owned()),
        ],
    }
}

fn state(profile: RewardProfile, step_budget: u32) -> EpisodeState {
    EpisodeState {
        reward_profile: profile as i32,
        step_budget,
        ..EpisodeState::default()
    }
}

fn act(
    state: &EpisodeState,
    action_type: &str,
    argument: &str,
    outcome: ActionOutcome,
) -> Transition {
    let action = Action {
        action_type: action_type.to_owned(),
        argument: argument.to_owned(),
    };
    let parsed = parse(&action, &schema(), ARGUMENT_BYTES);
    let outcome = match &parsed {
        ParsedAction::Invalid(error) => ActionOutcome::Error(error.clone()),
        _ => outcome,
    };
    apply(state, &action, &parsed, outcome)
}

#[test]
fn names_count_in_any_case() {
    for (action_type, argument, expected) in [
        ("describe", " CARS ", ParsedAction::Describe(0)),
        ("Sample", "makers", ParsedAction::Sample(1)),
        ("query", "SELECT 1", ParsedAction::Query("SELECT 1")),
        (" answer ", "", ParsedAction::Answer("")),
    ] {
        let action = Action {
            action_type: action_type.to_owned(),
            argument: argument.to_owned(),
        };
        assert_eq!(parse(&action, &schema(), ARGUMENT_BYTES), expected);
    }
}

#[test]
fn a_table_name_may_begin_or_end_with_blanks() {
    let table = |name: &str| Table::new(name, &[], 0, String::new());
    let schema = Schema {
        tables: [" x", "x ", "x", "Sheet1 ", ""].map(table).into(),
    };
    for (argument, index) in [
        (" x", 0),
        ("X ", 1),
        ("x", 2),
        (" x ", 2),
        ("Sheet1 ", 3),
        ("Sheet1", 3),
        (" sheet1", 3),
        (" ", 4),
    ] {
        let action = Action {
            action_type: "DESCRIBE".to_owned(),
            argument: argument.to_owned(),
        };
        let parsed = parse(&action, &schema, ARGUMENT_BYTES);
        assert_eq!(parsed, ParsedAction::Describe(index), "{argument:?}");
    }
}

#[test]
fn what_cannot_be_done_costs_a_step_and_says_what_can() {
    let start = state(RewardProfile::Default, 15);
    for (action_type, argument, error) in [
        (
            "DESCRIBE",
            "nope",
            "Table 'nope' not found. Available tables: cars, Makers",
        ),
        (
            "SAMPLE",
            "",
            "Table '' not found. Available tables: cars, Makers",
        ),
        (
            "LOOK",
            "cars",
            "Unknown action 'LOOK'. Use one of DESCRIBE, SAMPLE, QUERY, ANSWER.",
        ),
        (
            "QUERY",
            &"x".repeat(101),
            "The argument has 101 bytes; at most 100 are allowed.",
        ),
    ] {
        let transition = act(&start, action_type, argument, ActionOutcome::Verified(true));
        assert_eq!(transition.error, error);
        assert_eq!(
            (transition.state.step_count(), transition.state.done),
            (1, false)
        );
        assert_eq!(transition.reward.total(), -0.02);
    }
}

#[test]
fn described_tables_join_the_schema_once_in_order() {
    let mut now = state(RewardProfile::Default, 15);
    for table in ["Makers", "cars", "makers"] {
        now = act(&now, "DESCRIBE", table, ActionOutcome::Text(String::new())).state;
    }
    assert_eq!(now.described, [1, 0]);
    assert_eq!(
        now.observation("q", &schema()).schema_info,
        "Available tables:\n- cars\n- Makers\nTable 'Makers' columns:\n- Name: TEXT\nTable 'cars' columns:\n- Id: TEXT"
    );
    assert_eq!(
        now.history,
        ["DESCRIBE Makers", "DESCRIBE cars", "DESCRIBE makers"]
    );
}

#[test]
fn the_default_profile_sees_through_spelling_and_failure() {
    let failed = || ActionOutcome::Error("SQL error: x".to_owned());
    let rows = || ActionOutcome::Rows {
        text: String::new(),
        level: 0,
    };
    for (profile, second_failure, second_spelling) in [
        (RewardProfile::Default, -0.05, -0.03),
        (RewardProfile::SqlenvFinal, -0.02, 0.01),
    ] {
        let after_failure = act(&state(profile, 15), "QUERY", "SELEC 1", failed()).state;
        let again = act(&after_failure, "QUERY", "SELEC 1", failed());
        assert_eq!(again.reward.total(), second_failure, "{profile}");
        let after_query = act(&state(profile, 15), "QUERY", "SELECT 1", rows()).state;
        let again = act(&after_query, "QUERY", "SELECT  1; -- again", rows());
        assert_eq!(again.reward.total(), second_spelling, "{profile}");
    }
}

#[test]
fn a_long_history_keeps_less_of_each_argument() {
    let name = "é".repeat(ACTION_NAME_BYTES);
    let argument = "x".repeat(ARGUMENT_BYTES * 50);
    let mut now = state(RewardProfile::Default, 1_000);
    while !now.done {
        now = act(&now, &name, &argument, ActionOutcome::Verified(false)).state;
    }
    let lengths: Vec<usize> = now.history.iter().map(String::len).collect();
    assert_eq!(lengths.len(), 1_000);
    // The name with its ellipsis, a blank, the argument with its ellipsis.
    let entry = |kept: usize| ACTION_NAME_BYTES + 3 + 1 + kept + 3;
    assert!(
        lengths[..30]
            .iter()
            .all(|&length| length == entry(HISTORY_ARGUMENT_BYTES))
    );
    assert_eq!(lengths[999], entry(LATE_ARGUMENT_BYTES));
    let most = HISTORY_BYTES + 1_000 * entry(LATE_ARGUMENT_BYTES);
    assert!(lengths.iter().sum::<usize>() <= most);
}

#[test]
fn the_end_is_final() {
    let wrong = act(
        &state(RewardProfile::Default, 15),
        "ANSWER",
        "x",
        ActionOutcome::Verified(false),
    );
    assert!(wrong.state.done && !wrong.state.correct);
    let after = apply_after_end(&wrong.state, 0.1);
    assert_eq!(after.state, wrong.state);
    assert_eq!(after.reward.total(), -0.1);
    assert!(after.error.contains("Episode is over"));

    let last = act(
        &state(RewardProfile::Default, 1),
        "DESCRIBE",
        "cars",
        ActionOutcome::Text(String::new()),
    );
    assert!(last.state.done && !last.state.correct);
    let right = act(
        &state(RewardProfile::Default, 1),
        "ANSWER",
        "x",
        ActionOutcome::Verified(true),
    );
    assert!(right.state.done && right.state.correct);
}
