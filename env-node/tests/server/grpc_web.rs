//! Tests gRPC-Web with requests by hand over HTTP/1.1, and which pages may use it.

use env::EnvSettings;
use env_node::ServerConfig;
use prost::Message;
use proto::v1::{ResetRequest, ResetResponse};

use crate::{
    Served,
    raw::{self, HttpResponse},
};

const RESET: &str = "POST /sqlenv.v1.Env/Reset HTTP/1.1";
const WEB: &str = "content-type: application/grpc-web+proto";

async fn reset(served: &Served, question_id: &str, headers: &[&str]) -> HttpResponse {
    let request = ResetRequest {
        question_id: question_id.to_owned(),
        ..ResetRequest::default()
    };
    let head = [&[RESET, WEB, "x-grpc-web: 1"], headers].concat();
    let body = raw::grpc_frame(&request.encode_to_vec());
    raw::request(served.address, &head, &body).await
}

#[tokio::test]
async fn a_browser_calls_over_http_1() {
    let served = Served::start(EnvSettings::default()).await;
    let response = reset(&served, "cars-1", &[]).await;
    assert_eq!(response.status, 200);
    assert_eq!(
        response.header("content-type"),
        Some("application/grpc-web+proto")
    );

    let length = u32::from_be_bytes(response.bytes[1..5].try_into().unwrap()) as usize;
    let (message, trailers) = response.bytes[5..].split_at(length);
    let reply = ResetResponse::decode(message).unwrap();
    assert_eq!(reply.question_id, "cars-1");
    assert_eq!(trailers[0], 0x80, "a frame of trailers");
    let trailers = String::from_utf8_lossy(&trailers[5..]).into_owned();
    assert!(trailers.contains("grpc-status:0"), "{trailers}");

    let response = reset(&served, "cars-9", &[]).await;
    assert_eq!(
        (response.status, response.header("grpc-status")),
        (200, Some("5"))
    );
}

#[tokio::test]
async fn only_pages_of_listed_origins_may_read_responses() {
    const ALLOWED: &str = "access-control-allow-origin";
    let preflight = [
        "OPTIONS /sqlenv.v1.Env/Reset HTTP/1.1",
        "origin: https://trainer.example",
        "access-control-request-method: POST",
        "access-control-request-headers: content-type,x-grpc-web",
    ];
    let closed = Served::start(EnvSettings::default()).await;
    let response = raw::request(closed.address, &preflight, b"").await;
    assert_eq!(response.header(ALLOWED), None);
    let response = reset(&closed, "cars-1", &["origin: https://trainer.example"]).await;
    assert_eq!((response.status, response.header(ALLOWED)), (403, None));

    let open = Served::with(ServerConfig {
        allowed_origins: vec!["https://trainer.example".to_owned()],
        ..ServerConfig::default()
    })
    .await;
    let response = raw::request(open.address, &preflight, b"").await;
    assert_eq!(response.status, 204);
    assert_eq!(response.header(ALLOWED), Some("https://trainer.example"));
    let headers = response.header("access-control-allow-headers").unwrap();
    assert!(headers.contains("x-grpc-web") && headers.contains("authorization"));

    let response = reset(&open, "cars-1", &["origin: https://trainer.example"]).await;
    assert_eq!(response.header(ALLOWED), Some("https://trainer.example"));
    let exposed = response.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("grpc-status"));

    let response = reset(&open, "cars-1", &["origin: https://other.example"]).await;
    assert_eq!(response.header(ALLOWED), None);
}

/// Browsers let any page open a WebSocket to any site, and post plain text. The node refuses both.
#[tokio::test]
async fn a_foreign_page_cannot_open_sockets_or_post() {
    let served = Served::with(ServerConfig {
        allowed_origins: vec!["https://trainer.example".to_owned()],
        ..ServerConfig::default()
    })
    .await;
    let create = br#"{"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}"#;
    for (header, is_foreign) in [
        ("origin: https://other.example", true),
        ("origin: null", true),
        // The node listens on a loopback address, to which anyone may let a name point.
        ("origin: http://node\r\nsec-fetch-site: same-origin", true),
        ("origin: http://localhost:1\r\nhost: localhost:1", false),
        // A proxy replaced the host.
        (
            "origin: https://public.example\r\nsec-fetch-site: same-origin\r\nhost: 127.0.0.1:1",
            false,
        ),
        (
            "origin: https://other.example\r\nsec-fetch-site: cross-site",
            true,
        ),
        ("origin: https://trainer.example", false),
        ("x: y", false),
    ] {
        let get = "GET /health HTTP/1.1";
        let socket = "GET /nothing HTTP/1.1\r\nupgrade: websocket";
        let post = "POST /mcp HTTP/1.1\r\ncontent-type: text/plain";
        for (line, body, served_status) in [
            (get, &b""[..], 200),
            (socket, &b""[..], 404),
            (post, &create[..], 200),
        ] {
            let expected = if is_foreign && line != get {
                403
            } else {
                served_status
            };
            let response = raw::request(served.address, &[line, header], body).await;
            assert_eq!(response.status, expected, "{line}, {header}");
        }
    }
}
