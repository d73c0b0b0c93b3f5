//! The role of a rank other than 0: settings, model, weights and groups all come from the learner.
//!
//! Invariant: a rank stores nothing. A rank that loses the learner rejoins it, from the state that
//! the learner has then, and gives up if it cannot reach the learner for longer than its timeout.
//! A rank that fails reports the reason to the learner, at whatever point it fails.

use std::{
    str::FromStr as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use candle_core::{DType, Device};
use policy::{Model, Weights};
use proto::{
    MAX_MESSAGE_BYTES, RanksClient, WaitReminder, status_text,
    v1::{RankHello, RankWelcome, TrainRequest, train_request, train_response},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::{
    BASE, RankRole, Ranks, STATE,
    connection::{DEPTH, LeaderConnection, Peer as _},
    nccl::{self, Nccl},
};
use crate::{
    clock::now,
    config::LearnerConfig,
    error::{LearnerError, Result},
    group::GroupRules,
    metrics::{self, RANK_TRAINING, RANK_WAITING, Stopwatch},
    server::identity::VERSION,
    trainer::Trainer,
};

/// The pause between two attempts to join.
const PAUSE: Duration = Duration::from_millis(500);
/// How often a rank repeats why it cannot join.
const REMIND: Duration = Duration::from_secs(60);

/// A rank's own options; all others come from the learner.
#[derive(Clone, Debug)]
pub struct RankOptions {
    /// Where the rank computes.
    pub device: Device,
    /// Threads that compute, as in [`RunArguments`](crate::RunArguments).
    pub threads: usize,
    /// How long the rank tries to reach a learner that is away.
    pub timeout: Duration,
    /// Cancelled when the rank is to end: at once if it has not joined, else with its learner.
    pub stopping: CancellationToken,
}

/// Takes part in the learner's run to its end.
///
/// # Errors
/// The learner refuses this rank or cannot be reached for longer than the rank's timeout, or the
/// rank cannot compute its share. [`LearnerError::NotJoined`]: the rank was to end.
pub async fn join(client: RanksClient, options: RankOptions) -> Result<()> {
    let client = client.max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut last_contact = now();
    let mut last_warning = String::new();
    let mut reminder = WaitReminder::new(last_contact, REMIND, REMIND);
    loop {
        if options.stopping.is_cancelled() {
            return Err(LearnerError::NotJoined);
        }
        let fault = match attempt(client.clone(), &options, &mut last_contact).await {
            Err(fault @ (LearnerError::LeaderAway(_) | LearnerError::RunFull(_))) => fault,
            ended => return ended,
        };
        if now() - last_contact >= options.timeout {
            return Err(fault);
        }
        let text = fault.to_string();
        if text != last_warning || reminder.due(now()).is_some() {
            tracing::warn!(%fault, "joining again");
            last_warning = text;
        }
        let _ = timeout(PAUSE, options.stopping.cancelled()).await;
    }
}

/// Takes part as long as the learner can be reached, and sets `last_contact` to the time when it
/// was lost.
async fn attempt(
    mut client: RanksClient,
    options: &RankOptions,
    last_contact: &mut Instant,
) -> Result<()> {
    let (sender, outgoing) = mpsc::channel(DEPTH);
    let version = VERSION.to_owned();
    let part = Some(train_request::Part::Hello(RankHello { version }));
    // Cannot fail: the receiver is still in this function.
    let _ = sender.send(TrainRequest { part }).await;
    let stopping = &options.stopping;
    let answer = stopping.run_until_cancelled(client.train(ReceiverStream::new(outgoing)));
    let answer = answer.await.ok_or(LearnerError::NotJoined)?;
    let incoming = answer.map_err(|status| refused(&status))?.into_inner();
    tracing::info!("joined");
    let leader = LeaderConnection::new(sender, Box::pin(incoming), Handle::current());
    let (done, ended) = oneshot::channel();
    let has_begun = Arc::new(AtomicBool::new(false));
    let (begun, options) = (Arc::clone(&has_begun), options.clone());
    // The receiver is gone if the caller dropped the future.
    let body = move || done.send(train(leader, &options, &begun)).ok();
    let spawned = thread::Builder::new().name("rank".to_owned()).spawn(body);
    spawned.map_err(|_| LearnerError::Thread("rank"))?;
    metrics::rank_joined(true);
    let ended = tokio::select! {
        ended = ended => ended,
        () = stopped_before(stopping, &has_begun) => Ok(Err(LearnerError::NotJoined)),
    };
    metrics::rank_joined(false);
    *last_contact = now();
    ended.unwrap_or(Err(LearnerError::Thread("rank")))
}

/// Waits until the rank is to end, if its part of the run has not begun by then.
async fn stopped_before(stopping: &CancellationToken, has_begun: &AtomicBool) {
    stopping.cancelled().await;
    if has_begun.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// Turns a refusal into an error. The error is final if the rank does not fit the run. It is
/// temporary if the learner cannot be reached or the run has all its ranks.
fn refused(status: &Status) -> LearnerError {
    let reason = status_text(status);
    match status.code() {
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unauthenticated => {
            LearnerError::Leader(format!("refuses this rank: {reason}"))
        }
        // An env-node, and a port of metrics, answer by this code.
        Code::Unimplemented => LearnerError::Leader(format!(
            "does not serve ranks: {reason}; check that --learner is the address of a learner"
        )),
        Code::ResourceExhausted => LearnerError::RunFull(reason),
        _ => LearnerError::LeaderAway(format!("cannot be joined: {reason}")),
    }
}

/// What a rank trains with, after the learner has sent it.
struct JoinedRank {
    trainer: Trainer,
    rules: GroupRules,
    welcome: RankWelcome,
    timeout: Duration,
}

/// Makes all steps of the run with the learner. Sets `has_begun` when it has its state.
fn train(
    mut leader: LeaderConnection,
    options: &RankOptions,
    has_begun: &AtomicBool,
) -> Result<()> {
    let mut joined = match prepare(&mut leader, options) {
        Ok(Some(joined)) => joined,
        Ok(None) => return Ok(()),
        Err(fault) => {
            leader.give_up(&fault);
            return Err(fault);
        }
    };
    has_begun.store(true, Ordering::Relaxed);
    let role = RankRole::Member {
        rank: joined.welcome.rank as usize,
        count: joined.welcome.ranks as usize,
        leader,
    };
    joined.trainer.ranks = Ranks { role, nccl: None };
    let made = all_steps(&mut joined, &options.device);
    if let Err(fault) = &made {
        joined.trainer.ranks.give_up(fault);
    }
    made
}

/// Receives settings, model and state from the learner; none if its run is over.
fn prepare(leader: &mut LeaderConnection, options: &RankOptions) -> Result<Option<JoinedRank>> {
    let mut welcome = match leader.receive()? {
        train_response::Part::Welcome(welcome) => welcome,
        train_response::Part::Finished(_) => return Ok(None),
        _ => return Err(leader.unexpected("a welcome")),
    };
    let config: LearnerConfig = serde_json::from_str(&welcome.settings)
        .map_err(|fault| leader.fault(format!("sent settings that cannot be decoded: {fault}")))?;
    let usable = config.validate();
    usable.map_err(|fault| leader.fault(format!("sent settings that cannot be used: {fault}")))?;
    let (rank, count) = (welcome.rank as usize, welcome.ranks as usize);
    if count != config.ranks.count || !(1..count).contains(&rank) {
        let wanted = config.ranks.count;
        let problem = format!("made this process rank {rank} of {count}, in a run of {wanted}");
        return Err(leader.fault(problem));
    }
    if !welcome.nccl_id.is_empty() {
        // Rank 0 connects NCCL after the digest, and would wait for a rank that fails later.
        nccl::check(&options.device)?;
    }
    let dtype = DType::from_str(&welcome.dtype)
        .map_err(|fault| leader.fault(format!("sent an unknown dtype: {fault}")))?;
    let weights = Weights::from_bytes(&leader.receive_bytes(BASE, None)?, &options.device, dtype)?;
    let files = std::mem::take(&mut welcome.model_files).into_iter();
    let files = files.map(|file| (file.name, file.content.into())).collect();
    let model = Model::from_files(files, weights)?;
    let mut trainer = Trainer::new(&config, options.threads, &model)?;
    let state = leader.receive_bytes(STATE, None)?;
    trainer.network.restore(&state, welcome.updates)?;
    Ok(Some(JoinedRank {
        trainer,
        rules: GroupRules::new(&config, model.config.vocab_size),
        welcome,
        timeout: config.ranks.timeout(),
    }))
}

fn all_steps(joined: &mut JoinedRank, device: &Device) -> Result<()> {
    let trainer = &mut joined.trainer;
    // Rank 0 waits for this digest before it connects NCCL.
    trainer.ranks.agree(&trainer.network, 0)?;
    let (rank, count) = (trainer.ranks.rank(), trainer.ranks.count());
    if !joined.welcome.nccl_id.is_empty() {
        // A learner that ended because of another rank sends nothing, and would never connect.
        trainer.ranks.role.begin_collective()?;
        let opened = Nccl::open(&joined.welcome.nccl_id, device, rank, count, joined.timeout)?;
        trainer.ranks.nccl = Some(opened);
    }
    tracing::info!(rank, count, "training");
    let mut stopwatch = Stopwatch::start();
    while let Some((groups, version)) = trainer.ranks.next_step(&joined.rules)? {
        stopwatch.lap(&RANK_WAITING);
        match trainer.step(&groups, version) {
            Ok(_) => {}
            // Rank 0 begins the step again without these groups, or ends the run.
            Err(LearnerError::Refused(_)) => continue,
            Err(fault) => return Err(fault),
        }
        stopwatch.lap(&RANK_TRAINING);
        metrics::rank_step_made(version + 1);
        tracing::info!(step = version + 1, "step made");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proto::v1::TrainResponse;

    use super::*;
    use crate::ranks::RankSettings;

    /// The settings of a run of three ranks.
    fn settings() -> LearnerConfig {
        let ranks = RankSettings {
            count: 3,
            ..RankSettings::default()
        };
        LearnerConfig {
            ranks,
            ..LearnerConfig::default()
        }
    }

    fn welcome(rank: u32, ranks: u32, config: &LearnerConfig) -> RankWelcome {
        RankWelcome {
            rank,
            ranks,
            settings: serde_json::to_string(config).unwrap(),
            dtype: "f32".to_owned(),
            ..RankWelcome::default()
        }
    }

    /// Returns what a rank tells rank 0 of this welcome, after which it would need the weights.
    async fn fault_of(welcome: RankWelcome) -> String {
        let part = Some(train_response::Part::Welcome(welcome));
        let sent = tokio_stream::iter([Ok(TrainResponse { part })]);
        let (sender, mut said) = mpsc::channel(DEPTH);
        let leader = LeaderConnection::new(sender, Box::pin(sent), Handle::current());
        let options = RankOptions {
            device: Device::Cpu,
            threads: 1,
            timeout: Duration::ZERO,
            stopping: CancellationToken::new(),
        };
        let trained = move || train(leader, &options, &AtomicBool::new(false)).unwrap_err();
        let fault = tokio::task::spawn_blocking(trained).await.unwrap();
        let first = said.recv().await.unwrap().part;
        assert_eq!(first, Some(train_request::Part::Fault(fault.to_string())));
        fault.to_string()
    }

    #[test]
    fn an_address_of_another_service_is_named_by_its_flag() {
        let fault = refused(&Status::unimplemented("")).to_string();
        assert!(fault.contains("check that --learner"), "{fault}");
    }

    #[tokio::test]
    async fn a_welcome_that_does_not_add_up_is_refused() {
        for (rank, ranks) in [(1, 0), (1, 1), (0, 3), (3, 3), (1, 2), (u32::MAX, u32::MAX)] {
            let fault = fault_of(welcome(rank, ranks, &settings())).await;
            assert!(fault.contains("in a run of 3"), "{fault}");
        }
        let mut unusable = settings();
        unusable.group_size = 0;
        let fault = fault_of(welcome(1, 3, &unusable)).await;
        assert!(fault.contains("group_size"), "{fault}");
        let fault = fault_of(welcome(2, 3, &settings())).await;
        assert!(fault.contains("its connection ended"), "{fault}");
    }

    /// Rank 0 connects NCCL after the digests of all ranks, and then waits for them for ever.
    #[tokio::test]
    async fn a_rank_that_cannot_use_nccl_says_so_before_its_digest() {
        let by_nccl = RankWelcome {
            nccl_id: vec![0; 128],
            ..welcome(2, 3, &settings())
        };
        let fault = fault_of(by_nccl).await;
        assert!(fault.contains("ranks.reduce: is nccl"), "{fault}");
    }

    /// Rank 0 ends if another rank cannot use NCCL. This rank would then wait within NCCL for ever.
    #[tokio::test]
    async fn a_rank_connects_nccl_only_with_a_learner_that_connects() {
        let ended = || {
            let (config, model) = (settings(), policy::embedded::model(1).unwrap());
            let (sender, _said) = mpsc::channel(DEPTH);
            let mut trainer = Trainer::new(&config, 1, &model).unwrap();
            trainer.ranks = Ranks::member_of((1, 3), tokio_stream::empty(), sender);
            let mut joined = JoinedRank {
                trainer,
                rules: GroupRules::new(&config, model.config.vocab_size),
                welcome: RankWelcome {
                    nccl_id: vec![0; 128],
                    ..welcome(1, 3, &config)
                },
                timeout: Duration::ZERO,
            };
            all_steps(&mut joined, &Device::Cpu).unwrap_err()
        };
        let fault = tokio::task::spawn_blocking(ended).await.unwrap();
        assert!(matches!(fault, LearnerError::LeaderAway(_)), "{fault}");
    }
}
