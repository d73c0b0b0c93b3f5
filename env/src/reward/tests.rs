//! Tests the rewards of the profiles: their bounds, and that no cycle of actions pays.

use proptest::prelude::*;

use super::*;
use crate::progress::TOP_LEVEL;

fn event() -> impl Strategy<Value = StepEvent> {
    prop_oneof![
        any::<bool>().prop_map(|ok| StepEvent::Look { ok }),
        (proptest::option::of(0..=TOP_LEVEL), any::<bool>())
            .prop_map(|(level, repeated)| StepEvent::Query { level, repeated }),
    ]
}

/// Scores `events`, then an answer if there is one and budget is left.
fn play(
    profile: RewardProfile,
    budget: u32,
    events: &[StepEvent],
    answer: Option<bool>,
) -> Vec<StepReward> {
    let answer = answer.map(|correct| StepEvent::Answer { correct });
    let mut reward_state = RewardState::default();
    let steps = events
        .iter()
        .copied()
        .take(budget as usize - usize::from(answer.is_some()));
    let mut rewards = Vec::new();
    for event in steps.chain(answer) {
        let spent = rewards.len() + 1 == budget as usize;
        let (after, reward) = score(profile, budget, &reward_state, event, spent);
        reward_state = after;
        rewards.push(reward);
    }
    rewards
}

fn total(rewards: &[StepReward]) -> i64 {
    rewards
        .iter()
        .map(|reward| i64::from(reward.points()))
        .sum()
}

#[test]
fn names_round_trip() {
    for profile in RewardProfile::ALL {
        let name = profile.to_string();
        assert_eq!(name.parse(), Ok(profile));
        assert_eq!(serde_json::to_value(profile).unwrap(), name);
    }
    assert!("sparse".parse::<RewardProfile>().is_err());
}

proptest! {
    #[test]
    fn default_shaping_is_bounded_for_every_budget(
        budget in 1..200_u32, events in proptest::collection::vec(event(), 0..200),
    ) {
        let shaping = total(&play(RewardProfile::Default, budget, &events, None));
        prop_assert!((-7_500..=1_600).contains(&shaping), "{shaping}");
    }

    #[test]
    fn default_ranks_a_right_answer_above_all_else(
        budget in 1..200_u32,
        right in proptest::collection::vec(event(), 0..200),
        wrong in proptest::collection::vec(event(), 0..200),
        answered in any::<bool>(),
    ) {
        let right = total(&play(RewardProfile::Default, budget, &right, Some(true)));
        let answer = answered.then_some(false);
        let wrong = total(&play(RewardProfile::Default, budget, &wrong, answer));
        prop_assert!(right > wrong, "{right} {wrong}");
    }

    /// From any state, steps that return to the level they began at earn nothing but the bonus
    /// of the first query.
    #[test]
    fn default_has_no_cycle_that_pays(
        budget in 1..200_u32,
        before in proptest::collection::vec(event(), 0..20),
        cycle in proptest::collection::vec(event(), 1..20),
    ) {
        let mut reward_state = RewardState::default();
        for event in before {
            reward_state = score(RewardProfile::Default, budget, &reward_state, event, false).0;
        }
        let start = reward_state;
        let mut earned = 0;
        let back = StepEvent::Query { level: Some(start.level), repeated: true };
        for event in cycle.into_iter().chain([back]) {
            let (after, reward) =
                score(RewardProfile::Default, budget, &reward_state, event, false);
            earned += reward.points();
            reward_state = after;
        }
        prop_assert_eq!(reward_state.level, start.level);
        prop_assert!(earned <= reward_state.new_info - start.new_info, "{earned}");
    }

    #[test]
    fn default_pays_nothing_for_distinct_trivial_queries_after_the_first(
        budget in 2..200_u32, level in 0..=TOP_LEVEL, count in 2..50_usize,
    ) {
        let trivial = StepEvent::Query { level: Some(level), repeated: false };
        let rewards = play(RewardProfile::Default, budget, &vec![trivial; count], None);
        prop_assert!(rewards[1..].iter().all(|reward| reward.points() == 0));
    }

    #[test]
    fn steps_stay_in_the_published_bounds(
        budget in 1..100_u32,
        events in proptest::collection::vec(event(), 0..100),
        right in any::<bool>(),
    ) {
        for profile in RewardProfile::ALL {
            // That of the default profile is in `python/openenv.yaml`.
            let least = if profile == RewardProfile::Default { -0.18 } else { -0.10 };
            for reward in play(profile, budget, &events, Some(right)) {
                prop_assert!((least..=1.0).contains(&reward.total()));
                let parts = reward.components();
                let sum = parts.operational + parts.progress + parts.terminal + parts.clip;
                prop_assert!((sum - reward.total()).abs() < 1e-12);
            }
        }
    }
}

/// Two alternating queries pay +0.05 per two steps in `sqlenv-final`, and nothing in the
/// default profile.
#[test]
fn the_known_farm_pays_only_in_the_parity_profile() {
    let fresh = |level| StepEvent::Query {
        level: Some(level),
        repeated: false,
    };
    let farm: Vec<StepEvent> = (0..13)
        .map(|step| fresh(if step % 2 == 0 { TOP_LEVEL } else { 0 }))
        .collect();
    assert_eq!(
        total(&play(RewardProfile::SqlenvFinal, 15, &farm, None)),
        4_500
    );
    assert_eq!(total(&play(RewardProfile::Default, 15, &farm, None)), 1_600);
    assert_eq!(
        total(&play(RewardProfile::Default, 15, &farm[..1], None)),
        1_600
    );
}
