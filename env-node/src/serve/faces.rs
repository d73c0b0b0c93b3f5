//! Which face answers a request.
//!
//! Invariant: a request is gRPC if its content type says so, and HTTP else; each is refused in its own language. Leaves
//! out the connection.

use std::{convert::Infallible, future::Future};

use axum::{
    Json, Router,
    body::Body,
    http::{Request, Response, StatusCode, header::CONTENT_TYPE},
    middleware::from_fn_with_state,
    response::IntoResponse,
    routing::any,
};
use hyper::body::Incoming;
use proto::v1::{FILE_DESCRIPTOR_SET, env_server};
use serde_json::json;
use tonic::service::Routes;
use tonic_health::pb::health_server::{self, Health, HealthServer};
use tonic_web::GrpcWebLayer;
use tower::Service;

use super::{
    auth::{self, Bearer},
    calls::{self, Calls},
    config::ServerConfig,
    cors::{self, Origins},
    refusals,
};
use crate::{
    error::SettingError,
    node::EnvNode,
    openenv::{self, Sockets},
    web,
};

/// Every face of a node. Cheap to clone.
#[derive(Clone)]
pub(super) struct Faces {
    grpc: Router,
    http: Router,
}

impl Faces {
    pub(super) fn new(
        node: &EnvNode,
        config: &ServerConfig,
        health: HealthServer<impl Health>,
        sockets: Sockets,
    ) -> Result<Self, SettingError> {
        let calls = Calls::new(config);
        let origins = Origins::new(&config.allowed_origins)?;
        let mut grpc = grpc(node, health).layer(from_fn_with_state(calls.clone(), calls::grpc));
        let mut http = http(node, sockets).layer(from_fn_with_state(calls, calls::http));
        if let Some(bearer) = Bearer::open(config.bearer_token_file.as_deref())? {
            grpc = grpc.layer(from_fn_with_state(bearer.clone(), auth::grpc));
            http = http.layer(from_fn_with_state(bearer, auth::http));
        }
        // Outside of what refuses: a refusal, too, must reach a gRPC-Web caller in its own framing.
        grpc = grpc.layer(GrpcWebLayer::new());
        grpc = grpc.layer(from_fn_with_state(origins.clone(), cors::share));
        http = http.layer(from_fn_with_state(origins, cors::share));
        // Outside of everything: whatever is refused counts.
        grpc = grpc.layer(from_fn_with_state("grpc", refusals::count));
        http = http.layer(from_fn_with_state("http", refusals::count));
        Ok(Self { grpc, http })
    }

    /// What `http` answers, and no gRPC.
    #[cfg(test)]
    pub(super) fn of(http: Router) -> Self {
        let grpc = Router::new();
        Self { grpc, http }
    }

    /// Answers one request.
    pub(super) fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<> {
        let face = if is_grpc(&request) {
            &self.grpc
        } else {
            &self.http
        };
        // A router is always ready.
        face.clone().call(request)
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// `Env`, health and reflection; any other method is UNIMPLEMENTED.
fn grpc(node: &EnvNode, health: HealthServer<impl Health>) -> Router {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(env_server::SERVICE_NAME)
            .with_service_name(health_server::SERVICE_NAME)
    };
    let v1 = reflection().build_v1();
    let v1alpha = reflection().build_v1alpha();
    Routes::new(node.service())
        .add_service(health)
        .add_service(v1.expect("descriptors are compiled in: this is a bug"))
        .add_service(v1alpha.expect("descriptors are compiled in: this is a bug"))
        .into_axum_router()
}

fn http(node: &EnvNode, sockets: Sockets) -> Router {
    openenv::router(node, &node.settings().openenv, sockets)
        .merge(web::router(node))
        .route("/sqlenv.v1.Env/{method}", any(not_grpc))
}

async fn not_grpc() -> impl IntoResponse {
    let detail =
        "this path speaks gRPC; send content-type application/grpc or application/grpc-web";
    (
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Json(json!({ "detail": detail })),
    )
}
