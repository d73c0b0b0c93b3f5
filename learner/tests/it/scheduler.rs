//! Tests the scheduler: timing independence as a property; staleness, leases and limits as tables.

use std::{collections::BTreeMap, time::Duration};

use learner::{
    TrainingQuestion,
    curriculum::QuestionOrder,
    group::SubmissionHead,
    scheduler::{Admission, Claim, GroupSummary, Lease, Scheduler, SchedulerSettings},
};
use proptest::prelude::*;

fn settings(steps: u64, groups: u64, most: u64, staleness: u64) -> SchedulerSettings {
    SchedulerSettings {
        steps,
        groups_per_step: groups,
        max_groups_per_step: most,
        oversampling: 1.0,
        max_staleness: staleness,
        // 10 s for an actor without an accepted group.
        lease: Duration::from_secs(100),
        max_leases_per_actor: 64,
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lease(claim: Claim) -> Lease {
    match claim {
        Claim::Group(lease) => lease,
        other => panic!("expected a group, got {other:?}"),
    }
}

fn is_wait(claim: Claim) -> bool {
    matches!(claim, Claim::Wait(_))
}

/// What identifies a group that an actor submits.
fn head(actor_id: &str, lease: Lease) -> SubmissionHead {
    SubmissionHead {
        number: lease.group_index,
        lease_id: lease.lease_id,
        actor_id: actor_id.to_owned(),
        run_id: None,
    }
}

/// Judges a group that an actor submits, and that one version sampled.
fn judge(scheduler: &mut Scheduler, actor_id: &str, lease: Lease, version: u64) -> Admission {
    scheduler.judge(&head(actor_id, lease), version, Some(version))
}

/// Records a group that was accepted from an actor.
fn accept(scheduler: &mut Scheduler, actor_id: &str, group_index: u64, version: u64) {
    let summary = GroupSummary {
        kept: true,
        oldest_version: version,
    };
    scheduler.record_of(actor_id, group_index, summary);
}

/// The batches that every run must have, computed from the groups' contents alone.
fn expected_batches(
    settings: &SchedulerSettings,
    kept: impl Fn(u64, u64) -> bool,
) -> Vec<Vec<u64>> {
    let mut start = 0;
    (0..settings.steps)
        .map(|version| {
            let mut batch = Vec::new();
            let end = start + settings.max_groups_per_step;
            while start < end && (batch.len() as u64) < settings.groups_per_step {
                if kept(start, version) {
                    batch.push(start);
                }
                start += 1;
            }
            batch
        })
        .collect()
}

/// Whether a group is kept, as its rollout would decide: a function of index and version.
fn content(seed: u64, share: u64, index: u64, version: u64) -> bool {
    let mixed = (seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version << 40)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 33) % 100 < share
}

/// One actor's unfinished work.
struct Work {
    lease: Lease,
    version: u64,
}

/// Submits a finished group, then the same group again, which must be a duplicate.
fn submit_twice(scheduler: &mut Scheduler, actor_id: &str, work: &Work, kept: bool) {
    let index = work.lease.group_index;
    for repeat in 0..2 {
        match judge(scheduler, actor_id, work.lease, work.version) {
            Admission::Accept if repeat == 0 => {
                let summary = GroupSummary {
                    kept,
                    oldest_version: work.version,
                };
                scheduler.record_of(actor_id, index, summary);
            }
            Admission::Duplicate => {}
            admission => panic!("group {index}: {admission:?} at repeat {repeat}"),
        }
    }
}

/// Simulates a run under an arbitrary schedule, then fairly to its end. Returns the batches and how
/// often each group was handed out.
fn simulate(
    settings: SchedulerSettings,
    seed: u64,
    share: u64,
    actors: usize,
    choices: &[(u8, u8)],
) -> (Vec<Vec<u64>>, BTreeMap<u64, u64>) {
    let mut scheduler = Scheduler::new(settings, 0, 0, 7);
    scheduler.set_actors(actors);
    let mut busy: Vec<Vec<Work>> = (0..actors).map(|_| Vec::new()).collect();
    let (mut now, mut batches, mut handed) = (0, Vec::new(), BTreeMap::new());
    for turn in 0.. {
        assert!(turn < 10_000, "the run makes no progress");
        let fair = (turn / 2, if turn % 2 == 0 { 0 } else { 5 });
        let (actor, action) = choices
            .get(turn)
            .map_or(fair, |&(a, b)| (usize::from(a), b));
        let actor = actor % actors;
        let (version, name) = (scheduler.version(), actor.to_string());
        match action % 8 {
            0..=3 => match scheduler.claim(seconds(now), &name, version) {
                Claim::Group(lease) => {
                    *handed.entry(lease.group_index).or_insert(0) += 1;
                    busy[actor].push(Work { lease, version });
                }
                Claim::Wait(_) if version == settings.steps => break,
                Claim::Wait(_) | Claim::OtherVersion => now += 1,
            },
            4 => {
                busy[actor].clear();
                now += 11;
            }
            other => {
                let works = &mut busy[actor];
                if works.is_empty() {
                    continue;
                }
                let work = works.remove(usize::from(other) % works.len());
                let kept = content(seed, share, work.lease.group_index, work.version);
                submit_twice(&mut scheduler, &name, &work, kept);
            }
        }
        if let Some(batch) = scheduler
            .batch()
            .filter(|_| scheduler.version() < settings.steps)
        {
            batches.push(batch.group_indices.clone());
            scheduler.advance(seconds(now), &batch);
        }
    }
    (batches, handed)
}

proptest! {
    #[test]
    fn batches_do_not_depend_on_timing_actors_or_lost_leases(
        seed: u64,
        share in 0_u64..=100,
        groups in 1_u64..6,
        extra in 0_u64..8,
        oversampling in prop_oneof![Just(1.0), 1.0..8.0],
        actors in 1_usize..4,
        choices in proptest::collection::vec((any::<u8>(), any::<u8>()), 0..300),
    ) {
        let settings = SchedulerSettings {
            oversampling,
            ..settings(4, groups, groups + extra, 0)
        };
        let kept = |index, version| content(seed, share, index, version);
        let expected = expected_batches(&settings, kept);
        let (batches, handed) = simulate(settings, seed, share, actors, &choices);
        prop_assert_eq!(&batches, &expected);
        // No group beyond those the batches looked at was handed out.
        let frugal = SchedulerSettings { oversampling: 1.0, ..settings };
        let quiet = simulate(frugal, seed, share, 1, &[]).1;
        prop_assert!(quiet.keys().all(|index| handed.contains_key(index)));
        prop_assert!(oversampling > 1.0 || handed.len() == quiet.len());
    }
}

/// The replacements of groups that will have zero variance are sampled with them. Those that are
/// not needed are dropped, and handed out anew for the next step.
#[test]
fn oversampled_groups_are_dropped_or_used() {
    let settings = SchedulerSettings {
        oversampling: 2.0,
        ..settings(2, 2, 8, 0)
    };
    let mut scheduler = Scheduler::new(settings, 0, 0, 7);
    let leases: Vec<Lease> = (0..4)
        .map(|_| lease(scheduler.claim(seconds(0), "a", 0)))
        .collect();
    assert!(is_wait(scheduler.claim(seconds(0), "a", 0)));
    // The second group has zero variance, so the third takes its place.
    for (index, kept) in [(0, true), (1, false), (2, true)] {
        let work = Work {
            lease: leases[index],
            version: 0,
        };
        submit_twice(&mut scheduler, "a", &work, kept);
    }
    let batch = scheduler.batch().unwrap();
    assert_eq!(
        (batch.group_indices.as_slice(), batch.left_out.as_slice()),
        (&[0, 2][..], &[1][..])
    );
    scheduler.advance(seconds(1), &batch);
    let again = lease(scheduler.claim(seconds(1), "b", 1));
    assert_eq!((again.group_index, again.min_policy_version), (3, 1));
    // The first result comes late, and the next step cannot use it.
    assert_eq!(
        judge(&mut scheduler, "a", leases[3], 0),
        Admission::Duplicate
    );
    assert_eq!(judge(&mut scheduler, "b", again, 1), Admission::Accept);
}

/// An actor may be several steps late with a group that a step dropped.
#[test]
fn a_dropped_group_is_known_until_a_step_has_looked_at_it() {
    let settings = SchedulerSettings {
        oversampling: 4.0,
        ..settings(4, 1, 8, 0)
    };
    let mut scheduler = Scheduler::new(settings, 0, 0, 7);
    let mut late = Vec::new();
    for version in 0..3 {
        let first = lease(scheduler.claim(seconds(version), "a", version));
        for _ in 0..3 {
            late.push(lease(scheduler.claim(seconds(version), "b", version)));
        }
        accept(&mut scheduler, "a", first.group_index, version);
        scheduler.advance(seconds(version), &scheduler.batch().unwrap());
    }
    let judged = late
        .into_iter()
        .map(|it| (it.group_index, judge(&mut scheduler, "b", it, 0)));
    let duplicates = [1, 2, 3, 2, 3, 4, 3, 4, 5].map(|index| (index, Admission::Duplicate));
    assert_eq!(judged.collect::<Vec<_>>(), duplicates);
}

/// The actor that has the new weights first would otherwise take all groups of a step.
#[test]
fn an_actor_leaves_the_others_their_share_at_the_beginning_of_a_step() {
    let mut scheduler = Scheduler::new(settings(9, 4, 8, 0), 0, 0, 7);
    scheduler.set_actors(2);
    for index in 0..4 {
        let lease = lease(scheduler.claim(seconds(0), "first", 0));
        assert_eq!(lease.group_index, index, "the first step is not shared");
        accept(&mut scheduler, "first", index, 0);
    }
    let batch = scheduler.batch().unwrap();
    scheduler.advance(seconds(50), &batch);
    for _ in 0..2 {
        lease(scheduler.claim(seconds(50), "first", 1));
    }
    assert_eq!(
        scheduler.claim(seconds(50), "first", 1),
        Claim::Wait(Some(seconds(55)))
    );
    lease(scheduler.claim(seconds(54), "second", 1));
    assert!(is_wait(scheduler.claim(seconds(54), "first", 1)));
    // The other actor does not come for the rest.
    lease(scheduler.claim(seconds(55), "first", 1));
}

/// A result that a step dropped and a new process reads back from the journal.
#[test]
fn a_dropped_group_is_not_used_after_a_restart() {
    let mut scheduler = Scheduler::new(settings(9, 2, 8, 0), 3, 10, 7);
    let dropped = GroupSummary {
        kept: true,
        oldest_version: 2,
    };
    assert!(!scheduler.record(10, dropped));
    assert_eq!(lease(scheduler.claim(seconds(0), "a", 3)).group_index, 10);
}

fn order(questions: usize, seed: u64) -> QuestionOrder {
    let question = |number: usize| TrainingQuestion::new(&number.to_string(), "");
    let questions: Vec<_> = (0..questions).map(question).collect();
    QuestionOrder::new(&questions, &[], seed).unwrap()
}

#[test]
fn question_order_follows_the_seed() {
    let order = |seed| {
        let mut order = order(50, seed);
        (0..100)
            .map(|index| order.question(index))
            .collect::<Vec<_>>()
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
    assert_ne!(order(7)[..50], order(7)[50..], "epochs differ");
}

#[test]
fn a_synchronous_run_waits_for_the_new_version() {
    let mut scheduler = Scheduler::new(settings(2, 1, 1, 0), 0, 0, 7);
    let first = lease(scheduler.claim(seconds(0), "a", 0));
    assert_eq!((first.group_index, first.min_policy_version), (0, 0));
    assert!(
        is_wait(scheduler.claim(seconds(0), "a", 0)),
        "the batch is full"
    );
    assert_eq!(judge(&mut scheduler, "a", first, 0), Admission::Accept);
    scheduler.record(
        0,
        GroupSummary {
            kept: true,
            oldest_version: 0,
        },
    );
    assert!(
        is_wait(scheduler.claim(seconds(0), "a", 0)),
        "the step is not made yet"
    );
    let batch = scheduler.batch().unwrap();
    scheduler.advance(seconds(0), &batch);
    assert_eq!(
        scheduler.claim(seconds(0), "a", 0),
        Claim::OtherVersion,
        "the actor's weights are old"
    );
    assert_eq!(
        lease(scheduler.claim(seconds(0), "a", 1)).min_policy_version,
        1
    );
    scheduler.record(
        1,
        GroupSummary {
            kept: true,
            oldest_version: 1,
        },
    );
    scheduler.advance(seconds(0), &scheduler.batch().unwrap());
    assert!(is_wait(scheduler.claim(seconds(0), "a", 1)));
}

#[test]
fn staleness_lets_actors_work_ahead_but_not_further() {
    let mut scheduler = Scheduler::new(settings(9, 2, 8, 1), 3, 10, 7);
    let leases: Vec<Lease> = (0..4)
        .map(|_| lease(scheduler.claim(seconds(0), "a", 3)))
        .collect();
    let minima: Vec<u64> = leases
        .iter()
        .map(|lease| lease.min_policy_version)
        .collect();
    assert_eq!(
        minima,
        [2, 2, 3, 3],
        "two groups for step 4, two for step 5"
    );
    assert!(is_wait(scheduler.claim(seconds(0), "a", 3)));
    let [first, second, ..] = leases[..] else {
        panic!("four leases")
    };
    assert_eq!(judge(&mut scheduler, "a", first, 1), Admission::Stale);
    assert_eq!(judge(&mut scheduler, "a", second, 2), Admission::Accept);
    assert_eq!(
        lease(scheduler.claim(seconds(0), "a", 2)).group_index,
        10,
        "given out again"
    );
}

#[test]
fn the_last_steps_allow_no_work_ahead() {
    let mut scheduler = Scheduler::new(settings(4, 1, 4, 5), 3, 0, 7);
    assert_eq!(lease(scheduler.claim(seconds(0), "a", 3)).group_index, 0);
    assert!(is_wait(scheduler.claim(seconds(0), "a", 3)));
}

#[test]
fn groups_that_grew_too_old_are_left_out() {
    let mut scheduler = Scheduler::new(settings(9, 1, 3, 1), 0, 0, 7);
    for index in 0..3 {
        scheduler.record(
            index,
            GroupSummary {
                kept: true,
                oldest_version: 0,
            },
        );
    }
    for expected in [vec![0], vec![1]] {
        let batch = scheduler.batch().unwrap();
        assert_eq!((&batch.group_indices, batch.left_out.len()), (&expected, 0));
        scheduler.advance(seconds(0), &batch);
    }
    assert_eq!(scheduler.version(), 2);
    assert_eq!(
        scheduler.batch(),
        None,
        "group 2 was sampled with version 0, two behind"
    );
}

#[test]
fn an_expired_lease_is_given_out_again_and_the_first_result_counts() {
    let mut scheduler = Scheduler::new(settings(1, 2, 2, 0), 0, 0, 7);
    let lost = lease(scheduler.claim(seconds(0), "a", 0));
    assert_eq!(lease(scheduler.claim(seconds(9), "b", 0)).group_index, 1);
    let again = lease(scheduler.claim(seconds(10), "b", 0));
    assert_eq!(again.group_index, lost.group_index);
    assert_ne!(again.lease_id, lost.lease_id);
    assert_eq!(scheduler.expired_leases(), 1);
    assert_eq!(
        scheduler.claim(seconds(10), "c", 0),
        Claim::Wait(Some(seconds(19))),
        "the next lease expires"
    );
    assert_eq!(judge(&mut scheduler, "a", lost, 0), Admission::Accept);
    scheduler.record(
        0,
        GroupSummary {
            kept: true,
            oldest_version: 0,
        },
    );
    assert_eq!(judge(&mut scheduler, "b", again, 0), Admission::Duplicate);
    let invented = Lease {
        group_index: 2,
        ..lost
    };
    assert_eq!(judge(&mut scheduler, "a", invented, 0), Admission::Unknown);
}

#[test]
fn the_groups_of_an_actor_that_left_are_given_out_again() {
    let mut scheduler = Scheduler::new(settings(1, 3, 3, 0), 0, 0, 7);
    let first = lease(scheduler.claim(seconds(0), "a", 0));
    let other = lease(scheduler.claim(seconds(0), "b", 0));
    let third = lease(scheduler.claim(seconds(0), "a", 0));
    assert_eq!(scheduler.left(seconds(2), "nobody"), 0);
    assert_eq!(scheduler.left(seconds(2), "a"), 2);
    assert_eq!(scheduler.left(seconds(2), "a"), 0);
    let again = lease(scheduler.claim(seconds(2), "b", 0));
    assert_eq!(again.group_index, first.group_index);
    let again = lease(scheduler.claim(seconds(2), "c", 0));
    assert_eq!(again.group_index, third.group_index);
    // What the actor had still counts, if it comes back first.
    assert_eq!(judge(&mut scheduler, "a", first, 0), Admission::Accept);
    assert_eq!(judge(&mut scheduler, "b", other, 0), Admission::Accept);
}

/// The alert on expired leases names a remedy that helps neither.
#[test]
fn leases_of_refused_groups_and_of_actors_that_left_do_not_count_as_expired() {
    let mut scheduler = Scheduler::new(settings(1, 3, 3, 0), 0, 0, 7);
    let refused = lease(scheduler.claim(seconds(0), "wrong", 0));
    assert!(scheduler.refuse(seconds(1), &head("wrong", refused)));
    let again = lease(scheduler.claim(seconds(1), "b", 0));
    assert_eq!(again.group_index, refused.group_index);
    lease(scheduler.claim(seconds(1), "gone", 0));
    assert_eq!(scheduler.left(seconds(2), "gone"), 1);
    lease(scheduler.claim(seconds(2), "b", 0));
    assert_eq!(scheduler.expired_leases(), 0);
    lease(scheduler.claim(seconds(30), "c", 0));
    assert_eq!(scheduler.expired_leases(), 2, "both groups of b");
}

#[test]
fn a_stale_result_of_a_lost_lease_does_not_end_its_successor() {
    let mut scheduler = Scheduler::new(settings(9, 1, 1, 0), 3, 0, 7);
    let lost = lease(scheduler.claim(seconds(0), "a", 3));
    let held = lease(scheduler.claim(seconds(10), "b", 3));
    assert_eq!(judge(&mut scheduler, "a", lost, 2), Admission::Stale);
    assert!(is_wait(scheduler.claim(seconds(10), "a", 3)), "still held");
    assert_eq!(judge(&mut scheduler, "b", held, 2), Admission::Stale);
    assert_eq!(lease(scheduler.claim(seconds(10), "b", 3)).group_index, 0);
}

/// A restart took the run back, and the actor still had the weights from before.
#[test]
fn a_group_of_a_version_that_was_lost_is_given_out_again() {
    let mut scheduler = Scheduler::new(settings(9, 1, 8, 2), 0, 0, 7);
    let held = lease(scheduler.claim(seconds(0), "a", 0));
    assert_eq!(judge(&mut scheduler, "a", held, 1), Admission::Stale);
    let again = lease(scheduler.claim(seconds(0), "b", 0));
    assert_eq!(again.group_index, held.group_index);
    // The first actor holds it no more.
    assert_eq!(judge(&mut scheduler, "a", held, 1), Admission::Unknown);
    assert_eq!(judge(&mut scheduler, "b", again, 0), Admission::Accept);
}

/// Without the lease, a stranger could train the run on groups that nobody played.
#[test]
fn a_group_counts_only_under_a_lease_of_the_actor_that_submits_it() {
    let mut scheduler = Scheduler::new(settings(2, 2, 8, 0), 0, 0, 7);
    let held = lease(scheduler.claim(seconds(0), "a", 0));
    let invented = Lease {
        group_index: 1,
        ..held
    };
    assert_eq!(judge(&mut scheduler, "a", invented, 0), Admission::Unknown);
    let guessed = Lease {
        lease_id: held.lease_id + 1,
        ..held
    };
    assert_eq!(judge(&mut scheduler, "a", guessed, 0), Admission::Unknown);
    assert_eq!(judge(&mut scheduler, "b", held, 0), Admission::Unknown);
    assert_eq!(judge(&mut scheduler, "a", held, 0), Admission::Accept);
}

#[test]
fn one_actor_holds_no_more_leases_than_its_share() {
    let two_each = SchedulerSettings {
        max_leases_per_actor: 2,
        ..settings(2, 4, 8, 0)
    };
    let mut scheduler = Scheduler::new(two_each, 0, 0, 7);
    let first = lease(scheduler.claim(seconds(0), "greedy", 0));
    lease(scheduler.claim(seconds(0), "greedy", 0));
    assert!(is_wait(scheduler.claim(seconds(0), "greedy", 0)));
    assert_eq!(lease(scheduler.claim(seconds(0), "b", 0)).group_index, 2);
    accept(&mut scheduler, "greedy", first.group_index, 0);
    lease(scheduler.claim(seconds(0), "greedy", 0));
}

/// A client that claims whatever there is and delivers nothing costs the others a tenth of the time
/// of a lease, once.
#[test]
fn a_client_that_only_claims_does_not_starve_the_others() {
    let mut scheduler = Scheduler::new(settings(9, 2, 8, 0), 0, 0, 7);
    for _ in 0..2 {
        lease(scheduler.claim(seconds(0), "thief", 0));
    }
    assert!(is_wait(scheduler.claim(seconds(1), "honest", 0)));
    let mut made = Vec::new();
    for now in 10..14 {
        let version = scheduler.version();
        for _ in 0..2 {
            // The thief is always first.
            assert!(is_wait(scheduler.claim(seconds(now), "thief", version)));
            let held = lease(scheduler.claim(seconds(now), "honest", version));
            assert_eq!(
                judge(&mut scheduler, "honest", held, version),
                Admission::Accept
            );
            accept(&mut scheduler, "honest", held.group_index, version);
        }
        let batch = scheduler.batch().unwrap();
        scheduler.advance(seconds(now), &batch);
        made.push(scheduler.version());
    }
    assert_eq!(made, [1, 2, 3, 4], "a step a second");
    // With nobody else around, the thief gets another chance.
    assert_eq!(
        scheduler.claim(seconds(14), "thief", 4),
        Claim::Wait(Some(seconds(23)))
    );
    lease(scheduler.claim(seconds(23), "thief", 4));
}

/// The group of an actor that was late is made by another one, which then is always faster than the
/// time that a late actor waits.
#[test]
fn a_late_actor_gets_work_again_when_it_delivers_or_joins() {
    let late_once = || {
        let mut scheduler = Scheduler::new(settings(9, 1, 8, 0), 0, 0, 7);
        let held = lease(scheduler.claim(seconds(0), "late", 0));
        let again = lease(scheduler.claim(seconds(10), "quick", 0));
        accept(&mut scheduler, "quick", again.group_index, 0);
        let batch = scheduler.batch().unwrap();
        scheduler.advance(seconds(11), &batch);
        assert!(is_wait(scheduler.claim(seconds(12), "late", 1)));
        (scheduler, held)
    };
    let (mut scheduler, held) = late_once();
    let others = Lease {
        lease_id: held.lease_id + 1,
        ..held
    };
    for (lease_of, then) in [(others, false), (held, true)] {
        let verdict = judge(&mut scheduler, "late", lease_of, 0);
        assert_eq!(verdict, Admission::Duplicate);
        let claim = scheduler.claim(seconds(12), "late", 1);
        assert_eq!(matches!(claim, Claim::Group(_)), then, "{claim:?}");
    }
    let (mut scheduler, _) = late_once();
    scheduler.joined(seconds(12), "late", true);
    lease(scheduler.claim(seconds(12), "late", 1));
}

/// Nobody else takes the groups of an actor that starts again, and it holds as many as it may.
#[test]
fn an_actor_that_starts_again_gets_its_groups_back_at_once() {
    let mut scheduler = Scheduler::new(settings(9, 1, 1, 0), 0, 0, 7);
    let held = lease(scheduler.claim(seconds(0), "a", 0));
    accept(&mut scheduler, "a", 0, 0);
    let batch = scheduler.batch().unwrap();
    scheduler.advance(seconds(1), &batch);
    let held_again = lease(scheduler.claim(seconds(1), "a", 1));
    assert!(held_again.expires > held.expires, "a whole lease");
    // Another process of the same name may be at work.
    scheduler.joined(seconds(4), "a", false);
    assert!(is_wait(scheduler.claim(seconds(4), "a", 1)));
    scheduler.joined(seconds(4), "a", true);
    let claimed = lease(scheduler.claim(seconds(4), "a", 1));
    assert_eq!(claimed.group_index, held_again.group_index);
    // The same after the lease has expired: the expiry is not held against it again.
    scheduler.joined(seconds(1_000), "a", false);
    let claimed = lease(scheduler.claim(seconds(1_000), "a", 1));
    assert_eq!(claimed.group_index, held_again.group_index);
}

/// The first group of a slow actor takes longer than its first, short lease.
#[test]
fn a_slow_actor_keeps_its_work_and_then_gets_whole_leases() {
    let mut scheduler = Scheduler::new(settings(9, 1, 8, 0), 0, 0, 7);
    let held = lease(scheduler.claim(seconds(0), "slow", 0));
    assert_eq!(held.expires, seconds(10));
    assert_eq!(judge(&mut scheduler, "slow", held, 0), Admission::Accept);
    accept(&mut scheduler, "slow", 0, 0);
    let batch = scheduler.batch().unwrap();
    scheduler.advance(seconds(60), &batch);
    let next = lease(scheduler.claim(seconds(60), "slow", 1));
    assert_eq!(next.expires, seconds(160));
}

#[test]
fn a_group_that_a_step_takes_back_is_handed_out_again_or_dropped() {
    let mut scheduler = Scheduler::new(settings(9, 1, 8, 0), 0, 0, 7);
    lease(scheduler.claim(seconds(0), "liar", 0));
    accept(&mut scheduler, "liar", 0, 0);
    // The step took long, and the others have the first chance from now on.
    scheduler.take_back(seconds(600), 0, false);
    scheduler.distrust("liar");
    assert_eq!(scheduler.batch(), None);
    assert!(is_wait(scheduler.claim(seconds(600), "liar", 0)));
    assert_eq!(lease(scheduler.claim(seconds(600), "b", 0)).group_index, 0);
    accept(&mut scheduler, "b", 0, 0);
    scheduler.take_back(seconds(601), 0, true);
    assert_eq!(scheduler.batch(), None, "another group takes its place");
    assert_eq!(lease(scheduler.claim(seconds(601), "b", 0)).group_index, 1);
    accept(&mut scheduler, "b", 1, 0);
    let batch = scheduler.batch().unwrap();
    assert_eq!((batch.group_indices, batch.left_out), (vec![1], vec![0]));
}

/// `sqlenv train` has leases that never expire, and actors that may all have delivered groups
/// without a score.
#[test]
fn a_group_is_handed_out_soon_if_all_actors_are_late() {
    let endless = SchedulerSettings {
        lease: seconds(u32::MAX.into()),
        ..settings(9, 1, 8, 0)
    };
    let mut scheduler = Scheduler::new(endless, 0, 0, 7);
    lease(scheduler.claim(seconds(0), "a", 0));
    accept(&mut scheduler, "a", 0, 0);
    scheduler.take_back(seconds(600), 0, false);
    scheduler.distrust("a");
    scheduler.distrust("b");
    assert_eq!(
        scheduler.claim(seconds(600), "a", 0),
        Claim::Wait(Some(seconds(660)))
    );
    assert_eq!(lease(scheduler.claim(seconds(660), "a", 0)).group_index, 0);
}

#[test]
fn a_step_makes_do_after_the_most_groups_it_may_look_at() {
    let mut scheduler = Scheduler::new(settings(2, 2, 3, 0), 0, 0, 7);
    for (index, kept) in [false, true, false].into_iter().enumerate() {
        assert_eq!(
            lease(scheduler.claim(seconds(0), "a", 0)).group_index,
            index as u64
        );
        scheduler.record(
            index as u64,
            GroupSummary {
                kept,
                oldest_version: 0,
            },
        );
    }
    assert!(is_wait(scheduler.claim(seconds(0), "a", 0)));
    let batch = scheduler.batch().unwrap();
    assert_eq!(
        (&batch.group_indices, &batch.left_out),
        (&vec![1], &vec![0, 2])
    );
    scheduler.advance(seconds(0), &batch);
    assert_eq!(lease(scheduler.claim(seconds(0), "a", 1)).group_index, 3);
}
