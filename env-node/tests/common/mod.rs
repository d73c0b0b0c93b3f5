//! Creates a small dataset and a client for it.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test file uses a part")]

#[path = "../../../env/tests/common/dataset.rs"]
mod dataset;
#[path = "../../../proto/tests/support/http2.rs"]
pub(crate) mod http2;
pub(crate) mod served;

use std::path::Path;

use data::Dataset;
pub(crate) use dataset::dataset;
use env::{EnvSettings, Environment};
use env_node::{EnvNode, EnvNodeSettings};
use proto::{
    EnvClient, Transport,
    v1::{Action, ResetRequest, ResetResponse, StepRequest, StepResponse},
};
use tempfile::TempDir;

/// A query that only a limit ends.
pub(crate) const ENDLESS: &str =
    "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e, Cars f";

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
        Self::of(dataset, env, env_node)
    }

    /// A node on the dataset that `dataset` makes in a new folder.
    pub(crate) fn of(
        dataset: fn(&Path) -> Dataset,
        env: EnvSettings,
        env_node: EnvNodeSettings,
    ) -> Self {
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

    /// Begins so many queries, each of which runs until the wall clock ends it.
    pub(crate) async fn occupy_sql(&self, queries: usize) {
        let token = self.reset("cars-1", "").await.token;
        for _ in 0..queries {
            let query = step_request(&token, "QUERY", ENDLESS);
            let mut client = self.client.clone();
            tokio::spawn(async move { client.step(query).await });
        }
        tokio::task::yield_now().await;
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
