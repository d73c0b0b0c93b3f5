//! How many files a node holds open: one for each connection, one for each database that a thread
//! keeps.
//!
//! Invariant: a node that fits into its limit refuses connections by itself, at once, and can open
//! its databases. A node that runs into the limit can do neither. An environment within another
//! program, which takes no connections, fits its databases alone. The caller supplies the limit.

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

/// Lowers `connections_per_thread` until an environment of that many databases, which no server
/// shares the process with, opens no more than `limit` files. Returns what was lowered, and the
/// remedy, if it was.
pub fn fit_databases(env: &mut EnvSettings, limit: u64, databases: usize) -> Option<String> {
    let threads = LANES * env.threads_per_lane();
    let kept = env.connections_per_thread.min(databases);
    let wanted = OTHER_FILES + threads * kept;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if wanted <= limit {
        return None;
    }
    let kept = (limit.saturating_sub(OTHER_FILES) / threads).max(1);
    env.connections_per_thread = kept;
    Some(format!(
        "this process may open {limit} files: the environment keeps {kept} databases open per \
         thread; for all that is set, allow it {wanted} (ulimit -n)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_without_a_server_leaves_files_to_its_process() {
        // 64 files and those of 4 threads with 30 databases each.
        for (limit, kept) in [(184, 160), (183, 29), (64, 1), (0, 1)] {
            let mut env = EnvSettings {
                sql_threads: 2,
                ..EnvSettings::default()
            };
            let told = fit_databases(&mut env, limit, 30);
            assert_eq!(env.connections_per_thread, kept, "{limit}");
            assert_eq!(told.is_none(), limit >= 184, "{told:?}");
            assert!(told.is_none_or(|told| told.contains("allow it 184 (ulimit -n)")));
        }
    }

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
