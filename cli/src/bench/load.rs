//! Many live episodes, some of them stepping at any moment.
//!
//! A worker owns its share of the episodes and steps them in turn, so that all stay alive while as many calls are in flight
//! as there are workers: what a trainer does whose samplers are busy with the other episodes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use super::{latency::Latencies, session::Session};

/// A question and the actions that solve it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) question_id: String,
    pub(super) database_name: String,
    /// Action type and argument; the last one answers.
    pub(super) actions: Vec<(&'static str, String)>,
}

/// What a measurement found.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) latencies: Latencies,
    pub(super) seconds: f64,
    /// Episodes played to their end.
    pub(super) episodes: u64,
    /// Of these, those whose answer was not rewarded as right.
    pub(super) wrong: u64,
}

/// Steps `sessions` for `warm_up` and then for `measured`, with at most `in_flight` calls at a time.
///
/// # Errors
/// The first call that fails.
pub(super) async fn run(
    sessions: Vec<Session>,
    scripts: Arc<Vec<Script>>,
    in_flight: usize,
    warm_up: Duration,
    measured: Duration,
) -> Result<Measured> {
    ensure!(!scripts.is_empty(), "there are no questions to play");
    let gates = Arc::new(Gates::default());
    let mut workers = JoinSet::new();
    for (index, sessions) in dealt(sessions, in_flight).into_iter().enumerate() {
        let (scripts, gates) = (Arc::clone(&scripts), Arc::clone(&gates));
        workers.spawn(async move { work(sessions, &scripts, index, &gates).await });
    }
    let timing = async {
        tokio::time::sleep(warm_up).await;
        gates.measuring.store(true, Ordering::Release);
        let began = now();
        tokio::time::sleep(measured).await;
        gates.over.store(true, Ordering::Release);
        now().duration_since(began).as_secs_f64()
    };
    let mut total = Measured::default();
    let finished = async {
        while let Some(worker) = workers.join_next().await {
            let part = worker??;
            total.latencies.absorb(part.latencies);
            total.episodes += part.episodes;
            total.wrong += part.wrong;
        }
        anyhow::Ok(())
    };
    // A worker that fails ends the measurement at once.
    let (seconds, ()) = tokio::try_join!(async { Ok(timing.await) }, finished)?;
    total.seconds = seconds;
    Ok(total)
}

#[derive(Default)]
struct Gates {
    measuring: AtomicBool,
    over: AtomicBool,
}

/// One live episode and where it stands.
struct Live {
    session: Session,
    script: usize,
    /// Actions made; none before the first reset.
    made: Option<usize>,
}

async fn work(
    sessions: Vec<Session>,
    scripts: &[Script],
    worker: usize,
    gates: &Gates,
) -> Result<Measured> {
    let mut found = Measured::default();
    let mut episodes: Vec<Live> = sessions
        .into_iter()
        .enumerate()
        .map(|(index, session)| Live {
            session,
            script: (worker + index * 31) % scripts.len(),
            made: None,
        })
        .collect();
    while !gates.over.load(Ordering::Acquire) {
        for episode in &mut episodes {
            if gates.over.load(Ordering::Acquire) {
                break;
            }
            advance(episode, scripts, gates, &mut found).await?;
        }
    }
    Ok(found)
}

/// Makes the episode's next step; a reset before the first is not counted.
async fn advance(
    episode: &mut Live,
    scripts: &[Script],
    gates: &Gates,
    found: &mut Measured,
) -> Result<()> {
    let script = &scripts[episode.script];
    let Some(made) = episode.made else {
        episode
            .session
            .reset(&script.question_id, &script.database_name)
            .await?;
        episode.made = Some(0);
        return Ok(());
    };
    let (action_type, argument) = &script.actions[made];
    let began = now();
    let reply = episode.session.step(action_type, argument).await?;
    let is_measured = gates.measuring.load(Ordering::Acquire);
    if is_measured {
        found.latencies.record(now().duration_since(began));
    }
    if made + 1 < script.actions.len() {
        ensure!(!reply.done, "an episode ended before its answer");
        episode.made = Some(made + 1);
        return Ok(());
    }
    ensure!(reply.done, "an answer did not end its episode");
    if is_measured {
        found.episodes += 1;
        found.wrong += u64::from(reply.reward < 0.5);
    }
    episode.script = (episode.script + 1) % scripts.len();
    episode.made = None;
    Ok(())
}

/// Shares `sessions` out among at most `workers`.
fn dealt(sessions: Vec<Session>, workers: usize) -> Vec<Vec<Session>> {
    let workers = workers.clamp(1, sessions.len().max(1));
    let mut hands: Vec<Vec<Session>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, session) in sessions.into_iter().enumerate() {
        hands[index % workers].push(session);
    }
    hands
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}
