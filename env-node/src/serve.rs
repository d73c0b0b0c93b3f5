//! The server: every face of a node on one port.

use std::future::Future;

use axum::serve::ListenerExt;
use proto::v1::{FILE_DESCRIPTOR_SET, env_server::EnvServer};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tonic::service::Routes;

use crate::{error::EnvError, node::EnvNode, openenv, web};

/// Settings of the server; every field has a default.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {}

/// Serves `node` on `listener`, with the standard health and reflection services, until `shutdown` resolves; calls in
/// flight are finished first.
///
/// # Errors
/// The transport fails.
pub async fn serve(
    listener: TcpListener,
    node: EnvNode,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), EnvError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<EnvServer<EnvNode>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("descriptors are compiled in: this is a bug");
    let faces = Routes::new(node.service())
        .add_service(health_service)
        .add_service(reflection)
        .into_axum_router()
        .reset_fallback()
        .merge(openenv::router(&node, node.openenv_config()))
        .merge(web::router(&node));
    let until = async move {
        shutdown.await;
        health.set_not_serving::<EnvServer<EnvNode>>().await;
    };
    axum::serve(listener.tap_io(|tcp| drop(tcp.set_nodelay(true))), faces)
        .with_graceful_shutdown(until)
        .await
        .map_err(|error| EnvError::Internal(error.to_string()))?;
    Ok(())
}
