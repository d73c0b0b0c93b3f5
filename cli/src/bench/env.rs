//! `sqlenv bench env`: steps per second, latency and memory of an environment under many live episodes.
//!
//! The questions are played as their gold SQL solves them: each involved table described, the query, the answer. Every
//! answer must be right, so that a fast wrong server does not look good. Client and server share the machine unless
//! `--url` names another one.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use data::Dataset;
use policy::random::derive_seed;
use proto::{EnvClient, Transport};

use super::{
    load::{self, Measured, Script},
    memory::resident_mib,
    node::NodeProcess,
    session::Session,
};
use crate::{
    args::{BenchEnvArgs, Face},
    config::RunConfig,
    progress::Progress,
    setup, stdout,
};

/// gRPC channels that the episodes share; one would be one TCP connection.
const CHANNELS: usize = 8;

/// Measures every face at every number of live episodes and prints a row for each.
///
/// # Errors
/// The data cannot be opened, no server answers, a call fails, or answers were wrong.
pub async fn bench_env(args: &BenchEnvArgs, progress: &Progress) -> Result<()> {
    let config = RunConfig::resolve(&args.config)?;
    let dataset = setup::open_dataset(&config.data, progress)?;
    let scripts = Arc::new(scripts(&dataset, args.questions));
    let node = match &args.url {
        Some(_) => None,
        None => Some(NodeProcess::start(&node_arguments(args))?),
    };
    let server = Server {
        address: match (&args.url, &node) {
            (Some(url), _) => address_of(url)?.to_owned(),
            (None, Some(node)) => node.address.clone(),
            (None, None) => bail!("there is no server: this is a bug"),
        },
        process_id: args.pid.or(node.as_ref().map(NodeProcess::process_id)),
    };
    stdout::print(format_args!("{HEADER}\n"))?;
    let mut wrong = 0;
    for &face in &args.faces {
        for &episodes in &args.episodes {
            let measured = measure(&server, face, episodes, args, &scripts).await?;
            wrong += measured.wrong;
            stdout::print(row(face, episodes, measured, server.process_id))?;
        }
    }
    ensure!(
        wrong == 0,
        "{wrong} answers were wrong: the server's questions are not those of --data"
    );
    Ok(())
}

struct Server {
    /// HOST:PORT.
    address: String,
    process_id: Option<u32>,
}

const HEADER: &str = "| face | live episodes | steps/s | p50 ms | p99 ms | RSS MiB | episodes | wrong |\n|---|---|---|---|---|---|---|---|";

async fn measure(
    server: &Server,
    face: Face,
    episodes: usize,
    args: &BenchEnvArgs,
    scripts: &Arc<Vec<Script>>,
) -> Result<Measured> {
    let sessions = match face {
        Face::Grpc => grpc_sessions(&server.address, episodes)?,
        Face::WebSocket => web_socket_sessions(&server.address, episodes).await?,
    };
    load::run(
        sessions,
        Arc::clone(scripts),
        args.in_flight,
        args.warm_up_seconds,
        args.seconds,
    )
    .await
    .with_context(|| format!("{face} with {episodes} live episodes"))
}

fn grpc_sessions(address: &str, episodes: usize) -> Result<Vec<Session>> {
    let channels = (0..CHANNELS.min(episodes))
        .map(|_| {
            Ok(EnvClient::new(Transport::dial(&format!(
                "http://{address}"
            ))?))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok((0..episodes)
        .map(|index| Session::grpc(channels[index % channels.len()].clone()))
        .collect())
}

async fn web_socket_sessions(address: &str, episodes: usize) -> Result<Vec<Session>> {
    let url = format!("ws://{address}/ws");
    let mut sessions = Vec::with_capacity(episodes);
    for _ in 0..episodes {
        sessions.push(Session::web_socket(&url).await?);
    }
    Ok(sessions)
}

fn row(face: Face, episodes: usize, mut measured: Measured, process_id: Option<u32>) -> String {
    let steps = measured.latencies.count() as f64 / measured.seconds;
    let memory = process_id
        .and_then(resident_mib)
        .map_or_else(|| "·".to_owned(), |mib| format!("{mib:.0}"));
    format!(
        "| {face} | {episodes} | {steps:.0} | {:.2} | {:.2} | {memory} | {} | {} |\n",
        measured.latencies.quantile_milliseconds(0.5),
        measured.latencies.quantile_milliseconds(0.99),
        measured.episodes,
        measured.wrong,
    )
}

/// How the questions are solved, in an order by their ids' hashes: databases and dear queries are spread over the time.
fn scripts(dataset: &Dataset, limit: Option<usize>) -> Vec<Script> {
    let mut questions: Vec<_> = dataset.questions.iter().collect();
    questions.sort_by_key(|question| derive_seed(0, &question.question_id));
    questions
        .into_iter()
        .take(limit.unwrap_or(usize::MAX))
        .map(|question| {
            let describe = |table: &String| ("DESCRIBE", table.clone());
            let mut actions: Vec<_> = question.tables_involved.iter().map(describe).collect();
            actions.push(("QUERY", question.gold_sql.clone()));
            actions.push(("ANSWER", data::answer_text(question)));
            Script {
                question_id: question.question_id.clone(),
                database_name: question.database_name.clone(),
                actions,
            }
        })
        .collect()
}

/// The child serves the same data by the same settings.
fn node_arguments(args: &BenchEnvArgs) -> Vec<String> {
    let config = &args.config;
    let mut arguments = Vec::new();
    let mut flag = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    if let Some(data) = &config.data {
        flag("--data", data.display().to_string());
    }
    if let Some(databases) = &config.databases {
        flag("--databases", databases.join(","));
    }
    if let Some(file) = &config.config {
        flag("--config", file.display().to_string());
    }
    for setting in &config.set {
        flag("--set", setting.clone());
    }
    arguments
}

fn address_of(url: &str) -> Result<&str> {
    let address = ["http://", "ws://"]
        .into_iter()
        .find_map(|scheme| url.strip_prefix(scheme))
        .with_context(|| format!("--url {url}: give it as http://HOST:PORT"))?;
    Ok(address.trim_end_matches('/'))
}
