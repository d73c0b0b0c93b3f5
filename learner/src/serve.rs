//! The learner's server: both services with health and reflection on one port, and who may call
//! them.
//!
//! Invariant: health and reflection need no token. Everything else needs the token of its role, if
//! the settings name one.

use std::{future::Future, path::PathBuf, time::Duration};

use proto::{
    BearerToken, RequireToken, ServerTls, TransportError, tls_connections,
    v1::learner_server::LearnerServer,
};
use tokio::{net::TcpListener, sync::oneshot, time::sleep};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{service::interceptor::InterceptedService, transport::Server};

use crate::{
    Learner,
    error::{LearnerError, Result},
    server_config::LearnerServerConfig,
};

/// The longest that a shutdown waits for open calls. Only a dead connection takes that long, and
/// keep-alive pings end it after 15 s.
const MAX_DRAIN: Duration = Duration::from_secs(15);

/// The opened files of [`LearnerServerConfig`].
pub struct ServerCredentials {
    tls: Option<ServerTls>,
    actor_token: Option<BearerToken>,
    rank_token: Option<BearerToken>,
}

impl ServerCredentials {
    /// Opens the files.
    ///
    /// # Errors
    /// Names the setting whose file cannot be used.
    pub fn open(config: &LearnerServerConfig) -> Result<Self> {
        let tls = config.tls.as_ref();
        Ok(Self {
            tls: tls.map(|tls| ServerTls::open(Some(tls))).transpose()?,
            actor_token: token("server.actor_token_file", &config.actor_token_file)?,
            rank_token: token("server.rank_token_file", &config.rank_token_file)?,
        })
    }
}

fn token(setting: &'static str, file: &Option<PathBuf>) -> Result<Option<BearerToken>> {
    Ok(BearerToken::open(setting, file.as_deref())?)
}

impl From<TransportError> for LearnerError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::File {
                setting,
                path,
                reason,
            } => Self::setting(
                setting,
                format!("{} cannot be used: {reason}", path.display()),
            ),
            TransportError::Address { .. } => Self::setting("server", error.to_string()),
        }
    }
}

/// Serves `learner` until `shutdown`, then ends the streams and the waiting claims and returns when
/// all connections are closed. Every connected actor has then received what was sent to it,
/// including the end of the run.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    learner: Learner,
    credentials: ServerCredentials,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<LearnerServer<Learner>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the embedded descriptors are well-formed: this is a bug");
    let (stopping, stopped) = oneshot::channel();
    let actors = RequireToken {
        token: credentials.actor_token,
        remedy: "the request lacks the token that this learner requires of actors; give the actor \
                 --learner-token-file FILE with the token of learner.server.actor_token_file",
    };
    let ranks = RequireToken {
        token: credentials.rank_token,
        remedy: "the request lacks the token that this learner requires of ranks; give the rank \
                 --learner-token-file FILE with the token of learner.server.rank_token_file",
    };
    let service = InterceptedService::new(learner.service(), actors);
    let rank_service = InterceptedService::new(learner.rank_service(), ranks);
    let stop = async move {
        shutdown.await;
        learner.close_streams();
        // The receiver is gone if the server has failed.
        let _ = stopping.send(());
    };
    let router = Server::builder()
        .trace_fn(proto::served_call)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .tcp_nodelay(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(service)
        .add_service(rank_service);
    let server = async {
        match credentials.tls {
            None => {
                let connections = TcpListenerStream::new(listener);
                router.serve_with_incoming_shutdown(connections, stop).await
            }
            Some(tls) => {
                let connections = ReceiverStream::new(tls_connections(listener, tls));
                router.serve_with_incoming_shutdown(connections, stop).await
            }
        }
    };
    let deadline = async {
        match stopped.await {
            Ok(()) => sleep(MAX_DRAIN).await,
            // The server has failed, which the other branch returns.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        served = server => Ok(served?),
        () = deadline => Ok(()),
    }
}
