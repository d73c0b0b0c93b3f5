//! The lines of a stage without a terminal. Pure: the caller gives the seconds since the start.

use report::number::seconds as seconds_in_words;

/// Seconds between two lines of a stage.
const LINE_EVERY_SECONDS: f64 = 5.0;

/// The state of a stage.
pub(super) struct PlainStage {
    name: String,
    unit: String,
    total: Option<u64>,
    pub(super) position: u64,
    pub(super) note: String,
    last_line_seconds: f64,
}

impl PlainStage {
    pub(super) fn new(name: &str, total: Option<u64>, unit: &str) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            total,
            position: 0,
            note: String::new(),
            last_line_seconds: 0.0,
        }
    }

    pub(super) fn opening(&self) -> String {
        match self.total {
            Some(total) => format!("{}: {total} {}", self.name, self.unit),
            None => format!("{}: started", self.name),
        }
    }

    pub(super) fn line_due(&mut self, seconds: f64) -> Option<String> {
        if seconds - self.last_line_seconds < LINE_EVERY_SECONDS {
            return None;
        }
        self.last_line_seconds = seconds;
        Some(self.line(seconds))
    }

    fn line(&self, seconds: f64) -> String {
        let rate = rate(self.position as f64 / seconds);
        let mut line = match self.total {
            Some(total) => {
                let percent = 100 * self.position / total.max(1);
                format!(
                    "{}: {}/{total} {} ({percent} %), {rate}",
                    self.name, self.position, self.unit
                )
            }
            None => format!("{}: {} {}, {rate}", self.name, self.position, self.unit),
        };
        if let Some(total) = self.total
            && self.position > 0
        {
            let left = total.saturating_sub(self.position) as f64 * seconds / self.position as f64;
            line += &format!(", {} left", seconds_in_words(left));
        }
        if !self.note.is_empty() {
            line += &format!(", {}", self.note);
        }
        line
    }

    pub(super) fn closing(&self, seconds: f64, result: &str) -> String {
        let done = format!(
            "{}: {} {} in {}",
            self.name,
            self.position,
            self.unit,
            seconds_in_words(seconds)
        );
        if result.is_empty() {
            done
        } else {
            format!("{done}, {result}")
        }
    }
}

/// Formats a speed as units per second, or as the time of one unit.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        r if !r.is_finite() => "-/s".to_owned(),
        r if r >= 100.0 => format!("{r:.0}/s"),
        r if r >= 1.0 => format!("{r:.1}/s"),
        r if r > 0.0 => format!("{} each", seconds_in_words(1.0 / r)),
        _ => "0/s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_is_due_every_few_seconds() {
        let mut stage = PlainStage::new("evaluating warm start", Some(300), "questions");
        stage.position = 60;
        stage.note = "right 0.41".to_owned();
        assert_eq!(stage.line_due(4.9), None);
        assert_eq!(
            stage.line_due(6.0).as_deref(),
            Some("evaluating warm start: 60/300 questions (20 %), 10.0/s, 24 s left, right 0.41")
        );
        assert_eq!(stage.line_due(10.9), None);
        assert!(stage.line_due(11.0).is_some());
    }

    #[test]
    fn stages_of_unknown_and_of_zero_length_have_lines() {
        let mut unknown = PlainStage::new("rolling out", None, "episodes");
        assert_eq!(
            unknown.line_due(5.0).as_deref(),
            Some("rolling out: 0 episodes, 0/s")
        );
        let mut nothing = PlainStage::new("steps", Some(0), "steps");
        assert_eq!(
            nothing.line_due(5.0).as_deref(),
            Some("steps: 0/0 steps (0 %), 0/s")
        );
    }

    #[test]
    fn rates_read_well() {
        for (per_second, text) in [
            (1234.5, "1234/s"),
            (2.25, "2.2/s"),
            (0.1, "10 s each"),
            (0.0, "0/s"),
            (f64::NAN, "-/s"),
        ] {
            assert_eq!(rate(per_second), text);
        }
    }
}
