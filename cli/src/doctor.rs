//! `sqlenv doctor`: says what is wrong with a run and what to change, or what this machine offers
//! and what this binary can use of it.

use std::{path::Path, process::ExitCode};

use anyhow::{Result, bail};
use bench::diagnosis::Diagnosis;
use report::{Finding, LiveStatus, Severity, safe_line};
use serde::Serialize;

use crate::{
    args::DoctorArgs,
    out_file,
    status_source::{Fetched, StatusSource},
    stdout,
};

/// Prints the diagnosis; with `--json` also writes it to that file. The exit code is 1 if a run has
/// a problem.
pub(crate) async fn doctor(args: &DoctorArgs) -> Result<ExitCode> {
    let Some(run) = &args.run else {
        let diagnosis = Diagnosis::of_this_machine();
        write_json(args.json.as_deref(), &diagnosis)?;
        stdout::print(diagnosis.text())?;
        return Ok(ExitCode::SUCCESS);
    };
    let status = match StatusSource::parse(run)?.fetch().await? {
        Fetched::Status(status) => status,
        Fetched::Away(reason) => bail!("{run}: {reason}"),
    };
    write_json(args.json.as_deref(), &status.findings)?;
    stdout::print(text(&status))?;
    let problems = status
        .findings
        .iter()
        .filter(|it| it.severity == Severity::Problem);
    Ok(match problems.count() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn write_json(path: Option<&Path>, value: &impl Serialize) -> Result<()> {
    path.map_or(Ok(()), |path| out_file::write_json(path, value))
}

fn text(status: &LiveStatus) -> String {
    let mut text = format!("{}, step {}", safe_line(&status.name), status.step);
    if let Some(steps) = status.settings.steps {
        text += &format!(" of {steps}");
    }
    text += &match status.findings.len() {
        0 => ": nothing is wrong that the numbers show\n".to_owned(),
        1 => ": one finding\n".to_owned(),
        count => format!(": {count} findings\n"),
    };
    for finding in &status.findings {
        text += &finding_text(finding);
    }
    text
}

fn finding_text(finding: &Finding) -> String {
    let kind = match finding.severity {
        Severity::Problem => "problem",
        Severity::Hint => "hint",
    };
    let [rule, seen, meaning, remedy] = [
        &finding.rule,
        &finding.seen,
        &finding.meaning,
        &finding.remedy,
    ]
    .map(|it| safe_line(it));
    format!("\n{kind} ({rule})\n  {seen}\n  {meaning}\n  -> {remedy}\n")
}
