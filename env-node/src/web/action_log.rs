//! What was done in the shared environment, for those who watch it.
//!
//! Invariant: bounded by number and by bytes; the oldest entries go first, the newest is always there.

use std::collections::VecDeque;

use serde_json::Value;

/// As many as OpenEnv's own log keeps.
const MAX_ENTRIES: usize = 1_000;
/// Above any honest log; a bound on memory and on what each watcher is sent.
const MAX_BYTES: usize = 1 << 20;

/// The newest entries as JSON, oldest first.
#[derive(Default)]
pub(super) struct ActionLog {
    entries: VecDeque<String>,
    bytes: usize,
}

impl ActionLog {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries as a JSON array.
    pub(super) fn json(&self) -> String {
        let mut json = String::with_capacity(self.bytes + self.entries.len() + 2);
        json.push('[');
        for entry in &self.entries {
            if json.len() > 1 {
                json.push(',');
            }
            json.push_str(entry);
        }
        json.push(']');
        json
    }

    pub(super) fn push(&mut self, entry: &Value) {
        let entry = entry.to_string();
        self.bytes += entry.len();
        self.entries.push_back(entry);
        while self.entries.len() > MAX_ENTRIES || (self.bytes > MAX_BYTES && self.entries.len() > 1)
        {
            self.bytes -= self.entries.pop_front().map_or(0, |oldest| oldest.len());
        }
    }
}

/// ISO 8601 in UTC; the date is the civil one of the proleptic Gregorian calendar.
pub(super) fn timestamp(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years are counted from March, so that the leap day is a year's last; 719,468 days lie between 0000-03-01 and 1970.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month < 3);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn timestamps_are_civil_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00+00:00"),
            (951_782_399, "2000-02-28T23:59:59+00:00"),
            (951_782_400, "2000-02-29T00:00:00+00:00"),
            (1_735_689_599, "2024-12-31T23:59:59+00:00"),
            (4_107_542_400, "2100-03-01T00:00:00+00:00"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }

    #[test]
    fn the_log_forgets_the_oldest_by_number_and_by_bytes() {
        let mut log = ActionLog::default();
        assert_eq!(log.json(), "[]");
        (0..MAX_ENTRIES + 3).for_each(|number| log.push(&json!(number)));
        assert_eq!(log.entries.len(), MAX_ENTRIES);
        let numbers: Vec<usize> = (3..MAX_ENTRIES + 3).collect();
        assert_eq!(log.json(), json!(numbers).to_string());

        let quarter = json!("x".repeat(MAX_BYTES / 4));
        (0..9).for_each(|_| log.push(&quarter));
        assert_eq!(log.entries.len(), 3);
        assert_eq!(
            log.entries.iter().map(String::len).sum::<usize>(),
            log.bytes
        );

        log.push(&json!("x".repeat(2 * MAX_BYTES)));
        assert_eq!(log.entries.len(), 1, "the newest stays");
    }
}
