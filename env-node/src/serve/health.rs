//! gRPC's health service.
//!
//! Invariant: a watch ends with a status that tells its client to watch again. It ends when the
//! server stops, since an open stream would delay the shutdown, and before the timeout of HTTP/2
//! streams.

use std::{future::ready, time::Duration};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use proto::v1::env_server::EnvServer;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::{
    ServingStatus,
    pb::{
        HealthCheckRequest, HealthCheckResponse,
        health_server::{Health, HealthServer},
    },
    server::{HealthReporter, HealthService},
};

use crate::node::EnvNode;

/// The health service, with watches of bounded length.
pub(super) struct BoundedHealth {
    health: HealthService,
    max_watch: Duration,
    draining: CancellationToken,
}

/// Returns the service that serves what `reporter` reports.
pub(super) fn service(
    reporter: &HealthReporter,
    max_watch: Duration,
    draining: CancellationToken,
) -> HealthServer<BoundedHealth> {
    HealthServer::new(BoundedHealth {
        health: HealthService::from_health_reporter(reporter.clone()),
        max_watch,
        draining,
    })
}

/// Sets the status of the `Env` service, and of the server as a whole.
pub(super) async fn report(reporter: &HealthReporter, status: ServingStatus) {
    let node = <EnvServer<EnvNode> as tonic::server::NamedService>::NAME;
    for name in [node, ""] {
        reporter.set_service_status(name, status).await;
    }
}

#[async_trait]
impl Health for BoundedHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.health.check(request).await
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = self.health.watch(request).await?.into_inner();
        let (max_watch, draining) = (self.max_watch, self.draining.clone());
        let end = async move {
            tokio::select! {
                () = sleep(max_watch) => {}
                () = draining.cancelled() => {}
            }
        };
        let again = Status::unavailable("this watch is over; watch again");
        let watch = watch.take_until(end).chain(stream::once(ready(Err(again))));
        Ok(Response::new(watch.boxed()))
    }
}
