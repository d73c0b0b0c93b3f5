//! Checks rules, configuration and metrics with `promtool` (Debian's package `prometheus`).

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use crate::expressions::{of_dashboard, without_variables};

/// Returns whether a program of Debian's package `prometheus` is there, and says so if it is not.
pub(crate) fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        let line = format!("SKIPPED: {program} is missing (Debian: apt-get install prometheus)\n");
        // Not by `eprintln!`, whose output the test harness hides when a test passes.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    is_there
}

fn run(folder: &Path, args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(folder).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = command.spawn().unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success(), "promtool {args:?}: {printed}");
}

#[test]
fn promtool_accepts_configuration_and_alerts_and_their_tests_pass() {
    if !is_installed("promtool") {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus");
    run(&folder, &["check", "config", "prometheus.yml"], "");
    run(&folder, &["check", "rules", "alerts.yml"], "");
    run(&folder, &["test", "rules", "alerts.test.yml"], "");
}

/// Prometheus parses the expressions of a rules file, so each of the dashboard becomes a rule.
#[test]
fn promtool_accepts_the_expressions_of_the_dashboard() {
    if !is_installed("promtool") {
        return;
    }
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (number, expression) in of_dashboard().iter().enumerate() {
        let text = serde_json::to_string(&without_variables(expression)).unwrap();
        writeln!(rules, "  - record: panel_{number}\n    expr: {text}").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yml"), rules).unwrap();
    run(dir.path(), &["check", "rules", "rules.yml"], "");
}

/// Checks names, types and texts of a scrape.
pub(crate) fn check_scrape(scrape: &str) {
    if is_installed("promtool") {
        run(Path::new("/"), &["check", "metrics"], scrape);
    }
}
