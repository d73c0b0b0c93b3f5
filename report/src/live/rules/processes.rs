//! Rules about the processes of a run: who waits for whom, who is away.

use super::recent::{mean, newest, percent, recent};
use crate::{
    live::{
        findings::{Diagnosed, Severity},
        status::{ActorStatus, LiveStatus},
    },
    number,
    records::RunStatus,
};

/// A step takes longer than this only in large runs, which are judged by their own steps.
const STALLED_SECONDS: f64 = 120.0;
/// A step varies by less than this factor: dynamic sampling draws at most 4 times the groups by
/// default.
const STALLED_STEPS: f64 = 10.0;
/// An actor that restarts or reconnects is back sooner.
const AWAY_SECONDS: f64 = 60.0;
/// Versions beyond the staleness bound: a claim names the version of its time, which one step may
/// overtake.
const LAG_MARGIN: u64 = 1;
/// A failed call is repeated, so a few cost nothing.
const ERROR_SHARE: f64 = 0.05;
/// Fewer calls say nothing of a share.
const MIN_CALLS: u64 = 20;
/// A statement's wall-clock limit is of this order; below it, groups that run at the same time hide
/// the latency.
const SLOW_SECONDS: f64 = 2.0;
/// Rollouts take 70 to 90 % of a synchronous step in the literature on RL systems.
const LEARNER_WAITS: f64 = 0.95;
/// Below this share, more actors would wait as well.
const LEARNER_BUSY: f64 = 0.3;
/// An engine that computes for a smaller share of the time is mostly idle.
const ACTOR_IDLE: f64 = 0.25;

pub(super) fn stalled(status: &LiveStatus) -> Option<Diagnosed> {
    let silent = status.silent_seconds?;
    let times = newest(status, "step_time");
    // Before the first step nothing says how long a step takes.
    if status.state != RunStatus::Running || status.is_evaluating || times.is_empty() {
        return None;
    }
    let usual = mean(&times);
    if silent <= STALLED_SECONDS.max(STALLED_STEPS * usual) {
        return None;
    }
    let remedy = match status.is_live {
        true => "Look at the actors and env-nodes below and at the learner's log.",
        false => {
            "If the process has ended, resume the run from its last checkpoint: start the same \
             learner again, or `sqlenv train --resume`. If it runs, look at its log."
        }
    };
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "No step and no evaluation for {} after step {}; a step took {}.",
            number::seconds(silent),
            status.step,
            number::seconds(usual)
        ),
        meaning: "The run stands still.",
        remedy: remedy.to_owned(),
    })
}

fn is_running(status: &LiveStatus) -> bool {
    status.is_live && status.state == RunStatus::Running
}

pub(super) fn no_actor(status: &LiveStatus) -> Option<Diagnosed> {
    let silent = status.silent_seconds?;
    let is_connected = status.actors.iter().any(|actor| actor.is_connected);
    if !is_running(status) || is_connected || silent <= AWAY_SECONDS {
        return None;
    }
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "No actor is connected; {} called in the last 10 minutes.",
            status.actors.len()
        ),
        meaning: "No actor samples, so the learner waits.",
        remedy: "Start actors with `sqlenv actor --learner ADDRESS --env ADDRESS`, or look at the \
                 logs of those that run: they say why they cannot join."
            .to_owned(),
    })
}

pub(super) fn actor_silent(status: &LiveStatus) -> Option<Diagnosed> {
    let lease = status.settings.lease_seconds.unwrap_or(300) as f64;
    let is_silent = |actor: &&ActorStatus| match actor.is_connected {
        true => actor.silent_seconds > lease.max(AWAY_SECONDS),
        false => actor.silent_seconds > AWAY_SECONDS,
    };
    let silent: Vec<&ActorStatus> = status.actors.iter().filter(is_silent).collect();
    let longest = silent
        .iter()
        .copied()
        .max_by(|a, b| a.silent_seconds.total_cmp(&b.silent_seconds))?;
    if !is_running(status) {
        return None;
    }
    let hangs = silent.iter().any(|actor| actor.is_connected);
    let (severity, meaning) = match hangs {
        true => (
            Severity::Problem,
            "It is connected, but it has held its groups for longer than their lease: they are \
             handed out again, and its work is lost.",
        ),
        false => (
            Severity::Hint,
            "It left or lost its connection. Other actors get its groups.",
        ),
    };
    Some(Diagnosed {
        severity,
        seen: format!(
            "{} of {} actors are silent, {} for {}.",
            silent.len(),
            status.actors.len(),
            longest.id,
            number::seconds(longest.silent_seconds)
        ),
        meaning,
        remedy: match hangs {
            true => {
                "Look at its log. If its groups take that long, raise learner.lease_seconds or \
                     lower actor.concurrent_groups."
            }
            false => "Look at its log, or start it again. Nothing is to be done if you stopped it.",
        }
        .to_owned(),
    })
}

pub(super) fn actor_old_weights(status: &LiveStatus) -> Option<Diagnosed> {
    let bound = status.settings.max_staleness? + LAG_MARGIN;
    let is_behind = |actor: &&ActorStatus| {
        actor.is_connected && actor.version_lag.is_some_and(|lag| lag > bound)
    };
    let behind: Vec<&ActorStatus> = status.actors.iter().filter(is_behind).collect();
    let last = behind.iter().max_by_key(|actor| actor.version_lag)?;
    if !is_running(status) {
        return None;
    }
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "{} of {} actors have old weights; {} is {} versions behind step {}.",
            behind.len(),
            status.actors.len(),
            last.id,
            last.version_lag.unwrap_or(0),
            status.step
        ),
        meaning: "The learner gives them no groups until they have newer weights.",
        remedy: "Look at their logs and at the network: a snapshot of the weights must arrive \
                 within a step. Raise learner.max_staleness if steps are shorter than that."
            .to_owned(),
    })
}

pub(super) fn env_node_errors(status: &LiveStatus) -> Option<Diagnosed> {
    let share = |errors: u64, calls: u64| errors as f64 / calls.max(1) as f64;
    let failing = status.env_nodes.iter().filter(|node| {
        node.recent_calls >= MIN_CALLS && share(node.recent_errors, node.recent_calls) > ERROR_SHARE
    });
    let worst = failing.max_by_key(|node| node.recent_errors)?;
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "{} of the last {} calls of env-node {} failed ({}).",
            number::count(worst.recent_errors),
            number::count(worst.recent_calls),
            worst.address,
            percent(share(worst.recent_errors, worst.recent_calls))
        ),
        meaning: "Actors repeat failed calls or turn to the next env-node of their list.",
        remedy:
            "Look at the log of the env-node. If it is overloaded, start more of them and name \
                 all in --env, or lower actor.concurrent_groups."
                .to_owned(),
    })
}

pub(super) fn env_node_slow(status: &LiveStatus) -> Option<Diagnosed> {
    let p95 = |node: &crate::EnvNodeStatus| {
        node.p95_latency_seconds
            .filter(|_| node.recent_calls >= MIN_CALLS)
    };
    let slow = status
        .env_nodes
        .iter()
        .filter(|node| p95(node).is_some_and(|it| it > SLOW_SECONDS));
    let slowest = slow.max_by(|a, b| p95(a).unwrap_or(0.0).total_cmp(&p95(b).unwrap_or(0.0)))?;
    Some(Diagnosed {
        severity: Severity::Hint,
        seen: format!(
            "Calls of env-node {} take up to {} (95 %).",
            slowest.address,
            number::seconds(p95(slowest)?)
        ),
        meaning: "Episodes wait for the environment.",
        remedy:
            "Start more env-nodes and name all in --env. Raise actor.concurrent_groups, so that \
                 other groups are sampled meanwhile."
                .to_owned(),
    })
}

/// Returns the share of the newest steps in which the learner waited for groups.
fn waiting_share(status: &LiveStatus) -> Option<f64> {
    let waited = recent(status, "time/wait_for_batch")?;
    let steps = recent(status, "step_time")?;
    let share = waited.iter().sum::<f64>() / steps.iter().sum::<f64>();
    share.is_finite().then_some(share)
}

/// Returns the mean share of time in which the engines of connected actors computed.
fn busy_share(status: &LiveStatus) -> Option<f64> {
    let connected = status.actors.iter().filter(|actor| actor.is_connected);
    let shares: Vec<f64> = connected.filter_map(|actor| actor.busy_share).collect();
    (!shares.is_empty()).then(|| mean(&shares))
}

pub(super) fn learner_waits(status: &LiveStatus) -> Option<Diagnosed> {
    let waiting = waiting_share(status).filter(|share| *share > LEARNER_WAITS)?;
    let busy = busy_share(status);
    let remedy = match busy {
        Some(busy) if busy < ACTOR_IDLE => {
            "The actors are idle as well, so they wait for env-nodes or for the network. Raise \
             actor.concurrent_groups, or start more env-nodes."
        }
        _ => {
            "Start more actors. With learner.max_staleness = 1, actors sample the next step while \
             the learner trains on this one."
        }
    };
    let engines = busy.map_or_else(String::new, |busy| {
        format!(
            "; the actors' engines computed {} of the time",
            percent(busy)
        )
    });
    Some(Diagnosed {
        severity: Severity::Hint,
        seen: format!(
            "The learner waited for groups {} of the time{engines}.",
            percent(waiting)
        ),
        meaning: "Sampling limits the speed of the run.",
        remedy: remedy.to_owned(),
    })
}

pub(super) fn actors_wait(status: &LiveStatus) -> Option<Diagnosed> {
    let waiting = waiting_share(status).filter(|share| *share < LEARNER_BUSY)?;
    let busy = busy_share(status).filter(|busy| *busy < ACTOR_IDLE)?;
    Some(Diagnosed {
        severity: Severity::Hint,
        seen: format!(
            "The actors' engines computed {} of the time, and the learner waited for groups {} of \
             it.",
            percent(busy),
            percent(waiting)
        ),
        meaning: "Training limits the speed of the run: the actors wait for new weights.",
        remedy:
            "Run fewer actors, or raise learner.max_staleness so that they work ahead. A faster \
                 device or more ranks (learner.ranks.count) shorten the step."
                .to_owned(),
    })
}
