//! Runs episodes whose observations are the same on every node.

use futures::{StreamExt as _, stream};
use proto::{
    EnvClient,
    v1::{Action, Observation, ResetRequest, StepRequest},
};

pub(crate) const EPISODES: usize = 200;
/// The number of steps of an episode.
pub(crate) const STEPS: usize = 4;
/// The number of concurrent episodes.
const AT_ONCE: usize = 32;

/// The observations of an episode.
pub(crate) type Transcript = Vec<Observation>;

/// Runs one episode without retries: the transport must handle the loss of nodes.
async fn play(mut client: EnvClient, number: usize, after_step: impl Fn()) -> Transcript {
    let reset = ResetRequest {
        seed: number as u64,
        episode_id: number.to_string(),
        ..ResetRequest::default()
    };
    let reply = client.reset(reset).await.unwrap().into_inner();
    let (mut token, mut seen) = (reply.token, vec![reply.observation.unwrap()]);
    let schema = seen[0].schema_info.clone();
    let tables: Vec<&str> = schema
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- "))
        .collect();
    let table = tables[number % tables.len()].to_owned();
    for (action, argument) in [
        ("DESCRIBE", table.clone()),
        ("SAMPLE", table.clone()),
        (
            "QUERY",
            format!("SELECT count(*), {number} * 0.1 FROM \"{table}\""),
        ),
        ("ANSWER", number.to_string()),
    ] {
        let request = StepRequest {
            token,
            action: Some(Action {
                action_type: action.to_owned(),
                argument,
            }),
        };
        let reply = client.step(request).await.unwrap().into_inner();
        token = reply.token;
        seen.push(reply.observation.unwrap());
        after_step();
    }
    assert!(seen[3].error.is_empty(), "{}", seen[3].error);
    seen
}

/// Runs all episodes, several at a time.
pub(crate) async fn play_all(client: EnvClient, after_step: impl Fn()) -> Vec<Transcript> {
    let episodes = (0..EPISODES).map(|number| play(client.clone(), number, &after_step));
    stream::iter(episodes).buffered(AT_ONCE).collect().await
}
