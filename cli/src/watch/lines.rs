//! The status of a run as lines of text: one for each step, each new warning, and the end.

use std::collections::BTreeSet;

use report::{LearnerStepRecord, LiveStatus, RunStatus, TrainingStage, number, safe_line};

/// What was printed already.
#[derive(Debug, Default)]
pub(super) struct Lines {
    last_step: Option<u64>,
    last_evaluation: Option<u64>,
    rules: BTreeSet<String>,
    is_away: bool,
}

impl Lines {
    /// Returns the lines that are new. Of the steps before the first status, only the last is
    /// printed.
    pub(super) fn of_status(&mut self, status: &LiveStatus) -> Vec<String> {
        let mut lines = Vec::new();
        if std::mem::take(&mut self.is_away) {
            lines.push("the learner answers again".to_owned());
        }
        let steps = status
            .steps
            .iter()
            .filter(|it| it.stage == TrainingStage::Grpo);
        let newest = steps.clone().map(|it| it.step).max();
        // A learner that was resumed from a checkpoint repeats steps.
        let before_newest = newest.map(|step| step.saturating_sub(1));
        let first = self.last_step.or(before_newest).min(newest);
        for step in steps.filter(|step| Some(step.step) > first) {
            lines.push(step_line(status, step));
        }
        self.last_step = Some(newest.unwrap_or(0));
        let evaluation = status.accuracy().last().copied();
        if let Some(last) = evaluation.filter(|last| self.last_evaluation != Some(last.step)) {
            self.last_evaluation = Some(last.step);
            let rate = &last.metrics.success;
            lines.push(format!(
                "accuracy on new questions at step {}: {} % of {}",
                last.step,
                number::percent(rate.success_rate),
                rate.questions
            ));
        }
        let rules = status.findings.iter().map(|it| it.rule.clone()).collect();
        for finding in status
            .findings
            .iter()
            .filter(|it| !self.rules.contains(&it.rule))
        {
            let (seen, remedy) = (safe_line(&finding.seen), safe_line(&finding.remedy));
            lines.push(format!("warning: {seen} {remedy}"));
        }
        self.rules = rules;
        match status.state {
            RunStatus::Running => {}
            RunStatus::Finished => {
                lines.push(format!("the run has finished: {}", status.position()));
            }
            RunStatus::Interrupted => {
                lines.push(format!("the run was stopped: {}", status.position()));
            }
        }
        lines
    }

    /// Returns a line when the learner goes away.
    pub(super) fn of_absence(&mut self, address: &str, reason: &str) -> Option<String> {
        let is_known = std::mem::replace(&mut self.is_away, true);
        (!is_known).then(|| {
            let reason = safe_line(reason);
            format!("{address} does not answer: {reason}; trying again until it does")
        })
    }
}

fn step_line(status: &LiveStatus, step: &LearnerStepRecord) -> String {
    let mut line = status.position_of(step.step);
    for name in ["reward", "loss", "entropy", "kl"] {
        if let Some(value) = step.metrics.get(name) {
            line += &format!("  {name} {}", number::value(*value));
        }
    }
    if let Some(seconds) = step.metrics.get("step_time") {
        line += &format!("  {}", number::seconds(*seconds));
    }
    if status.is_live && step.step == status.step {
        let connected = status
            .actors
            .iter()
            .filter(|actor| actor.is_connected)
            .count();
        line += &format!("  actors {connected}");
    }
    if let Some(left) = status.eta_seconds.filter(|_| step.step == status.step) {
        line += &format!("  {} left", number::seconds(left));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::screen::tests::status;

    #[test]
    fn each_step_has_one_line_and_a_warning_appears_once() {
        let mut lines = Lines::default();
        let mut now = status();
        let first = lines.of_status(&now);
        assert!(first[0].starts_with("step 30/40  reward "), "{first:?}");
        assert!(
            first[1].contains("accuracy on new questions at step 30: 55.0 %"),
            "{first:?}"
        );
        assert!(first[2].starts_with("warning: "), "{first:?}");
        assert!(!first.join("").contains('\u{1b}'), "{first:?}");
        assert_eq!(first.len(), 3);
        assert!(lines.of_status(&now).is_empty());
        let mut next = now.steps[29].clone();
        for number in [31, 32] {
            next.step = number;
            now.step = number;
            now.steps.push(next.clone());
        }
        let new = lines.of_status(&now);
        assert!(
            new[0].starts_with("step 31/40") && new[1].starts_with("step 32/40"),
            "{new:?}"
        );
        assert_eq!(new.len(), 2);
    }

    #[test]
    fn an_absence_is_said_once_and_its_end_too() {
        let mut lines = Lines::default();
        let away = lines
            .of_absence("http://a:1", "connection refused")
            .unwrap();
        assert!(
            away.contains("http://a:1") && away.contains("connection refused"),
            "{away}"
        );
        assert_eq!(lines.of_absence("http://a:1", "connection refused"), None);
        let mut ended = status();
        ended.state = RunStatus::Finished;
        let said = lines.of_status(&ended);
        assert_eq!(said[0], "the learner answers again");
        assert_eq!(said.last().unwrap(), "the run has finished: step 30/40");
    }

    #[test]
    fn a_step_zero_of_a_foreign_run_is_passed_over() {
        let mut foreign = status();
        foreign.steps.truncate(1);
        foreign.steps[0].step = 0;
        let shown = Lines::default().of_status(&foreign);
        assert!(!shown.iter().any(|it| it.starts_with("step ")), "{shown:?}");
    }

    #[test]
    fn a_resumed_learner_repeats_its_steps() {
        let mut lines = Lines::default();
        let before = status();
        lines.of_status(&before);
        let mut resumed = before.clone();
        resumed.steps.truncate(20);
        resumed.step = 20;
        assert!(lines.of_status(&resumed).is_empty());
        resumed.steps.push(before.steps[20].clone());
        resumed.step = 21;
        assert_eq!(lines.of_status(&resumed).len(), 1);
    }
}
