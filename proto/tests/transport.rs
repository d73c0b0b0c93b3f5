//! One client type and three transports: responses, status codes and size limits are the same in
//! process, over TCP and with a list of addresses.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

#[path = "support/servers.rs"]
mod servers;

use std::sync::atomic::Ordering;

use proto::{
    EnvClient, MAX_MESSAGE_BYTES, Transport, env_client,
    v1::{ListQuestionsRequest, ResetRequest, StepRequest},
};
use servers::{LONG, nobody, serve, serve_counted, server};
use tonic::Code;

/// Returns a transport within the process, one over TCP, and one over two addresses of which the
/// first refuses connections.
async fn all() -> [Transport; 3] {
    let address = serve().await;
    let list = format!("{},{}", nobody().await, address);
    [
        Transport::in_process(server()),
        Transport::dial(&address).unwrap(),
        Transport::dial(&list).unwrap(),
    ]
}

#[tokio::test]
async fn responses_are_the_same() {
    for transport in all().await {
        let request = ResetRequest {
            question_id: "shop_train_0001".into(),
            ..ResetRequest::default()
        };
        let reply = EnvClient::new(transport).reset(request).await.unwrap();
        assert_eq!(reply.into_inner().token, b"shop_train_0001");
    }
}

#[tokio::test]
async fn refusals_are_the_same() {
    for transport in all().await {
        let status = EnvClient::new(transport)
            .step(StepRequest::default())
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unauthenticated, "forged token")
        );
    }
}

#[tokio::test]
async fn size_limits_are_the_same() {
    for transport in all().await {
        let request = ResetRequest {
            question_id: "x".repeat(2 << 10),
            ..ResetRequest::default()
        };
        let status = EnvClient::new(transport).reset(request).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
    }
}

#[tokio::test]
async fn a_long_page_of_questions_is_read() {
    for transport in all().await {
        let request = ListQuestionsRequest::default();
        let page = env_client(transport).list_questions(request).await.unwrap();
        assert_eq!(page.into_inner().questions[0].question_text.len(), LONG);
    }
}

/// The text of the question alone is as long as a message may be.
#[tokio::test]
async fn a_response_that_is_too_long_is_refused_and_no_other_server_is_asked() {
    let request = ListQuestionsRequest {
        page_size: MAX_MESSAGE_BYTES as u32,
        ..ListQuestionsRequest::default()
    };
    for transport in all().await {
        let mut client = env_client(transport);
        let status = client.list_questions(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
    }
    let (one, calls) = serve_counted(None).await;
    let (other, more_calls) = serve_counted(None).await;
    let mut client = env_client(Transport::dial(&format!("{one},{other}")).unwrap());
    let status = client.list_questions(request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let made = [calls, more_calls].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(made, [1, 0]);
}

#[tokio::test]
async fn an_address_names_a_host_by_http() {
    for address in [
        "http://localhost:9",
        "http://[::1]:9/",
        "http://env.example",
        "http://localhost:9,http://localhost:10",
        "http://localhost:9, http://localhost:10",
    ] {
        assert!(Transport::dial(address).is_ok(), "{address}");
    }
    for (address, reason) in [
        ("not a uri", "invalid uri"),
        ("", "empty"),
        ("localhost", "no scheme"),
        ("localhost:9", "no scheme"),
        ("127.0.0.1:9", "no scheme"),
        ("/run/env.sock", "no scheme"),
        ("ftp://localhost:9", "its scheme is ftp"),
        ("http://:9", "no host"),
        ("http://localhost:99999", "its port"),
        ("http://localhost:9/web", "a path"),
        ("http://localhost:9?x=1", "a query"),
        ("http://localhost:9/#/play", "a fragment"),
    ] {
        let message = Transport::dial(address).unwrap_err().to_string();
        assert!(
            message.contains(&format!("{address:?}")) && message.contains(reason),
            "{message}"
        );
        assert!(
            message.ends_with("give it as http://HOST:PORT or https://HOST:PORT"),
            "{message}"
        );
    }
    let message = Transport::dial("http://localhost:9,localhost")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains(r#"address "localhost": it has no scheme"#),
        "{message}"
    );
}

/// Addresses are printed and written to a run's folder.
#[tokio::test]
async fn an_address_with_a_password_is_refused_and_the_password_not_repeated() {
    for address in [
        "http://u:hunter2@localhost:9",
        "u:hunter2@localhost:9",
        "http://u:hunter2 @localhost:9",
        "http://localhost:8,http://u:hunter2,hunter2@localhost:9",
    ] {
        let message = Transport::dial(address).unwrap_err().to_string();
        assert!(
            message.contains(r#"address "localhost:9""#) && message.contains("a token by a file"),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }
}
