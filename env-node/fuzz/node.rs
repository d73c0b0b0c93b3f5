//! A node on a small database, for the fuzz targets: one a thread, opened at the first input.

use std::collections::BTreeMap;

use data::{AnswerType, DatabaseFile, Dataset, Question};
use env_node::{EnvConfig, EnvNode, SqlLimits};
use proto::{
    EnvClient, Transport,
    v1::{Action, Observation, ResetRequest, StepRequest, StepResponse},
};
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

/// A node, its client, and the token of an episode that has just begun.
pub struct Fixture {
    client: EnvClient,
    runtime: Runtime,
    /// The token after Reset.
    pub token: Vec<u8>,
    _folder: TempDir,
}

impl Fixture {
    /// Opens a node whose statements end after a few milliseconds.
    pub fn open() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = EnvConfig {
            sql: SqlLimits {
                work_units: 200_000,
                memory_bytes: 4 << 20,
                wall_clock_seconds: 60.0,
                ..SqlLimits::default()
            },
            sql_threads: 1,
            ..EnvConfig::default()
        };
        let node = EnvNode::open(dataset(&folder), config).expect("a node");
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let mut client = EnvClient::new(Transport::in_process(node.service()));
        let reset = runtime.block_on(client.reset(ResetRequest::default()));
        Self {
            token: reset.expect("an episode").into_inner().token,
            client,
            runtime,
            _folder: folder,
        }
    }

    /// One step; `None` where the call is refused.
    pub fn step(&self, token: &[u8], action_type: &str, argument: &str) -> Option<StepResponse> {
        let request = StepRequest {
            token: token.to_vec(),
            action: Some(Action {
                action_type: action_type.to_owned(),
                argument: argument.to_owned(),
            }),
        };
        let reply = self.runtime.block_on(self.client.clone().step(request));
        reply.ok().map(|reply| reply.into_inner())
    }

    /// The observation of one QUERY in a fresh episode.
    pub fn query(&self, sql: &str) -> Observation {
        let reply = self.step(&self.token, "QUERY", sql);
        reply
            .and_then(|reply| reply.observation)
            .expect("a query is answered, whatever it says")
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
