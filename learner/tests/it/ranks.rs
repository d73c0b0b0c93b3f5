//! Tests several ranks: they are equal to each other bit for bit and to one rank within rounding,
//! and a missing rank is an error.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use candle_core::{DType, Device};
use learner::{
    Learner, LearnerConfig, LearnerError,
    advantage::ScaleRewards,
    config::RatioAgainst,
    group::{Group, GroupRules, StepGroups},
    metrics::Metrics,
    ranks::{RankOptions, RankSettings, Ranks, join},
    trainer::Trainer,
};
use policy::{Model, Weights};
use proto::{
    EncodedGroup, RanksClient, Transport,
    v1::{
        GroupClaim, RankHello, Segment, SubmitRequest, SubmitVerdict, TrainRequest,
        train_request::Part,
    },
};
use tokio::{net::TcpSocket, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::common::{Client, actor, group, open, small_config, small_model, unread_events};
use crate::demonstrations::oracle;
use crate::hostile::assert_names;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Clips, has a KL term and makes two updates a step, of which the second depends on the first
/// one's scores.
fn config() -> LearnerConfig {
    let mut config = LearnerConfig {
        num_iterations: 2,
        ratio_against: RatioAgainst::Learner,
        ..small_config()
    };
    config.demonstration_weight = 0.5;
    config.loss.kl_coef = 0.05;
    config.optimizer.max_grad_norm = 0.02;
    config.optimizer.weight_decay = 0.1;
    config
}

pub(crate) fn doubles(model: &Model) -> Model {
    let convert = |(name, x): (&str, &candle_core::Tensor)| {
        (name.to_owned(), x.to_dtype(DType::F64).unwrap())
    };
    Model {
        weights: Weights::new(model.weights.iter().map(convert).collect()),
        ..model.clone()
    }
}

/// The groups of a step. Step 1 has one group, which makes fewer micro-batches than there are
/// ranks.
pub(crate) fn step_groups(config: &LearnerConfig, vocabulary: usize, step: u64) -> StepGroups {
    let rules = GroupRules::new(config, vocabulary);
    let count = if step == 1 { 1 } else { 5 };
    let one = |number: u64| {
        let claim = GroupClaim {
            group_index: step * 10 + number,
            question_id: format!("question-{number}"),
            group_size: config.group_size as u32,
            ..GroupClaim::default()
        };
        let request = SubmitRequest {
            group_index: claim.group_index,
            trajectories: group(&claim, step),
            ..SubmitRequest::default()
        };
        Arc::new(Group::new(EncodedGroup::from(&request), &rules).unwrap())
    };
    let demonstration = Segment {
        tokens: (0..20)
            .map(|at| 300 + (at * 7 + step as u32) % 50)
            .collect(),
        mask: (0..20).map(|at| u8::from(at >= 8)).collect(),
        logprobs: vec![0.0; 20],
    };
    StepGroups {
        kept: (0..count).map(one).collect(),
        demonstrations: vec![demonstration],
        ..StepGroups::default()
    }
}

/// Connects the ranks of a run in this process, rank 0 first, each for a thread of its own.
fn connected(count: usize) -> Vec<Ranks> {
    let mut others = Vec::new();
    let mut members = Vec::new();
    for rank in 1..count {
        let (to_rank, from_leader) = mpsc::channel(4);
        let (to_leader, from_rank) = mpsc::channel(4);
        others.push((ReceiverStream::new(from_rank), to_rank));
        let messages = ReceiverStream::new(from_leader);
        members.push(Ranks::member_of((rank, count), messages, to_leader));
    }
    let mut ranks = vec![Ranks::leader_of(others, TIMEOUT)];
    ranks.append(&mut members);
    ranks
}

/// Trains some steps and returns weights and metrics of each rank.
async fn trained(count: usize) -> Vec<(Weights, Vec<Metrics>)> {
    let model = doubles(&small_model(1));
    let config = config();
    let all = connected(count).into_iter().map(|ranks| {
        let (config, model) = (config.clone(), model.clone());
        tokio::task::spawn_blocking(move || {
            let mut trainer = Trainer::new(&config, 1, &model).unwrap();
            trainer.ranks = ranks;
            let step = |step| {
                let groups = step_groups(&config, model.config.vocab_size, step);
                trainer.step(&groups, step).unwrap()
            };
            let metrics = (0..4).map(step).collect();
            (trainer.network.weights(), metrics)
        })
    });
    let mut out = Vec::new();
    for rank in all.collect::<Vec<_>>() {
        out.push(rank.await.unwrap());
    }
    out
}

/// A stop comes ever later, at last between the two updates of a step, and then not in the step.
/// Returns how many came in it.
fn stops_within_a_step() -> usize {
    let (model, config) = (small_model(1), config());
    let groups = step_groups(&config, model.config.vocab_size, 0);
    let mut trainer = Trainer::new(&config, 1, &model).unwrap();
    let state = |trainer: &Trainer| trainer.network.state().to_bytes().unwrap();
    let before = state(&trainer);
    let mut stops = 0;
    for wait in (8..).map(|doublings| 1_u64 << doublings) {
        let stopping = trainer.network.stopping();
        stopping.store(false, Ordering::Relaxed);
        let stop = std::thread::spawn(move || {
            (0..wait).for_each(|_| std::hint::spin_loop());
            stopping.store(true, Ordering::Relaxed);
        });
        let made = trainer.step(&groups, 0);
        stop.join().unwrap();
        match made {
            Ok(_) => break,
            Err(LearnerError::Stopped) => stops += 1,
            Err(fault) => panic!("{fault}"),
        }
        assert_eq!(trainer.network.optimizer.updates, 0);
        assert!(state(&trainer) == before, "the weights changed");
    }
    assert_eq!(trainer.network.optimizer.updates, 2);
    stops
}

#[test]
fn a_step_that_is_stopped_between_its_updates_changes_nothing() {
    // On a busy machine the thread that stops the step may begin after its end.
    let is_stopped = (0..20).any(|_| stops_within_a_step() > 0);
    assert!(is_stopped, "the step was not stopped");
}

fn largest_difference(a: &Weights, b: &Weights) -> f64 {
    let flat = |(_, tensor): (&str, &candle_core::Tensor)| {
        let flat = tensor.flatten_all().unwrap();
        flat.to_vec1::<f64>().unwrap()
    };
    let pairs = a.iter().flat_map(flat).zip(b.iter().flat_map(flat));
    pairs.fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_are_equal_and_equal_to_one_within_rounding() {
    let alone = trained(1).await.remove(0);
    assert!(
        alone.1.iter().all(|step| step["grad_norm"] > 0.02),
        "clipping has nothing to do"
    );
    let base = doubles(&small_model(1)).weights;
    assert!(largest_difference(&alone.0, &base) > 1e-3);
    for count in [2, 4] {
        let ranks = trained(count).await;
        let bytes = ranks[0].0.to_bytes().unwrap();
        for (rank, (weights, _)) in ranks.iter().enumerate() {
            assert!(
                weights.to_bytes().unwrap() == bytes,
                "rank {rank} of {count}"
            );
        }
        let difference = largest_difference(&ranks[0].0, &alone.0);
        assert!(difference <= 1e-12, "{count} ranks: {difference:e}");
        for (step, (found, expected)) in ranks[0].1.iter().zip(&alone.1).enumerate() {
            assert!(found.keys().eq(expected.keys()));
            for (name, expected) in expected {
                let found = found[name];
                // Before the first update no rank has summed anything.
                let bound = match step == 0 && name.starts_with("sampling/") {
                    true => 0.0,
                    false => 1e-9 * expected.abs().max(1.0),
                };
                assert!(
                    (found - expected).abs() <= bound,
                    "{name}: {found} != {expected}"
                );
            }
        }
    }
}

/// Makes a step with two ranks, of which the second holds this model or is missing.
async fn first_step(second: Option<Model>, config: LearnerConfig) -> LearnerError {
    let mut ranks = connected(2);
    let member = second.map(|model| {
        let mut trainer = Trainer::new(&config, 1, &model).unwrap();
        trainer.ranks = ranks.remove(1);
        trainer
    });
    let mut leader = Trainer::new(&config, 1, &small_model(1)).unwrap();
    leader.ranks = ranks.remove(0);
    drop(ranks);
    let step = |mut trainer: Trainer| {
        let groups = step_groups(&config, small_model(1).config.vocab_size, 0);
        tokio::task::spawn_blocking(move || trainer.step(&groups, 0).map(|_| ()))
    };
    let member = member.map(step);
    let fault = step(leader).await.unwrap().unwrap_err();
    if let Some(member) = member {
        // It leaves to rank 0 what happens to a sum that is not finite.
        match member.await.unwrap() {
            Ok(()) => {}
            Err(LearnerError::Refused(groups)) => assert!(groups.is_empty()),
            Err(fault) => panic!("{fault}"),
        }
    }
    fault
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_differs_or_is_gone_ends_the_step() {
    let fault = first_step(Some(small_model(2)), config()).await;
    assert!(
        matches!(fault, LearnerError::RankDiffers { rank: 1, step: 1 }),
        "{fault}"
    );
    let fault = first_step(None, config()).await.to_string();
    assert!(fault.starts_with("rank 1 of the run is gone"), "{fault}");
}

/// Rank 0 has a finite gradient, and finds no group at fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_without_a_finite_gradient_is_named() {
    let mut broken = small_model(1);
    let last = broken.weights.iter().map(|(name, _)| name).last();
    let last = last.unwrap().to_owned();
    let weights = broken.weights.iter().map(|(name, tensor)| {
        let tensor = match name == last {
            true => (tensor * f64::NAN).unwrap(),
            false => tensor.clone(),
        };
        (name.to_owned(), tensor)
    });
    broken.weights = Weights::new(weights.collect());
    let fault = first_step(Some(broken), config()).await.to_string();
    assert!(
        fault.starts_with("rank 1 of the run sent a gradient of "),
        "{fault}"
    );
    assert!(
        fault.contains("that is not finite, and no group or demonstration explains it"),
        "{fault}"
    );
}

/// Rank 0 blames no rank, whichever has them in its share.
#[tokio::test(flavor = "multi_thread")]
async fn demonstrations_without_a_finite_gradient_are_named() {
    let mut config = config();
    config.demonstration_weight = 1e300;
    let fault = first_step(Some(small_model(1)), config).await.to_string();
    assert!(
        fault.contains("the gradient of its demonstrations"),
        "{fault}"
    );
}

/// Rank 0 finds the group, and all ranks make the step again with another one in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_a_finite_gradient_is_left_out_by_all_ranks() {
    let mut config = LearnerConfig {
        ranks: with_ranks(2, 60).ranks,
        ..small_config()
    };
    config.rewards.shaping = 1e36;
    config.advantage.scale_rewards = ScaleRewards::None;
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let honest = open(config.clone(), folders[0].path()).unwrap();
    let expected = train(&honest, 2).await.unwrap();
    let learner = open(config, folders[1].path()).unwrap();
    let mut broken = Client::new(&learner, "broken");
    let claim = broken.claim_group().await;
    let mut trajectories = group(&claim, 0);
    trajectories[0].episode_return += 1e5;
    let verdict = broken.submit(&claim, trajectories).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Accepted);
    assert!(train(&learner, 2).await.unwrap() == expected);
    assert_names(&learner, "broken", "its gradient is not finite");
}

fn with_ranks(count: usize, timeout_seconds: u32) -> LearnerConfig {
    LearnerConfig {
        ranks: RankSettings {
            count,
            timeout_seconds,
            ..RankSettings::default()
        },
        ..config()
    }
}

fn client(learner: &Learner) -> RanksClient {
    RanksClient::new(Transport::in_process(learner.rank_service()))
}

fn options(timeout: Duration) -> RankOptions {
    RankOptions {
        device: Device::Cpu,
        threads: 1,
        timeout,
        stopping: CancellationToken::new(),
    }
}

/// Trains to the end with as many ranks as the run has, over the service.
async fn train(learner: &Learner, count: usize) -> learner::Result<Vec<u8>> {
    let members: Vec<_> = (1..count)
        .map(|_| tokio::spawn(join(client(learner), options(TIMEOUT))))
        .collect();
    let actor = tokio::spawn(actor(learner.clone(), "a".to_owned()));
    learner.demonstrate_by(oracle());
    let trained = learner.train(unread_events(), std::future::pending()).await;
    actor.abort();
    // It holds the run open until it has ended.
    let _ = actor.await;
    for member in members {
        if trained.is_ok() {
            member.await.unwrap()?;
        } else {
            member.abort();
        }
    }
    trained?;
    Ok(learner.snapshot().body().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_join_a_new_run_and_a_resumed_one() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(with_ranks(3, 60), folder.path()).unwrap();
    let expected = train(&learner, 3).await.unwrap();
    drop(learner);
    for lost in 3..=4 {
        let path = folder.path().join(format!("checkpoints/step_{lost}"));
        std::fs::remove_dir_all(path).unwrap();
    }
    let learner = open(with_ranks(3, 60), folder.path()).unwrap();
    assert_eq!(learner.snapshot().policy_version, 2);
    assert!(train(&learner, 3).await.unwrap() == expected);
    drop(learner);
    // A finished run does not wait for ranks, and a rank that joins it ends without an error.
    let learner = open(with_ranks(3, 60), folder.path()).unwrap();
    assert!(train(&learner, 2).await.unwrap() == expected);
    drop(learner);
    let fault = open(with_ranks(2, 60), folder.path()).err().unwrap();
    assert!(fault.to_string().contains("other settings"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_does_not_begin_without_all_of_its_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(with_ranks(3, 5), folder.path()).unwrap();
    let fault = train(&learner, 2).await.unwrap_err().to_string();
    assert!(fault.starts_with("2 of 3 ranks"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_fails_before_the_first_step_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(with_ranks(2, 60), folder.path()).unwrap();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let said = [
        Part::Hello(RankHello { version }),
        Part::Fault("no memory".to_owned()),
    ];
    let said = said.map(|part| TrainRequest { part: Some(part) });
    let answers = client(&learner).train(tokio_stream::iter(said)).await;
    let mut answers = answers.unwrap().into_inner();
    tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} });
    let fault = train(&learner, 1).await.unwrap_err().to_string();
    assert!(
        fault.starts_with("rank 1 of the run cannot continue: no memory"),
        "{fault}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_does_not_belong_is_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(with_ranks(2, 60), folder.path()).unwrap();
    let hello = TrainRequest {
        part: Some(Part::Hello(RankHello {
            version: "0.0.0".to_owned(),
        })),
    };
    let refused = client(&learner).train(tokio_stream::iter([hello])).await;
    let status = refused.err().unwrap();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("sqlenv 0.0.0"), "{status}");

    // One of them is admitted and waits for the run, and the other one is too many.
    let one_too_many = tokio::select! {
        ended = join(client(&learner), options(Duration::ZERO)) => ended,
        ended = join(client(&learner), options(Duration::ZERO)) => ended,
    };
    let fault = one_too_many.unwrap_err().to_string();
    assert!(fault.contains("all of its 2 ranks"), "{fault}");
    assert!(!fault.contains("start it again"), "{fault}");

    let folder = tempfile::tempdir().unwrap();
    let alone = open(small_config(), folder.path()).unwrap();
    let fault = join(client(&alone), options(TIMEOUT)).await.unwrap_err();
    assert!(fault.to_string().contains("learner.ranks.count"), "{fault}");
}

#[tokio::test]
async fn a_learner_that_stays_away_is_given_up() {
    // It keeps its port from other tests, and does not listen.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", nobody.local_addr().unwrap());
    let client = RanksClient::new(Transport::dial(&address).unwrap());
    let fault = join(client.clone(), options(Duration::from_secs(1))).await;
    let fault = fault.unwrap_err().to_string();
    assert!(fault.starts_with("the learner cannot be joined"), "{fault}");

    let waiting = options(TIMEOUT);
    waiting.stopping.cancel();
    let fault = join(client, waiting).await.unwrap_err().to_string();
    assert_eq!(fault, "stopped before this rank took part in the run");
}
