//! Tests a whole actor with stand-ins for both services.
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

mod support;

use std::{collections::BTreeMap, time::Duration};

use actor::{ActorConfig, Engine, EpisodeSpec, ModelPolicy, Retry, run_episodes};
use policy::{
    Coordinates, Decoder, DecoderMode, Model, PackedRows, Placement, SamplingSettings, Weights,
};
use proto::{Transport, env_client, v1::Trajectory};
use support::{
    FakeLearner, config, engine_settings,
    env::{FakeEnv, episode_settings, limits, questions},
    model,
};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

const GROUPS: u64 = 6;
const GROUP_SIZE: u32 = 3;

/// Runs actors with the given configs until a run is over. Returns the submitted groups.
async fn run_actors(
    base: &Model,
    later: &Weights,
    configs: Vec<ActorConfig>,
    env: FakeEnv,
) -> BTreeMap<u64, Vec<Trajectory>> {
    let learner = FakeLearner::new(base, later, GROUPS, GROUP_SIZE);
    let actors = configs.into_iter().enumerate().map(|(index, config)| {
        let (env, learner) = (env.clone().transport(), learner.transport());
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
async fn trajectories_do_not_depend_on_the_actor() {
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
        FakeEnv::failing(5),
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
        "a node that changes its key costs nothing"
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
        "members draw tokens of their own"
    );
}

/// Here the service answers, and every episode on it fails. An actor that waited for it would stop
/// the run. Only gold SQL that is too slow fails for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_env_node_that_answers_and_serves_no_episode_does_not_stop_the_run() {
    let (base, later) = (model(1), model(2));
    let config = ActorConfig {
        env_retry: Retry {
            attempts: 1,
            ..Retry::default()
        },
        first_pause: Duration::from_millis(1),
        ..config(4, 2)
    };
    let details = ErrorDetails::with_error_info("WALL_CLOCK", "sqlenv", []);
    let slow = Status::with_error_details(Code::Unavailable, "the gold SQL is slow", details);
    let slow = FakeEnv::refusing_after(0, slow);
    for (env, reason, is_final) in [
        (FakeEnv::failing(1), "the node restarts", false),
        (slow, "the gold SQL is slow", true),
    ] {
        let run = run_actors(&base, &later.weights, vec![config.clone()], env);
        let groups = tokio::time::timeout(Duration::from_secs(60), run)
            .await
            .unwrap();
        assert_eq!(groups.len() as u64, GROUPS);
        for trajectory in groups.values().flatten() {
            assert!(!trajectory.scored);
            assert!(
                trajectory.failure.contains(reason),
                "{}",
                trajectory.failure
            );
            assert_eq!(trajectory.failure_is_final, is_final, "{reason}");
        }
    }
}

/// The env-node was started again with another token, or a proxy refuses its callers.
#[tokio::test]
async fn an_actor_that_is_refused_in_mid_run_ends_with_the_reason() {
    let details = ErrorDetails::with_error_info("BEARER_TOKEN_REFUSED", "sqlenv", []);
    let token = Status::with_error_details(Code::Unauthenticated, "send the token", details);
    for refusal in [
        token,
        Status::permission_denied("send the token"),
        Status::unauthenticated("send the token"),
    ] {
        let base = model(1);
        let learner = FakeLearner::new(&base, &base.weights, 2, 2);
        let run = actor::run(
            FakeEnv::refusing_after(2, refusal).transport(),
            learner.transport(),
            "actor",
            config(4, 1),
            Placement::default(),
            std::future::pending(),
        );
        let limit = Duration::from_secs(60);
        let error = tokio::time::timeout(limit, run).await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "Env.Reset failed: send the token");
        let submitted = learner.submitted();
        assert_eq!(submitted.len(), 1);
        assert!(submitted.values().flatten().all(|played| played.scored));
    }
}

/// The other members of the group are complete by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_episodes_whose_calls_failed_are_played_again() {
    let (base, later) = (model(1), model(2));
    let all_served = run_actors(
        &base,
        &later.weights,
        vec![config(4, 2)],
        FakeEnv::default(),
    )
    .await;
    let config = ActorConfig {
        env_retry: Retry {
            attempts: 0,
            ..Retry::default()
        },
        first_pause: Duration::from_millis(1),
        ..config(4, 2)
    };
    let env = FakeEnv::failing_member(4);
    let groups = run_actors(&base, &later.weights, vec![config], env.clone()).await;
    assert_eq!(groups, all_served);
    let resets = env.resets();
    assert_eq!(resets.len() as u64, GROUPS * u64::from(GROUP_SIZE));
    for (episode_id, count) in resets {
        let is_failing = episode_id.ends_with("/1");
        assert_eq!(count, if is_failing { 5 } else { 1 }, "{episode_id}");
    }
}

/// The learner replays a submitted group before it answers, which takes time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_plays_the_next_group_while_it_submits_one() {
    let (base, later) = (model(1), model(2));
    let learner = FakeLearner::new(&base, &later.weights, GROUPS, GROUP_SIZE);
    let learner = learner.answering_after_claims(2);
    let run = actor::run(
        FakeEnv::default().transport(),
        learner.transport(),
        "actor",
        config(1, 1),
        Placement::default(),
        std::future::pending(),
    );
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, run).await.unwrap().unwrap();
    assert_eq!(learner.submitted().len() as u64, GROUPS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_run_reaches_an_actor_within_a_group() {
    let learner = FakeLearner::new(&model(1), &model(2).weights, GROUPS, GROUP_SIZE);
    let playing = actor::run(
        FakeEnv::hanging().transport(),
        learner.transport(),
        "a",
        config(2, 1),
        Placement::default(),
        std::future::pending(),
    );
    let finishing = async {
        while learner.claimed() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        learner.finish();
    };
    let (over, ()) = tokio::join!(playing, finishing);
    over.unwrap();
    assert!(learner.submitted().is_empty());
}

/// Checks that masks, turns and segments agree, and that each log-probability is the learner's for
/// its segment, bit for bit.
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
async fn a_short_context_starts_new_segments() {
    let base = model(3);
    let engine =
        Engine::spawn(&base, 0, 80, &engine_settings(4, 64), Placement::default()).unwrap();
    let policy = ModelPolicy::new(engine, SamplingSettings::default(), None);
    let spec = |member| EpisodeSpec {
        question_id: "q-max".to_owned(),
        coordinates: Coordinates {
            member,
            ..Coordinates::default()
        },
    };
    let specs: Vec<EpisodeSpec> = (0..4).map(spec).collect();
    let settings = episode_settings(&base, FakeEnv::default(), limits(12, 80));
    for outcome in run_episodes(&[&policy], &settings, &specs, 4, |_, _| ()).await {
        let trajectory = outcome.trajectory;
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
async fn a_shutdown_ends_an_actor_and_an_unreachable_learner_is_an_error() {
    let base = model(1);
    let learner = FakeLearner::new(&base, &base.weights, GROUPS, GROUP_SIZE);
    let env = FakeEnv::default().transport();
    let over = actor::run(
        env.clone(),
        learner.transport(),
        "a",
        config(1, 1),
        Placement::default(),
        async {},
    )
    .await;
    over.unwrap();
    let mut impatient = config(1, 1);
    impatient.learner_retry.attempts = 0;
    let unreachable = Transport::dial("http://127.0.0.1:1").unwrap();
    let error = actor::run(
        env,
        unreachable,
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

#[tokio::test]
async fn questions_are_listed_over_all_pages() {
    let env = env_client(FakeEnv::default().transport());
    let listed = actor::list_questions(&env, "", &Retry::default())
        .await
        .unwrap();
    assert_eq!(listed, questions());
}
