//! When a wait is worth a message: once it is more than a moment, and then rarely.

use std::time::{Duration, Instant};

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
        let began = tokio::time::Instant::now().into_std();
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
