//! How many files a node holds open: one for each connection, one for each database that a thread
//! keeps.
//!
//! Invariant: a node that fits into its limit refuses connections by itself, at once, and can open
//! its databases. A node that runs into the limit can do neither. The caller supplies the limit.

use env::EnvSettings;

use crate::serve::config::ServerConfig;

/// Standard streams, the runtime's own, the admin port, files that are read again.
const OTHER_FILES: usize = 64;
/// The SQL threads form two lanes.
const LANES: usize = 2;

/// Lowers `max_connections`, and `connections_per_thread` where databases would take more than
/// half, until a node of that many databases opens no more than `limit` files. Returns what was
/// lowered, and the remedy, if anything was.
pub fn fit_open_files(
    env: &mut EnvSettings,
    server: &mut ServerConfig,
    limit: u64,
    databases: usize,
) -> Option<String> {
    let threads = LANES * env.threads_per_lane();
    let kept = env.connections_per_thread.min(databases);
    let wanted = OTHER_FILES + threads * kept + server.max_connections;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if wanted <= limit {
        return None;
    }
    let free = limit.saturating_sub(OTHER_FILES);
    let kept = kept.min(free / 2 / threads).max(1);
    let connections = free.saturating_sub(threads * kept).max(1);
    env.connections_per_thread = kept;
    server.max_connections = server.max_connections.min(connections);
    Some(format!(
        "this process may open {limit} files: env-node takes {} connections at once and keeps \
         {kept} databases open per thread; for all that is set, allow it {wanted} (ulimit -n)",
        server.max_connections
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_is_shared_and_told() {
        for (limit, connections, kept) in [
            (1 << 20, 8_192, 160),
            // 64 files and those of 4 threads with 30 databases each are not for connections.
            (8_376, 8_192, 160),
            (1_024, 840, 30),
            (200, 68, 17),
            (64, 1, 1),
            (0, 1, 1),
        ] {
            let mut env = EnvSettings {
                sql_threads: 2,
                ..EnvSettings::default()
            };
            let mut server = ServerConfig::default();
            let told = fit_open_files(&mut env, &mut server, limit, 30);
            let fitted = (server.max_connections, env.connections_per_thread);
            assert_eq!(fitted, (connections, kept), "{limit}");
            assert_eq!(told.is_none(), limit >= 8_376, "{told:?}");
            assert!(told.is_none_or(|told| told.contains("allow it 8376 (ulimit -n)")));
        }
    }
}
