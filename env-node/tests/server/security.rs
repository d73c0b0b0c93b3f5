//! Tests bearer tokens, TLS and client certificates.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use env::EnvSettings;
use env_node::{EnvNodeSettings, Server, ServerConfig};
use futures::{SinkExt, StreamExt};
use proto::{Credentials, EnvClient, TlsConfig, Transport, TransportError, v1::InfoRequest};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};
use tokio_tungstenite::{client_async, tungstenite::Message};
use tonic::{Code, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

use crate::{
    Served,
    authority::{Authority, write},
    common, raw,
};

const TOKEN: &str = "a secret of some length";

async fn info(address: &str, credentials: &Credentials) -> Result<(), Status> {
    let transport = Transport::dial_with(address, credentials).unwrap();
    EnvClient::new(transport)
        .info(InfoRequest {})
        .await
        .map(drop)
}

#[tokio::test]
async fn without_the_token_only_health_answers() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::with(ServerConfig {
        bearer_token_file: Some(write(folder.path(), "token", &format!("{TOKEN}\n"))),
        ..ServerConfig::default()
    })
    .await;
    let showing = |token: &str| Credentials {
        bearer_token_file: Some(write(folder.path(), "shown", token)),
        ..Credentials::default()
    };
    info(&served.url(), &showing(TOKEN)).await.unwrap();
    for credentials in [
        Credentials::default(),
        showing("another secret of some length"),
        showing(&TOKEN[1..]),
    ] {
        let status = info(&served.url(), &credentials).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        let details = status.get_details_error_info().unwrap();
        assert_eq!(details.reason, "BEARER_TOKEN_REFUSED");
    }
    HealthClient::new(served.transport())
        .check(HealthCheckRequest::default())
        .await
        .unwrap();

    // HTTP on the same port: an unknown path is 404 for authenticated callers only.
    let get = |header: &'static str| {
        let address = served.address;
        async move { raw::request(address, &["GET /nothing HTTP/1.1", header], b"").await }
    };
    let refused = get("x: y").await;
    assert_eq!(refused.status, 401);
    let detail = refused.json()["detail"].to_string();
    assert!(detail.contains("Bearer"), "{detail}");
    let challenge = refused.header("www-authenticate").unwrap();
    assert!(challenge.contains("Basic"), "{challenge}");
    for admitted in [
        "authorization: Bearer a secret of some length",
        // anyone:a secret of some length
        "authorization: Basic YW55b25lOmEgc2VjcmV0IG9mIHNvbWUgbGVuZ3Ro",
    ] {
        assert_eq!(get(admitted).await.status, 404, "{admitted}");
    }

    let web = [
        "POST /sqlenv.v1.Env/Info HTTP/1.1",
        "content-type: application/grpc-web",
    ];
    let response = raw::request(served.address, &web, b"\0\0\0\0\0").await;
    assert_eq!(response.header("grpc-status"), Some("16"));
}

#[test]
fn an_unusable_token_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (path, part) in [
        (folder.path().join("absent"), "cannot be read"),
        (write(folder.path(), "short", "abc"), "holds 3 bytes"),
    ] {
        let message = refused_start(ServerConfig {
            bearer_token_file: Some(path),
            ..ServerConfig::default()
        });
        assert!(
            message.contains("server.bearer_token_file") && message.contains(part),
            "{message}"
        );
    }
}

fn refused_start(server: ServerConfig) -> String {
    let folder = tempfile::tempdir().unwrap();
    let settings = EnvNodeSettings {
        server,
        ..EnvNodeSettings::default()
    };
    let dataset = common::dataset(folder.path());
    let node = common::node(dataset, EnvSettings::default(), settings);
    let opened = Server::open(&node).map(drop);
    opened.unwrap_err().to_string()
}

async fn with_tls(tls: TlsConfig) -> (Served, String) {
    let served = Served::with(ServerConfig {
        tls: Some(tls),
        ..ServerConfig::default()
    })
    .await;
    let address = format!("https://localhost:{}", served.address.port());
    (served, address)
}

#[tokio::test]
async fn tls_serves_clients_that_trust_its_authority() {
    let authority = Authority::new();
    let (served, address) = with_tls(authority.tls(None)).await;
    info(&address, &authority.trusted()).await.unwrap();
    info(&address, &Authority::new().trusted())
        .await
        .unwrap_err();
    let (_expired, of_expired) = with_tls(authority.expired_tls()).await;
    let refused = info(&of_expired, &authority.trusted()).await.unwrap_err();
    let text = proto::status_text(&refused);
    assert!(text.contains("xpired"), "{text}");
    // In plain text, and by an address that is not in the certificate.
    info(&served.url(), &Credentials::default())
        .await
        .unwrap_err();
    let by_number = address.replace("localhost", "127.0.0.1");
    info(&by_number, &authority.trusted()).await.unwrap_err();
    info(&address, &authority.trusted()).await.unwrap();
}

/// Opens a TLS connection to the server.
async fn secured(served: &Served, authority: &Authority) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_file(authority.file()).unwrap();
    roots.add(trusted).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = raw::connect(served.address).await;
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn tls_secures_every_protocol() {
    let authority = Authority::new();
    let (served, _) = with_tls(authority.tls(None)).await;
    let mut https = secured(&served, &authority).await;
    let get = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    https.write_all(get.as_bytes()).await.unwrap();
    let mut response = String::new();
    https.read_to_string(&mut response).await.unwrap();
    assert!(
        response.starts_with("HTTP/1.1 200") && response.contains("healthy"),
        "{response}"
    );

    let wss = secured(&served, &authority).await;
    let (mut wss, _) = client_async("wss://localhost/ws", wss).await.unwrap();
    let reset = r#"{"type": "reset", "data": {"question_id": "cars-1"}}"#;
    wss.send(Message::text(reset)).await.unwrap();
    let reply = wss.next().await.unwrap().unwrap();
    assert!(reply.to_string().contains("observation"), "{reply}");
}

#[tokio::test]
async fn mutual_tls_serves_clients_of_its_authority() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let (_served, address) = with_tls(servers.tls(Some(clients.file()))).await;
    let showing = |certificate_and_key_files| Credentials {
        certificate_and_key_files,
        ..servers.trusted()
    };
    info(&address, &showing(Some(clients.sign("trainer"))))
        .await
        .unwrap();
    info(&address, &showing(None)).await.unwrap_err();
    let stranger = Authority::new();
    info(&address, &showing(Some(stranger.sign("trainer"))))
        .await
        .unwrap_err();
    let former = clients.sign_expired("former");
    info(&address, &showing(Some(former))).await.unwrap_err();
    info(&address, &showing(Some(clients.sign("actor"))))
        .await
        .unwrap();
}

#[test]
fn unusable_tls_files_are_named() {
    let authority = Authority::new();
    let good = || authority.tls(None);
    let folder = tempfile::tempdir().unwrap();
    let nothing = write(folder.path(), "empty.pem", "");
    let (_, other_key) = authority.sign("other");
    for (tls, field) in [
        (
            TlsConfig {
                certificate_file: "absent.pem".into(),
                ..good()
            },
            "server.tls.certificate_file",
        ),
        (
            TlsConfig {
                certificate_file: nothing.clone(),
                ..good()
            },
            "server.tls.certificate_file",
        ),
        (
            TlsConfig {
                key_file: nothing.clone(),
                ..good()
            },
            "server.tls.key_file",
        ),
        (
            TlsConfig {
                key_file: other_key,
                ..good()
            },
            "server.tls.key_file",
        ),
        (
            TlsConfig {
                client_ca_file: Some(nothing),
                ..good()
            },
            "server.tls.client_ca_file",
        ),
    ] {
        let server = ServerConfig {
            tls: Some(tls),
            ..ServerConfig::default()
        };
        let message = refused_start(server);
        assert!(message.contains(field), "{field}: {message}");
    }
}

/// A wrong authority and a wrong token are replaced while the client runs.
#[tokio::test]
async fn a_client_whose_calls_fail_reads_its_files_again() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let served = Served::with(ServerConfig {
        tls: Some(authority.tls(None)),
        bearer_token_file: Some(write(folder.path(), "token", TOKEN)),
        ..ServerConfig::default()
    })
    .await;
    let address = format!("https://localhost:{}", served.address.port());
    let shown = |token: &str| Some(write(folder.path(), "shown", token));
    let ca_file = folder.path().join("ca.pem");
    for (trusted, is_admitted) in [(&Authority::new(), false), (&authority, true)] {
        fs::copy(trusted.file(), &ca_file).unwrap();
        let credentials = Credentials {
            ca_file: Some(ca_file.clone()),
            bearer_token_file: shown("another secret of some length"),
            ..Credentials::default()
        };
        let mut client = EnvClient::new(Transport::dial_with(&address, &credentials).unwrap());
        fs::copy(authority.file(), &ca_file).unwrap();
        shown(TOKEN);
        let status = client.info(InfoRequest {}).await.unwrap_err();
        let is_of_token = status.code() == Code::Unauthenticated;
        assert_eq!(is_of_token, is_admitted, "{status}");
        client.info(InfoRequest {}).await.unwrap();
    }
}

#[tokio::test]
async fn unusable_files_of_a_client_are_named() {
    const PAIR: &str = "certificate_and_key_files";
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| write(folder.path(), name, text);
    let (absent, empty) = (PathBuf::from("absent"), file("empty.pem", ""));
    let junk = file("junk.pem", "not a certificate\n");
    let pem = "-----BEGIN CERTIFICATE-----\nanVuaw==\n-----END CERTIFICATE-----\n";
    let unreadable = file("unreadable.pem", pem);
    let (certificate, key) = authority.sign("trainer");
    let (_, other_key) = authority.sign("other");
    let trusting = |file: &Path| Credentials {
        ca_file: Some(file.to_owned()),
        ..Credentials::default()
    };
    let showing = |certificate: &Path, key: &Path| Credentials {
        certificate_and_key_files: Some((certificate.to_owned(), key.to_owned())),
        ..authority.trusted()
    };
    let token = Credentials {
        bearer_token_file: Some(absent.clone()),
        ..Credentials::default()
    };
    for (credentials, setting, unusable) in [
        (trusting(&absent), "ca_file", &absent),
        (trusting(&empty), "ca_file", &empty),
        (trusting(&junk), "ca_file", &junk),
        (trusting(&unreadable), "ca_file", &unreadable),
        (showing(&absent, &key), PAIR, &absent),
        (showing(&junk, &key), PAIR, &junk),
        (showing(&certificate, &empty), PAIR, &empty),
        (showing(&certificate, &other_key), PAIR, &other_key),
        (token, "bearer_token_file", &absent),
    ] {
        let refused = Transport::dial_with("https://localhost:1", &credentials).unwrap_err();
        let named = format!("cannot use {setting} {}: ", unusable.display());
        // A start with other files may succeed, unlike one with another address.
        assert!(
            matches!(refused, TransportError::File(_)) && refused.to_string().contains(&named),
            "{named}: {refused}"
        );
    }
    // Every server refuses its token.
    let empty = Credentials {
        bearer_token_file: Some(file("empty", "\n")),
        ..Credentials::default()
    };
    let refused = Transport::dial_with("http://localhost:1", &empty);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("it holds 0 bytes"), "{message}");
}
