//! Settings of an env-node.
//!
//! Invariant: a default config serves; whatever changes what an agent can see is part of the environment version (see
//! [`EnvSettings::environment_version`]), so that nodes of unlike rules refuse each other's tokens.

use std::{fmt, path::PathBuf, thread};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{error::EnvError, reward::RewardProfile};

/// Version of the rules in this crate's code; raised when the same actions would be answered otherwise.
const RULES_VERSION: &str = "3";
/// Actions an episode may have at most, whatever the caller asks for.
pub(crate) const MAX_STEP_BUDGET: u32 = 1_000;
/// An HMAC key shorter than this is refused.
const MIN_SIGNING_KEY_BYTES: usize = 32;

/// Settings of an env-node; every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSettings {
    /// Actions per episode where the caller asks for none; 1 to 1,000.
    pub step_budget: u32,
    /// Reward profile where the caller asks for none.
    pub reward_profile: RewardProfile,
    /// Taken from the reward of each action after the end of an episode; `SQLEnv`'s adapter takes 0.1.
    pub post_episode_penalty: f64,
    /// Bytes of an action's argument; a longer one is an error observation. Bounds answers; SQL has its own limit.
    pub argument_bytes: usize,
    /// Threads that run SQL; 0 means one per core. As many more run the few long statements.
    pub sql_threads: usize,
    /// Queries that may wait for a thread; more are refused with `RESOURCE_EXHAUSTED`.
    pub sql_queue: usize,
    /// Open databases kept per thread.
    pub connections_per_thread: usize,
    /// What one query may use.
    pub sql: SqlLimits,
    /// What one observation may show.
    pub result: ResultLimits,
    /// Seconds from Reset until a token expires.
    pub token_ttl_seconds: u64,
    /// Key that signs tokens, the same on all nodes that share episodes; at least 32 bytes. Absent, and no file either:
    /// random at start, so that tokens end with the process. Never written out. On a command line other users of the
    /// machine can read it; `signing_key_file` keeps it from them.
    #[serde(skip_serializing)]
    pub signing_key: Option<SigningKey>,
    /// File that holds the key, in place of `signing_key`; blanks and line ends around the key do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_key_file: Option<PathBuf>,
}

/// What one query may use.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SqlLimits {
    /// Steps of SQLite's virtual machine, and 64 bytes read, written or compared by a function for one step each: a
    /// time-out that is the same on every machine.
    pub work_units: u64,
    /// Bytes of memory that SQLite may hold for it, and those of the rows read.
    pub memory_bytes: u64,
    /// Backstop for work that the units do not see, in seconds; the first hit of a step fails the call, as `UNAVAILABLE`.
    pub wall_clock_seconds: f64,
    /// Bytes of one string, blob or row; a database with longer rows has its longest row's.
    pub value_bytes: u32,
    /// Bytes of the statement.
    pub statement_bytes: u32,
    /// Rows read from a result; progress compares that many.
    pub rows: usize,
    /// Whether it may read SQLite's schema table, `sqlite_schema`, which tells what DESCRIBE is for.
    pub allow_schema_tables: bool,
}

/// What one observation may show.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResultLimits {
    /// Rows of a QUERY.
    pub rows: usize,
    /// Bytes of one cell.
    pub cell_bytes: usize,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Bytes of all rows; the first row is always shown.
    pub result_bytes: usize,
}

/// A secret; it is not shown by `Debug`.
#[derive(Clone, Deserialize, JsonSchema)]
#[schemars(with = "String")]
pub struct SigningKey(String);

impl From<String> for SigningKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl SigningKey {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(secret)")
    }
}

impl Default for EnvSettings {
    fn default() -> Self {
        Self {
            step_budget: 15,
            reward_profile: RewardProfile::Default,
            post_episode_penalty: 0.0,
            argument_bytes: 1 << 20,
            sql_threads: 0,
            sql_queue: 4_096,
            connections_per_thread: 160,
            sql: SqlLimits::default(),
            result: ResultLimits::default(),
            token_ttl_seconds: 24 * 3_600,
            signing_key: None,
            signing_key_file: None,
        }
    }
}

impl Default for SqlLimits {
    fn default() -> Self {
        Self {
            work_units: 20_000_000,
            memory_bytes: 32 << 20,
            wall_clock_seconds: 2.0,
            value_bytes: 16 << 10,
            statement_bytes: 16 << 10,
            rows: 200,
            allow_schema_tables: false,
        }
    }
}

impl Default for ResultLimits {
    fn default() -> Self {
        Self {
            rows: 20,
            cell_bytes: 500,
            row_bytes: 4_000,
            result_bytes: 16_000,
        }
    }
}

impl EnvSettings {
    /// Names the rules an episode is played by: the code's version and a digest of the settings that agents can feel.
    pub fn environment_version(&self) -> String {
        let felt = serde_json::json!({
            "post_episode_penalty": self.post_episode_penalty,
            "argument_bytes": self.argument_bytes,
            "sql": self.sql,
            "result": self.result,
        });
        let digest = Sha256::digest(felt.to_string());
        format!("{RULES_VERSION}-{}", hex::encode(&digest[..4]))
    }

    /// Returns the threads of each lane of the pool.
    pub fn threads_per_lane(&self) -> usize {
        match self.sql_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            count => count,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), EnvError> {
        let refuse = |field, remedy: &str| {
            Err(EnvError::Config {
                field,
                remedy: remedy.to_owned(),
            })
        };
        if !(1..=MAX_STEP_BUDGET).contains(&self.step_budget) {
            return refuse("step_budget", "give 1 to 1000");
        }
        if !(0.0..=1.0).contains(&self.post_episode_penalty) {
            return refuse("post_episode_penalty", "give a number from 0 to 1");
        }
        let wall_clock = self.sql.wall_clock_seconds;
        if !(wall_clock > 0.0 && wall_clock <= 3_600.0) {
            return refuse(
                "sql.wall_clock_seconds",
                "give more than 0 and at most 3600",
            );
        }
        for (field, value) in [
            ("argument_bytes", self.argument_bytes),
            ("sql_queue", self.sql_queue),
            ("connections_per_thread", self.connections_per_thread),
            ("sql.rows", self.sql.rows),
            ("result.rows", self.result.rows),
            ("result.cell_bytes", self.result.cell_bytes),
            ("result.row_bytes", self.result.row_bytes),
            ("result.result_bytes", self.result.result_bytes),
        ] {
            if value == 0 {
                return refuse(field, "give at least 1");
            }
        }
        if self.sql.rows <= self.result.rows {
            return refuse("sql.rows", "give more than result.rows");
        }
        Ok(())
    }

    /// The key that nodes share, from the setting or the file; none where neither is given.
    pub(crate) fn shared_key(&self) -> Result<Option<SigningKey>, EnvError> {
        let refuse = |field, remedy: String| Err(EnvError::Config { field, remedy });
        let (field, key) = match (&self.signing_key, &self.signing_key_file) {
            (None, None) => return Ok(None),
            (Some(key), None) => ("signing_key", key.clone()),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => ("signing_key_file", SigningKey(text.trim().to_owned())),
                Err(error) => {
                    return refuse(
                        "signing_key_file",
                        format!(
                            "{} cannot be read: {error}; give a text file that this process may read",
                            path.display()
                        ),
                    );
                }
            },
            (Some(_), Some(_)) => {
                return refuse(
                    "signing_key_file",
                    "signing_key is given too; give one of them".to_owned(),
                );
            }
        };
        match key.as_bytes().len() {
            MIN_SIGNING_KEY_BYTES.. => Ok(Some(key)),
            bytes => refuse(
                field,
                format!("the key has {bytes} bytes; give at least 32, or none for a random key"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_neither_shown_nor_written() {
        let config = EnvSettings {
            signing_key: Some("0123456789abcdef0123456789abcdef".to_owned().into()),
            ..EnvSettings::default()
        };
        assert!(config.shared_key().unwrap().is_some());
        assert!(!format!("{config:?}").contains("abcdef"));
        let written = serde_json::to_string(&config).unwrap();
        assert!(!written.contains("abcdef"));
        let read: EnvSettings = serde_json::from_str(&written).unwrap();
        assert_eq!(read.environment_version(), config.environment_version());
    }

    #[test]
    fn bad_settings_are_named() {
        let config = EnvSettings {
            step_budget: 0,
            ..EnvSettings::default()
        };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "environment setting step_budget cannot be used: give 1 to 1000"
        );
        let unknown = serde_json::from_str::<EnvSettings>(r#"{"step_bugdet": 3}"#);
        assert!(unknown.unwrap_err().to_string().contains("step_bugdet"));
    }

    #[test]
    fn a_key_file_is_the_key_without_its_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            EnvSettings {
                signing_key_file: Some(path),
                ..EnvSettings::default()
            }
        };
        let key = "0123456789abcdef0123456789abcdef";
        let config = file("key", &format!("{key}\n"));
        let read = config.shared_key().unwrap().unwrap();
        assert_eq!(read.as_bytes(), key.as_bytes());
        assert!(EnvSettings::default().shared_key().unwrap().is_none());

        let both = EnvSettings {
            signing_key: Some(key.to_owned().into()),
            ..config
        };
        let absent = EnvSettings {
            signing_key_file: Some(folder.path().join("absent")),
            ..EnvSettings::default()
        };
        for (config, part) in [
            (both, "give one of them"),
            (absent, "absent cannot be read"),
            (file("short", "0123\n"), "has 4 bytes; give at least 32"),
        ] {
            let message = config.shared_key().unwrap_err().to_string();
            assert!(
                message.contains("signing_key_file") && message.contains(part),
                "{message}"
            );
        }
    }
}
