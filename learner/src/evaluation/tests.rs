//! Tests the queue of an evaluation.

use proto::v1::Turn;

use super::*;

const LEASE: Duration = Duration::from_secs(300);
/// The time of a lease of an actor without accepted work.
const UNPROVEN: Duration = Duration::from_secs(30);

fn queue(questions: usize) -> (EvaluationQueue, Leases) {
    let set = EvaluationSet {
        name: "curve".to_owned(),
        question_ids: (0..questions).map(|number| number.to_string()).collect(),
        sampling: SamplingSettings::greedy(),
        seed: 1,
    };
    let queue = EvaluationQueue::new(Duration::ZERO, set, 3, 100);
    (queue, Leases::new(LEASE, 4, 1))
}

fn played(part: &LeasedPart, policy_version: u64) -> Vec<Trajectory> {
    let trajectory = |question_id: &String| Trajectory {
        question_id: question_id.clone(),
        turns: vec![Turn {
            policy_version,
            ..Turn::default()
        }],
        scored: true,
        ..Trajectory::default()
    };
    part.question_ids.iter().map(trajectory).collect()
}

fn head(part: &LeasedPart, actor_id: &str) -> PartHead {
    PartHead {
        part_id: part.part_id,
        lease_id: part.lease_id,
        actor_id: actor_id.to_owned(),
        run_id: None,
    }
}

#[test]
fn all_parts_are_handed_out_once_and_add_up_in_order() {
    let (mut queue, mut leases) = queue(40);
    let now = Duration::ZERO;
    let parts: Vec<LeasedPart> =
        std::iter::from_fn(|| queue.lease(now, &mut leases, "a")).collect();
    let sizes: Vec<usize> = parts.iter().map(|part| part.question_ids.len()).collect();
    assert_eq!(sizes, [16, 16, 8]);
    for part in parts.iter().rev() {
        assert!(queue.take().is_none());
        queue.submit(now, &mut leases, &head(part, "a"), played(part, 3));
    }
    let episodes = queue.take().unwrap();
    let ids = episodes.iter().map(|episode| episode.question_id.clone());
    assert!(ids.eq((0..40).map(|number| number.to_string())));
    assert_eq!(queue.next_part(), 103);
}

#[test]
fn a_lost_part_is_handed_out_again_and_a_wrong_one_is_refused() {
    let (mut queue, mut leases) = queue(3);
    let first = queue.lease(Duration::ZERO, &mut leases, "a").unwrap();
    assert_eq!(queue.lease(UNPROVEN / 2, &mut leases, "b"), None);
    let chance = queue.next_chance(UNPROVEN / 2, &leases, "b");
    assert_eq!(chance, Some(UNPROVEN));
    let second = queue.lease(UNPROVEN, &mut leases, "b").unwrap();
    assert_eq!(second.question_ids, first.question_ids);
    assert!(second.lease_id != first.lease_id);
    let mut others = played(&second, 3);
    others.swap(0, 1);
    let mut check =
        |trajectories: &[Trajectory]| queue.check(&mut leases, &head(&second, "b"), trajectories);
    assert!(check(&others).is_err());
    assert!(check(&played(&second, 2)).is_err(), "another version");
    assert_eq!(check(&played(&second, 3)), Ok(Some(1)));
    queue.submit(
        UNPROVEN,
        &mut leases,
        &head(&second, "b"),
        played(&second, 3),
    );
    assert_eq!(queue.take().unwrap().len(), 3);
}

/// A slow actor must not lose its work to one that takes the part after it and is refused.
#[test]
fn a_refused_lease_leaves_the_earlier_ones() {
    let (mut queue, mut leases) = queue(3);
    let slow = queue.lease(Duration::ZERO, &mut leases, "slow").unwrap();
    let liar = queue.lease(UNPROVEN, &mut leases, "liar").unwrap();
    assert!(queue.refuse(UNPROVEN, &mut leases, &head(&liar, "liar")));
    let result = played(&slow, 3);
    assert_eq!(
        queue.check(&mut leases, &head(&slow, "slow"), &result),
        Ok(Some(1))
    );
    queue.submit(UNPROVEN, &mut leases, &head(&slow, "slow"), result.clone());
    assert_eq!(queue.finished(), 3);
    assert_eq!(leases.time_of("slow"), LEASE);
    // What comes second is not needed, and shows that its actor works.
    leases.distrust("slow");
    assert_eq!(
        queue.check(&mut leases, &head(&slow, "slow"), &result),
        Ok(None)
    );
    assert_eq!(leases.first_chance(LEASE, "slow"), Duration::ZERO);
}

#[test]
fn episodes_that_failed_are_played_again_by_others_first() {
    let (mut queue, mut leases) = queue(3);
    let mut now = Duration::ZERO;
    for (play, actor) in ["idle", "b", "c"].into_iter().enumerate() {
        let part = queue.lease(now, &mut leases, actor).unwrap();
        let mut failed = played(&part, 3);
        failed[1].scored = false;
        (failed[1].correct, failed[1].episode_return) = (true, 1e6);
        queue.submit(now, &mut leases, &head(&part, actor), failed);
        let finished = if play == 2 { 3 } else { 0 };
        assert_eq!(queue.finished(), finished, "play {play}");
        assert_eq!(queue.lease(now, &mut leases, actor), None);
        assert_ne!(leases.time_of(actor), LEASE);
        now += Duration::from_secs(1);
    }
    let episodes = queue.take().unwrap();
    assert_eq!(
        (episodes[1].correct, episodes[1].episode_return),
        (false, 0.0)
    );
}

#[test]
fn a_part_counts_only_under_a_lease_of_its_actor() {
    let (mut queue, mut leases) = queue(3);
    let now = Duration::ZERO;
    let part = queue.lease(now, &mut leases, "a").unwrap();
    let guessed = PartHead {
        lease_id: part.lease_id + 1,
        ..head(&part, "a")
    };
    let next = PartHead {
        part_id: part.part_id + 1,
        ..head(&part, "a")
    };
    for stranger in [head(&part, "b"), guessed, next, PartHead::default()] {
        assert_eq!(
            queue.check(&mut leases, &stranger, &played(&part, 3)),
            Ok(None)
        );
        assert!(!queue.refuse(now, &mut leases, &stranger));
        queue.submit(now, &mut leases, &stranger, played(&part, 3));
        assert_eq!(queue.finished(), 0, "{stranger:?}");
    }
    queue.submit(now, &mut leases, &head(&part, "a"), played(&part, 3));
    assert_eq!(queue.finished(), 3);
}

#[test]
fn an_actor_that_only_claims_does_not_hold_up_the_others() {
    let (mut queue, mut leases) = queue(16 * 6);
    let mut now = Duration::ZERO;
    let mut played_parts = 0;
    while played_parts < 6 {
        while queue.lease(now, &mut leases, "idle").is_some() {}
        // An honest actor plays a part each two seconds.
        if let Some(part) = queue.lease(now, &mut leases, "honest") {
            queue.submit(now, &mut leases, &head(&part, "honest"), played(&part, 3));
            played_parts += 1;
        }
        now += Duration::from_secs(2);
        assert!(now < 4 * UNPROVEN, "{played_parts} of 6 parts");
    }
    assert!(queue.take().is_some());
}

#[test]
fn a_refused_part_goes_to_another_actor_first() {
    let (mut queue, mut leases) = queue(3);
    let part = queue.lease(Duration::ZERO, &mut leases, "liar").unwrap();
    let now = Duration::from_secs(1);
    assert!(queue.refuse(now, &mut leases, &head(&part, "liar")));
    assert_eq!(queue.lease(now, &mut leases, "liar"), None);
    let chance = queue.next_chance(now, &leases, "liar");
    assert_eq!(chance, Some(now + UNPROVEN));
    assert!(queue.lease(now, &mut leases, "honest").is_some());
    assert!(queue.lease(2 * LEASE, &mut leases, "liar").is_some());
}
