//! Tests runs with demonstrations: which questions are demonstrated, and that actors and
//! interruptions change no bit.

use std::{
    collections::BTreeSet,
    future::pending,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use learner::{
    Learner, LearnerConfig, LearnerError, TrainEvent, demonstrations::Demonstrate,
    group::StepGroups, trainer::Trainer,
};
use parking_lot::Mutex;
use proto::v1::Segment;

use crate::common::{actor, open, small_config, small_model, train, unread_events};
use crate::ranks::{doubles, step_groups};

fn config() -> LearnerConfig {
    LearnerConfig {
        demonstration_weight: 1.0,
        ..small_config()
    }
}

/// Tokens that follow from the question. This one cannot be demonstrated: `question-3`.
fn demonstration(question_id: &str) -> Option<Segment> {
    let number: u32 = question_id.strip_prefix("question-")?.parse().ok()?;
    (number != 3).then(|| Segment {
        tokens: (0..12).map(|at| 300 + number * 20 + at).collect(),
        mask: (0..12).map(|at| u8::from(at >= 5)).collect(),
        logprobs: vec![0.0; 12],
    })
}

/// Returns what demonstrates the questions of [`crate::common::questions`], but for one.
pub(crate) fn oracle() -> Box<Demonstrate> {
    Box::new(|ids| Ok(ids.iter().map(|id| demonstration(id)).collect()))
}

fn open_with_oracle(folder: &Path) -> Learner {
    let learner = open(config(), folder).unwrap();
    learner.demonstrate_by(oracle());
    learner
}

async fn whole_run(actors: usize) -> (Vec<TrainEvent>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    train(&open_with_oracle(folder.path()), actors, None).await
}

#[tokio::test(flavor = "multi_thread")]
async fn wrongly_answered_questions_are_demonstrated() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(config(), folder.path()).unwrap();
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&asked);
    learner.demonstrate_by(Box::new(move |ids| {
        seen.lock().extend(ids.to_vec());
        oracle()(ids)
    }));
    let (events, weights) = train(&learner, 1, None).await;
    let metrics = events.iter().filter_map(|event| match event {
        TrainEvent::Step { metrics, .. } => Some(metrics),
        _ => None,
    });
    let sum = |name: &str| metrics.clone().map(|it| it[name]).sum::<f64>();
    let (unanswered, shown) = (sum("groups/unsolved"), sum("demonstrations/count"));
    assert_eq!(sum("demonstrations/tokens"), 12.0 * shown);
    assert!(unanswered < shown, "{shown} for {unanswered} groups");
    assert!(asked.lock().contains("question-3"), "{asked:?}");
    assert!(metrics.clone().all(|it| it["loss"].is_finite()));
    // Nobody sampled them.
    assert!(metrics.clone().all(|it| it["staleness/max"] == 0.0));

    let folder = tempfile::tempdir().unwrap();
    let without = open(small_config(), folder.path()).unwrap();
    assert!(train(&without, 1, None).await.1 != weights);
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_and_interruptions_do_not_change_a_bit() {
    let expected = whole_run(1).await.1;
    assert!(whole_run(3).await.1 == expected, "three actors");
    let folder = tempfile::tempdir().unwrap();
    train(&open_with_oracle(folder.path()), 1, Some(2)).await;
    let resumed = open_with_oracle(folder.path());
    assert!(train(&resumed, 1, None).await.1 == expected, "resumed");
}

/// A sampled token has the same weight in the bonus, whatever is packed beside it.
#[test]
fn the_entropy_bonus_does_not_depend_on_how_a_step_is_cut() {
    let model = doubles(&small_model(1));
    let gradient_norm = |micro_batch_tokens| {
        let mut config = LearnerConfig {
            micro_batch_tokens,
            ..config()
        };
        config.loss.entropy_coef = 0.1;
        let mut groups = step_groups(&config, model.config.vocab_size, 1);
        groups.demonstrations.extend(demonstration("question-1"));
        let mut trainer = Trainer::new(&config, 1, &model).unwrap();
        trainer.step(&groups, 1).unwrap()["grad_norm"]
    };
    let whole = gradient_norm(1_000);
    for budget in [64, 32] {
        let difference = (gradient_norm(budget) - whole).abs();
        assert!(difference <= 1e-9 * whole, "{budget}: {difference:e}");
    }
}

/// Each step trains on a demonstration alone, so what is measured on sampled tokens is absent.
#[test]
fn demonstrations_that_the_constraint_excludes_are_left_out_and_reported() {
    let mut config = config();
    config.rollout.constraint = policy::Constraint::ToolCall;
    let model = small_model(1);
    let text = r#"<tool_call>
{"name": "answer", "arguments": {"value": "42"}}
</tool_call>"#;
    let tokens = [vec![300, 301], model.chat.completion_ids(text).unwrap()].concat();
    let call = Segment {
        mask: (0..tokens.len()).map(|at| u8::from(at >= 2)).collect(),
        logprobs: vec![0.0; tokens.len()],
        tokens,
    };
    let no_call = || demonstration("question-1").unwrap();
    let groups = StepGroups {
        demonstrations: vec![no_call(), call, no_call()],
        ..StepGroups::default()
    };
    let mut trainer = Trainer::new(&config, 1, &model).unwrap();
    for version in 0..2 {
        let metrics = trainer.step(&groups, version).unwrap();
        assert_eq!(trainer.excluded_demonstrations, [0, 2]);
        assert_eq!(metrics["demonstrations/count"], 1.0);
        let of_step = ["loss", "grad_norm", "learning_rate"];
        assert!(of_step.iter().all(|name| metrics[*name].is_finite()));
        let is_of_samples = |name: &&String| {
            name.starts_with("sampling/") || name.starts_with("clip_ratio/") || *name == "entropy"
        };
        assert_eq!(metrics.keys().find(is_of_samples), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_cannot_be_solved_now_ends_the_run_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(config(), folder.path()).unwrap();
    let is_away = AtomicBool::new(true);
    learner.demonstrate_by(Box::new(move |ids| {
        assert!(is_away.swap(false, Ordering::Relaxed), "a second call");
        Err(LearnerError::Demonstration {
            question_id: ids[0].clone(),
            failure: "Env.Reset failed: away".to_owned(),
        })
    }));
    let playing = tokio::spawn(actor(learner.clone(), "a".to_owned()));
    let ended = learner.train(unread_events(), pending()).await;
    let fault = ended.unwrap_err().to_string();
    playing.abort();
    // It holds the run open until it has ended.
    let _ = playing.await;
    drop(learner);
    let parts = ["question-", "Env.Reset failed: away", "resume the run"];
    assert!(parts.iter().all(|part| fault.contains(part)), "{fault}");
    let resumed = open_with_oracle(folder.path());
    assert!(train(&resumed, 1, None).await.1 == whole_run(1).await.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weight_without_solutions_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(config(), folder.path()).unwrap();
    let ended = learner.train(unread_events(), pending()).await;
    let fault = ended.unwrap_err().to_string();
    assert!(fault.contains("demonstration_weight"), "{fault}");
}
