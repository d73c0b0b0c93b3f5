//! Results of the checks, and the Markdown page that shows them. Pure.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::diagnosis::Diagnosis;

/// All results: the content of gpu-check.json.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GpuCheckReport {
    /// The machine.
    pub(super) diagnosis: Diagnosis,
    /// The device that was checked: `cuda:0`, `cpu`.
    pub(super) device: String,
    /// The shape of the model in speed measurements.
    pub(super) shape: String,
    /// The result of each check, in the order they ran.
    pub(super) checks: Vec<CheckResult>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct CheckResult {
    /// The check.
    pub(super) name: String,
    /// How it ended.
    #[serde(flatten)]
    pub(super) status: CheckStatus,
    /// What it measured.
    pub(super) measurements: Vec<Measurement>,
    /// How long it took.
    pub(super) seconds: f64,
}

/// Shows the result in one line, as the command prints it.
impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        match &self.status {
            CheckStatus::Passed => write!(f, "passed  {seconds:.1} s"),
            CheckStatus::Failed(reason) => write!(f, "FAILED  {seconds:.1} s: {reason}"),
            CheckStatus::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", content = "reason", rename_all = "lowercase")]
pub(super) enum CheckStatus {
    /// Every measurement lies within its limit.
    Passed,
    /// A measurement exceeds its limit, or the check failed with an error.
    Failed(String),
    /// The check needs something that this machine does not have.
    Skipped(String),
}

/// A measured number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Measurement {
    /// What was measured.
    pub(super) name: String,
    /// The number.
    pub(super) value: f64,
    /// Its unit; empty for a plain number.
    pub(super) unit: &'static str,
    /// The largest value that passes; `None` if every number passes.
    pub(super) limit: Option<f64>,
}

impl Measurement {
    /// Returns a measurement without a limit.
    pub(super) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            limit: None,
        }
    }

    /// Returns a difference that must not exceed `limit`.
    pub(super) fn within(limit: f64, name: impl Into<String>, value: f64) -> Self {
        Self {
            limit: Some(limit),
            ..Self::new(name, value, "")
        }
    }

    /// Tells whether the value is finite and within its limit.
    pub(super) fn is_fine(&self) -> bool {
        self.value.is_finite() && self.limit.is_none_or(|limit| self.value <= limit)
    }
}

/// Shows differences in powers of ten and amounts in plain digits.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, unit, .. } = self;
        match value.abs() {
            size if self.limit.is_some() || size < 1e-2 => write!(f, "{value:.2e}")?,
            size if size < 100.0 => write!(f, "{value:.2}")?,
            _ => write!(f, "{value:.0}")?,
        }
        if unit.is_empty() {
            return Ok(());
        }
        write!(f, " {unit}")
    }
}

impl CheckStatus {
    /// Returns the status that follows from the measurements.
    pub(super) fn of(measurements: &[Measurement]) -> Self {
        match measurements.iter().find(|found| !found.is_fine()) {
            None => Self::Passed,
            Some(wrong) => Self::Failed(format!("{} is {wrong}", wrong.name)),
        }
    }
}

impl GpuCheckReport {
    /// Returns the number of checks that failed.
    pub(super) fn failures(&self) -> usize {
        let is_failure = |check: &&CheckResult| matches!(check.status, CheckStatus::Failed(_));
        self.checks.iter().filter(is_failure).count()
    }

    /// Returns the page, in Markdown.
    pub(super) fn page(&self) -> String {
        let is_skipped = |check: &&CheckResult| matches!(check.status, CheckStatus::Skipped(_));
        let mut page = format!(
            "# gpu-check on {}\n\n{} of {} checks failed, {} were skipped. \
             Speeds are in the shape {}.\n\n\
             | check | status | seconds | reason |\n|---|---|---|---|\n",
            self.device,
            self.failures(),
            self.checks.len(),
            self.checks.iter().filter(is_skipped).count(),
            self.shape,
        );
        for CheckResult {
            name,
            status,
            seconds,
            ..
        } in &self.checks
        {
            let (status, reason) = match status {
                CheckStatus::Passed => ("passed", ""),
                CheckStatus::Failed(reason) => ("**FAILED**", reason.as_str()),
                CheckStatus::Skipped(reason) => ("skipped", reason.as_str()),
            };
            let reason = cell(reason);
            let _ = writeln!(page, "| {name} | {status} | {seconds:.1} | {reason} |");
        }
        page += "\n| check | measurement | value | limit |\n|---|---|---|---|\n";
        for check in &self.checks {
            for measurement in &check.measurements {
                let limit = measurement.limit.map(|limit| format!("{limit:e}"));
                let (check, name) = (&check.name, cell(&measurement.name));
                let limit = limit.unwrap_or_default();
                let _ = writeln!(page, "| {check} | {name} | {measurement} | {limit} |");
            }
        }
        let _ = write!(page, "\n```\n{}```\n", self.diagnosis.text());
        page
    }
}

/// Escapes text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> GpuCheckReport {
        let finding = |name: &str, status, measurements| CheckResult {
            name: name.to_owned(),
            status,
            measurements,
            seconds: 1.25,
        };
        GpuCheckReport {
            diagnosis: Diagnosis::of_this_machine(),
            device: "cuda:0".to_owned(),
            shape: "tiny".to_owned(),
            checks: vec![
                finding(
                    "forward",
                    CheckStatus::Passed,
                    vec![Measurement::within(1e-4, "logits", 3.2e-6)],
                ),
                finding("engine", CheckStatus::Failed("a | b\nc".to_owned()), vec![]),
                finding("torch", CheckStatus::Skipped("no torch".to_owned()), vec![]),
                finding(
                    "sampler",
                    CheckStatus::Passed,
                    vec![Measurement::new("64 rows", 12_345.6, "tokens/s")],
                ),
            ],
        }
    }

    #[test]
    fn the_page_has_every_check_and_measurement() {
        let page = report().page();
        for line in [
            "1 of 4 checks failed, 1 were skipped.",
            "| forward | passed | 1.2 |  |",
            "| engine | **FAILED** | 1.2 | a \\| b c |",
            "| torch | skipped | 1.2 | no torch |",
            "| forward | logits | 3.20e-6 | 1e-4 |",
            "| sampler | 64 rows | 12346 tokens/s |  |",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn json_holds_status_and_reason() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["checks"][0]["status"], "passed");
        assert_eq!(json["checks"][2]["status"], "skipped");
        assert_eq!(json["checks"][2]["reason"], "no torch");
    }

    #[test]
    fn a_measurement_that_is_no_number_fails() {
        let fine = [
            Measurement::within(1.0, "a", 1.0),
            Measurement::new("b", 7.0, "s"),
        ];
        assert_eq!(CheckStatus::of(&fine), CheckStatus::Passed);
        for bad in [
            Measurement::within(1.0, "a", 1.1),
            Measurement::new("b", f64::NAN, ""),
        ] {
            assert!(matches!(CheckStatus::of(&[bad]), CheckStatus::Failed(_)));
        }
    }
}
