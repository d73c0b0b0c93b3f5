//! Checks the table of metrics in `docs/watching.md` against what the roles describe.

use std::{fmt::Write as _, fs, path::Path};

use learner::metrics::STEP_METRICS;

use crate::{described::by_role, read};

const PAGE: &str = "docs/watching.md";
const BEGIN: &str = "<!-- The table of metrics begins. -->\n";
const END: &str = "<!-- The table of metrics ends. -->\n";
/// Rewrites the table instead of comparing it.
const WRITE: &str = "SQLENV_WRITE_DOCS";

/// Returns the unit that the end of a name states.
fn unit(name: &str) -> &'static str {
    let stem = name.trim_end_matches("_total");
    let units = [
        ("_timestamp_seconds", "Unix time"),
        ("_seconds", "seconds"),
        ("_bytes", "bytes"),
        ("_ratio", "0 to 1"),
        ("_nats", "nats"),
        ("_tokens", "tokens"),
        ("_work_units", "work units"),
    ];
    let found = units.iter().find(|(ending, _)| stem.ends_with(ending));
    found.map_or("–", |(_, unit)| unit)
}

/// Returns the tables of all roles.
fn tables() -> String {
    let mut page = String::new();
    for (role, metrics) in by_role() {
        let all = metrics.into_iter();
        let (of_steps, others): (Vec<_>, Vec<_>) =
            all.partition(|(name, _)| STEP_METRICS.iter().any(|it| it.name == name));
        writeln!(page, "\n### `{role}`\n").unwrap();
        page += "| metric | type | unit | meaning |\n|---|---|---|---|\n";
        for (name, described) in others {
            let (kind, text) = (described.kind, described.text);
            writeln!(page, "| `{name}` | {kind} | {} | {text} |", unit(&name)).unwrap();
        }
        if !of_steps.is_empty() {
            page += "\n### Learner steps\n\n| metric | `metrics.jsonl`, TensorBoard | verl | unit | \
                     meaning |\n|---|---|---|---|---|\n";
        }
        for metric in STEP_METRICS.iter().filter(|_| !of_steps.is_empty()) {
            let (name, record, text) = (metric.name, metric.record, metric.description);
            let (unit, verl) = (unit(name), metric.verl);
            writeln!(page, "| `{name}` | `{record}` | {verl} | {unit} | {text} |").unwrap();
        }
    }
    page + "\n"
}

#[test]
fn the_table_of_metrics_is_that_of_the_code() {
    let page = read(PAGE);
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    let expected = tables();
    if std::env::var_os(WRITE).is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
        fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert!(
        table == expected,
        "the table in {PAGE} is not that of the code; write it: {WRITE}=1 cargo test --release -p \
         cli --test watching table"
    );
}
