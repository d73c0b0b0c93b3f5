//! The warnings of an actor, with stand-ins for both services. This is a process of its own:
//! `tracing` remembers for a whole process whether a warning is wanted, and a test without a
//! subscriber that comes to it first wants none.
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

mod support;

use std::{
    io::{self, Seek as _},
    time::Duration,
};

use policy::Placement;
use support::{FakeLearner, config, env::FakeEnv, model};
use tonic::Code;

/// Plays the groups of a learner whose policy stays the same, without retries of calls to the
/// environment. Returns the warnings and errors with this text.
async fn warnings_of(
    text: &str,
    env: FakeEnv,
    change: impl FnOnce(FakeLearner) -> FakeLearner,
) -> (FakeLearner, Vec<String>) {
    let base = model(1);
    let learner = change(FakeLearner::new(&base, &base.weights, 2, 2));
    let mut log = tempfile::tempfile().unwrap();
    let logging = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(log.try_clone().unwrap())
        .finish();
    let _logging = tracing::subscriber::set_default(logging);
    let mut config = config(4, 2);
    config.env_retry.attempts = 0;
    let run = actor::run(
        env.transport(),
        learner.transport(),
        "actor",
        config,
        Placement::default(),
        std::future::pending(),
    );
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, run).await.unwrap().unwrap();
    assert_eq!(learner.submitted().len(), 2);
    log.rewind().unwrap();
    let lines = io::read_to_string(log).unwrap();
    let found = lines.lines().filter(|line| line.contains(text));
    (learner, found.map(str::to_owned).collect())
}

/// No call fails here: the prompt does not fit into the context.
#[tokio::test]
async fn an_actor_names_why_episodes_get_no_score() {
    let short = |learner: FakeLearner| learner.with_context_tokens(4);
    let (learner, found) = warnings_of("an episode failed", FakeEnv::default(), short).await;
    let submitted = learner.submitted();
    assert!(submitted.values().flatten().all(|played| !played.scored));
    // One line for all of them.
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("max_context_tokens") && found[0].contains("question_id=\"q-"),
        "{found:?}"
    );
}

#[tokio::test]
async fn weights_streams_that_break_within_a_snapshot_are_warned_of() {
    const BREAK: &str = "the weights stream broke within a snapshot";
    let env = FakeEnv::default;
    let (learner, found) = warnings_of(BREAK, env(), |learner| learner.breaking_streams(3)).await;
    let submitted = learner.submitted();
    assert!(submitted.values().flatten().all(|played| played.scored));
    assert_eq!(found.len(), 1, "{found:?}");
    // Streams that end between two snapshots are not worth a line.
    let (_, found) = warnings_of(BREAK, env(), |learner| learner).await;
    assert!(found.is_empty(), "{found:?}");
}

/// A proxy answers UNIMPLEMENTED while an env-node starts. UNAVAILABLE is not retried here. So only
/// the pauses between rounds limit the calls.
#[tokio::test]
async fn an_env_node_that_is_away_for_a_moment_costs_few_calls_and_no_score() {
    for code in [Code::Unimplemented, Code::Unavailable] {
        let env = FakeEnv::away_for(Duration::from_millis(250), code);
        let (learner, found) =
            warnings_of("an episode failed", env.clone(), |learner| learner).await;
        let submitted = learner.submitted();
        assert!(submitted.values().flatten().all(|played| played.scored));
        assert_eq!(found.len(), 1, "{found:?}");
        // The pauses between them are 50, 100 and 200 ms.
        let resets = env.resets();
        assert!(resets.values().all(|count| *count <= 4), "{resets:?}");
    }
}
