//! The protocols on the server's port, and the choice between them.
//!
//! Invariant: a request is gRPC if its content type says so, and HTTP otherwise. Each is refused in
//! its own protocol.

use std::{convert::Infallible, future::Future, net::SocketAddr};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode, header::CONTENT_TYPE},
    middleware::{Next, from_fn, from_fn_with_state},
    routing::any,
};
use hyper::body::Incoming;
use proto::v1::{FILE_DESCRIPTOR_SET, env_server};
use proto::{
    BearerToken,
    serve::{HEALTH_BYTES, REFLECTION_BYTES},
};
use tonic::service::Routes;
use tonic_health::{
    pb::health_server::{self, HealthServer},
    server::{HealthReporter, HealthService},
};
use tonic_web::GrpcWebLayer;
use tower::Service;
use tracing::Instrument as _;

use super::{
    auth,
    call_limits::{self, CallLimits, count_unread},
    config::ServerConfig,
    cors::{self, AllowedOrigins, OnLoopback},
    refusals,
};
use crate::{
    error::SettingError,
    node::EnvNode,
    openenv::{self, Sockets},
    rejection::Rejection,
    web,
};

const TOKEN_FILE: &str = "server.bearer_token_file";

/// Every protocol of a node. Cheap to clone.
#[derive(Clone)]
pub(super) struct Protocols {
    grpc: Router,
    http: Router,
    is_on_loopback: bool,
}

impl Protocols {
    pub(super) fn new(
        node: &EnvNode,
        config: &ServerConfig,
        health: &HealthReporter,
        sockets: &Sockets,
    ) -> Result<Self, SettingError> {
        let limits = CallLimits::new(config);
        let unread = limits.unread.clone();
        let origins = AllowedOrigins::new(&config.allowed_origins);
        // Each layer wraps the layers that were added before it.
        let mut grpc =
            grpc(node, health).layer(from_fn_with_state(limits.clone(), call_limits::grpc));
        let mut http = openenv::router(node, sockets.clone(), limits.clone())
            .merge(web::router(node, sockets.clone(), limits.clone()))
            .route("/sqlenv.v1.Env/{method}", any(not_grpc))
            .layer(from_fn_with_state(limits, call_limits::http));
        if let Some(token) = BearerToken::open(TOKEN_FILE, config.bearer_token_file.as_deref())? {
            grpc = grpc.layer(from_fn_with_state(token, auth::grpc));
            http = http.layer(from_fn_with_state(token, auth::http));
        }
        // Around the layers that refuse: a refusal, too, must have gRPC-Web's framing.
        grpc = grpc.layer(GrpcWebLayer::new());
        grpc = grpc.layer(from_fn_with_state(origins.clone(), cors::share));
        http = http.layer(from_fn_with_state(origins, cors::share));
        // Around gRPC-Web, which may write a response anew.
        grpc = grpc.layer(from_fn_with_state(unread.clone(), count_unread));
        http = http.layer(from_fn_with_state(unread, count_unread));
        grpc = grpc.layer(from_fn(traced));
        // The outermost layer, so that the refusals of all layers count.
        grpc = grpc.layer(from_fn_with_state("grpc", refusals::count));
        http = http.layer(from_fn_with_state("http", refusals::count));
        Ok(Self {
            grpc,
            http,
            is_on_loopback: false,
        })
    }

    /// Serves on this address; none if the system does not tell it.
    pub(super) fn on(mut self, address: Option<SocketAddr>) -> Self {
        self.is_on_loopback = address.is_some_and(|address| address.ip().is_loopback());
        self
    }

    /// Responds to one request.
    pub(super) fn respond(
        &self,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<> {
        if self.is_on_loopback {
            request.extensions_mut().insert(OnLoopback);
        }
        let router = if is_grpc(&request) {
            &self.grpc
        } else {
            &self.http
        };
        // A router is always ready.
        router.clone().call(request)
    }
}

/// Serves a call in a span of its caller's trace.
async fn traced(request: Request<Body>, next: Next) -> Response<Body> {
    let span = proto::served_call(&request);
    next.run(request).instrument(span).await
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Serves `Env`, health and reflection. Any other method is UNIMPLEMENTED.
fn grpc(node: &EnvNode, health: &HealthReporter) -> Router {
    let health = HealthServer::new(HealthService::from_health_reporter(health.clone()))
        .max_decoding_message_size(HEALTH_BYTES);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(env_server::SERVICE_NAME)
        .with_service_name(health_server::SERVICE_NAME)
        .build_v1()
        .expect("descriptors are compiled in: this is a bug")
        .max_decoding_message_size(REFLECTION_BYTES);
    Routes::new(node.service())
        .add_service(health)
        .add_service(reflection)
        .into_axum_router()
}

async fn not_grpc() -> Rejection {
    let detail =
        "this path serves gRPC; send content-type application/grpc or application/grpc-web";
    Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
}
