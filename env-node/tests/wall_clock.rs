//! The wall clock: a fault of the machine at first, an answer only when the same step hits it again.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixture, dataset, step_request};
use env_node::{EnvConfig, EnvNode, SqlLimits};
use proto::{
    EnvClient, Transport,
    v1::{StepRequest, StepResponse},
};
use tonic::{Code, Status};

/// A hundred million rows: no machine counts them in time.
const HEAVY: &str = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e";

fn config() -> EnvConfig {
    EnvConfig {
        sql: SqlLimits {
            work_units: u64::MAX,
            wall_clock_seconds: 0.02,
            ..SqlLimits::default()
        },
        ..EnvConfig::default()
    }
}

async fn step(fixture: &Fixture, request: StepRequest) -> Result<StepResponse, Status> {
    let reply = fixture.client.clone().step(request).await?;
    Ok(reply.into_inner())
}

#[tokio::test]
async fn a_step_is_refused_once_and_then_answered() {
    let fixture = Fixture::new(config());
    for question in ["cars-1", "cars-2"] {
        // Each step gets its retry, also where another one had the same SQL.
        let token = fixture.reset(question, "default").await.token;
        let request = step_request(&token, "QUERY", HEAVY);
        let status = step(&fixture, request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(
            status.message().contains("0.02 s") && status.message().contains("retry"),
            "{status}"
        );
        for _ in 0..2 {
            let observation = step(&fixture, request.clone()).await.unwrap().observation;
            let observation = observation.unwrap();
            assert_eq!(
                observation.error,
                "SQL error: query stopped after 0.02 s; make it simpler"
            );
            assert_eq!(observation.step_count, 1);
        }
    }
}

#[tokio::test]
async fn gold_sql_that_hits_it_is_never_taken_for_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let mut dataset = dataset(folder.path());
    for question in &mut dataset.questions {
        HEAVY.clone_into(&mut question.gold_sql);
    }
    let node = EnvNode::open(dataset, config()).unwrap();
    let client = EnvClient::new(Transport::in_process(node.service()));
    let fixture = Fixture {
        folder,
        node,
        client,
    };
    // Light queries, and an answer that needs the gold rows.
    let token = fixture.reset("cars-2", "default").await.token;
    for (action_type, argument) in [("QUERY", "SELECT 1"), ("ANSWER", "Italy")] {
        for _ in 0..3 {
            let request = step_request(&token, action_type, argument);
            let status = step(&fixture, request).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(
                status
                    .message()
                    .contains("the gold SQL of question \"cars-2\""),
                "{status}"
            );
        }
    }
}
