//! How many files a node holds open: one for each connection, one for each database that a thread keeps.
//!
//! Invariant: a node that fits into its limit refuses connections by itself, at once, and finds a file for its databases; one
//! that runs into the limit does neither. Leaves out where the limit comes from.

use std::{io, thread};

use crate::config::EnvConfig;

/// Standard streams, the runtime's own, the admin port, files that are read again.
const OTHER_FILES: usize = 64;
/// Threads run in two lanes.
const LANES: usize = 2;
/// `EMFILE` and `ENFILE`, alike on Linux, macOS and the BSDs.
const NO_MORE_FILES: [i32; 2] = [24, 23];

/// Whether the process, or the system, may open no more files.
pub(crate) fn are_used_up(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|code| NO_MORE_FILES.contains(&code))
}

impl EnvConfig {
    /// Threads of each lane.
    pub(crate) fn threads_per_lane(&self) -> usize {
        match self.sql_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            count => count,
        }
    }

    /// Lowers `server.max_connections`, and `connections_per_thread` where databases would take more than half, until a
    /// node of that many databases opens no more than `limit` files. What was lowered, and the remedy, if anything was.
    pub fn fit_open_files(&mut self, limit: u64, databases: usize) -> Option<String> {
        let threads = LANES * self.threads_per_lane();
        let kept = self.connections_per_thread.min(databases);
        let wanted = OTHER_FILES + threads * kept + self.server.max_connections;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if wanted <= limit {
            return None;
        }
        let free = limit.saturating_sub(OTHER_FILES);
        let kept = kept.min(free / 2 / threads).max(1);
        let connections = free.saturating_sub(threads * kept).max(1);
        self.connections_per_thread = kept;
        self.server.max_connections = self.server.max_connections.min(connections);
        Some(format!(
            "this process may open {limit} files: env-node takes {} connections at once and keeps {kept} databases open per thread; for all that is set, allow it {wanted} (ulimit -n)",
            self.server.max_connections
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_is_shared_and_told() {
        for (limit, connections, kept) in [
            (1 << 20, 8_192, 160),
            // 64 and 4 threads of 30 databases are others'.
            (8_376, 8_192, 160),
            (1_024, 840, 30),
            (200, 68, 17),
            (64, 1, 1),
            (0, 1, 1),
        ] {
            let mut config = EnvConfig {
                sql_threads: 2,
                ..EnvConfig::default()
            };
            let told = config.fit_open_files(limit, 30);
            let fitted = (config.server.max_connections, config.connections_per_thread);
            assert_eq!(fitted, (connections, kept), "{limit}");
            assert_eq!(told.is_none(), limit >= 8_376, "{told:?}");
            assert!(told.is_none_or(|told| told.contains("allow it 8376 (ulimit -n)")));
        }
    }
}
