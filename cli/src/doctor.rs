//! `sqlenv doctor`: says what is wrong with a run and what to change, or what this machine offers
//! and what this binary can use of it.

use std::{path::Path, process::ExitCode};

use anyhow::{Result, bail};
use bench::diagnosis::Diagnosis;
use report::{Finding, LiveStatus, RunRecords, Severity, diagnose, safe_line};
use serde::Serialize;

use crate::{
    args::DoctorArgs,
    config::WrongSettings,
    out_file,
    status_source::{Fetched, StatusSource, recorded_status},
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
    let status = match StatusSource::parse(run)
        .map_err(WrongSettings)?
        .fetch()
        .await?
    {
        Fetched::Status(status) => status,
        Fetched::Away(reason) => bail!("{run}: {reason}"),
    };
    write_json(args.json.as_deref(), &status.findings)?;
    stdout::print(text(&status))?;
    Ok(match problems(&status.findings).count() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Describes the problems of a run that has ended, between blank lines; nothing if it has none.
pub(crate) fn problems_text(records: &RunRecords) -> String {
    let findings = diagnose(&recorded_status(records, ""));
    let mut text: String = problems(&findings).map(finding_text).collect();
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn problems(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    let is_problem = |it: &&Finding| it.severity == Severity::Problem;
    findings.iter().filter(is_problem)
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
