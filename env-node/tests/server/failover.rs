//! Tests a client with a list of two nodes, which are real processes that share a key. One is
//! killed in the middle of 200 episodes.

use std::cell::{Cell, RefCell};

use env::EnvSettings;
use futures::{StreamExt as _, stream};
use proto::{
    EnvClient, Transport,
    v1::{Observation, ResetRequest},
};

use crate::{
    common::{Fixture, step_request},
    process::Process,
};

const EPISODES: usize = 200;
/// Steps over all episodes after which the node is killed: about half.
const STEPS_BEFORE_THE_KILL: usize = 600;
/// Episodes at once.
const AT_ONCE: usize = 32;

/// The observations of an episode.
type Transcript = Vec<Observation>;

/// Runs an episode of six steps. There are no retries here: the transport must handle the loss of a
/// node.
async fn play(mut client: EnvClient, number: usize, after_step: impl Fn()) -> Transcript {
    let reset = ResetRequest {
        seed: number as u64,
        episode_id: number.to_string(),
        ..ResetRequest::default()
    };
    let reset = client.reset(reset).await.unwrap().into_inner();
    let (mut token, mut seen) = (reset.token, vec![reset.observation.unwrap()]);
    let sql = format!(
        "SELECT Id, Accelerate FROM Cars WHERE Id % 7 = {} ORDER BY Id",
        number % 7
    );
    for (action, argument) in [
        ("DESCRIBE", "Cars"),
        ("SAMPLE", "makers"),
        ("QUERY", sql.as_str()),
        ("QUERY", "SELECT count(*) FROM Cars"),
        ("QUERY", "SELECT nothing"),
        ("ANSWER", "40"),
    ] {
        let step = step_request(&token, action, argument);
        let reply = client.step(step).await.unwrap().into_inner();
        token = reply.token;
        seen.push(reply.observation.unwrap());
        after_step();
    }
    seen
}

/// Runs all episodes, `AT_ONCE` of them at once.
async fn play_all(client: EnvClient, after_step: impl Fn()) -> Vec<Transcript> {
    let episodes = (0..EPISODES).map(|number| play(client.clone(), number, &after_step));
    stream::iter(episodes).buffered(AT_ONCE).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_a_node_changes_no_transcript_and_loses_no_episode() {
    let undisturbed = play_all(Fixture::new(EnvSettings::default()).client, || {}).await;

    let (doomed, other) = (Process::start(), Process::start());
    let list = format!("{},{}", doomed.url(), other.url());
    let client = EnvClient::new(Transport::dial(&list).unwrap());
    let (steps, doomed) = (Cell::new(0), RefCell::new(doomed));
    let disturbed = play_all(client, || {
        steps.set(steps.get() + 1);
        if steps.get() == STEPS_BEFORE_THE_KILL {
            doomed.borrow_mut().kill();
        }
    })
    .await;
    assert_eq!(steps.get(), 6 * EPISODES);
    assert_eq!(disturbed, undisturbed);
}
