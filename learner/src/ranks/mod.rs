//! The ranks of a run: processes that hold the same weights and share out the work of each step.
//!
//! Invariant: sums run in the order of ranks, on rank 0 alone or in NCCL, and every rank makes its update from the same bits;
//! a digest, on joining and after each step, shows it. What a rank computes is a function of the step's groups and its
//! number. A rank that fails, is silent or gone ends rank 0 with an error that names it, before the step's version is
//! published; only one that is lost within NCCL is not named. Alone, a learner copies nothing and waits for nobody.

mod figures;
mod link;
mod lobby;
mod member;
#[cfg_attr(not(feature = "nccl"), path = "without_nccl.rs")]
mod nccl;
mod reduce;
mod settings;

use std::{collections::BTreeMap, time::Duration};

use candle_core::Device;
use policy::Model;
use prost::Message as _;
use proto::v1::{
    Finished, RankDigest, RankFigures, RankStep, RankWelcome, ReduceNow, SubmitRequest,
    train_request, train_response,
};
use tokio::runtime::Handle;

pub use figures::Figures;
pub(crate) use lobby::Lobby;
pub use member::{Member, join};
pub use settings::{RankSettings, ReduceBy};

use crate::{
    batch::MicroBatch,
    config::LearnerConfig,
    error::{LearnerError, Result},
    group::{Group, GroupRules},
    network::Network,
    optimizer::{Gradients, Parameter},
    trainer::StepGroups,
};
use link::{ToLeader, ToRank};
use nccl::Nccl;

const BASE: &str = "base";
const STATE: &str = "state";

/// Sums over a world of this process alone by NCCL, whose id goes through the bytes that other ranks would get: what a
/// single GPU can show of it: that it loads, joins and answers.
///
/// # Errors
/// The program is built without NCCL, its library is missing, the device is the CPU, or NCCL fails.
pub fn sum_alone(
    device: &Device,
    parameters: &BTreeMap<String, Parameter>,
    gradients: Gradients,
) -> Result<Gradients> {
    let id = nccl::Id::from_bytes(&nccl::Id::new()?.to_bytes())?;
    let nccl = Nccl::open(&id, device, 0, 1, RankSettings::default().timeout())?;
    nccl.all_reduce(parameters, gradients)
}

/// A run's ranks, as one of them sees them.
#[derive(Default)]
pub struct Ranks {
    place: Place,
    nccl: Option<Nccl>,
}

#[derive(Default)]
enum Place {
    #[default]
    Alone,
    /// Rank 0, with the others in order.
    Leader(Vec<ToRank>),
    /// Another.
    Member {
        rank: usize,
        count: usize,
        leader: ToLeader,
    },
}

impl Ranks {
    /// `count` ranks in this process, rank 0 first, each for a thread of its own. Must be called inside a runtime.
    #[must_use]
    pub fn in_process(count: usize, timeout: Duration) -> Vec<Self> {
        let (members, leaders): (Vec<_>, Vec<_>) = (1..count)
            .map(|rank| link::in_process(rank, timeout, &Handle::current()))
            .unzip();
        let place = |(rank, leader)| Place::Member {
            rank,
            count,
            leader,
        };
        let places = (1..).zip(leaders).map(place);
        [Place::Leader(members)]
            .into_iter()
            .chain(places)
            .map(|place| Self { place, nccl: None })
            .collect()
    }

    /// This one's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        match self.place {
            Place::Alone | Place::Leader(_) => 0,
            Place::Member { rank, .. } => rank,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.place {
            Place::Alone => 1,
            Place::Leader(others) => 1 + others.len(),
            Place::Member { count, .. } => *count,
        }
    }

    /// Gives every other rank what it needs to be one; they joined in this order. All then train from `network`'s state,
    /// the one after `step`.
    pub(crate) fn lead(
        mut others: Vec<ToRank>,
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
            ReduceBy::Nccl => Some(nccl::Id::new()?),
        };
        let (weights, state) = (base.weights.to_bytes()?, network.state().to_bytes()?);
        for (rank, other) in (1..).zip(&mut others) {
            other.rank = rank;
            let welcome = RankWelcome {
                rank: rank as u32,
                ranks: count as u32,
                settings: serde_json::to_string(config)
                    .expect("plain settings serialise: this is a bug"),
                model_files: base.files.iter().map(model_file).collect(),
                dtype: network.dtype().as_str().to_owned(),
                updates: network.optimizer.updates,
                nccl_id: id.as_ref().map(nccl::Id::to_bytes).unwrap_or_default(),
            };
            other.say(train_response::Part::Welcome(welcome))?;
            other.send_bytes(train_response::Part::File, BASE, &weights)?;
            other.send_bytes(train_response::Part::File, STATE, &state)?;
        }
        let place = match others.is_empty() {
            true => Place::Alone,
            false => Place::Leader(others),
        };
        let open = |id| Nccl::open(&id, network.device(), 0, count, config.ranks.timeout());
        let mut ranks = Self { place, nccl: None };
        // A rank that cannot take part says so here: within NCCL nobody would hear it.
        ranks.agree(network, step)?;
        ranks.nccl = id.map(open).transpose()?;
        Ok(ranks)
    }

    /// Rank 0 hands the groups of a step to the others.
    pub(crate) fn hand_out(&mut self, groups: &StepGroups, version: u64) -> Result<()> {
        let Place::Leader(others) = &mut self.place else {
            return Ok(());
        };
        for other in others {
            let step = RankStep {
                policy_version: version,
                groups: groups.kept.len() as u32,
            };
            other.say(train_response::Part::Step(step))?;
            for group in &groups.kept {
                let submitted = SubmitRequest {
                    group_index: group.index,
                    trajectories: group.trajectories.clone(),
                    ..SubmitRequest::default()
                };
                other.say(train_response::Part::Group(submitted))?;
            }
        }
        Ok(())
    }

    /// Another rank's next step: its groups and the version; none when the run is over.
    pub(crate) fn next_step(&mut self, rules: &GroupRules) -> Result<Option<(StepGroups, u64)>> {
        let Place::Member { leader, .. } = &mut self.place else {
            return Ok(None);
        };
        let step = match leader.hear()? {
            train_response::Part::Step(step) => step,
            train_response::Part::Finished(Finished {}) => return Ok(None),
            _ => return Err(leader.unexpected("a step")),
        };
        let mut kept = Vec::new();
        for _ in 0..step.groups {
            let train_response::Part::Group(request) = leader.hear()? else {
                return Err(leader.unexpected("a group"));
            };
            let group = Group::new(request, rules).map_err(|fault| leader.fault(fault))?;
            kept.push(group.into());
        }
        let groups = StepGroups {
            kept,
            left_out: Vec::new(),
        };
        Ok(Some((groups, step.policy_version)))
    }

    /// The micro-batches that this rank computes, ascending: about as many tokens a rank.
    pub(crate) fn share(&self, micro_batches: &[MicroBatch]) -> Vec<usize> {
        let tokens = micro_batches.iter().map(|micro| micro.packed.tokens.len());
        crate::batch::shares(&tokens.collect::<Vec<_>>(), self.count()).swap_remove(self.rank())
    }

    /// The sum of all ranks' gradients, and, on rank 0, the figures of all micro-batches in order. A rank whose share is
    /// empty has no gradients; `parameters` says which there are.
    pub(crate) fn reduce(
        &mut self,
        parameters: &BTreeMap<String, Parameter>,
        gradients: Gradients,
        mut figures: Vec<Figures>,
    ) -> Result<(Gradients, Vec<Figures>)> {
        match &mut self.place {
            Place::Alone => {}
            Place::Leader(others) => {
                // The ranks that have gradients.
                let mut busy = Vec::new();
                for other in others.iter_mut() {
                    let theirs = other.figures()?;
                    busy.push(!theirs.is_empty());
                    figures.extend(theirs);
                }
                figures.sort_by_key(|figures| figures.micro_batch);
                if self.nccl.is_none() {
                    return Ok((reduce::sum(parameters, gradients, others, &busy)?, figures));
                }
                for other in others {
                    other.say(train_response::Part::Reduce(ReduceNow {}))?;
                }
            }
            Place::Member { leader, .. } => {
                let micro_batches = figures.iter().map(Figures::encode_to_vec).collect();
                leader.say(train_request::Part::Figures(RankFigures { micro_batches }))?;
                if self.nccl.is_none() {
                    return Ok((reduce::contribute(parameters, gradients, leader)?, figures));
                }
                let train_response::Part::Reduce(_) = leader.hear()? else {
                    return Err(leader.unexpected("the word to reduce"));
                };
            }
        }
        match &self.nccl {
            None => Ok((gradients, figures)),
            Some(nccl) => Ok((nccl.all_reduce(parameters, gradients)?, figures)),
        }
    }

    /// Holds the weights of all ranks against each other after step `step`.
    pub(crate) fn agree(&mut self, network: &Network, step: u64) -> Result<()> {
        match &mut self.place {
            Place::Alone => Ok(()),
            Place::Leader(others) => {
                let own = network.digest();
                for other in others {
                    let train_request::Part::Digest(digest) = other.hear()? else {
                        return Err(other.unexpected("its digest"));
                    };
                    if digest.weights != own {
                        let rank = other.rank;
                        return Err(LearnerError::RankDiffers { rank, step });
                    }
                }
                Ok(())
            }
            Place::Member { leader, .. } => leader.say(train_request::Part::Digest(RankDigest {
                weights: network.digest(),
            })),
        }
    }

    /// Rank 0 sends the others home; nothing depends on one that is gone already.
    pub(crate) fn finish(&mut self) {
        let Place::Leader(others) = &mut self.place else {
            return;
        };
        for other in others {
            let told = other.say(train_response::Part::Finished(Finished {}));
            told.unwrap_or_else(|fault| tracing::warn!(%fault, "after the last step"));
        }
    }

    /// Another rank tells rank 0 why it cannot go on, if it still listens.
    pub(crate) fn give_up(&mut self, fault: &LearnerError) {
        if let Place::Member { leader, .. } = &mut self.place {
            leader.give_up(fault);
        }
    }
}

fn model_file((name, content): &(String, Vec<u8>)) -> proto::v1::ModelFile {
    proto::v1::ModelFile {
        name: name.clone(),
        content: content.clone(),
    }
}
