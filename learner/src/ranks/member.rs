//! The role of a rank other than 0: settings, model, weights and groups all come from the learner.
//!
//! Invariant: a rank keeps nothing. One that loses the learner joins it anew, from the state that it has then, and gives up
//! where it stays away.

use std::{str::FromStr as _, thread, time::Duration};

use candle_core::{DType, Device};
use policy::{Model, Weights};
use proto::{
    RanksClient,
    v1::{RankHello, RankMessage, leader_message, rank_message},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

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
    /// As the learner's setting.
    pub threads: usize,
    /// How long it looks for a learner that is away.
    pub patience: Duration,
}

/// How an attempt to take part ended.
enum Ended {
    /// Not to be tried again.
    Final(LearnerError),
    /// The learner is away or has no room yet; true if it was there until now.
    Away(LearnerError, bool),
}

/// Takes part in the learner's run to its end.
///
/// # Errors
/// The learner refuses this rank, or stays away for as long as the rank's patience; the rank cannot compute its share.
pub async fn join(client: RanksClient, member: Member) -> Result<()> {
    let client = client.max_decoding_message_size(MAX_SUBMIT_BYTES);
    let mut last_there = now();
    loop {
        match attempt(client.clone(), &member).await {
            Ok(()) => return Ok(()),
            Err(Ended::Final(fault)) => return Err(fault),
            Err(Ended::Away(fault, was_there)) => {
                if was_there {
                    last_there = now();
                }
                if now() - last_there >= member.patience {
                    return Err(fault);
                }
                tracing::warn!(%fault, "looking for the learner again");
            }
        }
        sleep(PAUSE).await;
    }
}

async fn attempt(mut client: RanksClient, member: &Member) -> Result<(), Ended> {
    let (sender, outgoing) = mpsc::channel(DEPTH);
    let version = VERSION.to_owned();
    let part = Some(rank_message::Part::Hello(RankHello { version }));
    // The receiver is right here.
    let _ = sender.send(RankMessage { part }).await;
    let incoming = match client.train(ReceiverStream::new(outgoing)).await {
        Ok(response) => response.into_inner(),
        Err(status) => {
            let problem = format!("does not let this rank in: {}", status.message());
            let fault = LearnerError::Leader { problem };
            return Err(match status.code() {
                Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
                    Ended::Final(fault)
                }
                _ => Ended::Away(fault, false),
            });
        }
    };
    tracing::info!("joined");
    let leader = ToLeader::new(sender, Box::pin(incoming), Handle::current());
    let (done, ended) = oneshot::channel();
    let member = member.clone();
    let body = move || done.send(train(leader, &member)).ok();
    if thread::Builder::new()
        .name("rank".to_owned())
        .spawn(body)
        .is_err()
    {
        return Err(Ended::Final(LearnerError::Thread("rank")));
    }
    match ended.await.unwrap_or(Err(LearnerError::Thread("rank"))) {
        Err(fault @ LearnerError::Leader { .. }) => Err(Ended::Away(fault, true)),
        ended => ended.map_err(Ended::Final),
    }
}

/// Makes all steps of the run with the learner.
fn train(mut leader: ToLeader, member: &Member) -> Result<()> {
    let leader_message::Part::Welcome(welcome) = leader.hear()? else {
        return Err(leader.unexpected("a welcome"));
    };
    let settings: LearnerConfig = serde_json::from_str(&welcome.settings)
        .map_err(|fault| leader.fault(format!("sent settings that cannot be read: {fault}")))?;
    let dtype = DType::from_str(&welcome.dtype)
        .map_err(|fault| leader.fault(format!("sent a dtype that cannot be read: {fault}")))?;
    let config = LearnerConfig {
        threads: member.threads,
        ..settings
    };
    let weights = Weights::from_bytes(&leader.file(BASE)?, &member.device, dtype)?;
    let files = welcome.model_files.into_iter();
    let files = files.map(|file| (file.name, file.content)).collect();
    let model = Model::from_files(files, weights)?;
    let rules = GroupRules::new(&config, model.config.vocab_size);
    let mut trainer = Trainer::new(&config, &model)?;
    let state = leader.file(STATE)?;
    trainer.network.restore(&state, welcome.updates)?;
    drop((model, state));
    let (rank, count) = (welcome.rank as usize, welcome.ranks as usize);
    let nccl = match welcome.nccl_id.is_empty() {
        true => None,
        false => {
            let id = nccl::Id::from_bytes(&welcome.nccl_id)?;
            let timeout = config.ranks.timeout();
            Some(Nccl::open(&id, &member.device, rank, count, timeout)?)
        }
    };
    let place = Place::Member {
        rank,
        count,
        leader,
    };
    trainer.ranks = Ranks { place, nccl };
    tracing::info!(rank, count, "training");
    let made = all_steps(&mut trainer, &rules);
    if let Err(fault) = &made {
        trainer.ranks.give_up(fault);
    }
    made
}

fn all_steps(trainer: &mut Trainer, rules: &GroupRules) -> Result<()> {
    while let Some((groups, version)) = trainer.ranks.next_step(rules)? {
        trainer.step(&groups, version)?;
        tracing::info!(step = version + 1, "made");
    }
    Ok(())
}
