//! Sends rank 0 the messages of a rank with arbitrary changes while it makes a step. The step is
//! made, or fails with an error; it waits for nothing that does not come.

#![no_main]

use std::{
    cell::LazyCell,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use learner::{
    LearnerConfig,
    group::{Group, StepGroups},
    ranks::{MicroBatchStatistics, Ranks},
    trainer::Trainer,
};
use learner_fuzz::{config, model, rules};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use policy::Model;
use prost::Message as _;
use proto::{
    EncodedGroup,
    v1::{
        Chunk, RankDigest, RankHello, RankStatistics, Segment, SubmitRequest, TrainRequest,
        Trajectory, Turn, train_request::Part,
    },
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

/// Messages that a channel holds: more than any step sends.
const DEPTH: usize = 1 << 12;
const TIMEOUT: Duration = Duration::from_secs(20);

/// One input.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    changes: Vec<Change<'a>>,
    /// Whether the rank has stopped reading.
    is_gone: bool,
}

/// A change of the messages.
#[derive(Arbitrary, Debug)]
enum Change<'a> {
    Remove(u8),
    Repeat(u8),
    Swap(u8, u8),
    /// Any message, as it stands on the wire.
    Insert(u8, &'a [u8]),
    /// Bytes of an encoded message: where, and by what.
    Bytes(u8, Vec<(u16, u8)>),
    Fault(u8, &'a str),
    Hello(u8, &'a str),
    Digest(u8, u32),
    Statistics(u8, Vec<(u64, [f64; 3])>),
    RawStatistics(u8, Vec<&'a [u8]>),
    /// A chunk in place of another. What is absent stays.
    Chunk {
        number: u8,
        name: Option<&'a str>,
        offset: Option<u64>,
        size_bytes: Option<u64>,
        data: Option<&'a [u8]>,
    },
    /// A gradient in pieces of so many bytes.
    Pieces(u8, u8),
    /// A number of a gradient.
    Number(u8, u16, f32),
}

struct Fixture {
    runtime: Runtime,
    model: Model,
    config: LearnerConfig,
    groups: StepGroups,
    /// What the other rank sends in the first step.
    honest: Vec<TrainRequest>,
}

thread_local! {
    static FIXTURE: LazyCell<Fixture> = LazyCell::new(Fixture::new);
}

fuzz_target!(|input: Input<'_>| {
    FIXTURE.with(|fixture| {
        let mut messages = fixture.honest.clone();
        for change in &input.changes {
            change.apply(&mut messages);
        }
        let is_honest = messages == fixture.honest;
        let (sender, receiver) = mpsc::channel(DEPTH);
        let receiver = (!input.is_gone).then_some(receiver);
        let _inside = fixture.runtime.enter();
        let messages = tokio_stream::iter(messages);
        let mut trainer = Trainer::new(&fixture.config, 1, &fixture.model).expect("a trainer");
        trainer.ranks = Ranks::leader_of([(messages, sender)], TIMEOUT);
        let made = trainer.step(&fixture.groups, 0);
        drop(receiver);
        match made {
            Ok(_) => {
                let weights = trainer.network.parameters().values();
                for weight in weights {
                    let values = weight
                        .value
                        .flatten_all()
                        .and_then(|it| it.to_vec1::<f32>());
                    assert!(
                        values
                            .expect("values")
                            .iter()
                            .all(|value| value.is_finite())
                    );
                }
            }
            Err(fault) => assert!(!is_honest || input.is_gone, "{fault}"),
        }
    });
});

impl Change<'_> {
    fn apply(&self, messages: &mut Vec<TrainRequest>) {
        let count = messages.len();
        let of = |number: u8| usize::from(number) % count.max(1);
        let part = |part| TrainRequest { part: Some(part) };
        let mut put = |number: u8, new: Part| messages.insert(of(number), part(new));
        match self {
            Self::Fault(at, text) => put(*at, Part::Fault((*text).to_owned())),
            Self::Hello(at, text) => {
                let version = (*text).to_owned();
                put(*at, Part::Hello(RankHello { version }));
            }
            Self::Digest(at, weights) => put(*at, Part::Digest(RankDigest { weights: *weights })),
            Self::RawStatistics(at, raw) => {
                let micro_batches = raw.iter().map(|bytes| bytes.to_vec()).collect();
                put(*at, Part::Statistics(RankStatistics { micro_batches }));
            }
            Self::Statistics(at, all) => {
                let encoded = all.iter().map(|(micro_batch, [loss, tokens, entropy])| {
                    let mut statistics = MicroBatchStatistics {
                        micro_batch: *micro_batch,
                        loss: *loss,
                        ..MicroBatchStatistics::default()
                    };
                    (statistics.stats.tokens, statistics.stats.entropy) = (*tokens, *entropy);
                    statistics.encode_to_vec()
                });
                let micro_batches = encoded.collect();
                put(*at, Part::Statistics(RankStatistics { micro_batches }));
            }
            Self::Insert(at, bytes) => {
                if let Ok(message) = TrainRequest::decode(*bytes) {
                    messages.insert(of(*at), message);
                }
            }
            _ if count == 0 => {}
            Self::Remove(at) => drop(messages.remove(of(*at))),
            Self::Repeat(at) => messages.insert(of(*at), messages[of(*at)].clone()),
            Self::Swap(a, b) => messages.swap(of(*a), of(*b)),
            Self::Bytes(at, changes) => {
                let mut bytes = messages[of(*at)].encode_to_vec();
                for (at, by) in changes {
                    if let Some(byte) = bytes.get_mut(usize::from(*at)) {
                        *byte ^= by;
                    }
                }
                if let Ok(message) = TrainRequest::decode(&bytes[..]) {
                    messages[of(*at)] = message;
                }
            }
            Self::Chunk { number, .. } | Self::Pieces(number, _) | Self::Number(number, ..) => {
                let at = of(*number);
                if let Some(Part::Gradient(chunk)) = &messages[at].part {
                    let chunks = self.of_chunk(chunk.clone()).into_iter();
                    messages.splice(at..=at, chunks.map(|it| part(Part::Gradient(it))));
                }
            }
        }
    }

    fn of_chunk(&self, mut chunk: Chunk) -> Vec<Chunk> {
        match self {
            Self::Chunk {
                name,
                offset,
                size_bytes,
                data,
                ..
            } => {
                chunk.name = name.map_or(chunk.name, str::to_owned);
                chunk.offset = offset.unwrap_or(chunk.offset);
                chunk.size_bytes = size_bytes.unwrap_or(chunk.size_bytes);
                chunk.data = data.map_or(chunk.data, |data| data.to_vec().into());
                vec![chunk]
            }
            Self::Pieces(_, size) => {
                let size = usize::from(*size) + 16;
                let pieces = chunk.data.chunks(size).enumerate();
                let piece = |(number, data): (usize, &[u8])| Chunk {
                    offset: chunk.offset + (number * size) as u64,
                    data: data.to_vec().into(),
                    ..chunk.clone()
                };
                pieces.map(piece).collect()
            }
            Self::Number(_, at, value) => {
                let mut data = chunk.data.to_vec();
                let numbers = data.as_chunks_mut::<4>().0;
                if let Some(number) = numbers.get_mut(usize::from(*at)) {
                    *number = value.to_le_bytes();
                }
                chunk.data = data.into();
                vec![chunk]
            }
            _ => vec![chunk],
        }
    }
}

impl Fixture {
    fn new() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build();
        let mut fixture = Self {
            runtime: runtime.expect("a runtime"),
            model: model(),
            config: config(),
            groups: groups(),
            honest: Vec::new(),
        };
        fixture.honest = fixture.messages_of_a_step();
        assert!(fixture.honest.len() > 5, "the other rank has a share");
        fixture
    }

    /// Makes a step with two honest ranks and returns what the second one sent.
    fn messages_of_a_step(&self) -> Vec<TrainRequest> {
        let _inside = self.runtime.enter();
        let (to_member, from_leader) = mpsc::channel(DEPTH);
        let (to_leader, from_member) = mpsc::channel(DEPTH);
        let sent = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&sent);
        let incoming = ReceiverStream::new(from_member).map(move |message: TrainRequest| {
            let mut sent = recorded.lock().expect("no panic");
            sent.push(message.clone());
            message
        });
        let leader = Ranks::leader_of([(incoming, to_member)], TIMEOUT);
        let incoming = ReceiverStream::new(from_leader);
        let member = Ranks::member_of((1, 2), incoming, to_leader);
        thread::scope(|scope| {
            for ranks in [leader, member] {
                scope.spawn(|| {
                    let mut trainer =
                        Trainer::new(&self.config, 1, &self.model).expect("a trainer");
                    trainer.ranks = ranks;
                    trainer
                        .step(&self.groups, 0)
                        .expect("a step of honest ranks");
                });
            }
        });
        let sent = sent.lock().expect("no panic");
        sent.clone()
    }
}

/// Two groups that make several micro-batches.
fn groups() -> StepGroups {
    let trajectory = |member: u32, shift: u32| {
        let tokens: Vec<u32> = (0..20).map(|at| (at * 3 + shift + member) % 32).collect();
        let mut mask = vec![0; 20];
        mask[12..].fill(1);
        Trajectory {
            member,
            segments: vec![Segment {
                tokens,
                mask,
                logprobs: vec![-3.5; 20],
            }],
            turns: vec![Turn {
                completion_start: 12,
                completion_tokens: 8,
                ..Turn::default()
            }],
            episode_return: f64::from(member),
            correct: member == 1,
            scored: true,
            ..Trajectory::default()
        }
    };
    let group = |shift: u32| {
        let request = SubmitRequest {
            trajectories: vec![trajectory(0, shift), trajectory(1, shift)],
            ..SubmitRequest::default()
        };
        let group = Group::new(EncodedGroup::from(&request), &rules());
        Arc::new(group.expect("a group"))
    };
    StepGroups {
        kept: vec![group(0), group(11)],
        ..StepGroups::default()
    }
}
