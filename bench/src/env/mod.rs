//! `sqlenv bench env`: steps per second, latency and memory of an environment with many live
//! episodes.
//!
//! Each question is solved by its gold SQL: describe the involved tables, run the query, answer.
//! Every answer must be right, so that a server that is fast and wrong fails. Client and server
//! share the machine unless `--url` names another.

mod load;
mod session;

use std::{io::Write, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use data::Dataset;
use policy::random::derive_seed;
use proto::{Transport, env_client};

use self::{
    load::{LoadStatistics, SolvedQuestion},
    session::EpisodeClient,
};
use crate::{BenchEnvArgs, EnvProtocol, memory::resident_mib, process::RoleProcess};

/// Number of gRPC channels that the episodes share. A single channel would be one TCP connection.
const CHANNELS: usize = 8;

const HEADER: &str = "\
| protocol | live episodes | steps/s | p50 ms | p99 ms | RSS MiB | episodes | wrong |
|---|---|---|---|---|---|---|---|";

/// Measures every protocol with every number of live episodes and writes a table row for each to
/// `out`.
///
/// `node_arguments` are the arguments of the `sqlenv env-node` process that serves `dataset` if
/// there is no `--url`.
///
/// # Errors
/// No server answers, a call fails, or answers are wrong.
pub async fn bench_env(
    args: &BenchEnvArgs,
    dataset: &Dataset,
    node_arguments: &[String],
    out: &mut impl Write,
) -> Result<()> {
    let questions = Arc::new(solved_questions(dataset, args.questions));
    // The node is killed when it is dropped, so it lives until the end of the measurements.
    let started;
    let (address, process_id) = match &args.url {
        Some(url) => (address_of(url)?, args.pid),
        None => {
            let listen = ["env-node", "--listen", "127.0.0.1:0"].map(str::to_owned);
            let arguments = [listen.as_slice(), node_arguments].concat();
            started = RoleProcess::serve(&arguments).await?;
            (started.1.as_str(), Some(started.0.process_id()))
        }
    };
    writeln!(out, "{HEADER}")?;
    let mut wrong = 0;
    for &protocol in &args.protocols {
        for &episodes in &args.episodes {
            let statistics = measure(address, protocol, episodes, args, &questions)
                .await
                .with_context(|| format!("{protocol} with {episodes} live episodes"))?;
            wrong += statistics.wrong;
            writeln!(out, "{}", row(protocol, episodes, &statistics, process_id))?;
        }
    }
    ensure!(
        wrong == 0,
        "{wrong} answers were wrong: the questions of the server are not those of --data"
    );
    Ok(())
}

async fn measure(
    address: &str,
    protocol: EnvProtocol,
    episodes: usize,
    args: &BenchEnvArgs,
    questions: &Arc<Vec<SolvedQuestion>>,
) -> Result<LoadStatistics> {
    let clients = match protocol {
        EnvProtocol::Grpc => grpc_clients(address, episodes)?,
        EnvProtocol::WebSocket => web_socket_clients(address, episodes).await?,
    };
    load::run(
        clients,
        Arc::clone(questions),
        args.in_flight,
        args.warm_up_seconds,
        args.seconds,
    )
    .await
}

fn grpc_clients(address: &str, episodes: usize) -> Result<Vec<EpisodeClient>> {
    let url = format!("http://{address}");
    let channels = (0..CHANNELS.min(episodes))
        .map(|_| Ok(env_client(Transport::dial(&url)?)))
        .collect::<Result<Vec<_>>>()?;
    let clients = channels.iter().cycle().take(episodes);
    Ok(clients.cloned().map(EpisodeClient::grpc).collect())
}

async fn web_socket_clients(address: &str, episodes: usize) -> Result<Vec<EpisodeClient>> {
    let url = format!("ws://{address}/ws");
    let mut clients = Vec::with_capacity(episodes);
    for _ in 0..episodes {
        clients.push(EpisodeClient::web_socket(&url).await?);
    }
    Ok(clients)
}

fn row(
    protocol: EnvProtocol,
    episodes: usize,
    statistics: &LoadStatistics,
    process_id: Option<u32>,
) -> String {
    let steps = statistics.latencies.len() as f64 / statistics.seconds;
    let quantiles = statistics.quantiles([0.5, 0.99]);
    let [p50, p99] = quantiles.map(|latency| 1e3 * latency.as_secs_f64());
    let memory = process_id
        .and_then(resident_mib)
        .map_or_else(|| "·".to_owned(), |mib| format!("{mib:.0}"));
    let LoadStatistics {
        episodes: ended,
        wrong,
        ..
    } = statistics;
    format!(
        "| {protocol} | {episodes} | {steps:.0} | {p50:.2} | {p99:.2} | {memory} | {ended} | \
         {wrong} |"
    )
}

/// Returns the questions with the actions that solve them. The order is that of the hashes of their
/// ids, which spreads databases and expensive queries over time.
fn solved_questions(dataset: &Dataset, limit: Option<usize>) -> Vec<SolvedQuestion> {
    let mut questions: Vec<_> = dataset.questions.iter().collect();
    questions.sort_by_key(|question| derive_seed(0, &question.question_id));
    let solved = |question: &data::Question| {
        let describe = |table: &String| ("DESCRIBE", table.clone());
        let mut actions: Vec<_> = question.tables_involved.iter().map(describe).collect();
        actions.push(("QUERY", question.gold_sql.clone()));
        actions.push(("ANSWER", data::answer_text(question)));
        SolvedQuestion {
            question_id: question.question_id.clone(),
            database_name: question.database_name.clone(),
            actions,
        }
    };
    let questions = questions.into_iter().take(limit.unwrap_or(usize::MAX));
    questions.map(solved).collect()
}

fn address_of(url: &str) -> Result<&str> {
    let address = ["http://", "ws://"]
        .into_iter()
        .find_map(|scheme| url.strip_prefix(scheme))
        .with_context(|| format!("--url {url}: give it as http://HOST:PORT"))?;
    Ok(address.trim_end_matches('/'))
}
