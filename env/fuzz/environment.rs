//! An environment on a small database, for the fuzz targets: one a thread, opened at the first
//! input.

#[path = "../tests/common/dataset.rs"]
mod dataset;

use env::{Action, EnvSettings, Environment, EpisodeSpec, Observation, SqlLimits, StepResult};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// The time of every call.
const NOW: u64 = 0;

/// An environment, and the token of an episode that has just begun.
pub struct Fixture {
    environment: Environment,
    runtime: Runtime,
    /// The token after Reset.
    pub token: Vec<u8>,
    _folder: TempDir,
}

impl Fixture {
    /// Opens an environment whose statements end after a few milliseconds.
    pub fn open() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = EnvSettings {
            sql: SqlLimits {
                work_units: 200_000,
                memory_bytes: 4 << 20,
                wall_clock_seconds: 60.0,
                ..SqlLimits::default()
            },
            sql_threads: 1,
            ..EnvSettings::default()
        };
        let dataset = dataset::dataset(folder.path());
        let environment = Environment::open(dataset, settings).expect("an environment");
        let reset = environment.reset(EpisodeSpec::default(), NOW);
        Self {
            token: reset.expect("an episode").token,
            environment,
            runtime: Builder::new_current_thread().build().expect("a runtime"),
            _folder: folder,
        }
    }

    /// One step; `None` where the call is refused.
    pub fn step(&self, token: &[u8], action_type: &str, argument: &str) -> Option<StepResult> {
        let action = Action {
            action_type: action_type.to_owned(),
            argument: argument.to_owned(),
        };
        let step = self.environment.step(token.to_vec(), &action, NOW);
        self.runtime.block_on(step).ok()
    }

    /// The observation of one QUERY in a fresh episode.
    pub fn query(&self, sql: &str) -> Observation {
        self.step(&self.token, "QUERY", sql)
            .expect("a query is answered, whatever it says")
            .observation
    }
}
