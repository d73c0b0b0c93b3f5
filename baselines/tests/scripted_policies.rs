//! Tests the evaluation and the demonstrations of scripted policies on a stand-in for env-node.
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

#[path = "../../actor/tests/support/env.rs"]
mod env;

use std::{sync::Arc, time::Duration};

use actor::{ChatModel, Policy, Retry, evaluate, evaluate_chat};
use async_trait::async_trait;
use baselines::{
    Demonstrations, Demonstrator, DemonstratorMix, OraclePolicy, RandomPolicy, ScriptedPolicy,
    Solutions, demonstrate,
};
use data::{AnswerType, Question};
use env::{FakeEnv, STEP_BUDGET, episode_settings, limits, questions};
use policy::Model;
use serde_json::{Value, json};
use tonic::Status;

fn model() -> Model {
    policy::embedded::model(1).unwrap()
}

fn solutions() -> Arc<Solutions> {
    let questions = [
        ("q-max", "SELECT max(pages) FROM book", "812"),
        ("q-count", "SELECT count(*) FROM book", "9"),
    ];
    let question = |(id, sql, answer): (&str, &str, &str)| Question {
        question_id: id.to_owned(),
        question_text: String::new(),
        database_name: "library".to_owned(),
        gold_sql: sql.to_owned(),
        gold_answer: answer.into(),
        answer_type: AnswerType::String,
        difficulty: "easy".to_owned(),
        tables_involved: vec!["book".to_owned()],
        split: "train".to_owned(),
    };
    Arc::new(questions.map(question).iter().collect())
}

#[tokio::test]
async fn the_oracle_is_always_correct() {
    let settings = episode_settings(&model(), FakeEnv::default(), limits(256, 4_096));
    let questions = questions();
    let oracle = ScriptedPolicy::new(settings.chat.clone(), OraclePolicy(solutions()));
    let mut done_counts = Vec::new();
    let (metrics, episodes) = evaluate(&[&oracle], &settings, &questions, 1, 2, |done| {
        done_counts.push(done);
    })
    .await;
    assert_eq!(done_counts, [1, 2]);
    assert_eq!((metrics.success.correct, metrics.success.questions), (2, 2));
    assert_eq!(
        (metrics.mean_steps, metrics.malformed_rate, metrics.failed),
        (3.0, 0.0, 0)
    );
    assert_eq!(metrics.by_level["level-0"].correct, 1);
    assert_eq!(metrics.by_database["library"].questions, 2);
    let steps = &episodes[0].steps;
    assert_eq!(
        steps[1].completion.as_deref().unwrap(),
        "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT max(pages) FROM book\"}}\n</tool_call>"
    );
    assert_eq!(
        (steps[1].result.as_deref(), &steps[1].error, steps[1].reward),
        (Some("1. 812"), &None, 0.01)
    );
}

#[tokio::test]
async fn the_random_policy_depends_on_neither_concurrency_nor_order() {
    let settings = episode_settings(&model(), FakeEnv::default(), limits(256, 4_096));
    let questions = questions();
    let random = ScriptedPolicy::new(settings.chat.clone(), RandomPolicy);
    let first = evaluate(&[&random], &settings, &questions, 1, 2, |_| ()).await;
    assert_eq!(
        first,
        evaluate(&[&random], &settings, &questions, 1, 1, |_| ()).await
    );
    let (_, ref episodes) = first;
    let budget = STEP_BUDGET as usize;
    assert!(episodes.iter().all(|episode| episode.steps.len() <= budget));
    let reversed: Vec<_> = questions.iter().rev().cloned().collect();
    // Several copies share the questions.
    let copies: [&dyn Policy; 3] = [&random, &random, &random];
    for concurrency in [1, 7] {
        let shared = evaluate(&copies, &settings, &questions, 1, concurrency, |_| ()).await;
        assert_eq!(first, shared);
    }
    let (_, mut backwards) = evaluate(&[&random], &settings, &reversed, 1, 2, |_| ()).await;
    backwards.reverse();
    assert_eq!(&backwards, episodes);
}

#[tokio::test]
async fn an_episode_that_fails_is_counted_and_the_rest_goes_on() {
    let settings = episode_settings(&model(), FakeEnv::default(), limits(256, 4_096));
    let mut questions = questions();
    questions[0].question_id = "q-down".to_owned();
    let oracle = ScriptedPolicy::new(settings.chat.clone(), OraclePolicy(solutions()));
    let (metrics, episodes) = evaluate(&[&oracle], &settings, &questions, 1, 2, |_| ()).await;
    assert_eq!((metrics.success.correct, metrics.failed), (1, 1));
    assert!(episodes[0].failure.contains("no question q-down"));
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_a_failure_with_its_remedy() {
    let settings = episode_settings(&model(), FakeEnv::default(), limits(8, 10));
    let oracle = ScriptedPolicy::new(settings.chat.clone(), OraclePolicy(solutions()));
    let (metrics, episodes) = evaluate(&[&oracle], &settings, &questions(), 1, 2, |_| ()).await;
    assert_eq!(metrics.failed, 2);
    assert!(episodes[0].failure.contains("max_context_tokens is 10"));
}

/// Answers at its first turn, and takes longer than a call of an env-node may take.
struct SlowModel;

#[async_trait]
impl ChatModel for SlowModel {
    async fn reply(&self, _: &[Value], _: &[Value]) -> Result<Value, Status> {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let function = json!({"name": "answer", "arguments": "{\"value\": \"9\"}"});
        Ok(json!({"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}))
    }
}

#[tokio::test]
async fn a_served_model_has_more_time_than_an_env_node() {
    let mut settings = episode_settings(&model(), FakeEnv::default(), limits(256, 4_096));
    settings.retry = Retry {
        call_timeout_seconds: 1,
        attempts: 0,
    };
    let asked = &questions()[1..];
    let (metrics, episodes) = evaluate_chat(&SlowModel, &settings, asked, 1, 1, |_| ()).await;
    assert_eq!(metrics.success.correct, 1, "{}", episodes[0].failure);
}

/// The tokens with mask 1 are the completions, as a model would sample them. The others are the
/// prompt and the results.
#[tokio::test]
async fn demonstrations_are_what_a_model_would_sample() {
    let settings = episode_settings(&model(), FakeEnv::default(), limits(256, 4_096));
    let question_ids: Vec<String> = (0..40)
        .map(|index| questions()[index % 2].question_id.clone())
        .collect();
    let wanted = Demonstrations {
        question_ids: &question_ids,
        seed: 5,
        concurrency: 8,
    };
    let demonstrator = Demonstrator::new(solutions(), DemonstratorMix::mixed());
    let policy = ScriptedPolicy::new(settings.chat.clone(), demonstrator);
    let shown = demonstrate(&[&policy], &settings, &wanted, |_| ()).await;
    assert_eq!(shown.len(), question_ids.len());
    let again = Demonstrations {
        concurrency: 1,
        ..wanted
    };
    assert_eq!(
        shown,
        demonstrate(&[&policy], &settings, &again, |_| ()).await
    );
    assert!(shown.iter().any(|trajectory| trajectory.correct));
    assert!(shown.iter().any(|trajectory| !trajectory.correct));
    for trajectory in &shown {
        let segment = &trajectory.segments[0];
        for turn in &trajectory.turns {
            let start = turn.completion_start as usize;
            let tokens = &segment.tokens[start..start + turn.completion_tokens as usize];
            let text = settings.chat.completion_text(tokens).unwrap();
            assert!(
                text.starts_with("<tool_call>\n{\"name\": \"")
                    && text.ends_with("\"}}\n</tool_call>"),
                "{text}"
            );
            assert!(settings.chat.stop_ids().contains(tokens.last().unwrap()));
            assert!(!turn.malformed && !turn.truncated);
        }
        let masked = segment.mask.iter().filter(|mask| **mask == 1).count();
        let sampled: u32 = trajectory
            .turns
            .iter()
            .map(|turn| turn.completion_tokens)
            .sum();
        assert_eq!(masked, sampled as usize);
        assert_eq!(
            segment.mask.last(),
            Some(&1),
            "a segment ends with its last completion"
        );
    }
}
