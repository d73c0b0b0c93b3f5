//! Prints the costs of the sandbox: the slowest hostile statements, and the overhead on honest
//! ones.

use std::{path::Path, time::Instant};

use data::Dataset;

use super::corpus::{CorpusResult, database, file, limits, result_of};
use crate::{
    database::Database,
    row_reader::read_rows,
    rows::ResultLimits,
    sandbox::{Sandbox, WorkBudget, connection, self_test},
    settings::SqlLimits,
};

/// Statements whose work units do not count; they end at the wall clock.
const UNSEEN: &[&str] = &[
    "{n 9999999} SELECT sum((t || i) + 0) FROM n, (SELECT replace(printf('%15000s', ''), ' ', '1') AS t)",
    "{n 9999999} SELECT sum(t || i) FROM n, (SELECT replace(printf('%15000s', ''), ' ', '1') AS t)",
];

#[test]
#[ignore = "takes a minute: prints the slowest statements under the default limits"]
#[expect(clippy::disallowed_methods, reason = "prints how long statements take")]
fn slowest_statements_under_the_default_limits() {
    let folder = tempfile::tempdir().unwrap();
    let database = database(folder.path());
    let worked = cpu_milliseconds();
    self_test(&database, &SqlLimits::default()).unwrap();
    eprintln!("self-test: {} ms", cpu_milliseconds() - worked);
    let in_full = Sandbox::open(&database, &limits(), WorkBudget::Full).unwrap();
    let by_clock = Sandbox::open(&database, &SqlLimits::default(), WorkBudget::Full).unwrap();
    let seen = file::cases().into_iter().map(|case| (&in_full, case.sql));
    let unseen = UNSEEN.iter().map(|sql| (&by_clock, file::expanded(sql)));
    let mut costs: Vec<_> = seen
        .chain(unseen)
        .map(|(sandbox, sql)| {
            let (began, worked) = (Instant::now(), cpu_milliseconds());
            let result = result_of(sandbox, &sql);
            let worked = cpu_milliseconds() - worked;
            (worked, began.elapsed().as_millis(), result, sql)
        })
        .collect();
    costs.sort_by_key(|(worked, ..)| std::cmp::Reverse(*worked));
    let most = costs.iter().map(|cost| cost.2.peak_bytes).max();
    eprintln!(
        "{} statements, at most {most:?} bytes; the slowest:",
        costs.len()
    );
    for (worked, took, result, sql) in costs.iter().take(25) {
        let CorpusResult {
            class, work_units, ..
        } = result;
        eprintln!("{worked} ms of {took} ms, {class}, {work_units} units: {sql:.250}");
    }
}

/// Returns the CPU time of this thread, by Linux. Other work on the machine does not count.
fn cpu_milliseconds() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split(' ')
        .next()
        .and_then(|first| first.parse::<u64>().ok());
    nanoseconds.unwrap_or_default() / 1_000_000
}

/// Prints the cost of the sandbox for Spider's gold SQL.
#[test]
#[ignore = "measures: run it alone, with ../shared/data/spider in place"]
fn overhead_on_spiders_gold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/spider");
    compare(&Dataset::open(&folder, Some(&["all".to_owned()])).unwrap());
}

/// Prints the cost of the sandbox for the gold SQL of our own data.
#[test]
#[ignore = "measures: run it alone"]
fn overhead_on_our_gold() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("data");
    data::build(&folder, data::DEFAULT_SEED, &mut |_, _| {}).unwrap();
    compare(&Dataset::open(&folder, None).unwrap());
}

/// Runs all gold SQL on a bare connection and in the sandbox, where all of it must be answered.
#[expect(clippy::disallowed_methods, reason = "measures time")]
fn compare(dataset: &Dataset) {
    let mut times = [Vec::new(), Vec::new()];
    let (mut most_units, mut most_bytes) = (0, 0);
    for (name, file) in &dataset.databases {
        let database =
            Database::open(file, &ResultLimits::default(), &SqlLimits::default()).unwrap();
        let sandbox = Sandbox::open(&database, &SqlLimits::default(), WorkBudget::Full).unwrap();
        let (mut bare, _) = connection::open(&file.path, u64::MAX).unwrap();
        bare.progress_handler(0, None::<fn() -> bool>).unwrap();
        let in_bare = |sql: &str| {
            let mut statement = bare.prepare(sql).unwrap();
            read_rows(&mut statement, 200, |_| Ok(())).unwrap();
        };
        let questions = dataset
            .questions
            .iter()
            .filter(|question| question.database_name == *name);
        for question in questions {
            let sql = &question.gold_sql;
            let run = sandbox.query(sql).unwrap();
            assert!(run.rows.is_ok(), "{sql}: {:?}", run.rows);
            most_units = most_units.max(run.work_units);
            most_bytes = most_bytes.max(run.peak_bytes);
            let timed = |run: &dyn Fn()| {
                run();
                let began = Instant::now();
                for _ in 0..5 {
                    run();
                }
                began.elapsed().as_secs_f64() / 5.0 * 1e6
            };
            times[0].push(timed(&|| in_bare(sql)));
            times[1].push(timed(&|| drop(sandbox.query(sql))));
        }
    }
    for (name, times) in ["bare", "sandbox"].iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[(times.len() as f64 * part) as usize];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        eprintln!(
            "{name}: {} queries, median {:.1} us, mean {mean:.1}, p99 {:.1}",
            times.len(),
            at(0.5),
            at(0.99)
        );
    }
    eprintln!("at most {most_units} units and {most_bytes} bytes");
}
