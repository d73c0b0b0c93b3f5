//! A whole actor against stand-ins of both services, and the other users of its rollouts: evaluation and demonstrations.
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

mod support;

use std::{collections::BTreeMap, sync::Arc};

use actor::{
    ActorConfig, Demonstrations, Demonstrator, Engine, Habits, ModelPolicy, OraclePolicy,
    RandomPolicy, ScriptedPolicy, Seat, Solution, Solutions, demonstrate, evaluate,
};
use policy::{
    Coordinates, Decoder, DecoderMode, Model, PackedRows, Placement, SamplingSettings, Weights,
};
use proto::v1::Trajectory;
use support::{
    FakeEnv, FakeLearner, STEP_BUDGET, engine_settings, limits, model, questions, table,
};

const GROUPS: u64 = 6;
const GROUP_SIZE: u32 = 3;

fn config(slots: usize, concurrent_groups: usize) -> ActorConfig {
    ActorConfig {
        concurrent_groups,
        engine: engine_settings(slots, 64),
        ..ActorConfig::default()
    }
}

/// Has actors of the given configs do all work of a run.
async fn run_actors(
    base: &Model,
    later: &Weights,
    configs: Vec<ActorConfig>,
    env: FakeEnv,
) -> BTreeMap<u64, Vec<Trajectory>> {
    let learner = FakeLearner::new(base, later, GROUPS, GROUP_SIZE);
    let actors = configs.into_iter().enumerate().map(|(index, config)| {
        let (env, learner) = (env.clone().client(), learner.client());
        async move {
            actor::run(
                env,
                learner,
                &format!("actor-{index}"),
                config,
                Placement::default(),
                std::future::pending(),
            )
            .await
        }
    });
    for over in futures::future::join_all(actors).await {
        over.unwrap();
    }
    learner.submitted()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trajectories_do_not_depend_on_who_plays() {
    let (base, later) = (model(1), model(2));
    let alone = run_actors(
        &base,
        &later.weights,
        vec![config(1, 1)],
        FakeEnv::default(),
    )
    .await;
    assert_eq!(alone.len() as u64, GROUPS);
    let together = run_actors(
        &base,
        &later.weights,
        vec![config(8, 3), config(2, 2)],
        FakeEnv::faltering(5),
    )
    .await;
    assert_eq!(alone, together);
    let restarted = run_actors(
        &base,
        &later.weights,
        vec![config(4, 2)],
        FakeEnv::restarting(61),
    )
    .await;
    assert_eq!(
        alone, restarted,
        "a node that forgets its key costs nothing"
    );
    for (group, trajectories) in &alone {
        assert_eq!(trajectories.len() as u32, GROUP_SIZE);
        for (member, trajectory) in trajectories.iter().enumerate() {
            assert_eq!(trajectory.member, member as u32);
            assert!(trajectory.scored, "{}", trajectory.failure);
            let weights = if *group < GROUPS / 2 {
                &base.weights
            } else {
                &later.weights
            };
            check(&base, weights, trajectory);
        }
    }
    let first = &alone[&0];
    assert_ne!(
        first[0].segments, first[1].segments,
        "members draw their own tokens"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_in_mid_group_hears_that_the_run_is_over() {
    let learner = FakeLearner::new(&model(1), &model(2).weights, GROUPS, GROUP_SIZE);
    let (env, client) = (FakeEnv::hanging().client(), learner.client());
    let playing = actor::run(
        env,
        client,
        "a",
        config(2, 1),
        Placement::default(),
        std::future::pending(),
    );
    let finishing = async {
        while learner.claimed() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        learner.finish();
    };
    let (over, ()) = tokio::join!(playing, finishing);
    over.unwrap();
    assert!(learner.submitted().is_empty());
}

/// Masks, turns and segments agree; each log-probability is the learner's for its segment, bit for bit.
fn check(model: &Model, weights: &Weights, trajectory: &Trajectory) {
    let decoder = Decoder::new(&model.config, weights, DecoderMode::Train).unwrap();
    let mut masked: Vec<Vec<u8>> = trajectory
        .segments
        .iter()
        .map(|segment| vec![0; segment.tokens.len()])
        .collect();
    for turn in &trajectory.turns {
        let segment = &trajectory.segments[turn.segment as usize];
        let (start, count) = (
            turn.completion_start as usize,
            turn.completion_tokens as usize,
        );
        masked[turn.segment as usize][start..start + count].fill(1);
        let mut packed = PackedRows::default();
        packed.push(&segment.tokens);
        let hidden = decoder
            .forward(&packed, None)
            .unwrap()
            .narrow(0, start - 1, count)
            .unwrap();
        let targets = &segment.tokens[start..start + count];
        let trained = decoder
            .token_logprobs(&hidden, targets, 1.0)
            .unwrap()
            .logprobs;
        assert_eq!(
            trained.to_vec1::<f32>().unwrap(),
            segment.logprobs[start..start + count]
        );
    }
    for (segment, masked) in trajectory.segments.iter().zip(&masked) {
        assert_eq!(&segment.mask, masked);
    }
    let rewards: f64 = trajectory.turns.iter().map(|turn| turn.reward).sum();
    assert_eq!(trajectory.episode_return, rewards);
}

#[tokio::test]
async fn a_tight_context_begins_new_segments() {
    let base = model(3);
    let engine =
        Engine::spawn(&base, 0, 80, &engine_settings(4, 64), Placement::default()).unwrap();
    let policy = ModelPolicy::new(engine, SamplingSettings::default());
    let seat = |member| Seat {
        question_id: "q-max".to_owned(),
        coordinates: Coordinates {
            member,
            ..Coordinates::default()
        },
    };
    let seats: Vec<Seat> = (0..4).map(seat).collect();
    let table = table(&base, FakeEnv::default(), limits(12, 80));
    for played in table.play_all(&policy, &seats, 4, |_| ()).await {
        let trajectory = played.trajectory;
        assert!(trajectory.scored, "{}", trajectory.failure);
        assert!(trajectory.segments.len() > 1);
        assert!(
            trajectory
                .segments
                .iter()
                .all(|segment| segment.tokens.len() <= 80)
        );
        assert!(trajectory.turns.iter().all(|turn| turn.policy_version == 0));
        check(&base, &base.weights, &trajectory);
    }
}

#[tokio::test]
async fn a_shutdown_ends_an_actor_and_an_away_learner_is_an_error() {
    let base = model(1);
    let learner = FakeLearner::new(&base, &base.weights, GROUPS, GROUP_SIZE);
    let env = FakeEnv::default().client();
    let over = actor::run(
        env.clone(),
        learner.client(),
        "a",
        config(1, 1),
        Placement::default(),
        async {},
    )
    .await;
    over.unwrap();
    let mut impatient = config(1, 1);
    impatient.learner_retry.attempts = 0;
    let away = proto::LearnerClient::new(proto::Transport::dial("http://127.0.0.1:1").unwrap());
    let error = actor::run(
        env,
        away,
        "a",
        impatient,
        Placement::default(),
        std::future::pending(),
    )
    .await
    .unwrap_err();
    assert!(
        error.to_string().starts_with("Learner.Join failed"),
        "{error}"
    );
}

fn solutions() -> Arc<Solutions> {
    let solution = |sql: &str, answer: &str| Solution {
        database_name: "library".to_owned(),
        tables: vec!["book".to_owned()],
        sql: sql.to_owned(),
        answer: answer.to_owned(),
    };
    let solutions = [
        (
            "q-max".to_owned(),
            solution("SELECT MAX(pages) FROM book", "812"),
        ),
        (
            "q-count".to_owned(),
            solution("SELECT COUNT(*) FROM book", "9"),
        ),
    ];
    Arc::new(solutions.into_iter().collect())
}

#[tokio::test]
async fn the_oracle_is_always_right_and_chance_is_not() {
    let base = model(1);
    let table = table(&base, FakeEnv::default(), limits(256, 4_096));
    let questions = questions();
    let oracle = ScriptedPolicy::new(table.chat.clone(), OraclePolicy(solutions()));
    let mut heard = Vec::new();
    let evaluation = evaluate(&oracle, &table, &questions, 1, 2, |done, of| {
        heard.push((done, of));
    })
    .await;
    assert_eq!(heard, [(1, 2), (2, 2)]);
    assert_eq!(
        (evaluation.score.correct, evaluation.score.questions),
        (2, 2)
    );
    assert_eq!(
        (
            evaluation.mean_steps,
            evaluation.malformed_rate,
            evaluation.failed
        ),
        (3.0, 0.0, 0)
    );
    assert_eq!(evaluation.by_level["level-0"].correct, 1);
    assert_eq!(evaluation.by_database["library"].questions, 2);
    let steps = &evaluation.episodes[0].steps;
    assert_eq!(
        steps[1].completion,
        "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT MAX(pages) FROM book\"}}\n</tool_call>"
    );
    assert_eq!(
        (steps[1].observation.as_str(), steps[1].reward),
        ("1. 812", 0.01)
    );

    let random = ScriptedPolicy::new(table.chat.clone(), RandomPolicy);
    let chance = evaluate(&random, &table, &questions, 1, 2, |_, _| ()).await;
    assert_eq!(
        chance,
        evaluate(&random, &table, &questions, 1, 1, |_, _| ()).await
    );
    assert!(
        chance
            .episodes
            .iter()
            .all(|episode| episode.steps.len() as u32 <= STEP_BUDGET)
    );
    let turned: Vec<_> = questions.iter().rev().cloned().collect();
    let mut backwards = evaluate(&random, &table, &turned, 1, 2, |_, _| ()).await;
    backwards.episodes.reverse();
    assert_eq!(backwards.episodes, chance.episodes);
}

#[tokio::test]
async fn an_episode_that_fails_is_counted_and_the_rest_goes_on() {
    let base = model(1);
    let table = table(&base, FakeEnv::default(), limits(256, 4_096));
    let mut questions = questions();
    questions[0].question_id = "q-down".to_owned();
    let oracle = ScriptedPolicy::new(table.chat.clone(), OraclePolicy(solutions()));
    let evaluation = evaluate(&oracle, &table, &questions, 1, 2, |_, _| ()).await;
    assert_eq!((evaluation.score.correct, evaluation.failed), (1, 1));
    assert!(
        evaluation.episodes[0]
            .failure
            .contains("no question q-down")
    );
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_a_failure_with_its_remedy() {
    let base = model(1);
    let table = table(&base, FakeEnv::default(), limits(8, 10));
    let oracle = ScriptedPolicy::new(table.chat.clone(), OraclePolicy(solutions()));
    let evaluation = evaluate(&oracle, &table, &questions(), 1, 2, |_, _| ()).await;
    assert_eq!(evaluation.failed, 2);
    assert!(
        evaluation.episodes[0]
            .failure
            .contains("max_context_tokens is 10")
    );
}

#[tokio::test]
async fn questions_are_listed_over_all_pages() {
    let listed = actor::questions(&FakeEnv::default().client(), "")
        .await
        .unwrap();
    assert_eq!(listed, questions());
}

/// A demonstration's masked tokens are its completions, spelled as a model would sample them; the rest is prompt and results.
#[tokio::test]
async fn demonstrations_are_what_a_model_would_sample() {
    let base = model(1);
    let table = table(&base, FakeEnv::default(), limits(256, 4_096));
    let question_ids: Vec<String> = (0..40)
        .map(|index| questions()[index % 2].question_id.clone())
        .collect();
    let wanted = Demonstrations {
        question_ids: &question_ids,
        seed: 5,
        concurrency: 8,
    };
    let script = Demonstrator::new(solutions(), Habits::mixed());
    let policy = ScriptedPolicy::new(table.chat.clone(), script);
    let shown = demonstrate(&policy, &table, &wanted, |_, _| ()).await;
    assert_eq!(shown.len(), question_ids.len());
    let again = Demonstrations {
        concurrency: 1,
        ..wanted
    };
    assert_eq!(shown, demonstrate(&policy, &table, &again, |_, _| ()).await);
    assert!(shown.iter().any(|trajectory| trajectory.correct));
    assert!(shown.iter().any(|trajectory| !trajectory.correct));
    for trajectory in &shown {
        let segment = &trajectory.segments[0];
        for turn in &trajectory.turns {
            let start = turn.completion_start as usize;
            let tokens = &segment.tokens[start..start + turn.completion_tokens as usize];
            let text = table.chat.completion_text(tokens).unwrap();
            assert!(
                text.starts_with("<tool_call>\n{\"name\": \"")
                    && text.ends_with("\"}}\n</tool_call>"),
                "{text}"
            );
            assert!(table.chat.stop_ids().contains(tokens.last().unwrap()));
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
