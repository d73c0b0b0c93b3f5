//! Tests refusals over gRPC: code, reason, details.

use env::{EnvSettings, EpisodeSpec, SqlLimits};
use env_node::{EnvNodeSettings, ServerConfig};
use proto::{
    EnvClient,
    v1::{ErrorReason, InfoRequest, ListQuestionsRequest, ResetRequest, StepRequest},
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::{
    Served,
    common::{Fixture, step_request},
    raw,
};

const KEY: &str = "0123456789abcdef0123456789abcdef";

fn with_key(key: &str) -> EnvSettings {
    EnvSettings {
        signing_key: Some(key.to_owned().into()),
        ..EnvSettings::default()
    }
}

/// Returns the reason of a status, which must be one of the contract's.
fn reason(status: &Status) -> ErrorReason {
    let info = status.get_details_error_info().unwrap();
    assert_eq!(info.domain, "sqlenv");
    ErrorReason::from_str_name(&format!("ERROR_REASON_{}", info.reason)).unwrap()
}

async fn refused_step(client: &EnvClient, token: &[u8]) -> Status {
    let request = step_request(token, "QUERY", "SELECT 1");
    client.clone().step(request).await.unwrap_err()
}

#[tokio::test]
async fn a_token_of_another_node_is_refused_with_the_reason() {
    use Code::{FailedPrecondition, Unauthenticated};
    use ErrorReason::{TokenForeignKey, TokenForeignVersion, TokenForged, TokenMalformed};
    let served = Served::start(with_key(KEY)).await;
    let client = served.client();
    let token = served.fixture.reset("cars-1", "").await.token;
    let altered = |at: usize| {
        let mut token = token.clone();
        token[at] ^= 1;
        token
    };
    let foreign = |config| async { Fixture::new(config).reset("cars-1", "").await.token };
    let other_key = foreign(with_key("another key of at least thirty-two bytes")).await;
    let other_rules = foreign(EnvSettings {
        sql: SqlLimits {
            rows: 100,
            ..SqlLimits::default()
        },
        ..with_key(KEY)
    })
    .await;
    for (token, code, expected) in [
        (vec![], Unauthenticated, TokenMalformed),
        (token[..20].to_vec(), Unauthenticated, TokenMalformed),
        (
            token[..token.len() - 1].to_vec(),
            Unauthenticated,
            TokenForged,
        ),
        (altered(10), Unauthenticated, TokenForged),
        (altered(token.len() - 1), Unauthenticated, TokenForged),
        (vec![7; 200], Unauthenticated, TokenForeignKey),
        (other_key, Unauthenticated, TokenForeignKey),
        (other_rules, FailedPrecondition, TokenForeignVersion),
    ] {
        let status = refused_step(&client, &token).await;
        assert_eq!(
            (status.code(), reason(&status)),
            (code, expected),
            "{token:?}"
        );
        let precondition = status.get_details_precondition_failure();
        assert_eq!(
            precondition.is_some(),
            code == FailedPrecondition,
            "{token:?}"
        );
        assert!(status.get_details_retry_info().is_none(), "{token:?}");
    }
    served.assert_well().await;
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let served = Served::start(EnvSettings::default()).await;
    let spec = EpisodeSpec {
        question_id: "cars-1".to_owned(),
        ..EpisodeSpec::default()
    };
    // An episode of 1970.
    let reset = served.fixture.node.environment().reset(spec, 0).unwrap();
    let status = refused_step(&served.client(), &reset.token).await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(reason(&status), ErrorReason::TokenExpired);
    let failure = status.get_details_precondition_failure().unwrap();
    assert_eq!(failure.violations[0].r#type, "TOKEN_EXPIRED");
}

#[tokio::test]
async fn a_request_for_something_unknown_is_refused_with_its_name() {
    let served = Served::start(EnvSettings::default()).await;
    let mut client = served.client();
    for (request, kind, hint) in [
        (
            ResetRequest {
                question_id: "cars-9".to_owned(),
                ..ResetRequest::default()
            },
            "question",
            "ListQuestions",
        ),
        (
            ResetRequest {
                question_id: "x".repeat(100_000),
                ..ResetRequest::default()
            },
            "question",
            "xxx",
        ),
        (
            ResetRequest {
                split: "test".to_owned(),
                ..ResetRequest::default()
            },
            "split",
            "there are: eval-unseen, eval-unseen/domain, train",
        ),
    ] {
        let status = client.reset(request).await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status)),
            (Code::NotFound, ErrorReason::NotFound)
        );
        let resource = status.get_details_resource_info().unwrap();
        assert_eq!(resource.resource_type, kind);
        assert!(status.message().len() < 1_100, "{}", status.message().len());
        assert!(status.message().contains(hint), "{status}");
    }
}

/// A node that was started again may serve other data than the run of its caller.
#[tokio::test]
async fn a_reset_for_another_environment_is_refused() {
    let served = Served::start(EnvSettings::default()).await;
    let mut client = served.client();
    let info = client.info(InfoRequest {}).await.unwrap().into_inner();
    let expecting = |data_sha256: &str, environment_version: &str| ResetRequest {
        data_sha256: data_sha256.to_owned(),
        environment_version: environment_version.to_owned(),
        ..ResetRequest::default()
    };
    for request in [
        expecting("", ""),
        expecting(&info.data_sha256, ""),
        expecting(&info.data_sha256, &info.environment_version),
    ] {
        client.reset(request).await.unwrap();
    }
    for (request, own, remedy) in [
        (expecting("abc", ""), info.data_sha256.as_str(), "--data"),
        (
            expecting(&info.data_sha256, "abc"),
            info.environment_version.as_str(),
            "[env] settings",
        ),
    ] {
        let status = client.reset(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(reason(&status), ErrorReason::ForeignEnvironment);
        for part in [own, "abc", remedy] {
            assert!(status.message().contains(part), "{status}");
        }
    }
}

#[tokio::test]
async fn a_malformed_field_is_refused_with_its_name() {
    let served = Served::start(EnvSettings::default()).await;
    let mut client = served.client();
    for (request, field, hint) in [
        (
            ResetRequest {
                reward_profile: "none".to_owned(),
                ..ResetRequest::default()
            },
            "reward_profile",
            "sqlenv-f003",
        ),
        (
            ResetRequest {
                step_budget: 1_001,
                ..ResetRequest::default()
            },
            "step_budget",
            "give 1 to 1000",
        ),
        (
            ResetRequest {
                episode_id: "x".repeat(256),
                ..ResetRequest::default()
            },
            "episode_id",
            "at most 255",
        ),
    ] {
        let status = client.reset(request).await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status)),
            (Code::InvalidArgument, ErrorReason::InvalidField)
        );
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, field);
        assert!(status.message().contains(hint), "{status}");
    }
    let page = ListQuestionsRequest {
        page_token: "two".to_owned(),
        ..ListQuestionsRequest::default()
    };
    let status = client.list_questions(page).await.unwrap_err();
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations[0].field, "page_token");
}

/// It would cost the agent a step. An action with empty fields does: an agent may make one.
#[tokio::test]
async fn a_step_without_an_action_is_refused() {
    let served = Served::start(EnvSettings::default()).await;
    let token = served.fixture.reset("cars-1", "").await.token;
    let mut client = served.client();
    let none = StepRequest {
        token: token.clone(),
        action: None,
    };
    let status = client.step(none).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status)),
        (Code::InvalidArgument, ErrorReason::InvalidField)
    );
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations[0].field, "action");
    let empty = client.step(step_request(&token, "", "")).await.unwrap();
    let observation = empty.into_inner().observation.unwrap();
    assert!(
        observation.error.contains("Unknown action"),
        "{observation:?}"
    );
}

#[tokio::test]
async fn a_request_that_is_too_long_or_malformed_is_refused() {
    let env = EnvSettings {
        argument_bytes: 1_000,
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        server: ServerConfig {
            max_request_bytes: 3_000,
            ..ServerConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let served = Served::start_with(env, env_node).await;
    let token = served.fixture.reset("cars-1", "").await.token;
    let mut client = served.client();
    let long = |bytes: usize| step_request(&token, "ANSWER", &"x".repeat(bytes));
    let observed = client.step(long(2_000)).await.unwrap().into_inner();
    assert!(observed.observation.unwrap().error.contains("1000"));
    let status = client.step(long(4_000)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");

    // Over gRPC-Web, which needs no HTTP/2 frames: a message that cannot be decoded, an unknown
    // method and an unknown service.
    let call = |path: &'static str, body: &'static [u8]| async move {
        let head = [
            &format!("POST {path} HTTP/1.1"),
            "content-type: application/grpc-web",
        ];
        let response = raw::request(served.address, &head, body).await;
        (
            response.status,
            response.header("grpc-status").map(str::to_owned),
        )
    };
    for (path, body, status) in [
        ("/sqlenv.v1.Env/Step", &b"\0\0\0\0\x02\xff\xff"[..], "13"),
        ("/sqlenv.v1.Env/Jump", b"\0\0\0\0\0", "12"),
        ("/sqlenv.v2.Env/Step", b"\0\0\0\0\0", "12"),
    ] {
        assert_eq!(
            call(path, body).await,
            (200, Some(status.to_owned())),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_grpc_path_with_another_content_type_is_415() {
    let served = Served::start(EnvSettings::default()).await;
    let head = [
        "POST /sqlenv.v1.Env/Step HTTP/1.1",
        "content-type: application/json",
    ];
    let response = raw::request(served.address, &head, b"{}").await;
    assert_eq!(response.status, 415);
    assert!(
        response.json()["detail"]
            .as_str()
            .unwrap()
            .contains("application/grpc")
    );
}
