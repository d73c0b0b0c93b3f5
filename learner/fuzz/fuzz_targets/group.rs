//! Submits groups that are nearly right, and trains on those that the learner takes. A step is
//! made, or the group is refused; it never ends the run.

#![no_main]

use std::{cell::LazyCell, sync::Arc};

use learner::{
    LearnerConfig, LearnerError,
    config::RatioAgainst,
    group::{Group, GroupRules, StepGroups},
    loss::{LossType, RatioLevel, SamplerCorrection},
    trainer::Trainer,
};
use learner_fuzz::{assert_fits, config, model};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use policy::Model;
use proto::{
    EncodedGroup,
    v1::{Action, RewardComponents, Segment, SubmitRequest, Trajectory, Turn},
};

/// One input.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    settings: Settings,
    members: [Member<'a>; 2],
    version: u8,
}

/// What a run may be set to.
#[derive(Arbitrary, Debug)]
struct Settings {
    loss: u8,
    ratio: u8,
    correction: u8,
    has_delta: bool,
    has_reference: bool,
    refuses_differences: bool,
    is_clipped: bool,
    iterations: bool,
}

/// A trajectory that is right, and what is wrong with it.
#[derive(Arbitrary, Debug)]
struct Member<'a> {
    segments: Vec<Vec<Part>>,
    episode_return: Number,
    is_scored: bool,
    is_correct: bool,
    failure: &'a str,
    question_id: &'a str,
    turn: TurnRest<'a>,
    faults: Vec<Fault>,
}

/// Some tokens of a segment.
#[derive(Arbitrary, Debug)]
enum Part {
    Given {
        count: u8,
        token: u8,
    },
    Sampled {
        logprobs: Vec<Number>,
        token: u8,
        version: u8,
    },
    /// A turn without a token.
    Silent,
}

/// What all turns of a member have.
#[derive(Arbitrary, Debug)]
struct TurnRest<'a> {
    action: Option<(&'a str, &'a str)>,
    flags: u8,
    reward: Number,
    terminal: Option<Number>,
    observation: &'a str,
}

/// A number that is mostly ordinary.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(i8),
    Large(i32),
    Any(f64),
}

/// Something to break.
#[derive(Arbitrary, Debug)]
enum Fault {
    Mask(u8, u8, u8),
    Token(u8, u8, u32),
    Logprob(u8, u8, f32),
    Turn {
        number: u8,
        segment: u32,
        start: u32,
        tokens: u32,
    },
    SwapTurns(u8, u8),
    DropTurn(u8),
    DropSegment(u8),
    Number(u32),
    Cut(u8, u8),
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Self::Small(x) => f64::from(x) / 16.0,
            Self::Large(x) => f64::from(x),
            Self::Any(x) => x,
        }
    }
}

thread_local! {
    static MODEL: LazyCell<Model> = LazyCell::new(model);
}

fuzz_target!(|input: Input<'_>| {
    let config = settings(&input.settings);
    MODEL.with(|model| {
        let rules = GroupRules::new(&config, model.config.vocab_size);
        let members = input.members.iter().enumerate();
        let request = SubmitRequest {
            trajectories: members
                .map(|(number, member)| member.trajectory(number as u32))
                .collect(),
            ..SubmitRequest::default()
        };
        let Ok(group) = Group::new(EncodedGroup::from(&request), &rules) else {
            return;
        };
        assert_fits(&group.trajectories, &rules);
        let groups = StepGroups {
            kept: vec![Arc::new(group)],
            ..StepGroups::default()
        };
        let mut trainer = Trainer::new(&config, 1, model).expect("a trainer");
        match trainer.step(&groups, input.version.into()) {
            Ok(metrics) => assert!(metrics.values().all(|value| !value.is_nan()), "{metrics:?}"),
            Err(LearnerError::Refused(refused)) => assert_eq!(refused.len(), 1),
            Err(fault) => panic!("a group ends the run: {fault}"),
        }
    });
});

fn settings(input: &Settings) -> LearnerConfig {
    let mut config = config();
    let losses = [
        LossType::Grpo,
        LossType::Bnpo,
        LossType::DrGrpo,
        LossType::Dapo,
        LossType::Cispo,
        LossType::Sapo,
        LossType::Luspo,
        LossType::Vespo,
    ];
    let corrections = [
        SamplerCorrection::Off,
        SamplerCorrection::TokenTruncate,
        SamplerCorrection::TokenMask,
        SamplerCorrection::SequenceTruncate,
        SamplerCorrection::SequenceMask,
    ];
    config.loss.loss_type = losses[usize::from(input.loss) % losses.len()];
    if input.ratio & 1 == 1 {
        config.ratio_against = RatioAgainst::Learner;
        let correction = usize::from(input.correction) % corrections.len();
        config.loss.sampler_correction = corrections[correction];
    }
    if input.ratio & 2 == 2 {
        config.loss.ratio_level = RatioLevel::Sequence;
    }
    if config.loss.loss_type == LossType::Cispo {
        config.loss.clip_high = Some(4.0);
    }
    let clips =
        ![LossType::Cispo, LossType::Sapo, LossType::Vespo].contains(&config.loss.loss_type);
    config.loss.delta = (clips && input.has_delta).then_some(4.0);
    config.loss.kl_coef = if input.has_reference { 0.1 } else { 0.0 };
    config.trust.refuse_logprob_differences = input.refuses_differences;
    config.optimizer.max_grad_norm = f64::from(u8::from(input.is_clipped));
    config.num_iterations = 1 + u64::from(input.iterations);
    match config.validate() {
        Ok(()) => config,
        // Not every loss has every option.
        Err(_) => learner_fuzz::config(),
    }
}

impl Member<'_> {
    fn trajectory(&self, member: u32) -> Trajectory {
        let mut trajectory = Trajectory {
            member,
            episode_return: self.episode_return.value(),
            scored: self.is_scored,
            correct: self.is_correct,
            failure: self.failure.to_owned(),
            question_id: self.question_id.to_owned(),
            ..Trajectory::default()
        };
        for (number, parts) in self.segments.iter().take(5).enumerate() {
            let mut segment = Segment::default();
            for part in parts {
                trajectory
                    .turns
                    .extend(part.write(&mut segment, number as u32, &self.turn));
            }
            trajectory.segments.push(segment);
        }
        for fault in &self.faults {
            fault.apply(&mut trajectory);
        }
        trajectory
    }
}

impl Part {
    /// Appends the tokens to a segment and returns their turn, if it is one.
    fn write(&self, segment: &mut Segment, number: u32, rest: &TurnRest<'_>) -> Option<Turn> {
        let start = segment.tokens.len() as u32;
        let mut push = |token: u8, mask: u8, logprob: f32| {
            segment.tokens.push(u32::from(token) % 32);
            segment.mask.push(mask);
            segment.logprobs.push(logprob);
        };
        let (count, version) = match self {
            Self::Given { count, token } => {
                (0..count % 16).for_each(|at| push(token.wrapping_add(at), 0, 0.0));
                return None;
            }
            Self::Sampled {
                logprobs,
                token,
                version,
            } => {
                for (at, logprob) in logprobs.iter().enumerate() {
                    push(token.wrapping_add(at as u8), 1, logprob.value() as f32);
                }
                (logprobs.len() as u32, *version)
            }
            Self::Silent => (0, 0),
        };
        Some(rest.turn(number, start, count, version))
    }
}

impl TurnRest<'_> {
    fn turn(&self, segment: u32, start: u32, count: u32, version: u8) -> Turn {
        Turn {
            segment,
            completion_start: start,
            completion_tokens: count,
            policy_version: version.into(),
            action: self.action.map(|(action_type, argument)| Action {
                action_type: action_type.to_owned(),
                argument: argument.to_owned(),
            }),
            malformed: self.flags & 1 > 0,
            truncated: self.flags & 2 > 0,
            observation_is_error: self.flags & 4 > 0,
            reward: self.reward.value(),
            reward_components: self.terminal.map(|terminal| RewardComponents {
                terminal: terminal.value(),
                ..RewardComponents::default()
            }),
            observation_text: self.observation.to_owned(),
        }
    }
}

impl Fault {
    fn apply(&self, trajectory: &mut Trajectory) {
        let Trajectory {
            segments, turns, ..
        } = trajectory;
        let of = |number: &u8, count: usize| usize::from(*number) % count.max(1);
        let (segment_count, turn_count) = (segments.len(), turns.len());
        match self {
            Self::Mask(number, at, mask) => {
                let place = segments
                    .get_mut(of(number, segment_count))
                    .and_then(|it| it.mask.get_mut(usize::from(*at)));
                place.into_iter().for_each(|place| *place = *mask);
            }
            Self::Token(number, at, token) => {
                let place = segments
                    .get_mut(of(number, segment_count))
                    .and_then(|it| it.tokens.get_mut(usize::from(*at)));
                place.into_iter().for_each(|place| *place = *token);
            }
            Self::Logprob(number, at, logprob) => {
                let place = segments
                    .get_mut(of(number, segment_count))
                    .and_then(|it| it.logprobs.get_mut(usize::from(*at)));
                place.into_iter().for_each(|place| *place = *logprob);
            }
            Self::Cut(number, to) => {
                if let Some(segment) = segments.get_mut(of(number, segment_count)) {
                    segment.tokens.truncate((*to).into());
                    segment.mask.truncate((*to).into());
                    segment.logprobs.truncate((*to).into());
                }
            }
            Self::DropSegment(number) if segment_count > 0 => {
                drop(segments.remove(of(number, segment_count)));
            }
            Self::Turn {
                number,
                segment,
                start,
                tokens,
            } if turn_count > 0 => {
                let turn = &mut turns[of(number, turn_count)];
                (turn.segment, turn.completion_start) = (*segment, *start);
                turn.completion_tokens = *tokens;
            }
            Self::SwapTurns(a, b) if turn_count > 0 => {
                turns.swap(of(a, turn_count), of(b, turn_count));
            }
            Self::DropTurn(number) if turn_count > 0 => {
                drop(turns.remove(of(number, turn_count)));
            }
            Self::Number(member) => trajectory.member = *member,
            _ => {}
        }
    }
}
