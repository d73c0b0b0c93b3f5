//! `sqlenv bench cluster`: a training run over real processes, with many concurrent episodes and
//! with latency between actors and env-nodes.
//!
//! Each measurement is a run of its own: env-nodes, a learner and actors as processes of this
//! program, and a relay before each env-node that adds the latency. All share this machine. Rates
//! are over the time from the first learner step to the last one that was seen, as the metrics of
//! the processes tell them.

mod delay;
mod scrape;

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use self::{delay::DelayRelay, scrape::Scrape};
use crate::{BenchClusterArgs, process::RoleProcess};

/// Pause between looks at the metrics.
const PAUSE: Duration = Duration::from_millis(100);

const HEADER: &str = "\
| concurrent episodes | added latency | env steps/s | sampled tokens/s | engines busy | learner \
waits | ms per env step |
|---|---|---|---|---|---|---|";

/// What the command line leaves to the settings.
pub struct ClusterSettings {
    /// Arguments that give every role the settings, such as `--preset`.
    pub arguments: Vec<String>,
    /// Episodes of a group.
    pub group_size: usize,
}

/// Measures every number of episodes with every latency, `repeats` times, and writes a table row
/// for each measurement to `out`.
///
/// # Errors
/// A process ends early or does not start.
pub async fn bench_cluster(
    args: &BenchClusterArgs,
    settings: &ClusterSettings,
    out: &mut impl Write,
) -> Result<()> {
    writeln!(out, "{HEADER}")?;
    for _ in 0..args.repeats {
        for &episodes in &args.episodes {
            for &latency in &args.latencies_ms {
                let groups = episodes.div_ceil(settings.group_size);
                let latency = Duration::from_millis(latency);
                let cluster = Cluster::start(args, settings, (groups, latency)).await?;
                let (first, last) = cluster.measure(args.steps).await?;
                let episodes = groups * settings.group_size * args.actors;
                writeln!(out, "{}", row(&first, &last, episodes, latency))?;
                out.flush()?;
            }
        }
    }
    Ok(())
}

/// The processes of a run. They are killed when this value is dropped.
struct Cluster {
    roles: Vec<RoleProcess>,
    learner_admin: SocketAddr,
    actor_admins: Vec<SocketAddr>,
    _relays: Vec<DelayRelay>,
    _folder: tempfile::TempDir,
}

impl Cluster {
    async fn start(
        args: &BenchClusterArgs,
        settings: &ClusterSettings,
        (groups, latency): (usize, Duration),
    ) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the run")?;
        let key = folder.path().join("signing.key");
        std::fs::write(&key, [7; 32])?;
        let mut roles = Vec::new();
        let mut relays = Vec::new();
        for _ in 0..args.env_nodes {
            let own = [
                "--listen=127.0.0.1:0".to_owned(),
                format!("--set=env.signing_key_file={}", key.display()),
            ];
            let arguments = role("env-node", settings, &own);
            let (node, address) = RoleProcess::serve(&arguments).await?;
            roles.push(node);
            relays.push(DelayRelay::start(address, latency / 2).await?);
        }
        let urls = relays
            .iter()
            .map(|relay| format!("http://{}", relay.address));
        let env = urls.collect::<Vec<_>>().join(",");
        let learner_admin = free_address()?;
        let own = learner_arguments(args, groups, learner_admin, (&env, folder.path()));
        let arguments = role("learner", settings, &own);
        let (learner, address) = RoleProcess::serve(&arguments).await?;
        roles.push(learner);
        let mut actor_admins = Vec::new();
        for _ in 0..args.actors {
            let admin = free_address()?;
            let episodes = groups * settings.group_size;
            let own = actor_arguments(episodes, groups, admin, (&env, &address));
            roles.push(RoleProcess::start(&role("actor", settings, &own))?);
            actor_admins.push(admin);
        }
        Ok(Self {
            roles,
            learner_admin,
            actor_admins,
            _relays: relays,
            _folder: folder,
        })
    }

    /// Waits for the first learner step, and then until the learner has made `steps` more.
    async fn measure(mut self, steps: usize) -> Result<(Moment, Moment)> {
        let first = self.moment_of_step(1).await?;
        let last = self.moment_of_step(1 + steps).await?;
        Ok((first, last))
    }

    async fn moment_of_step(&mut self, step: usize) -> Result<Moment> {
        loop {
            if let Some(moment) = self.look().filter(|moment| moment.step() >= step as f64) {
                return Ok(moment);
            }
            let mut roles = self.roles.iter_mut();
            roles
                .try_for_each(RoleProcess::check_runs)
                .with_context(|| format!("before learner step {step}"))?;
            sleep(PAUSE).await;
        }
    }

    /// Reads the metrics; none while a process starts or ends.
    fn look(&self) -> Option<Moment> {
        let learner = Scrape::of(self.learner_admin)?;
        let at = Instant::now();
        let actors = self.actor_admins.iter().copied().map(Scrape::of);
        let actors = actors.collect::<Option<_>>()?;
        Some(Moment {
            at,
            learner,
            actors,
        })
    }
}

/// Returns the arguments of a role.
fn role(name: &str, settings: &ClusterSettings, own: &[String]) -> Vec<String> {
    // Own settings come last, since a later `--set` wins.
    [[name.to_owned()].as_slice(), &settings.arguments, own].concat()
}

/// A step trains on as many groups as an actor holds, so that one batch is sampled while the
/// learner trains on the one before it. All groups count, so that every step is equally long.
fn learner_arguments(
    args: &BenchClusterArgs,
    groups: usize,
    admin: SocketAddr,
    (env, folder): (&str, &Path),
) -> Vec<String> {
    let first_node = env.split(',').next().unwrap_or(env);
    vec![
        "--listen=127.0.0.1:0".to_owned(),
        format!("--admin={admin}"),
        format!("--env={first_node}"),
        format!("--run-dir={}", folder.join("run").display()),
        // More steps than are measured, so that the end of the run stays outside.
        format!("--set=learner.steps={}", args.steps + 20),
        format!("--set=learner.groups_per_step={}", groups * args.actors),
        // The actor submits groups while it plays the next ones.
        format!("--set=learner.trust.max_leases_per_actor={}", 2 * groups),
        "--set=learner.dynamic_sampling=false".to_owned(),
        "--set=learner.oversampling=1.0".to_owned(),
        "--set=learner.max_groups_per_step=0".to_owned(),
        "--set=learner.checkpoint.every_steps=1000000".to_owned(),
        "--set=evaluation.every_steps=0".to_owned(),
        "--set=evaluation.questions=1".to_owned(),
        "--set=evaluation.unseen_questions=1".to_owned(),
        "--set=evaluation.curve_questions=1".to_owned(),
    ]
}

fn actor_arguments(
    episodes: usize,
    groups: usize,
    admin: SocketAddr,
    (env, learner): (&str, &str),
) -> Vec<String> {
    vec![
        format!("--admin={admin}"),
        format!("--env={env}"),
        format!("--learner=http://{learner}"),
        format!("--set=actor.concurrent_groups={groups}"),
        format!("--set=actor.engine.slots={episodes}"),
    ]
}

/// Returns a free address of this machine.
fn free_address() -> Result<SocketAddr> {
    let free = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(free.local_addr()?)
}

/// The metrics of the processes at one moment.
struct Moment {
    at: Instant,
    learner: Scrape,
    actors: Vec<Scrape>,
}

impl Moment {
    fn step(&self) -> f64 {
        self.learner.sum("learner_step", "")
    }

    fn waited(&self) -> f64 {
        self.learner.sum("learner_seconds_total", "\"waiting\"")
    }

    fn of_actors(&self, metric: &str, label: &str) -> f64 {
        let sums = self.actors.iter().map(|actor| actor.sum(metric, label));
        sums.sum()
    }
}

/// Returns the table row with the rates between two moments.
fn row(first: &Moment, last: &Moment, episodes: usize, latency: Duration) -> String {
    let seconds = (last.at - first.at).as_secs_f64();
    let rate =
        |metric, label| (last.of_actors(metric, label) - first.of_actors(metric, label)) / seconds;
    let env_steps = rate("actor_call_seconds_count", "\"Env.Step\"");
    format!(
        "| {episodes} | {} ms | {env_steps:.0} | {:.0} | {:.0} % | {:.0} % | {:.1} |",
        latency.as_millis(),
        rate("actor_sampled_tokens_total", ""),
        100.0 * rate("actor_pass_seconds_sum", "") / last.actors.len() as f64,
        100.0 * (last.waited() - first.waited()) / seconds,
        1e3 * rate("actor_call_seconds_sum", "\"Env.Step\"") / env_steps,
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// A learner waits for its actors without end.
    #[tokio::test]
    async fn a_process_that_ends_ends_the_measurement() {
        // No test of this program has the name, so that it ends at once.
        let role = RoleProcess::start(&["no-such-test".to_owned()]).unwrap();
        let mut cluster = Cluster {
            roles: vec![role],
            learner_admin: free_address().unwrap(),
            actor_admins: Vec::new(),
            _relays: Vec::new(),
            _folder: tempfile::tempdir().unwrap(),
        };
        let moment = timeout(Duration::from_secs(60), cluster.moment_of_step(1)).await;
        let error = moment.unwrap().err().unwrap();
        let text = format!("{error:#}");
        assert!(text.contains("the no-such-test ended"), "{text}");
    }
}
