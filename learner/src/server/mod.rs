//! The learner's server: both services with health and reflection on one port, and who may call
//! them. What it checks of actors, and what it knows of them, is below.
//!
//! Invariant: health and reflection need no token. Everything else needs the token of its role, if
//! the settings name one.

pub(crate) mod actors;
pub(crate) mod call_limits;
pub(crate) mod config;
mod grpc;
pub(crate) mod identity;
pub(crate) mod refusals;
mod submission;
pub(crate) mod trust;
pub(crate) mod verifier;
mod weights_stream;

use std::{future::Future, path::PathBuf};

use proto::{
    BearerToken, FileError, RequireToken, ServerTls,
    serve::{HEALTH_BYTES, Port, REFLECTION_BYTES},
    v1::learner_server::LearnerServer,
};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    service::{Routes, interceptor::InterceptedService},
};
use tracing::Instrument as _;

use crate::{
    Learner,
    error::{LearnerError, Result},
    metrics,
};
use config::{LearnerServerConfig, MAX_DRAIN};

/// The opened files of [`LearnerServerConfig`].
pub struct ServerCredentials {
    tls: ServerTls,
    actor_token: Option<BearerToken>,
    rank_token: Option<BearerToken>,
}

impl ServerCredentials {
    /// Opens the files.
    ///
    /// # Errors
    /// Names the setting whose file cannot be used.
    pub fn open(config: &LearnerServerConfig) -> Result<Self> {
        Ok(Self {
            tls: ServerTls::open(config.tls.as_ref())?,
            actor_token: token("server.actor_token_file", &config.actor_token_file)?,
            rank_token: token("server.rank_token_file", &config.rank_token_file)?,
        })
    }
}

fn token(setting: &'static str, file: &Option<PathBuf>) -> Result<Option<BearerToken>> {
    Ok(BearerToken::open(setting, file.as_deref())?)
}

impl From<FileError> for LearnerError {
    fn from(error: FileError) -> Self {
        let FileError { path, reason, .. } = &error;
        let problem = format!("{} cannot be used: {reason}", path.display());
        Self::setting(error.setting, problem)
    }
}

/// Serves `learner` until `shutdown`, then ends the streams and the waiting claims and returns when
/// all connections are closed. Every connected actor has then received what was sent to it,
/// including the end of the run.
pub async fn serve(
    listener: TcpListener,
    learner: Learner,
    credentials: ServerCredentials,
    shutdown: impl Future<Output = ()>,
) {
    let config = &learner.context.config.server;
    let limits = learner.context.call_limits.clone();
    let routes = routes(&learner, credentials.actor_token, credentials.rank_token).await;
    let answer = move |request| {
        let span = proto::served_call(&request);
        let (limits, routes) = (limits.clone(), routes.clone());
        async move { limits.answer(request.map(Body::new), routes).await }.instrument(span)
    };
    let port = Port {
        limits: config.connection_limits(),
        tls: credentials.tls,
        draining: CancellationToken::new(),
        refused: metrics::connection_refused,
    };
    let stop = async {
        shutdown.await;
        learner.close_streams();
    };
    let mut open = port.serve_until(listener, answer, stop).await;
    let ended = async { while open.join_next().await.is_some() {} };
    if timeout(MAX_DRAIN, ended).await.is_err() {
        tracing::debug!("connections were cut: their calls did not end");
    }
}

/// Returns all services of the port.
async fn routes(
    learner: &Learner,
    actor_token: Option<BearerToken>,
    rank_token: Option<BearerToken>,
) -> Routes {
    let (health, health_service) = tonic_health::server::health_reporter();
    let health_service = health_service.max_decoding_message_size(HEALTH_BYTES);
    health.set_serving::<LearnerServer<Learner>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the embedded descriptors are well-formed: this is a bug")
        .max_decoding_message_size(REFLECTION_BYTES);
    let actors = RequireToken {
        token: actor_token,
        remedy: "the request lacks the token that this learner requires of actors; give the actor \
                 --learner-token-file FILE with the token of learner.server.actor_token_file",
    };
    let ranks = RequireToken {
        token: rank_token,
        remedy: "the request lacks the token that this learner requires of ranks; give the rank \
                 --learner-token-file FILE with the token of learner.server.rank_token_file",
    };
    Routes::new(health_service)
        .add_service(reflection)
        .add_service(InterceptedService::new(learner.service(), actors))
        .add_service(InterceptedService::new(learner.rank_service(), ranks))
        .prepare()
}
