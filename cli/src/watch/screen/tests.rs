//! Draws screens on a backend without a terminal.

use proto::v1::RewardComponents;
use ratatui::{Terminal, backend::TestBackend};
use report::{
    ActorStatus, CorrectCount, DecodingMode, EnvNodeStatus, EnvStepRecord, EpisodeRecord,
    Evaluation, EvaluationMetrics, Finding, LearnerStepRecord, PolicyName, RunRecords, RunSettings,
    TrainingStage,
};

use super::*;

const HOSTILE: &str = "\u{1b}[31mevil\u{202e}<script>";

/// Returns the status of a run at step 30 of 40, with one warning.
pub(in crate::watch) fn status() -> LiveStatus {
    let step = |step: u64| LearnerStepRecord {
        step,
        stage: TrainingStage::Grpo,
        policy_version: step,
        metrics: [
            ("reward", 0.2 + step as f64 / 100.0),
            ("entropy", 0.4 - step as f64 / 100.0),
            ("loss", 0.01),
            ("frac_reward_zero_std", 0.3),
            ("step_time", 6.0),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
    };
    let records = RunRecords {
        steps: (1..=30).map(step).collect(),
        evaluations: [(0, 70), (10, 80), (20, 100), (30, 110)]
            .map(|(step, correct)| evaluation(step, correct))
            .into(),
        ..RunRecords::default()
    };
    let settings = RunSettings {
        steps: Some(40),
        ..RunSettings::default()
    };
    let mut status = LiveStatus::of_records(&records, "sales", settings);
    status.is_live = true;
    status.actors = ["actor-0", HOSTILE].map(actor).into();
    status.env_nodes = vec![EnvNodeStatus {
        address: "node-a:8000".to_owned(),
        calls: 12_000,
        errors: 4,
        recent_calls: 640,
        recent_errors: 0,
        mean_latency_seconds: Some(0.0042),
        p95_latency_seconds: Some(0.0113),
    }];
    status.episodes = vec![episode()];
    status.findings = vec![Finding {
        severity: Severity::Hint,
        rule: "actor-silent".to_owned(),
        seen: format!("{HOSTILE} is silent for 2 min."),
        meaning: "It left.".to_owned(),
        remedy: "Look at its log.".to_owned(),
    }];
    status
}

fn evaluation(step: u64, correct: u64) -> Evaluation {
    Evaluation {
        policy: PolicyName::Grpo,
        policy_version: step,
        step,
        split: "eval/curve".to_owned(),
        mode: DecodingMode::Greedy,
        metrics: EvaluationMetrics {
            success: CorrectCount {
                questions: 200,
                correct,
            }
            .into(),
            ..EvaluationMetrics::default()
        },
    }
}

fn actor(id: &str) -> ActorStatus {
    ActorStatus {
        id: id.to_owned(),
        policy_version: Some(29),
        version_lag: Some(1),
        is_connected: id == "actor-0",
        silent_seconds: 4.0,
        groups_in_flight: 8,
        groups_done: 480,
        tokens_per_second: Some(2_400.0),
        busy_share: Some(0.83),
    }
}

fn episode() -> LiveEpisode {
    let step = |action: &str, argument: &str, result: &str| EnvStepRecord {
        completion: None,
        action_type: action.to_owned(),
        argument: argument.to_owned(),
        malformed: false,
        result: Some(result.to_owned()),
        error: None,
        reward: 0.1,
        components: RewardComponents::default(),
    };
    LiveEpisode {
        group_index: 479,
        actor_id: "actor-0".to_owned(),
        episode: EpisodeRecord {
            question_id: "q".to_owned(),
            question: "How many customers bought tea?".to_owned(),
            database: "sales".to_owned(),
            difficulty: "level-1".to_owned(),
            correct: true,
            reward: 1.1,
            failure: String::new(),
            steps: vec![
                step("QUERY", "SELECT count(*) FROM customers", "1. 42"),
                step("ANSWER", "42", "correct"),
            ],
        },
    }
}

/// Draws a view and returns the rows of the screen.
fn drawn(view: &View, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let rows = buffer.content().chunks(usize::from(width));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect())
        .collect()
}

fn view() -> View {
    let mut view = View::new("http://learner:9000".to_owned());
    view.fetched(Fetched::Status(Box::new(status())));
    view
}

#[test]
fn a_screen_shows_every_part() {
    let rows = drawn(&view(), (140, 50));
    let text = rows.join("\n");
    for part in [
        "sales  1 min 00 s left",
        "reward 0.5",
        "accuracy 55.0 %",
        "tokens/s 2400",
        "step 30/40",
        "is silent for 2 min.",
        "Look at its log.",
        "Training reward",
        "Accuracy on new questions, %",
        "Entropy, nats",
        "actor-0",
        "83.0 %",
        "node-a:8000",
        "11.3 ms",
        "How many customers bought tea?",
        "SELECT count(*) FROM customers",
    ] {
        assert!(
            text.replace('\u{2009}', "").contains(part),
            "{part}\n{text}"
        );
    }
    assert!(
        text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)),
        "no curve\n{text}"
    );
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
}

#[test]
fn the_head_says_that_all_steps_are_made() {
    let mut last = status();
    (last.step, last.eta_seconds) = (40, None);
    let mut view = view();
    view.fetched(Fetched::Status(Box::new(last)));
    let rows = drawn(&view, (140, 50)).join("\n");
    let head = "sales  all steps are made; evaluations may follow";
    assert!(rows.contains(head), "{rows}");
}

#[test]
fn every_size_can_be_drawn() {
    for width in [1, 7, 30, 80, 300] {
        for height in [1, 2, 5, 12, 24, 100] {
            assert_eq!(drawn(&view(), (width, height)).len(), usize::from(height));
        }
    }
    let small = drawn(&view(), (80, 12)).join("\n");
    assert!(
        small.contains("step 30/40") && small.contains("is silent"),
        "{small}"
    );
}

#[test]
fn an_absent_learner_is_named_and_its_last_status_stays() {
    let mut view = View::new("http://learner:9000".to_owned());
    let away = || Fetched::Away("connection refused".to_owned());
    view.fetched(away());
    let rows = drawn(&view, (100, 24)).join("\n");
    assert!(
        rows.contains("http://learner:9000 does not answer: connection refused"),
        "{rows}"
    );
    assert!(rows.contains("Waiting for the learner"), "{rows}");
    view.fetched(Fetched::Status(Box::new(status())));
    view.fetched(away());
    let rows = drawn(&view, (100, 40)).join("\n");
    assert!(
        rows.contains("does not answer") && rows.contains("Training reward"),
        "{rows}"
    );
    view.fetched(Fetched::Status(Box::new(status())));
    assert!(
        !drawn(&view, (100, 40))
            .join("\n")
            .contains("does not answer")
    );
}
