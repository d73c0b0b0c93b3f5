//! The log of the shared environment's actions, for those who watch it.
//!
//! Invariant: the log is bounded in entries and in bytes. The oldest entries are dropped first; the
//! newest is always there.

use std::collections::VecDeque;

use prost_types::Timestamp;
use serde_json::Value;

/// As many entries as OpenEnv's own log keeps.
const MAX_ENTRIES: usize = 1_000;
/// Far above an ordinary log. Bounds memory, and what each watcher is sent.
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

    /// Returns the entries as a JSON array.
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

/// Formats a time in UTC as OpenEnv's server does, in ISO 8601.
pub(super) fn timestamp(unix_seconds: u64) -> String {
    let timestamp = Timestamp {
        seconds: i64::try_from(unix_seconds).unwrap_or(i64::MAX),
        nanos: 0,
    };
    timestamp.to_string().replace('Z', "+00:00")
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
    fn the_log_drops_the_oldest_by_number_and_by_bytes() {
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
