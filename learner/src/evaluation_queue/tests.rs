//! Tests the queue of an evaluation.

use proto::v1::Turn;

use super::*;

const LEASE: Duration = Duration::from_secs(300);
/// The time of a lease of an actor without accepted work.
const UNPROVEN: Duration = Duration::from_secs(30);

/// The version that is evaluated.
const VERSION: u64 = 3;

fn set(questions: usize) -> EvaluationSet {
    EvaluationSet {
        name: "curve".to_owned(),
        question_ids: (0..questions).map(|number| number.to_string()).collect(),
        sampling: SamplingSettings::greedy(),
        seed: 1,
    }
}

fn queue(questions: usize) -> EvaluationQueue {
    let mut queue = EvaluationQueue::new(Leases::new(LEASE, 4, 1), 100);
    queue.begin(Duration::ZERO, set(questions), VERSION);
    queue
}

fn lease(queue: &mut EvaluationQueue, now: Duration, actor_id: &str) -> Option<EvaluationClaim> {
    match queue.lease(now, actor_id, VERSION) {
        EvaluationLease::Part(part) => Some(part),
        EvaluationLease::None(_) => None,
        EvaluationLease::OtherVersion => panic!("the actor has the version of the set"),
    }
}

fn played(part: &EvaluationClaim, policy_version: u64) -> Vec<Trajectory> {
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

fn head(part: &EvaluationClaim, actor_id: &str) -> SubmissionHead {
    SubmissionHead {
        number: part.part_id,
        lease_id: part.lease_id,
        actor_id: actor_id.to_owned(),
        run_id: None,
    }
}

#[test]
fn all_parts_are_handed_out_once_and_add_up_in_order() {
    let mut queue = queue(40);
    let now = Duration::ZERO;
    let parts: Vec<EvaluationClaim> = std::iter::from_fn(|| lease(&mut queue, now, "a")).collect();
    let sizes: Vec<usize> = parts.iter().map(|part| part.question_ids.len()).collect();
    assert_eq!(sizes, [16, 16, 8]);
    for part in parts.iter().rev() {
        assert!(queue.take().is_none());
        queue.submit(now, &head(part, "a"), played(part, 3));
    }
    let episodes = queue.take().unwrap();
    let ids = episodes.iter().map(|episode| episode.question_id.clone());
    assert!(ids.eq((0..40).map(|number| number.to_string())));
    assert_eq!(queue.finished(), None, "the set has ended");
    queue.begin(now, set(1), VERSION);
    assert_eq!(lease(&mut queue, now, "a").unwrap().part_id, 103);
}

#[test]
fn a_lost_part_is_handed_out_again_and_a_wrong_one_is_refused() {
    let mut queue = queue(3);
    let first = lease(&mut queue, Duration::ZERO, "a").unwrap();
    assert_eq!(
        queue.lease(UNPROVEN / 2, "b", VERSION),
        EvaluationLease::None(Some(UNPROVEN))
    );
    let second = lease(&mut queue, UNPROVEN, "b").unwrap();
    assert_eq!(second.question_ids, first.question_ids);
    assert!(second.lease_id != first.lease_id);
    let mut others = played(&second, 3);
    others.swap(0, 1);
    let mut check = |trajectories: &[Trajectory]| queue.check(&head(&second, "b"), trajectories);
    assert!(check(&others).is_err());
    assert!(check(&played(&second, 2)).is_err(), "another version");
    assert_eq!(check(&played(&second, 3)), Ok(Some(1)));
    queue.submit(UNPROVEN, &head(&second, "b"), played(&second, 3));
    assert_eq!(queue.take().unwrap().len(), 3);
}

/// A slow actor must not lose its work to one that takes the part after it and is refused.
#[test]
fn a_refused_lease_leaves_the_earlier_ones() {
    let mut queue = queue(3);
    let slow = lease(&mut queue, Duration::ZERO, "slow").unwrap();
    let liar = lease(&mut queue, UNPROVEN, "liar").unwrap();
    assert!(queue.refuse(UNPROVEN, &head(&liar, "liar")));
    let result = played(&slow, 3);
    assert_eq!(queue.check(&head(&slow, "slow"), &result), Ok(Some(1)));
    queue.submit(UNPROVEN, &head(&slow, "slow"), result.clone());
    assert_eq!(queue.finished(), Some(3));
    assert_eq!(queue.leases.time_of("slow"), LEASE);
    // What comes second is not needed, and shows that its actor works.
    queue.leases.distrust("slow");
    assert_eq!(queue.check(&head(&slow, "slow"), &result), Ok(None));
    assert_eq!(queue.leases.first_chance(LEASE, "slow"), Duration::ZERO);
}

#[test]
fn episodes_that_failed_are_played_again_by_others_first() {
    let mut queue = queue(3);
    let mut now = Duration::ZERO;
    for (play, actor) in ["idle", "b", "c"].into_iter().enumerate() {
        let part = lease(&mut queue, now, actor).unwrap();
        let mut failed = played(&part, 3);
        failed[1].scored = false;
        (failed[1].correct, failed[1].episode_return) = (true, 1e6);
        queue.submit(now, &head(&part, actor), failed);
        let finished = if play == 2 { 3 } else { 0 };
        assert_eq!(queue.finished(), Some(finished), "play {play}");
        assert_eq!(lease(&mut queue, now, actor), None);
        assert_ne!(queue.leases.time_of(actor), LEASE);
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
    let mut queue = queue(3);
    let now = Duration::ZERO;
    let part = lease(&mut queue, now, "a").unwrap();
    let guessed = SubmissionHead {
        lease_id: part.lease_id + 1,
        ..head(&part, "a")
    };
    let next = SubmissionHead {
        number: part.part_id + 1,
        ..head(&part, "a")
    };
    for stranger in [head(&part, "b"), guessed, next, SubmissionHead::default()] {
        assert_eq!(queue.check(&stranger, &played(&part, 3)), Ok(None));
        assert!(!queue.refuse(now, &stranger));
        queue.submit(now, &stranger, played(&part, 3));
        assert_eq!(queue.finished(), Some(0), "{stranger:?}");
    }
    queue.submit(now, &head(&part, "a"), played(&part, 3));
    assert_eq!(queue.finished(), Some(3));
}

#[test]
fn an_actor_that_only_claims_does_not_hold_up_the_others() {
    let mut queue = queue(16 * 6);
    let mut now = Duration::ZERO;
    let mut played_parts = 0;
    while played_parts < 6 {
        while lease(&mut queue, now, "idle").is_some() {}
        // An honest actor plays a part each two seconds.
        if let Some(part) = lease(&mut queue, now, "honest") {
            queue.submit(now, &head(&part, "honest"), played(&part, 3));
            played_parts += 1;
        }
        now += Duration::from_secs(2);
        assert!(now < 4 * UNPROVEN, "{played_parts} of 6 parts");
    }
    assert!(queue.take().is_some());
}

#[test]
fn a_refused_part_goes_to_another_actor_first() {
    let mut queue = queue(3);
    let part = lease(&mut queue, Duration::ZERO, "liar").unwrap();
    let now = Duration::from_secs(1);
    assert!(queue.refuse(now, &head(&part, "liar")));
    assert_eq!(
        queue.lease(now, "liar", VERSION),
        EvaluationLease::None(Some(now + UNPROVEN))
    );
    assert!(lease(&mut queue, now, "honest").is_some());
    assert!(lease(&mut queue, 2 * LEASE, "liar").is_some());
}
