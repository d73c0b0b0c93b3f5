//! Tests what the rows of a step are made of.

use proto::{
    EncodedGroup,
    v1::{Action, Segment, SubmitRequest, Turn},
};

use super::*;
use crate::{
    batch::micro_batches,
    group::SubmissionHead,
    loss::{LossSettings, LossType, RatioLevel},
    scheduler::GroupSummary,
};

fn segment(sampled: usize) -> Segment {
    Segment {
        tokens: (0..=sampled as u32).collect(),
        mask: [&[0][..], &vec![1; sampled]].concat(),
        logprobs: vec![-1.0; sampled + 1],
    }
}

/// Returns a group of two: an episode in one context, and one that lost a part of its context.
fn group() -> Arc<Group> {
    let trajectory = |member, segments| Trajectory {
        member,
        segments,
        turns: vec![Turn::default()],
        scored: true,
        ..Trajectory::default()
    };
    Arc::new(Group {
        head: SubmissionHead::default(),
        encoded: EncodedGroup::from(&SubmitRequest::default()),
        trajectories: vec![
            trajectory(0, vec![segment(4)]),
            trajectory(1, vec![segment(3), segment(1)]),
        ],
        rewards: [[1.0, 0.0, 1.0, 0.0, 0.0], [0.0; 5]]
            .map(|row| row.map(Some).to_vec())
            .to_vec(),
        summary: GroupSummary {
            kept: true,
            oldest_version: 0,
        },
    })
}

/// In a synchronous step all ratios are 1, and the advantages of a group add up to 0, so the loss
/// is 0 if each episode has the same weight.
#[test]
fn an_episode_in_several_contexts_counts_once() {
    let groups = [group()];
    for loss_type in [LossType::Grpo, LossType::Dapo] {
        let mut config = LearnerConfig {
            group_size: 2,
            ..LearnerConfig::default()
        };
        config.loss.loss_type = loss_type;
        let rows = LossRows::new(&groups, &config, 0);
        assert_eq!((rows.completions, rows.samples.len()), (2, 3));
        assert_eq!(rows.completion_lengths, [4, 4, 4]);
        assert_eq!(rows.of(Some(0)).completions, 2);
        let micro_batches = micro_batches(&rows.samples, 100, Prefixes::Repeated);
        let scored: usize = micro_batches.iter().map(|micro| micro.targets.len()).sum();
        let scores = |micro: &MicroBatch| Scores {
            logprobs: vec![-1.0; micro.targets.len()],
            entropies: vec![0.5; micro.targets.len()],
        };
        let scores: Vec<Scores> = micro_batches.iter().map(scores).collect();
        let share = RankShare {
            numbers: (0..micro_batches.len()).collect(),
            micro_batches,
            step_tokens: scored as f64,
            reference: None,
            old: None,
        };
        let completions = rows.completions as f64;
        let divisors = LossDivisors {
            policy: config.loss.divisor(completions, scored as f64, 100),
            entropy_share: 1.0,
        };
        let losses = scores.iter().enumerate().map(|(index, scores)| {
            let part = micro_batch_loss(&config, &rows, &share, index, scores, divisors);
            part.1.loss
        });
        let loss: f64 = losses.sum();
        assert!(loss.abs() < 1e-12, "{loss_type:?}: {loss}");
    }
}

/// In TRL a cut completion is the end. Here the episode goes on, and may be right.
#[test]
fn only_what_was_cut_at_its_end_is_masked() {
    let turn = |kind: &str, truncated| Turn {
        action: Some(Action {
            action_type: kind.to_owned(),
            ..Action::default()
        }),
        truncated,
        ..Turn::default()
    };
    let mut config = LearnerConfig {
        group_size: 2,
        ..LearnerConfig::default()
    };
    config.loss.mask_truncated_completions = true;
    for (turns, scored) in [
        (vec![turn("QUERY", true), turn("ANSWER", false)], 4),
        (vec![turn("QUERY", false), turn("ANSWER", true)], 0),
        // The step budget ran out.
        (vec![turn("QUERY", false), turn("QUERY", false)], 0),
    ] {
        let mut group = group();
        Arc::get_mut(&mut group).unwrap().trajectories[0].turns = turns;
        let groups = [group];
        let rows = LossRows::new(&groups, &config, 0);
        assert_eq!(rows.samples[0].scored.len(), scored);
        assert_eq!((rows.completions, rows.samples.len()), (2, 3));
    }
}

/// An outage at Reset leaves nothing of an episode, and one at Step leaves its turns so far.
#[test]
fn a_failed_episode_counts_in_no_divisor_wherever_it_failed() {
    let config = LearnerConfig {
        group_size: 2,
        ..LearnerConfig::default()
    };
    for segments in [vec![], vec![segment(3), segment(1)]] {
        let mut group = group();
        let inner = Arc::get_mut(&mut group).unwrap();
        inner.rewards[1] = vec![None; 5];
        inner.trajectories[1].scored = false;
        inner.trajectories[1].segments = segments;
        let groups = [group];
        let rows = LossRows::new(&groups, &config, 0);
        assert_eq!((rows.completions, rows.of(Some(0)).completions), (1, 1));
        assert_eq!((rows.completion_lengths, rows.samples.len()), (vec![4], 1));
    }
}

#[test]
fn a_difference_is_found_in_the_statistics_of_any_rank() {
    let groups = [group()];
    let config = LearnerConfig {
        group_size: 2,
        ..LearnerConfig::default()
    };
    let rows = LossRows::new(&groups, &config, 0);
    let micro_batches = micro_batches(&rows.samples, 100, Prefixes::Repeated);
    let mut found = Vec::new();
    for micro in &micro_batches {
        let mut own = vec![-1.0; micro.targets.len()];
        assert!(refused_groups::differences(&rows, micro, &own, 0.5).is_empty());
        own[0] = -3.0;
        found.extend(refused_groups::differences(&rows, micro, &own, 0.5));
    }
    let first = found[0];
    assert_eq!((first.group, first.difference, first.own), (0, 2.0, -3.0));
}

/// Its gradient is that of supervised training, whatever the loss, in the first update and in later
/// ones, and it is in no statistic.
#[test]
fn a_demonstration_is_imitated_with_its_weight() {
    let demonstration = segment(4);
    for (loss_type, ratio_level) in [
        (LossType::Grpo, RatioLevel::Token),
        (LossType::Dapo, RatioLevel::Sequence),
        (LossType::Cispo, RatioLevel::Token),
        (LossType::Sapo, RatioLevel::Sequence),
        (LossType::Vespo, RatioLevel::Token),
    ] {
        let mut config = LearnerConfig {
            demonstration_weight: 0.5,
            ratio_against: RatioAgainst::Learner,
            ..LearnerConfig::default()
        };
        config.loss = LossSettings {
            loss_type,
            ratio_level,
            clip_high: Some(5.0),
            kl_coef: 0.1,
            top_entropy_quantile: 0.5,
            entropy_coef: 0.1,
            ..config.loss
        };
        let mut rows = LossRows::new(&[], &config, 0);
        rows.push_demonstration(&demonstration);
        assert_eq!((rows.completions, &rows.completion_lengths), (1, &vec![4]));
        let micro_batches = micro_batches(&rows.samples, 100, Prefixes::Repeated);
        let scores = Scores {
            logprobs: vec![-0.5, -3.0, -9.0, -40.0],
            entropies: vec![0.5; 4],
        };
        let share = RankShare {
            numbers: vec![0],
            micro_batches,
            step_tokens: 4.0,
            reference: Some(vec![vec![-1.0; 4]]),
            old: Some(vec![vec![-2.0; 4]]),
        };
        let divisors = LossDivisors {
            policy: config.loss.divisor(1.0, 4.0, 100),
            entropy_share: 1.0,
        };
        let (derivatives, statistics) =
            micro_batch_loss(&config, &rows, &share, 0, &scores, divisors);
        assert_eq!(derivatives.logprobs, [-0.5 / 4.0; 4], "{loss_type:?}");
        assert_eq!(derivatives.entropies, Some(vec![0.0; 4]));
        assert_eq!(statistics.loss, 0.5 * 52.5 / 4.0);
        assert_eq!((statistics.stats.tokens, statistics.stats.rows), (0.0, 0.0));
        assert_eq!(statistics.stats.metrics(), Metrics::new());
        assert_eq!(statistics.sampling, SamplingStats::default());
        assert_eq!(statistics.sampling.metrics(), Metrics::new());
        assert!(statistics.differences.is_empty());
    }
}

/// The loss of a group and its metrics are those without the demonstrations beside it, apart from
/// the divisor.
#[test]
fn demonstrations_leave_what_was_sampled_as_it_is() {
    let groups = [group()];
    let demonstration = segment(4);
    let config = LearnerConfig {
        group_size: 2,
        demonstration_weight: 1.0,
        ..LearnerConfig::default()
    };
    let derivatives = |demonstrations: usize| {
        let mut rows = LossRows::new(&groups, &config, 0);
        (0..demonstrations).for_each(|_| rows.push_demonstration(&demonstration));
        let micro_batches = micro_batches(&rows.samples, 100, Prefixes::Repeated);
        let share = RankShare {
            numbers: (0..micro_batches.len()).collect(),
            step_tokens: 8.0,
            micro_batches,
            reference: None,
            old: None,
        };
        let divisors = LossDivisors {
            policy: 8.0,
            entropy_share: 1.0,
        };
        let mut found = vec![Vec::new(); rows.samples.len()];
        for (index, micro) in share.micro_batches.iter().enumerate() {
            let scores = Scores {
                logprobs: vec![-1.0; micro.targets.len()],
                entropies: vec![0.5; micro.targets.len()],
            };
            let part = micro_batch_loss(&config, &rows, &share, index, &scores, divisors);
            let mut derivatives = part.0.logprobs.into_iter();
            for (&row, &scored) in micro.samples.iter().zip(&micro.scored) {
                found[row] = derivatives.by_ref().take(scored).collect();
            }
        }
        found
    };
    let (alone, beside) = (derivatives(0), derivatives(2));
    assert_eq!(beside[..alone.len()], alone);
    assert_eq!(
        beside[alone.len()..],
        [vec![-1.0 / 8.0; 4], vec![-1.0 / 8.0; 4]]
    );
    assert!(alone.iter().flatten().any(|it| *it < 0.0));
}
