//! Two nodes, real processes that share a key, behind a client's list; one is killed in the middle of 200 episodes.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use env_node::{EnvConfig, Server};
use proto::{
    EnvClient, Transport,
    v1::{Observation, ResetRequest},
};
use tokio::{net::TcpListener, sync::Semaphore};

use crate::common::{Fixture, step_request};

const EPISODES: usize = 200;
/// Steps played in all episodes when the node is killed: about half.
const STEPS_BEFORE_THE_KILL: usize = 600;
/// Episodes under way at once.
const AT_ONCE: usize = 32;
/// Set for a process that is a node; its value is of no account.
const NODE: &str = "SQLENV_TEST_NODE";
const LISTENS: &str = "listens on ";

fn config() -> EnvConfig {
    EnvConfig {
        signing_key: Some("0123456789abcdef0123456789abcdef".to_owned().into()),
        ..EnvConfig::default()
    }
}

/// Not a test: this program, started again as a node.
#[tokio::test]
async fn node() {
    if env::var_os(NODE).is_none() {
        return;
    }
    let fixture = Fixture::new(config());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{LISTENS}{}", listener.local_addr().unwrap());
    let server = Server::open(&fixture.node).unwrap();
    server.serve(listener, std::future::pending()).await;
}

/// A node in a process of its own; killed when dropped.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start() -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "failover::node", "--nocapture"])
            .env(NODE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once(LISTENS)?.1.to_owned()))
            .expect("the node says where it listens");
        Self {
            child,
            address: format!("http://{address}"),
        }
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What an episode's player saw.
type Transcript = Vec<Observation>;

/// Plays an episode of six steps. No retries here: the transport has to bridge what happens to nodes.
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

/// Plays all episodes, some at once.
async fn play_all(
    client: EnvClient,
    after_step: impl Fn() + Clone + Send + 'static,
) -> Vec<Transcript> {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let episodes = (0..EPISODES).map(|number| {
        let (client, places) = (client.clone(), Arc::clone(&places));
        let after_step = after_step.clone();
        tokio::spawn(async move {
            let _place = places.acquire().await.unwrap();
            play(client, number, after_step).await
        })
    });
    let mut transcripts = Vec::new();
    for episode in episodes.collect::<Vec<_>>() {
        transcripts.push(episode.await.unwrap());
    }
    transcripts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_node_changes_no_transcript_and_loses_no_episode() {
    let undisturbed = play_all(Fixture::new(config()).client, || {}).await;

    let (doomed, other) = (Process::start(), Process::start());
    let list = format!("{},{}", doomed.address, other.address);
    let client = EnvClient::new(Transport::dial(&list).unwrap());
    let (steps, doomed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(doomed)));
    let disturbed = play_all(client, {
        let steps = Arc::clone(&steps);
        move || {
            if steps.fetch_add(1, Ordering::Relaxed) + 1 == STEPS_BEFORE_THE_KILL {
                doomed.lock().unwrap().kill();
            }
        }
    })
    .await;
    assert_eq!(steps.load(Ordering::Relaxed), 6 * EPISODES);
    assert_eq!(disturbed, undisturbed);
}
