//! Settings of the environment.
//!
//! Invariant: the defaults can be used as they are. Whatever changes what an agent can see is part
//! of the environment version (see [`EnvSettings::environment_version`]), so that nodes with
//! different rules refuse each other's tokens.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    thread,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use smart_default::SmartDefault;

use crate::{error::EnvError, reward::RewardProfile, rows::ResultLimits};

/// Version of the rules in this crate's code. It is raised when the same actions get other answers.
const RULES_VERSION: &str = "8";
/// Largest step budget that a caller may ask for.
pub(crate) const MAX_STEP_BUDGET: u32 = 1_000;
/// The statements that read a schema are shorter.
const MIN_STATEMENT_BYTES: u32 = 1_000;
/// Most threads of a lane of the pool. More would be no faster, and cannot all be started.
const MAX_SQL_THREADS: usize = 1_024;
/// Shortest HMAC key that is accepted.
const MIN_SIGNING_KEY_BYTES: usize = 32;

/// Settings of the environment; every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSettings {
    /// Default number of actions per episode, which a caller may change; 1 to 1,000.
    #[default(15)]
    pub step_budget: u32,
    /// Default reward profile, which a caller may change.
    #[default(RewardProfile::Default)]
    pub reward_profile: RewardProfile,
    /// Penalty for each action after the end of an episode. `SQLEnv`'s adapter takes 0.1.
    pub post_episode_penalty: f64,
    /// Whether the rows of an answered table must have the order of the gold rows, where the gold
    /// SQL has an `ORDER BY` that is not in parentheses. Otherwise tables of up to 1,000 rows are
    /// right in any order, as lists always are.
    pub ordered_tables: bool,
    /// Bytes of an action's argument. A longer one is an error observation. This bounds answers;
    /// `sql.statement_bytes` bounds SQL.
    #[default(1 << 20)]
    pub argument_bytes: usize,
    /// Threads that run SQL; 0: one per core. As many more threads run the few long statements.
    pub sql_threads: usize,
    /// Queries that may wait for a thread. Further ones are refused with `RESOURCE_EXHAUSTED`, and
    /// also those that would wait for more than a minute if statements take as long as the last
    /// ones did.
    #[default(4_096)]
    pub sql_queue: usize,
    /// Databases that a thread keeps open. SQLite caches up to 2 MiB of each.
    #[default(160)]
    pub connections_per_thread: usize,
    /// Limits of one query.
    pub sql: SqlLimits,
    /// Limits of one observation.
    pub result: ResultLimits,
    /// Seconds from Reset until a token expires, at least 1.
    #[default(24 * 3_600)]
    pub token_ttl_seconds: u64,
    /// Key that signs tokens, at least 32 bytes; all nodes that share episodes need the same key.
    /// Without a key and a key file the key is random, and tokens end with the process. It is never
    /// written out. On a command line other users of the machine can read it; `signing_key_file`
    /// prevents that.
    #[serde(skip_serializing)]
    pub signing_key: Option<SigningKey>,
    /// File that holds the key, in place of `signing_key`. White space around the key is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_key_file: Option<PathBuf>,
}

/// Limits of one query.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct SqlLimits {
    /// Work units: steps of SQLite's virtual machine, plus one for each 64 bytes that a function
    /// reads, writes or compares, and 16 for each page of a large table that `count(*)` counts.
    /// This is a timeout that is the same on every machine.
    #[default(20_000_000)]
    pub work_units: u64,
    /// Bytes of memory that SQLite may hold for the query, rows that were read included. A
    /// sixteenth of them is for compiling it.
    #[default(32 << 20)]
    pub memory_bytes: u64,
    /// Seconds that the query may take, as a backstop for work that the units do not count. The
    /// first time that a step runs into it, the call fails with `UNAVAILABLE`. Less than half of
    /// `env_node.server.max_call_seconds`.
    #[default(2.0)]
    pub wall_clock_seconds: f64,
    /// Bytes of one string, blob or row. A database with longer rows raises it to its longest row.
    #[default(16 << 10)]
    pub value_bytes: u32,
    /// Bytes of the statement.
    #[default(16 << 10)]
    pub statement_bytes: u32,
    /// Rows read from a result. Progress compares as many.
    #[default(200)]
    pub rows: usize,
    /// Whether a query may read SQLite's schema table, `sqlite_schema`. It shows all tables at
    /// once, while DESCRIBE costs an action for each.
    pub allow_schema_tables: bool,
}

/// A secret. `Debug` does not show it.
#[derive(Clone, Deserialize, JsonSchema)]
#[schemars(with = "String")]
pub struct SigningKey(String);

impl From<String> for SigningKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl SigningKey {
    fn read(path: &Path) -> Result<Self, EnvError> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self(text.trim().to_owned())),
            Err(error) => Err(setting_error(
                "signing_key_file",
                format!(
                    "{} cannot be read: {error}; give a text file that this process may read",
                    path.display()
                ),
            )),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(secret)")
    }
}

impl EnvSettings {
    /// Names the rules of an episode: the version of the code and a digest of the settings that
    /// change what an agent can see.
    pub fn environment_version(&self) -> String {
        let mut visible = serde_json::json!({
            "post_episode_penalty": self.post_episode_penalty,
            "argument_bytes": self.argument_bytes,
            "sql": self.sql,
            "result": self.result,
        });
        // The default's digest is that of versions without this setting.
        if self.ordered_tables {
            visible["ordered_tables"] = true.into();
        }
        let digest = Sha256::digest(visible.to_string());
        format!("{RULES_VERSION}-{}", hex::encode(&digest[..4]))
    }

    /// Returns the threads of each lane of the pool.
    pub fn threads_per_lane(&self) -> usize {
        match self.sql_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            count => count,
        }
    }

    /// Checks ranges, as [`Environment::open`](crate::Environment::open) does.
    ///
    /// # Errors
    /// [`EnvError::Setting`].
    pub fn validate(&self) -> Result<(), EnvError> {
        let refuse = |field, remedy: &str| Err(setting_error(field, remedy));
        if !(1..=MAX_STEP_BUDGET).contains(&self.step_budget) {
            return refuse("step_budget", "give 1 to 1000");
        }
        if !(0.0..=1.0).contains(&self.post_episode_penalty) {
            return refuse("post_episode_penalty", "give a number from 0 to 1");
        }
        if self.token_ttl_seconds == 0 {
            return refuse("token_ttl_seconds", "give 1 or more");
        }
        let wall_clock = self.sql.wall_clock_seconds;
        if !(wall_clock > 0.0 && wall_clock <= 3_600.0) {
            return refuse(
                "sql.wall_clock_seconds",
                "give more than 0 and at most 3600",
            );
        }
        if self.sql.work_units == 0 {
            return refuse("sql.work_units", "give 1 or more");
        }
        if self.sql.statement_bytes < MIN_STATEMENT_BYTES {
            return refuse("sql.statement_bytes", "give 1000 or more");
        }
        if self.sql_threads > MAX_SQL_THREADS {
            return refuse("sql_threads", "give 0 to 1024");
        }
        // The upper limits are above what a machine can use, and below what it cannot allocate.
        const GIB: usize = 1 << 30;
        for (field, value, most) in [
            ("argument_bytes", self.argument_bytes, GIB),
            ("sql_queue", self.sql_queue, 1 << 20),
            (
                "connections_per_thread",
                self.connections_per_thread,
                1 << 16,
            ),
            ("sql.rows", self.sql.rows, 1 << 24),
            ("result.rows", self.result.rows, 1 << 24),
            ("result.cell_bytes", self.result.cell_bytes, GIB),
            ("result.row_bytes", self.result.row_bytes, GIB),
            ("result.result_bytes", self.result.result_bytes, GIB),
        ] {
            if !(1..=most).contains(&value) {
                return refuse(field, &format!("give 1 to {most}"));
            }
        }
        if self.sql.rows <= self.result.rows {
            return refuse("sql.rows", "give more than result.rows");
        }
        Ok(())
    }

    /// Returns the key that nodes share, from the setting or the file; `None` if neither is
    /// given.
    pub(crate) fn shared_key(&self) -> Result<Option<SigningKey>, EnvError> {
        let (field, key) = match (&self.signing_key, &self.signing_key_file) {
            (None, None) => return Ok(None),
            (Some(key), None) => ("signing_key", key.clone()),
            (None, Some(path)) => ("signing_key_file", SigningKey::read(path)?),
            (Some(_), Some(_)) => {
                let remedy = "signing_key is given too; give one of them";
                return Err(setting_error("signing_key_file", remedy));
            }
        };
        match key.as_bytes().len() {
            MIN_SIGNING_KEY_BYTES.. => Ok(Some(key)),
            bytes => Err(setting_error(
                field,
                format!("the key has {bytes} bytes; give at least 32, or none for a random key"),
            )),
        }
    }
}

fn setting_error(field: &'static str, remedy: impl Into<String>) -> EnvError {
    EnvError::Setting {
        field,
        remedy: remedy.into(),
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

    /// Tokens of earlier builds stay valid: the same rules keep their name.
    #[test]
    fn the_version_of_the_default_rules_is_stable() {
        let version = EnvSettings::default().environment_version();
        assert_eq!(version, "8-d0ca1fd2");
        let ordered = EnvSettings {
            ordered_tables: true,
            ..EnvSettings::default()
        };
        assert_ne!(ordered.environment_version(), version);
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
        let config = EnvSettings {
            token_ttl_seconds: 0,
            ..EnvSettings::default()
        };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "environment setting token_ttl_seconds cannot be used: give 1 or more"
        );
        let unknown = serde_json::from_str::<EnvSettings>(r#"{"step_bugdet": 3}"#);
        assert!(unknown.unwrap_err().to_string().contains("step_bugdet"));
    }

    #[test]
    fn a_key_file_is_the_key_without_its_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
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
