//! Plays 200 episodes with a client that may lose a node on the way. The tests of the containers in
//! `cli` use it too.

use std::cell::Cell;

use futures::{StreamExt as _, stream};
use proto::{
    EnvClient,
    v1::{Action, Observation, ResetRequest, StepRequest},
};

const EPISODES: usize = 200;
/// The number of steps of an episode.
const STEPS: usize = 6;
/// The number of concurrent episodes.
const AT_ONCE: usize = 32;

/// The observations of an episode, which are the same on every node.
type Transcript = Vec<Observation>;

/// Plays one episode without retries: the transport must handle the loss of a node.
async fn play(mut client: EnvClient, number: usize, after_step: impl Fn()) -> Transcript {
    let reset = ResetRequest {
        seed: number as u64,
        episode_id: number.to_string(),
        ..ResetRequest::default()
    };
    let reply = client.reset(reset).await.unwrap().into_inner();
    let (mut token, mut seen) = (reply.token, vec![reply.observation.unwrap()]);
    let tables = seen[0].schema_info.lines();
    let tables: Vec<&str> = tables.filter_map(|it| it.strip_prefix("- ")).collect();
    let table = tables[number % tables.len()].to_owned();
    let quoted = table.replace('"', "\"\"");
    let count = format!("SELECT count(*), {number} * 0.1 FROM \"{quoted}\"");
    let rows = format!("SELECT * FROM \"{quoted}\" ORDER BY 1 LIMIT {number} % 7");
    let actions: [(&str, &str); STEPS] = [
        ("DESCRIBE", &table),
        ("SAMPLE", &table),
        ("QUERY", &count),
        ("QUERY", &rows),
        ("QUERY", "SELECT nothing"),
        ("ANSWER", "40"),
    ];
    for (action, argument) in actions {
        let request = StepRequest {
            token,
            action: Some(Action {
                action_type: action.to_owned(),
                argument: argument.to_owned(),
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

/// Plays all episodes, several at a time. Calls `halfway` after half of their steps.
pub(crate) async fn play_all(client: EnvClient, halfway: impl Fn()) -> Vec<Transcript> {
    let steps = Cell::new(0);
    let after_step = || {
        steps.set(steps.get() + 1);
        if steps.get() == EPISODES * STEPS / 2 {
            halfway();
        }
    };
    let episodes = (0..EPISODES).map(|number| play(client.clone(), number, &after_step));
    let transcripts = stream::iter(episodes).buffered(AT_ONCE).collect().await;
    assert_eq!(steps.get(), EPISODES * STEPS);
    transcripts
}
