//! Runs hostile statements through an environment next to honest players.
//! `src/sandbox/tests/corpus.rs` checks the statements one by one.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/corpus.rs"]
mod corpus;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use common::{Fixture, NOW, dataset, step};
use env::{EnvError, EnvSettings, Environment, EpisodeSpec, SqlLimits};
use sha2::{Digest, Sha256};

const MEANINGFUL: &[(&str, &str)] = &[
    ("SELECT count(*) FROM Cars", "1. 40"),
    ("select COUNT(*) from CARS;", "1. 40"),
    ("  -- a comment\n SELECT 1 -- another", "1. 1"),
    (
        "WITH n AS (SELECT Id FROM Cars) SELECT count(*) FROM n",
        "1. 40",
    ),
    (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) FROM n",
        "1. 15",
    ),
    (
        "SELECT count(*) FROM (SELECT Id FROM Cars WHERE Id < 4) AS sub",
        "1. 3",
    ),
    ("SELECT count(*) FROM fast", "1. 7"),
    ("SELECT min(Accelerate) FROM fast", "1. 10.25"),
    ("SELECT Name FROM makers WHERE Name = \"Fiat\"", "1. Fiat"),
    (
        "SELECT * FROM \"odd \"\"name\"",
        "1. 1 | 1.0e+20 | x'00ff' | noon\n2. 0.1 | -5 | NULL | NULL",
    ),
    (
        "SELECT untyped FROM \"odd \"\"name\" ORDER BY at",
        "1. -5\n2. 1.0e+20",
    ),
    (
        "SELECT Name, Country FROM makers WHERE Id > 3",
        "1. Lada | NULL\n2. O'Hara | Sons | Ireland",
    ),
    (
        "SELECT upper(Name), length(Name) FROM makers WHERE Id = 2",
        "1. CITROëN | 7",
    ),
    ("SELECT 1 WHERE 0", "(no rows)"),
    (
        "SELECT 10 / 4, 10 / 4.0, 1.0 * 100 / 3",
        "1. 2 | 2.5 | 33.333333333333336",
    ),
    (
        "SELECT row_number() OVER (ORDER BY Id DESC) FROM makers WHERE Id < 3",
        "1. 1\n2. 2",
    ),
    (
        "SELECT Maker, count(*) FROM Cars GROUP BY Maker HAVING count(*) > 7 ORDER BY Maker LIMIT 2",
        "1. 1 | 8\n2. 2 | 8",
    ),
    (
        "SELECT Id FROM makers EXCEPT SELECT Maker FROM Cars",
        "(no rows)",
    ),
    ("SELECT 9e999, -9e999", "1. Inf | -Inf"),
];

#[tokio::test]
async fn honest_statements_are_answered() {
    let fixture = Fixture::new(EnvSettings::default());
    for (sql, text) in MEANINGFUL {
        let (result, error) = fixture.query(sql).await;
        assert_eq!((result.as_str(), error.as_str()), (*text, ""), "{sql}");
    }
}

/// What one who plays honestly does, and sees each time.
const HONEST: &[(&str, &str)] = &[
    ("DESCRIBE", "Cars"),
    (
        "QUERY",
        "SELECT Maker, count(*) FROM Cars JOIN makers ON Maker = makers.Id GROUP BY Maker ORDER BY upper(Name)",
    ),
    (
        "QUERY",
        "SELECT count(*) FROM Cars WHERE Horsepower LIKE '%7%'",
    ),
    ("ANSWER", "40"),
];

/// Plays episodes one after the other until `stop`; the time of each step. Panics at the first
/// error. With a `pace` steps are due that far apart and timed from when they were due: who waits
/// for a slow step does not play fewer of them.
#[expect(clippy::disallowed_methods, reason = "measures latency")]
async fn play_honestly(
    environment: Environment,
    pace: Duration,
    stop: Arc<AtomicBool>,
) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let spec = EpisodeSpec {
            question_id: "cars-1".to_owned(),
            ..EpisodeSpec::default()
        };
        let mut token = environment.reset(spec, NOW).unwrap().token;
        for (action_type, argument) in HONEST {
            due = if pace.is_zero() {
                Instant::now()
            } else {
                due + pace
            };
            tokio::time::sleep_until(due.into()).await;
            let reply = step(&environment, &token, action_type, argument).await;
            times.push(due.elapsed());
            let reply = reply.unwrap();
            assert_eq!(reply.observation.error, "");
            assert_eq!(reply.correct, *action_type == "ANSWER");
            token = reply.token;
        }
    }
    times
}

/// Sends the corpus round and round, one statement at a time, until `stop`; how many it sent.
async fn attack(environment: Environment, stop: Arc<AtomicBool>) -> usize {
    // Cheap and dear ones in turn: a prime that does not divide their number leaves none out.
    const STRIDE: usize = 97;
    let cases = corpus::cases();
    assert_ne!(cases.len() % STRIDE, 0);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let reset = environment.reset(EpisodeSpec::default(), NOW).unwrap();
        let sql = &cases[sent * STRIDE % cases.len()].sql;
        match step(&environment, &reset.token, "QUERY", sql).await {
            Ok(reply) => assert!(!reply.correct),
            Err(error) => assert!(matches!(error, EnvError::WallClock { .. }), "{error}"),
        }
        sent += 1;
    }
    sent
}

/// Lets honest players and attackers play on a new environment for a while: the players' times and
/// the attackers' statements.
async fn side_by_side(
    config: EnvSettings,
    players: usize,
    attackers: usize,
    pace: Duration,
    seconds: u64,
) -> (Vec<Duration>, usize) {
    let fixture = Fixture::new(config);
    let file = fixture.folder.path().join("cars.sqlite");
    let hash = || Sha256::digest(std::fs::read(&file).unwrap());
    let before = hash();
    let stop = Arc::new(AtomicBool::new(false));
    let environment = || fixture.environment.clone();
    let hostile: Vec<_> = (0..attackers)
        .map(|_| tokio::spawn(attack(environment(), Arc::clone(&stop))))
        .collect();
    let honest: Vec<_> = (0..players)
        .map(|_| tokio::spawn(play_honestly(environment(), pace, Arc::clone(&stop))))
        .collect();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for player in honest {
        times.extend(player.await.unwrap());
    }
    let mut sent = 0;
    for attacker in hostile {
        sent += attacker.await.unwrap();
    }
    assert_eq!(hash(), before, "the file is as it was");
    let files = std::fs::read_dir(fixture.folder.path()).unwrap();
    assert_eq!(files.count(), 1, "nothing is written beside the database");
    (times, sent)
}

#[tokio::test(flavor = "multi_thread")]
async fn attackers_touch_neither_the_others_nor_the_file() {
    let config = EnvSettings {
        sql: SqlLimits {
            work_units: 2_000_000,
            ..SqlLimits::default()
        },
        sql_threads: 2,
        ..EnvSettings::default()
    };
    let (times, sent) = side_by_side(config, 4, 3, Duration::ZERO, 2).await;
    assert!(times.len() > 10 && sent > 10, "{} {sent}", times.len());
}

/// Callers that ask for much and hang up at once: what waits is dropped, and the next caller is
/// served.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_leave_leave_nothing_behind() {
    let fixture = Fixture::new(EnvSettings {
        sql: SqlLimits {
            work_units: 2_000_000,
            ..SqlLimits::default()
        },
        sql_threads: 1,
        ..EnvSettings::default()
    });
    let slow = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e";
    let token = fixture.reset("cars-1", "").token;
    let calls = (0..2_000).map(|_| {
        let (environment, token) = (fixture.environment.clone(), token.clone());
        tokio::spawn(async move { step(&environment, &token, "QUERY", slow).await })
    });
    let calls: Vec<_> = calls.collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for call in &calls {
        call.abort();
    }
    let answered = fixture.query("SELECT count(*) FROM Cars").await;
    assert_eq!(answered, ("1. 40".to_owned(), String::new()));
    // The statement that runs goes on. Until it ends, those that nobody waits for fill the queue.
    let slow_too = loop {
        match fixture.try_step(&token, "QUERY", slow).await {
            Ok(reply) => break reply.observation.error,
            Err(EnvError::Overloaded { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(slow_too.contains("units of work"), "{slow_too}");
}

/// Prints the latency of honest players, who make 50 steps a second each, alone and beside
/// attackers, under the default limits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute and measures: run it alone"]
async fn latency_beside_attackers() {
    let pace = Duration::from_millis(20);
    for (players, attackers) in [(8, 0), (8, 1), (8, 2), (8, 4), (64, 0), (64, 1)] {
        let config = EnvSettings::default();
        let (mut times, sent) = side_by_side(config, players, attackers, pace, 10).await;
        times.sort();
        let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e3;
        eprintln!(
            "{players} players, {attackers} attackers ({sent} statements): {} steps/s, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms",
            times.len() / 10,
            at(0.5),
            at(0.99),
            at(0.999)
        );
    }
}

/// Answers too long for the quick lane: right ones padded with what does not count, and wrong ones.
#[tokio::test]
async fn long_answers_are_judged_like_short_ones() {
    let fixture = Fixture::new(EnvSettings::default());
    let padding = "\n".repeat(500_000);
    for (question, right) in [
        ("cars-1", "40"),
        ("cars-2", "Germany, France, Italy, Ireland"),
        ("cars-3", "1 | 8\n2 | 8\n3 | 8\n4 | 8\n5 | 8"),
    ] {
        for (answer, correct) in [
            (format!("{right}{padding}"), true),
            (format!("{right}{padding}x"), false),
            ("|".repeat(1_000_000), false),
        ] {
            let reply = fixture.play(question, "", &[("ANSWER", &answer)]).await;
            assert_eq!(reply[0].correct, correct, "{question}: {answer:.40}");
        }
    }
}

#[tokio::test]
async fn a_node_with_a_weak_sandbox_does_not_open() {
    let folder = tempfile::tempdir().unwrap();
    let config = EnvSettings {
        sql: SqlLimits {
            value_bytes: u32::MAX,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let Err(error) = Environment::open(dataset(folder.path()), config) else {
        panic!("it opened");
    };
    assert!(
        error.to_string().contains("does not stop \"SELECT printf("),
        "{error}"
    );
}

#[tokio::test]
async fn the_budget_stops_at_the_same_step_on_a_fresh_and_on_a_used_connection() {
    // The largest count that passes under a budget is the same on ten fresh nodes and on a node
    // that has run other SQL.
    let sql = |rows: u32| {
        format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT count(*) FROM n"
        )
    };
    let config = || EnvSettings {
        sql: SqlLimits {
            work_units: 5_000,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let mut limits = Vec::new();
    for used in [false, true, true] {
        let fixture = Fixture::new(config());
        if used {
            fixture
                .query("SELECT * FROM Cars JOIN makers ON Maker = makers.Id")
                .await;
        }
        let mut largest = 0;
        for rows in 1..1_000 {
            if fixture.query(&sql(rows)).await.1.is_empty() {
                largest = rows;
            }
        }
        limits.push(largest);
    }
    assert!(limits[0] > 0 && limits[0] < 999, "{limits:?}");
    assert!(limits.iter().all(|limit| *limit == limits[0]), "{limits:?}");
}
