//! Tests who may call the learner: tokens, TLS, client certificates, and runs, over real ports.

use learner::LearnerServerConfig;
use proto::{
    Credentials, LearnerClient, RanksClient, TlsConfig, Transport,
    v1::{GroupClaim, JoinRequest, TrainRequest},
};
use tonic::{Code, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    authority::{Authority, write},
    common::{Client, group},
    served::Served,
};

const ACTOR_TOKEN: &str = "the token of all actors";
const RANK_TOKEN: &str = "the token of all ranks";

async fn join(address: &str, credentials: &Credentials) -> Result<(), Status> {
    let transport = Transport::dial_with(address, credentials).unwrap();
    let request = JoinRequest {
        actor_id: "a".to_owned(),
        identity: None,
    };
    LearnerClient::new(transport).join(request).await.map(drop)
}

/// Joins as a rank, with a message that the learner refuses after it has checked the token.
async fn join_as_rank(address: &str, credentials: &Credentials) -> Status {
    let transport = Transport::dial_with(address, credentials).unwrap();
    let messages = tokio_stream::iter([TrainRequest::default()]);
    let joined = RanksClient::new(transport).train(messages).await;
    joined.map(drop).unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_needs_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, token: &str| Some(write(folder.path(), name, token));
    let served = Served::with(LearnerServerConfig {
        actor_token_file: file("actors", &format!("{ACTOR_TOKEN}\n")),
        rank_token_file: file("ranks", RANK_TOKEN),
        ..LearnerServerConfig::default()
    })
    .await;
    let address = served.url("http");
    let showing = |token: &str| Credentials {
        bearer_token_file: file("shown", token),
        ..Credentials::default()
    };
    join(&address, &showing(ACTOR_TOKEN)).await.unwrap();
    for token in [None, Some(RANK_TOKEN), Some(&ACTOR_TOKEN[1..])] {
        let credentials = token.map_or_else(Credentials::default, showing);
        let status = join(&address, &credentials).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(
            status.message().contains("--learner-token-file"),
            "{status}"
        );
    }
    let admitted = join_as_rank(&address, &showing(RANK_TOKEN)).await;
    assert_eq!(admitted.code(), Code::InvalidArgument, "{admitted}");
    for credentials in [Credentials::default(), showing(ACTOR_TOKEN)] {
        let refused = join_as_rank(&address, &credentials).await;
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    }
    let health = HealthCheckRequest::default();
    let mut client = HealthClient::new(served.transport());
    client.check(health).await.unwrap();
}

/// Returns the settings of a server with TLS.
fn with_tls(tls: TlsConfig) -> LearnerServerConfig {
    LearnerServerConfig {
        tls: Some(tls),
        ..LearnerServerConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_serves_clients_that_trust_its_authority() {
    let authority = Authority::new();
    let served = Served::with(with_tls(authority.tls(None))).await;
    let (https, http) = (served.url("https"), served.url("http"));
    join(&https, &authority.trusted()).await.unwrap();
    let stranger = Authority::new();
    join(&https, &stranger.trusted()).await.unwrap_err();
    join(&http, &Credentials::default()).await.unwrap_err();
    // A peer that never finishes its handshake does not delay others.
    let silent = tokio::net::TcpStream::connect(served.address).await;
    let _silent = silent.unwrap();
    join(&https, &authority.trusted()).await.unwrap();

    let expired = Served::with(with_tls(authority.expired_tls())).await;
    let status = join(&expired.url("https"), &authority.trusted()).await;
    let text = proto::status_text(&status.unwrap_err());
    assert!(text.contains("xpired"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls_serves_clients_of_its_authority() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let served = Served::with(with_tls(servers.tls(Some(clients.file())))).await;
    let address = served.url("https");
    let showing = |certificate_and_key_files| Credentials {
        certificate_and_key_files,
        ..servers.trusted()
    };
    let actor = showing(Some(clients.sign("actor")));
    join(&address, &actor).await.unwrap();
    let rank = showing(Some(clients.sign("rank")));
    let admitted = join_as_rank(&address, &rank).await;
    assert_eq!(admitted.code(), Code::InvalidArgument, "{admitted}");
    for refused in [
        None,
        Some(Authority::new().sign("stranger")),
        Some(clients.sign_expired("former")),
    ] {
        let refused = showing(refused);
        join(&address, &refused).await.unwrap_err();
        let status = join_as_rank(&address, &refused).await;
        assert_ne!(status.code(), Code::InvalidArgument, "{status}");
    }
    join(&address, &actor).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_another_run_are_refused() {
    let served = Served::start().await;
    let claim = GroupClaim {
        group_size: 4,
        ..GroupClaim::default()
    };
    for run_id in ["", "another"] {
        let mut client = Client {
            run_id: run_id.to_owned(),
            ..served.client("a")
        };
        let claimed = client.claim(0).await.unwrap_err();
        let streamed = client.weights(None).await.unwrap_err();
        let submitted = client.submit(&claim, group(&claim, 0)).await.unwrap_err();
        for status in [claimed, streamed, submitted] {
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(
                status.message().contains(served.learner.run_id()),
                "{status}"
            );
        }
    }
    served.client("a").claim_group().await;
}
