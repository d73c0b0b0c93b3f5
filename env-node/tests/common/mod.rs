//! A small dataset made on the spot, and a client for it.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::{collections::BTreeMap, path::Path};

use data::{AnswerType, DatabaseFile, Dataset, Question};
use env::{EnvSettings, Environment};
use env_node::{EnvNode, EnvNodeSettings};
use proto::{
    EnvClient, Transport,
    v1::{Action, ResetRequest, ResetResponse, StepRequest, StepResponse},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Forty cars of five makers, with a view, odd names, NULLs, reals, a blob and non-ASCII text.
const CARS: &str = "
    CREATE TABLE makers (Id INTEGER PRIMARY KEY, Name TEXT NOT NULL, Country TEXT);
    INSERT INTO makers VALUES (1,'Audi','Germany'),(2,'Citroën','France'),(3,'Fiat','Italy'),(4,'Lada',NULL),(5,'O''Hara | Sons','Ireland');
    CREATE TABLE Cars (Id INTEGER PRIMARY KEY, Maker INTEGER REFERENCES makers(Id), Horsepower TEXT, Accelerate REAL, Year INTEGER);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
    INSERT INTO Cars SELECT i, 1 + i % 5, CASE WHEN i % 9 = 0 THEN NULL ELSE 60 + i END, 10 + i * 0.25, 1970 + i % 13 FROM n;
    CREATE VIEW fast AS SELECT Id, Accelerate FROM Cars WHERE Accelerate < 12;
    CREATE TABLE \"odd \"\"name\" (\"a b\" NUMERIC, untyped, data BLOB, at TEXT DEFAULT CURRENT_TIMESTAMP);
    INSERT INTO \"odd \"\"name\" VALUES (1, 1e20, x'00ff', 'noon'), (0.1, -5, NULL, NULL);
";

/// A node on the small dataset, the client, and the folder, which lives as long as this.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) node: EnvNode,
    pub(crate) client: EnvClient,
}

impl Fixture {
    pub(crate) fn new(settings: EnvSettings) -> Self {
        Self::with(settings, EnvNodeSettings::default())
    }

    pub(crate) fn with(env: EnvSettings, env_node: EnvNodeSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = node(dataset(folder.path()), env, env_node);
        let client = EnvClient::new(Transport::in_process(node.service()));
        Self {
            folder,
            node,
            client,
        }
    }

    pub(crate) async fn reset(&self, question_id: &str, profile: &str) -> ResetResponse {
        let request = ResetRequest {
            question_id: question_id.to_owned(),
            reward_profile: profile.to_owned(),
            ..ResetRequest::default()
        };
        self.client
            .clone()
            .reset(request)
            .await
            .unwrap()
            .into_inner()
    }

    pub(crate) async fn step(
        &self,
        token: &[u8],
        action_type: &str,
        argument: &str,
    ) -> StepResponse {
        let request = step_request(token, action_type, argument);
        self.client
            .clone()
            .step(request)
            .await
            .unwrap()
            .into_inner()
    }

    /// Plays actions from Reset on and returns every reply.
    pub(crate) async fn play(
        &self,
        question_id: &str,
        profile: &str,
        actions: &[(&str, &str)],
    ) -> Vec<StepResponse> {
        let mut token = self.reset(question_id, profile).await.token;
        let mut replies = Vec::new();
        for (action_type, argument) in actions {
            let reply = self.step(&token, action_type, argument).await;
            token.clone_from(&reply.token);
            replies.push(reply);
        }
        replies
    }

    /// The observation of one QUERY in a fresh episode: result and error.
    pub(crate) async fn query(&self, sql: &str) -> (String, String) {
        let reply = self
            .play("cars-1", "default", &[("QUERY", sql)])
            .await
            .remove(0);
        let observation = reply.observation.unwrap();
        (observation.result, observation.error)
    }
}

pub(crate) fn step_request(token: &[u8], action_type: &str, argument: &str) -> StepRequest {
    StepRequest {
        token: token.to_vec(),
        action: Some(Action {
            action_type: action_type.to_owned(),
            argument: argument.to_owned(),
        }),
    }
}

pub(crate) fn rewards(replies: &[StepResponse]) -> Vec<f64> {
    replies
        .iter()
        .map(|reply| reply.observation.as_ref().unwrap().reward.unwrap())
        .collect()
}

/// A node on `dataset`.
pub(crate) fn node(dataset: Dataset, env: EnvSettings, env_node: EnvNodeSettings) -> EnvNode {
    EnvNode::new(Environment::open(dataset, env).unwrap(), env_node).unwrap()
}

/// Writes the database into `folder`.
pub(crate) fn dataset(folder: &Path) -> Dataset {
    let path = folder.join("cars.sqlite");
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(CARS)
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let database = DatabaseFile {
        name: "cars".to_owned(),
        path,
        sha256: hex::encode(Sha256::digest(&bytes)),
        size_bytes: bytes.len() as u64,
    };
    let question =
        |id: &str, split: &str, text: &str, sql: &str, answer_type, answer: Value| Question {
            question_id: id.to_owned(),
            question_text: text.to_owned(),
            database_name: "cars".to_owned(),
            gold_sql: sql.to_owned(),
            gold_answer: answer,
            answer_type,
            difficulty: "level-1".to_owned(),
            tables_involved: vec!["Cars".to_owned()],
            split: split.to_owned(),
        };
    Dataset {
        name: "cars".to_owned(),
        questions: vec![
            question(
                "cars-1",
                "train",
                "How many cars are there?",
                "SELECT count(*) FROM Cars",
                AnswerType::Integer,
                json!(40),
            ),
            question(
                "cars-2",
                "train",
                "Which countries have makers?",
                "SELECT Country FROM makers WHERE Country IS NOT NULL",
                AnswerType::List,
                json!(["Germany", "France", "Italy", "Ireland"]),
            ),
            question(
                "cars-3",
                "eval-unseen/domain",
                "How many cars has each maker?",
                "SELECT Maker, count(*) FROM Cars GROUP BY Maker",
                AnswerType::Table,
                json!([[1, 8], [2, 8], [3, 8], [4, 8], [5, 8]]),
            ),
        ],
        databases: BTreeMap::from([("cars".to_owned(), database)]),
        left_out: Vec::new(),
    }
}
