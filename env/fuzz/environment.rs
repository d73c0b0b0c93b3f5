//! An environment on a small database, for the fuzz targets: one a thread, opened at the first
//! input.

use std::collections::BTreeMap;

use data::{AnswerType, DatabaseFile, Dataset, Question};
use env::{Action, EnvSettings, Environment, EpisodeSpec, Observation, SqlLimits, StepResult};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

const TABLES: &str = "
    CREATE TABLE makers (Id INTEGER PRIMARY KEY, Name TEXT NOT NULL, Country TEXT);
    INSERT INTO makers VALUES (1,'Audi','Germany'),(2,'Citroën','France'),(3,'Fiat',NULL);
    CREATE TABLE cars (Id INTEGER PRIMARY KEY, Maker INTEGER, Power REAL, Note BLOB, At TEXT DEFAULT CURRENT_TIMESTAMP);
    INSERT INTO cars VALUES (1,1,60.5,x'00ff','noon'),(2,2,-1,NULL,NULL),(3,2,1e300,'a%b_c','é');
    CREATE INDEX by_maker ON cars (Maker);
    CREATE VIEW fast AS SELECT Id, Power FROM cars WHERE Power > 0;
";

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
        let environment = Environment::open(dataset(&folder), settings).expect("an environment");
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

fn dataset(folder: &TempDir) -> Dataset {
    let path = folder.path().join("cars.sqlite");
    rusqlite::Connection::open(&path)
        .and_then(|connection| connection.execute_batch(TABLES))
        .expect("a database");
    let bytes = std::fs::read(&path).expect("its file");
    let database = DatabaseFile {
        name: "cars".to_owned(),
        path,
        sha256: hex::encode(Sha256::digest(&bytes)),
        size_bytes: bytes.len() as u64,
    };
    let question = Question {
        question_id: "cars-1".to_owned(),
        question_text: "How many cars are there?".to_owned(),
        database_name: "cars".to_owned(),
        gold_sql: "SELECT count(*) FROM cars".to_owned(),
        gold_answer: 3.into(),
        answer_type: AnswerType::Integer,
        difficulty: "level-1".to_owned(),
        tables_involved: vec!["cars".to_owned()],
        split: "train".to_owned(),
    };
    Dataset {
        name: "cars".to_owned(),
        questions: vec![question],
        databases: BTreeMap::from([("cars".to_owned(), database)]),
        left_out: Vec::new(),
    }
}
