//! How often something is worth a line in the log: a wait, once it is more than a moment, and one
//! of many like events.

use std::time::{Duration, Instant};

use tokio::time;

/// The shortest time between two warnings about the same.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Decides which of many like events is worth a line: the first, and then one a minute. A flood of
/// refusals must not become a flood of lines.
#[derive(Debug, Default)]
pub struct RareWarning {
    warned: Option<time::Instant>,
    since_warning: u64,
}

impl RareWarning {
    /// Notes an event. Returns how many there were since the last line if another line is due.
    pub fn note(&mut self) -> Option<u64> {
        self.since_warning += 1;
        if self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return None;
        }
        self.warned = Some(time::Instant::now());
        Some(std::mem::take(&mut self.since_warning))
    }
}

/// The reminders of one wait.
#[derive(Clone, Debug)]
pub struct WaitReminder {
    began: Instant,
    /// The duration of the wait at which the next reminder is due.
    next: Duration,
    every: Duration,
    is_known: bool,
}

impl WaitReminder {
    /// Begins a wait. A reminder is due after `first`, and again after each `every`.
    pub fn new(now: Instant, first: Duration, every: Duration) -> Self {
        Self {
            began: now,
            next: first,
            every,
            is_known: false,
        }
    }

    /// Returns the duration of the wait if a reminder is due, and schedules the next one.
    pub fn due(&mut self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.began);
        if waited < self.next {
            return None;
        }
        self.next = waited + self.every;
        self.is_known = true;
        Some(waited)
    }

    /// Returns the duration of the wait if there has been a reminder: its end is worth a message,
    /// too.
    pub fn end(&self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.began);
        self.is_known.then_some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminders_are_due_once_and_then_rarely() {
        let began = time::Instant::now().into_std();
        let after = |seconds| began + Duration::from_secs(seconds);
        let (first, every) = (Duration::from_secs(5), Duration::from_secs(60));
        let mut reminder = WaitReminder::new(began, first, every);
        assert_eq!(reminder.end(after(4)), None);
        let due: Vec<u64> = (0..150)
            .filter(|second| reminder.due(after(*second)).is_some())
            .collect();
        assert_eq!(due, [5, 65, 125]);
        assert_eq!(reminder.end(after(150)), Some(Duration::from_secs(150)));
    }
}
