//! The learner's server: both services with health and reflection on one port.

use std::{future::Future, time::Duration};

use proto::v1::learner_server::LearnerServer;
use tokio::{net::TcpListener, sync::oneshot, time::sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use crate::{Learner, error::Result};

/// The longest that a shutdown waits for open calls. Only a dead connection takes that long, and
/// keep-alive pings end it after 15 s.
const MAX_DRAIN: Duration = Duration::from_secs(15);

/// Serves `learner` until `shutdown`, then ends the streams and the waiting claims and returns when
/// all connections are closed. Every connected actor has then received what was sent to it,
/// including the end of the run.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    learner: Learner,
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
    let (service, rank_service) = (learner.service(), learner.rank_service());
    let stop = async move {
        shutdown.await;
        learner.close_streams();
        // The receiver is gone if the server has failed.
        let _ = stopping.send(());
    };
    let server = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .tcp_nodelay(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(service)
        .add_service(rank_service)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop);
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
