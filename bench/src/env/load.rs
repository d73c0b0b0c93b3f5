//! Load on an environment: many live episodes, some of which step at any moment.
//!
//! Each worker owns a share of the episodes and steps them in turn. All episodes stay alive, while
//! the number of calls in flight is the number of workers. This is the load of a trainer whose
//! samplers are busy with the other episodes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use super::session::EpisodeClient;
use crate::policy::throughput::now;

/// A question and the actions that solve it.
#[derive(Clone, Debug)]
pub(super) struct SolvedQuestion {
    pub(super) question_id: String,
    pub(super) database_name: String,
    /// Action types and arguments; the last action answers.
    pub(super) actions: Vec<(&'static str, String)>,
}

/// Statistics of one measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadStatistics {
    /// The latency of each env step.
    pub(super) latencies: Vec<Duration>,
    pub(super) seconds: f64,
    /// Episodes that ended.
    pub(super) episodes: u64,
    /// Those of them whose answer was not rewarded as right.
    pub(super) wrong: u64,
}

impl LoadStatistics {
    /// Returns the latencies that these shares of the env steps do not exceed.
    pub(super) fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [Duration; N] {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        shares.map(|share| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            let found = sorted.get(rank.saturating_sub(1));
            found.copied().unwrap_or_default()
        })
    }
}

/// Steps all episodes for `warm_up`, then for `duration`, with at most `in_flight` calls at a time.
pub(super) async fn run(
    clients: Vec<EpisodeClient>,
    questions: Arc<Vec<SolvedQuestion>>,
    in_flight: usize,
    warm_up: Duration,
    duration: Duration,
) -> Result<LoadStatistics> {
    ensure!(
        !questions.is_empty(),
        "the data has no questions; choose other --data or --databases"
    );
    let begin = now() + warm_up;
    let end = begin + duration;
    let mut workers = JoinSet::new();
    for (index, clients) in shares(clients, in_flight).into_iter().enumerate() {
        let questions = Arc::clone(&questions);
        workers.spawn(async move { work(clients, &questions, index, begin, end).await });
    }
    let mut total = LoadStatistics {
        seconds: duration.as_secs_f64(),
        ..LoadStatistics::default()
    };
    while let Some(worker) = workers.join_next().await {
        let share = worker??;
        total.latencies.extend(share.latencies);
        total.episodes += share.episodes;
        total.wrong += share.wrong;
    }
    Ok(total)
}

/// A live episode and its state.
struct LiveEpisode {
    client: EpisodeClient,
    /// Index of its question.
    question: usize,
    /// Number of actions done; `None` before the reset.
    actions_done: Option<usize>,
}

/// Steps episodes until `end` and counts what ends from `begin` on.
async fn work(
    clients: Vec<EpisodeClient>,
    questions: &[SolvedQuestion],
    worker: usize,
    begin: Instant,
    end: Instant,
) -> Result<LoadStatistics> {
    let mut statistics = LoadStatistics::default();
    let live = |(index, client)| LiveEpisode {
        client,
        question: (worker + index * 31) % questions.len(),
        actions_done: None,
    };
    let mut episodes: Vec<LiveEpisode> = clients.into_iter().enumerate().map(live).collect();
    while now() < end {
        for episode in &mut episodes {
            if now() >= end {
                break;
            }
            advance(episode, questions, begin, &mut statistics).await?;
        }
    }
    Ok(statistics)
}

/// Makes the next call of an episode: its reset, which is not counted, or an env step, which counts
/// if it ends from `begin` on.
async fn advance(
    episode: &mut LiveEpisode,
    questions: &[SolvedQuestion],
    begin: Instant,
    statistics: &mut LoadStatistics,
) -> Result<()> {
    let question = &questions[episode.question];
    let Some(done) = episode.actions_done else {
        let (id, database) = (&question.question_id, &question.database_name);
        episode.client.reset(id, database).await?;
        episode.actions_done = Some(0);
        return Ok(());
    };
    let (action_type, argument) = &question.actions[done];
    let start = now();
    let result = episode.client.step(action_type, argument).await?;
    let ended = now();
    let is_measured = ended >= begin;
    if is_measured {
        statistics.latencies.push(ended - start);
    }
    if done + 1 < question.actions.len() {
        ensure!(!result.done, "an episode ended before its answer");
        episode.actions_done = Some(done + 1);
        return Ok(());
    }
    ensure!(result.done, "an answer did not end its episode");
    if is_measured {
        statistics.episodes += 1;
        statistics.wrong += u64::from(result.reward < 0.5);
    }
    episode.question = (episode.question + 1) % questions.len();
    episode.actions_done = None;
    Ok(())
}

/// Distributes the clients over at most `workers` workers.
fn shares(clients: Vec<EpisodeClient>, workers: usize) -> Vec<Vec<EpisodeClient>> {
    let workers = workers.clamp(1, clients.len().max(1));
    let mut shares: Vec<Vec<EpisodeClient>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, client) in clients.into_iter().enumerate() {
        shares[index % workers].push(client);
    }
    shares
}
