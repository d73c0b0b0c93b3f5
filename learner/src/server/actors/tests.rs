//! Tests the registry of actors.

use super::*;

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn report(tokens: u64, busy_seconds: f64, calls: u64) -> Option<ActorReport> {
    Some(ActorReport {
        sampled_tokens: tokens,
        busy_seconds,
        env_nodes: vec![EndpointReport {
            address: "node:1".to_owned(),
            calls,
            errors: calls / 10,
            latency_seconds: calls as f64 / 100.0,
            latency_buckets: vec![0, calls],
        }],
    })
}

#[test]
fn an_actor_is_described_by_its_calls_and_reports() {
    let mut registry = ActorRegistry::default();
    registry.connected(at(0), "a");
    registry.claimed(at(1), "a", 3, report(0, 0.0, 0));
    registry.claimed(at(11), "a", 4, report(500, 4.0, 100));
    registry.submitted(at(12), "a", 8, Some(Trajectory::default()));
    let leased = BTreeMap::from([("a".to_owned(), 2), ("other".to_owned(), 9)]);
    let actor = &registry.actors(at(20), &leased)[0];
    assert_eq!((actor.policy_version, actor.is_connected), (Some(4), true));
    assert_eq!((actor.groups_in_flight, actor.groups_done), (2, 1));
    assert_eq!(actor.silent, at(8));
    assert_eq!(actor.tokens_per_second, Some(50.0));
    assert_eq!(actor.busy_share, Some(0.4));
    let node = &registry.env_nodes(at(20))[0];
    assert_eq!((node.calls, node.errors, node.recent.calls), (100, 10, 100));
    assert_eq!(registry.recent_episodes()[0].group_index, 8);
}

#[test]
fn rates_are_those_of_the_last_minute_and_begin_again_with_the_actor() {
    let mut registry = ActorRegistry::default();
    for step in 0..20 {
        let tokens = if step < 10 {
            step * 100
        } else {
            900 + (step - 9) * 10
        };
        registry.claimed(at(step * 10), "a", 0, report(tokens, 0.0, step));
    }
    let rate =
        |registry: &ActorRegistry| registry.actors(at(200), &BTreeMap::new())[0].tokens_per_second;
    assert_eq!(rate(&registry), Some(1.0));
    assert!(registry.env_nodes(at(200))[0].recent.calls <= 6);
    registry.claimed(at(200), "a", 0, report(5, 0.0, 0));
    assert_eq!(rate(&registry), None);
    registry.claimed(at(201), "a", 0, report(9, 0.0, 0));
    assert_eq!(rate(&registry), Some(4.0));
}

#[test]
fn several_actors_share_an_env_node() {
    let mut registry = ActorRegistry::default();
    registry.claimed(at(0), "a", 0, report(0, 0.0, 40));
    registry.claimed(at(0), "b", 0, report(0, 0.0, 60));
    let nodes = registry.env_nodes(at(1));
    assert_eq!(nodes.len(), 1);
    assert_eq!((nodes[0].calls, nodes[0].errors), (100, 10));
}

#[test]
fn an_actor_without_a_report_is_known_and_one_that_left_is_forgotten() {
    let mut registry = ActorRegistry::default();
    registry.connected(at(0), "old");
    registry.claimed(at(1), "old", 2, None);
    let actor = &registry.actors(at(2), &BTreeMap::new())[0];
    assert_eq!(
        (actor.policy_version, actor.tokens_per_second),
        (Some(2), None)
    );
    assert_eq!(registry.actors(at(5_000), &BTreeMap::new()).len(), 1);
    registry.disconnected(at(5_000), "old");
    assert!(!registry.actors(at(5_001), &BTreeMap::new())[0].is_connected);
    assert!(registry.actors(at(5_601), &BTreeMap::new()).is_empty());
}

#[test]
fn hostile_reports_stay_small_and_finite() {
    let mut registry = ActorRegistry::default();
    let node = EndpointReport {
        address: "x".repeat(10_000),
        calls: u64::MAX,
        errors: u64::MAX,
        latency_seconds: f64::NAN,
        latency_buckets: vec![u64::MAX; 10_000],
    };
    let hostile = |busy_seconds| {
        Some(ActorReport {
            sampled_tokens: u64::MAX,
            busy_seconds,
            env_nodes: vec![node.clone(); 500],
        })
    };
    for (second, busy) in [f64::NAN, f64::INFINITY, -1e300, 1e300]
        .into_iter()
        .enumerate()
    {
        registry.claimed(at(second as u64), "<script>", u64::MAX, hostile(busy));
    }
    let nodes = registry.env_nodes(at(4));
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].address.len(), MAX_ADDRESS_CHARACTERS);
    assert!(nodes[0].recent.latency_seconds.is_finite());
    let actor = &registry.actors(at(4), &BTreeMap::new())[0];
    assert!(
        actor
            .busy_share
            .is_some_and(|share| (0.0..=1.0).contains(&share))
    );
    let kept = registry.actors.values().next().unwrap();
    let (_, report) = kept.reports.newest.as_ref().unwrap();
    assert_eq!(report.env_nodes.len(), MAX_ENV_NODES);
    assert_eq!(
        report.env_nodes[0].latency_buckets.len(),
        MAX_LATENCY_BUCKETS
    );
}

#[test]
fn a_flood_of_names_displaces_the_most_silent_actors_only() {
    let mut registry = ActorRegistry::default();
    registry.called(at(0), "silent");
    registry.connected(at(0), "connected");
    for number in 0..3 * MAX_ACTORS as u64 {
        registry.called(at(1), &format!("flood-{number}"));
        registry.called(at(2), "real");
    }
    let actors = registry.actors(at(3), &BTreeMap::new());
    assert_eq!(actors.len(), MAX_ACTORS);
    assert!(actors.iter().any(|actor| actor.id == "real"));
    assert!(actors.iter().all(|actor| actor.id != "silent"));
    // The name of an actor with a weights stream stays.
    assert!(!registry.is_silent_since("connected", at(9)));
}

/// A name has up to 256 bytes, and what is said of one actor must not be said of another.
#[test]
fn long_names_that_begin_alike_are_two_actors() {
    let mut registry = ActorRegistry::default();
    let [first, second] = ["1", "2"].map(|end| "x".repeat(200) + end);
    registry.connected(at(0), &first);
    assert!(registry.is_connected(&first) && !registry.is_connected(&second));
    assert!(registry.is_silent_since(&second, at(0)));
    registry.called(at(1), &second);
    let names = registry.actors(at(1), &BTreeMap::new());
    let names: Vec<&str> = names.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(names, [&first, &second]);
    let contributors = BTreeSet::from([first.as_str()]);
    assert!(registry.has_others(at(1), &contributors));
}
