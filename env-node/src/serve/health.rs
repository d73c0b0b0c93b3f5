//! gRPC's health service.
//!
//! Invariant: a watch ends with a status that tells its client to watch again: when the server stops, so that it holds
//! nobody up, and before the time of an HTTP/2 stream is over.

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

/// The service, with watches of bounded length.
pub(super) struct Bounded {
    health: HealthService,
    longest: Duration,
    stopping: CancellationToken,
}

/// The service of what `reporter` says.
pub(super) fn service(
    reporter: &HealthReporter,
    longest: Duration,
    stopping: CancellationToken,
) -> HealthServer<Bounded> {
    HealthServer::new(Bounded {
        health: HealthService::from_health_reporter(reporter.clone()),
        longest,
        stopping,
    })
}

/// Tells of the node, and of the server as a whole.
pub(super) async fn report(reporter: &HealthReporter, status: ServingStatus) {
    let node = <EnvServer<EnvNode> as tonic::server::NamedService>::NAME;
    for name in [node, ""] {
        reporter.set_service_status(name, status).await;
    }
}

#[async_trait]
impl Health for Bounded {
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
        let (longest, stopping) = (self.longest, self.stopping.clone());
        let end = async move {
            tokio::select! {
                () = sleep(longest) => {}
                () = stopping.cancelled() => {}
            }
        };
        let again = Status::unavailable("this watch is over; watch again");
        let watch = watch.take_until(end).chain(stream::once(ready(Err(again))));
        Ok(Response::new(watch.boxed()))
    }
}
