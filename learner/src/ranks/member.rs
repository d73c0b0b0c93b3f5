//! The role of a rank other than 0: settings, model, weights and groups all come from the learner.
//!
//! Invariant: a rank keeps nothing. One that loses the learner joins it anew, from the state that it has then, and gives up
//! where it stays away. One that fails, at whatever point, tells the learner why.

use std::{
    str::FromStr as _,
    thread,
    time::{Duration, Instant},
};

use candle_core::{DType, Device};
use policy::{Model, Weights};
use proto::{
    RanksClient,
    v1::{RankHello, RankWelcome, TrainRequest, train_request, train_response},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::{
    BASE, Place, Ranks, STATE,
    link::{DEPTH, ToLeader},
    lobby::VERSION,
    nccl::{self, Nccl},
};
use crate::{
    config::LearnerConfig,
    driver::now,
    error::{LearnerError, Result},
    group::GroupRules,
    grpc::MAX_SUBMIT_BYTES,
    trainer::Trainer,
};

/// Between two attempts to join.
const PAUSE: Duration = Duration::from_millis(500);

/// What a rank brings itself.
#[derive(Clone, Debug)]
pub struct Member {
    /// Computes here.
    pub device: Device,
    /// As in [`RunArguments`](crate::RunArguments).
    pub threads: usize,
    /// How long it looks for a learner that is away.
    pub patience: Duration,
}

/// Takes part in the learner's run to its end.
///
/// # Errors
/// The learner refuses this rank, or stays away for as long as the rank's patience; the rank cannot compute its share.
pub async fn join(client: RanksClient, member: Member) -> Result<()> {
    let client = client.max_decoding_message_size(MAX_SUBMIT_BYTES);
    let mut last_there = now();
    let mut told = String::new();
    loop {
        let fault = match attempt(client.clone(), &member, &mut last_there).await {
            Err(fault @ (LearnerError::LeaderAway { .. } | LearnerError::NoPlace { .. })) => fault,
            ended => return ended,
        };
        if now() - last_there >= member.patience {
            return Err(fault);
        }
        let text = fault.to_string();
        if text != told {
            tracing::warn!(%fault, "trying to join again");
            told = text;
        }
        sleep(PAUSE).await;
    }
}

/// Takes part as long as the learner is there, which `last_there` tells when it is not.
async fn attempt(mut client: RanksClient, member: &Member, last_there: &mut Instant) -> Result<()> {
    let (sender, outgoing) = mpsc::channel(DEPTH);
    let version = VERSION.to_owned();
    let part = Some(train_request::Part::Hello(RankHello { version }));
    // The receiver is right here.
    let _ = sender.send(TrainRequest { part }).await;
    let answer = client.train(ReceiverStream::new(outgoing)).await;
    let incoming = answer.map_err(|status| refused(&status))?.into_inner();
    tracing::info!("joined");
    let leader = ToLeader::new(sender, Box::pin(incoming), Handle::current());
    let (done, ended) = oneshot::channel();
    let member = member.clone();
    // Nobody listens any more if the caller gave up.
    let body = move || done.send(train(leader, &member)).ok();
    let spawned = thread::Builder::new().name("rank".to_owned()).spawn(body);
    spawned.map_err(|_| LearnerError::Thread("rank"))?;
    let ended = ended.await;
    *last_there = now();
    ended.unwrap_or(Err(LearnerError::Thread("rank")))
}

/// A rank that does not belong is told so for good; one that finds nobody, or no room, may come later.
fn refused(status: &Status) -> LearnerError {
    let reason = status.message();
    match status.code() {
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
            let problem = format!("refuses this rank: {reason}");
            LearnerError::Leader { problem }
        }
        Code::ResourceExhausted => LearnerError::NoPlace {
            problem: reason.to_owned(),
        },
        _ => LearnerError::LeaderAway {
            problem: format!("cannot be joined: {reason}"),
        },
    }
}

/// What a rank trains with, once the learner gave it all.
struct Prepared {
    trainer: Trainer,
    rules: GroupRules,
    welcome: RankWelcome,
    timeout: Duration,
}

/// Makes all steps of the run with the learner.
fn train(mut leader: ToLeader, member: &Member) -> Result<()> {
    let mut prepared = match prepare(&mut leader, member) {
        Ok(Some(prepared)) => prepared,
        Ok(None) => return Ok(()),
        Err(fault) => {
            leader.give_up(&fault);
            return Err(fault);
        }
    };
    let place = Place::Member {
        rank: prepared.welcome.rank as usize,
        count: prepared.welcome.ranks as usize,
        leader,
    };
    prepared.trainer.ranks = Ranks { place, nccl: None };
    let made = all_steps(&mut prepared, &member.device);
    if let Err(fault) = &made {
        prepared.trainer.ranks.give_up(fault);
    }
    made
}

/// Takes settings, model and state from the learner; none if its run is over.
fn prepare(leader: &mut ToLeader, member: &Member) -> Result<Option<Prepared>> {
    let mut welcome = match leader.hear()? {
        train_response::Part::Welcome(welcome) => welcome,
        train_response::Part::Finished(_) => return Ok(None),
        _ => return Err(leader.unexpected("a welcome")),
    };
    let config: LearnerConfig = serde_json::from_str(&welcome.settings)
        .map_err(|fault| leader.fault(format!("sent settings that cannot be read: {fault}")))?;
    let dtype = DType::from_str(&welcome.dtype)
        .map_err(|fault| leader.fault(format!("sent a dtype that cannot be read: {fault}")))?;
    let weights = Weights::from_bytes(&leader.file(BASE)?, &member.device, dtype)?;
    let files = std::mem::take(&mut welcome.model_files).into_iter();
    let files = files.map(|file| (file.name, file.content)).collect();
    let model = Model::from_files(files, weights)?;
    let mut trainer = Trainer::new(&config, member.threads, &model)?;
    let state = leader.file(STATE)?;
    trainer.network.restore(&state, welcome.updates)?;
    Ok(Some(Prepared {
        trainer,
        rules: GroupRules::new(&config, model.config.vocab_size),
        welcome,
        timeout: config.ranks.timeout(),
    }))
}

fn all_steps(prepared: &mut Prepared, device: &Device) -> Result<()> {
    let trainer = &mut prepared.trainer;
    // Rank 0 waits for it before it turns to NCCL.
    trainer.ranks.agree(&trainer.network, 0)?;
    let (rank, count) = (trainer.ranks.rank(), trainer.ranks.count());
    if !prepared.welcome.nccl_id.is_empty() {
        let id = nccl::Id::from_bytes(&prepared.welcome.nccl_id)?;
        let opened = Nccl::open(&id, device, rank, count, prepared.timeout)?;
        trainer.ranks.nccl = Some(opened);
    }
    tracing::info!(rank, count, "training");
    while let Some((groups, version)) = trainer.ranks.next_step(&prepared.rules)? {
        trainer.step(&groups, version)?;
        tracing::info!(step = version + 1, "made");
    }
    Ok(())
}
