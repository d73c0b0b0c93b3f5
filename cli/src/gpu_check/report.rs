//! What a check found, and the page that shows it. Pure.

use std::fmt::Write as _;

use serde::Serialize;

use crate::doctor::Diagnosis;

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine.
    pub diagnosis: Diagnosis,
    /// Where the checks ran: `cuda:0`, `cpu`.
    pub device: String,
    /// The shape that speed was measured in.
    pub shape: String,
    /// What each check found, in the order they ran.
    pub checks: Vec<Finding>,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The check.
    pub name: String,
    /// How it ended.
    #[serde(flatten)]
    pub status: Status,
    /// What it measured.
    pub figures: Vec<Figure>,
    /// How long it took.
    pub seconds: f64,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", content = "reason", rename_all = "lowercase")]
pub enum Status {
    /// Every figure lies within its limit.
    Passed,
    /// One does not, or the check broke.
    Failed(String),
    /// What it needs is not there.
    Skipped(String),
}

/// Something measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what; empty for a plain number.
    pub unit: &'static str,
    /// The most that it may be; absent where any is right.
    pub limit: Option<f64>,
}

impl Figure {
    /// A measurement that nothing is asked of.
    pub fn of(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        let name = name.into();
        Self {
            name,
            value,
            unit,
            limit: None,
        }
    }

    /// A difference that may be `limit` at most.
    pub fn within(limit: f64, name: impl Into<String>, value: f64) -> Self {
        Self {
            limit: Some(limit),
            ..Self::of(name, value, "")
        }
    }

    /// Whether it is a number and within its limit.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.value.is_finite() && self.limit.is_none_or(|limit| self.value <= limit)
    }
}

impl Status {
    /// The status that follows from figures.
    #[must_use]
    pub fn of(figures: &[Figure]) -> Self {
        match figures.iter().find(|figure| !figure.is_fine()) {
            None => Self::Passed,
            Some(figure) => Self::Failed(format!("{} is {}", figure.name, value(figure))),
        }
    }
}

impl Report {
    /// How many checks failed.
    #[must_use]
    pub fn failures(&self) -> usize {
        let is_failure = |check: &&Finding| matches!(check.status, Status::Failed(_));
        self.checks.iter().filter(is_failure).count()
    }

    /// The page, in Markdown.
    #[must_use]
    pub fn page(&self) -> String {
        let count = self.checks.len();
        let skipped = |check: &&Finding| matches!(check.status, Status::Skipped(_));
        let skipped = self.checks.iter().filter(skipped).count();
        let mut page = format!(
            "# gpu-check on {}\n\n{} of {count} checks failed, {skipped} were skipped. Speeds are in the shape {}.\n\n\
             | check | status | seconds | reason |\n|---|---|---|---|\n",
            self.device,
            self.failures(),
            self.shape,
        );
        for check in &self.checks {
            let (status, reason) = match &check.status {
                Status::Passed => ("passed", ""),
                Status::Failed(reason) => ("**FAILED**", reason.as_str()),
                Status::Skipped(reason) => ("skipped", reason.as_str()),
            };
            let (name, seconds) = (&check.name, check.seconds);
            let _ = writeln!(
                page,
                "| {name} | {status} | {seconds:.1} | {} |",
                cell(reason)
            );
        }
        page += "\n| check | figure | value | limit |\n|---|---|---|---|\n";
        for check in &self.checks {
            for figure in &check.figures {
                let limit = figure
                    .limit
                    .map_or_else(String::new, |limit| format!("{limit:e}"));
                let (check, name) = (&check.name, cell(&figure.name));
                let _ = writeln!(page, "| {check} | {name} | {} | {limit} |", value(figure));
            }
        }
        let _ = write!(page, "\n```\n{}```\n", self.diagnosis.text());
        page
    }
}

/// Differences in powers of ten, amounts in plain digits.
fn value(figure: &Figure) -> String {
    let Figure { value, unit, .. } = figure;
    let number = match value.abs() {
        size if figure.limit.is_some() || size < 1e-2 => format!("{value:.2e}"),
        size if size < 100.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    };
    format!("{number} {unit}").trim_end().to_owned()
}

/// Text that a cell of a table can hold.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let finding = |name: &str, status, figures| Finding {
            name: name.to_owned(),
            status,
            figures,
            seconds: 1.25,
        };
        Report {
            diagnosis: Diagnosis::of_this_machine(),
            device: "cuda:0".to_owned(),
            shape: "tiny".to_owned(),
            checks: vec![
                finding(
                    "forward",
                    Status::Passed,
                    vec![Figure::within(1e-4, "logits", 3.2e-6)],
                ),
                finding("engine", Status::Failed("a | b\nc".to_owned()), vec![]),
                finding("torch", Status::Skipped("no torch".to_owned()), vec![]),
                finding(
                    "sampler",
                    Status::Passed,
                    vec![Figure::of("64 rows", 12_345.6, "tokens/s")],
                ),
            ],
        }
    }

    #[test]
    fn the_page_tells_every_check_and_figure() {
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
    fn a_figure_that_is_no_number_fails() {
        let fine = [Figure::within(1.0, "a", 1.0), Figure::of("b", 7.0, "s")];
        assert_eq!(Status::of(&fine), Status::Passed);
        for bad in [Figure::within(1.0, "a", 1.1), Figure::of("b", f64::NAN, "")] {
            assert!(matches!(Status::of(&[bad]), Status::Failed(_)));
        }
    }
}
