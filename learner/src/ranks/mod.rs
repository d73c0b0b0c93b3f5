//! The ranks of a run: processes that hold the same weights and share the work of each learner
//! step.
//!
//! Invariant: sums run in the order of ranks, on rank 0 alone or in NCCL, and every rank makes its
//! update from the same bits; a digest of the weights, on joining and after each step, verifies it.
//! What a rank computes is a function of the step's groups and its number. A rank that fails, is
//! silent or disconnects ends rank 0 with an error that names it, before the step's version is
//! published; only one that is lost within NCCL is not named. A learner without other ranks copies
//! nothing and waits for no one.

mod connection;
mod duplex;
mod join;
#[cfg_attr(not(feature = "nccl"), path = "without_nccl.rs")]
mod nccl;
mod reduce;
mod registry;
mod settings;
mod statistics;

use std::{collections::BTreeMap, time::Duration};

use candle_core::Device;
use policy::Model;
use prost::{Message as _, bytes::Bytes};
use proto::{
    EncodedGroup,
    v1::{
        Finished, RankDigest, RankStatistics, RankStep, RankWelcome, ReduceNow, TrainRequest,
        TrainResponse, train_request, train_response,
    },
};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::{Stream, StreamExt as _};

pub use join::{RankOptions, join};
pub(crate) use registry::{RankRegistry, model_files};
pub use settings::{RankSettings, ReduceBy};
pub use statistics::{LogprobDifference, MicroBatchStatistics};

use crate::{
    batch::MicroBatch,
    config::LearnerConfig,
    error::{LearnerError, Result},
    group::{Group, GroupRules, StepGroups, check_demonstration},
    network::Network,
    optimizer::{Gradients, Parameter},
};
use connection::{LeaderConnection, Peer as _, RankConnection};
use nccl::Nccl;

const BASE: &str = "base";
const STATE: &str = "state";

/// Sums gradients by NCCL in a world of this process alone. It shows on one GPU that NCCL loads,
/// connects and computes.
///
/// # Errors
/// The program is built without NCCL, its library is missing, the device is the CPU, or NCCL fails.
pub fn sum_alone(
    device: &Device,
    parameters: &BTreeMap<String, Parameter>,
    gradients: Gradients,
) -> Result<Gradients> {
    let timeout = RankSettings::default().timeout();
    let nccl = Nccl::open(&nccl::new_id(device)?, device, 0, 1, timeout)?;
    nccl.all_reduce(parameters, gradients, || None)
}

/// A run's ranks, as one of them sees them.
#[derive(Default)]
pub struct Ranks {
    role: RankRole,
    nccl: Option<Nccl>,
}

#[derive(Default)]
enum RankRole {
    /// The run has no other ranks.
    #[default]
    Alone,
    /// Rank 0, with the others in order.
    Leader(Vec<RankConnection>),
    /// Another rank.
    Member {
        rank: usize,
        count: usize,
        leader: LeaderConnection,
    },
}

impl RankRole {
    /// Returns the error of another rank that has gone while this one only waits for it: within a
    /// sum by NCCL, which would wait for ever.
    fn lost(&mut self) -> Option<LearnerError> {
        let problem = "is gone: its connection ended within a sum by NCCL";
        match self {
            Self::Alone => None,
            Self::Leader(others) => {
                let gone = others.iter_mut().find(|other| other.is_gone());
                gone.map(|other| other.reported_fault(problem.to_owned()))
            }
            // Not `LeaderAway`, after which a rank joins again: its GPU still waits.
            Self::Member { leader, .. } => leader
                .is_gone()
                .then(|| LearnerError::Nccl(format!("the learner {problem}"))),
        }
    }

    /// Begins a call of NCCL. Rank 0 calls this when it has heard from all other ranks, and tells
    /// them; each of them waits for that. A rank that fails before is named; within NCCL it could
    /// not be, and the others would wait for it.
    fn begin_collective(&mut self) -> Result<()> {
        match self {
            Self::Alone => Ok(()),
            Self::Leader(others) => others
                .iter_mut()
                .try_for_each(|other| other.send(train_response::Part::Reduce(ReduceNow {}))),
            Self::Member { leader, .. } => match leader.receive()? {
                train_response::Part::Reduce(_) => Ok(()),
                _ => Err(leader.unexpected("the start of a collective")),
            },
        }
    }
}

impl Ranks {
    /// Returns rank 0 of a run whose other ranks, in order, send these messages and are sent what
    /// it says. For tests and fuzz targets. Must be called inside a runtime.
    #[doc(hidden)]
    pub fn leader_of<S>(
        others: impl IntoIterator<Item = (S, mpsc::Sender<TrainResponse>)>,
        timeout: Duration,
    ) -> Self
    where
        S: Stream<Item = TrainRequest> + Send + 'static,
    {
        let connect = |(rank, (messages, sender)): (usize, (S, _))| {
            let incoming = Box::pin(messages.map(Ok));
            let mut other = RankConnection::new(sender, incoming, timeout, Handle::current());
            other.rank = rank;
            other
        };
        let others = (1..).zip(others).map(connect);
        Self {
            role: RankRole::Leader(others.collect()),
            nccl: None,
        }
    }

    /// Returns another rank, by its number and the number of ranks, of a run whose rank 0 sends
    /// these messages and is sent what the rank says. For tests and fuzz targets. Must be called
    /// inside a runtime.
    #[doc(hidden)]
    pub fn member_of(
        (rank, count): (usize, usize),
        messages: impl Stream<Item = TrainResponse> + Send + 'static,
        sender: mpsc::Sender<TrainRequest>,
    ) -> Self {
        let incoming = Box::pin(messages.map(Ok));
        let leader = LeaderConnection::new(sender, incoming, Handle::current());
        let role = RankRole::Member {
            rank,
            count,
            leader,
        };
        Self { role, nccl: None }
    }

    /// Returns this rank's number, from 0.
    pub fn rank(&self) -> usize {
        match self.role {
            RankRole::Alone | RankRole::Leader(_) => 0,
            RankRole::Member { rank, .. } => rank,
        }
    }

    /// Returns how many ranks the run has.
    pub fn count(&self) -> usize {
        match &self.role {
            RankRole::Alone => 1,
            RankRole::Leader(others) => 1 + others.len(),
            RankRole::Member { count, .. } => *count,
        }
    }

    /// Makes this process rank 0 of `others`, which are numbered in the order in which they joined.
    /// Sends them settings, model and the state of `network` after step `step`, from which all
    /// train.
    pub(crate) fn lead(
        mut others: Vec<RankConnection>,
        config: &LearnerConfig,
        base: &Model,
        network: &Network,
        step: u64,
    ) -> Result<Self> {
        if config.ranks.is_alone() {
            return Ok(Self::default());
        }
        let count = 1 + others.len();
        let id = match config.ranks.reduce {
            ReduceBy::Grpc => None,
            ReduceBy::Nccl => Some(nccl::new_id(network.device())?),
        };
        let weights = Bytes::from(base.weights.to_bytes()?);
        let state = Bytes::from(network.state().to_bytes()?);
        for (rank, other) in (1..).zip(&mut others) {
            other.rank = rank;
            other.begin_step();
            let welcome = RankWelcome {
                rank: rank as u32,
                ranks: count as u32,
                settings: serde_json::to_string(config)
                    .expect("plain settings serialise: this is a bug"),
                model_files: model_files(base),
                dtype: network.dtype().as_str().to_owned(),
                updates: network.optimizer.updates,
                nccl_id: id.clone().unwrap_or_default(),
            };
            other.send(train_response::Part::Welcome(welcome))?;
            other.send_file(BASE, &weights)?;
            other.send_file(STATE, &state)?;
        }
        let role = match others.is_empty() {
            true => RankRole::Alone,
            false => RankRole::Leader(others),
        };
        let timeout = config.ranks.timeout();
        let open = |id: Vec<u8>| Nccl::open(&id, network.device(), 0, count, timeout);
        let mut ranks = Self { role, nccl: None };
        // Before NCCL connects, which waits without a deadline: a rank that cannot use NCCL reports
        // it here in place of its digest.
        ranks.agree(network, step)?;
        if id.is_some() {
            ranks.role.begin_collective()?;
        }
        ranks.nccl = id.map(open).transpose()?;
        Ok(ranks)
    }

    /// Sends the groups of a step from rank 0 to the others, in the bytes in which they arrived.
    pub(crate) fn hand_out(&mut self, groups: &StepGroups, version: u64) -> Result<()> {
        let RankRole::Leader(others) = &mut self.role else {
            return Ok(());
        };
        for other in others {
            other.begin_step();
            let step = RankStep {
                policy_version: version,
                groups: groups.kept.len() as u32,
                demonstrations: groups.demonstrations.len() as u32,
            };
            other.send(train_response::Part::Step(step))?;
            for group in &groups.kept {
                let bytes = group.encoded.bytes().clone();
                other.send(train_response::Part::Group(bytes))?;
            }
            for demonstration in &groups.demonstrations {
                let demonstration = demonstration.clone();
                other.send(train_response::Part::Demonstration(demonstration))?;
            }
        }
        Ok(())
    }

    /// Receives another rank's next step: its groups and the policy version; none when the run is
    /// over.
    pub(crate) fn next_step(&mut self, rules: &GroupRules) -> Result<Option<(StepGroups, u64)>> {
        let RankRole::Member { leader, .. } = &mut self.role else {
            return Ok(None);
        };
        let step = match leader.receive()? {
            train_response::Part::Step(step) => step,
            train_response::Part::Finished(Finished {}) => return Ok(None),
            _ => return Err(leader.unexpected("a step")),
        };
        let mut kept = Vec::new();
        for _ in 0..step.groups {
            let train_response::Part::Group(bytes) = leader.receive()? else {
                return Err(leader.unexpected("a group"));
            };
            let group = Group::new(EncodedGroup::new(bytes), rules);
            let group = group.map_err(|fault| leader.fault(fault))?;
            kept.push(group.into());
        }
        let mut demonstrations = Vec::new();
        for _ in 0..step.demonstrations {
            let train_response::Part::Demonstration(demonstration) = leader.receive()? else {
                return Err(leader.unexpected("a demonstration"));
            };
            let checked = check_demonstration(&demonstration, rules);
            checked.map_err(|fault| leader.fault(format!("sent a demonstration: {fault}")))?;
            demonstrations.push(demonstration);
        }
        let groups = StepGroups {
            kept,
            left_out: Vec::new(),
            demonstrations,
            demonstrated: Vec::new(),
        };
        Ok(Some((groups, step.policy_version)))
    }

    /// Returns the micro-batches that this rank computes, ascending. Ranks get about as many tokens
    /// each.
    pub(crate) fn share(&mut self, micro_batches: &[MicroBatch]) -> Vec<usize> {
        let tokens = micro_batches.iter().map(|micro| micro.packed.tokens.len());
        let mut shares = crate::batch::shares(&tokens.collect::<Vec<_>>(), self.count());
        let own = std::mem::take(&mut shares[self.rank()]);
        if let RankRole::Leader(others) = &mut self.role {
            for other in others {
                other.share = std::mem::take(&mut shares[other.rank]);
            }
        }
        own
    }

    /// Returns the sum of all ranks' gradients and, on rank 0, the statistics of all micro-batches
    /// in order. A rank without micro-batches has no gradients; `parameters` says which there are.
    pub(crate) fn reduce(
        &mut self,
        parameters: &BTreeMap<String, Parameter>,
        gradients: Gradients,
        mut statistics: Vec<MicroBatchStatistics>,
    ) -> Result<(Gradients, Vec<MicroBatchStatistics>)> {
        let is_nccl = self.nccl.is_some();
        let gradients = match &mut self.role {
            RankRole::Alone => gradients,
            RankRole::Leader(others) => {
                // Statistics come before gradients, because they say which ranks send gradients at
                // all: a rank with no micro-batches sends none.
                let mut has_gradients = Vec::new();
                for other in others.iter_mut() {
                    other.not_finite = None;
                    let received = other.receive_statistics()?;
                    has_gradients.push(!received.is_empty());
                    statistics.extend(received);
                }
                // One order of merging gives the same metrics with any number of ranks.
                statistics.sort_by_key(|statistics| statistics.micro_batch);
                match is_nccl {
                    true => gradients,
                    false => reduce::sum(parameters, gradients, others, &has_gradients)?,
                }
            }
            RankRole::Member { leader, .. } => {
                let encoded = statistics.iter().map(MicroBatchStatistics::encode_to_vec);
                let micro_batches = encoded.collect();
                let sent = RankStatistics { micro_batches };
                leader.send(train_request::Part::Statistics(sent))?;
                match is_nccl {
                    true => gradients,
                    false => reduce::contribute(parameters, gradients, leader)?,
                }
            }
        };
        let gradients = match &self.nccl {
            None => gradients,
            Some(nccl) => {
                self.role.begin_collective()?;
                nccl.all_reduce(parameters, gradients, || self.role.lost())?
            }
        };
        Ok((gradients, statistics))
    }

    /// Returns the error that names a rank whose part of the last sum is not finite, if rank 0's
    /// own part is finite. NCCL does not show the parts.
    pub(crate) fn without_finite_gradient(&self) -> Option<LearnerError> {
        let RankRole::Leader(others) = &self.role else {
            return None;
        };
        others.iter().find_map(|other| {
            let name = other.not_finite.as_ref()?;
            Some(other.fault(format!(
                "sent a gradient of {name} that is not finite, and no group or demonstration \
                 explains it; if this comes back, look at the machine of this rank, or lower the \
                 learning rate in a new run"
            )))
        })
    }

    /// Checks that all ranks hold the same weights after step `step`.
    pub(crate) fn agree(&mut self, network: &Network, step: u64) -> Result<()> {
        match &mut self.role {
            RankRole::Alone => Ok(()),
            RankRole::Leader(others) => {
                let own = network.digest()?;
                for other in others {
                    let train_request::Part::Digest(digest) = other.receive()? else {
                        return Err(other.unexpected("its digest"));
                    };
                    if digest.weights != own {
                        let rank = other.rank;
                        return Err(LearnerError::RankDiffers { rank, step });
                    }
                }
                Ok(())
            }
            RankRole::Member { leader, .. } => {
                leader.send(train_request::Part::Digest(RankDigest {
                    weights: network.digest()?,
                }))
            }
        }
    }

    /// Tells the other ranks that the run is over. Nothing depends on one that has gone.
    pub(crate) fn finish(&mut self) {
        let RankRole::Leader(others) = &mut self.role else {
            return;
        };
        for other in others {
            let sent = other.send(train_response::Part::Finished(Finished {}));
            sent.unwrap_or_else(
                |fault| tracing::warn!(%fault, "a rank was gone after the last step"),
            );
        }
    }

    /// Tells rank 0 why this rank cannot continue.
    pub(crate) fn give_up(&mut self, fault: &LearnerError) {
        if let RankRole::Member { leader, .. } = &mut self.role {
            leader.give_up(fault);
        }
    }
}
