//! A learner that a test serves on a port of its own.

use std::net::SocketAddr;

use learner::{Learner, LearnerConfig, LearnerServerConfig, ServerCredentials, serve};
use policy::Model;
use proto::Transport;
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use crate::common::{ARGUMENTS, Client, questions, small_config, small_model};

/// A served learner. It stops when this is dropped.
pub(crate) struct Served {
    pub(crate) learner: Learner,
    pub(crate) address: SocketAddr,
    /// Starts the shutdown.
    pub(crate) stop: oneshot::Sender<()>,
    /// Ends with the server.
    pub(crate) ended: JoinHandle<()>,
    _folder: TempDir,
}

impl Served {
    /// Serves a run of a few quick steps.
    pub(crate) async fn start() -> Self {
        Self::of(small_model(1), small_config()).await
    }

    /// Serves it with other settings of the server.
    pub(crate) async fn with(server: LearnerServerConfig) -> Self {
        let config = LearnerConfig {
            server,
            ..small_config()
        };
        Self::of(small_model(1), config).await
    }

    /// Serves a run of a model.
    pub(crate) async fn of(model: Model, config: LearnerConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let credentials = ServerCredentials::open(&config.server).unwrap();
        let learner = Learner::open(config, ARGUMENTS, model, questions(), folder.path()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = serve(listener, learner.clone(), credentials, async {
            stopped.await.unwrap_or(());
        });
        Self {
            learner,
            address,
            stop,
            ended: tokio::spawn(serving),
            _folder: folder,
        }
    }

    /// Returns the address with the name in its certificate.
    pub(crate) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.address.port())
    }

    /// Returns a connection without TLS.
    pub(crate) fn transport(&self) -> Transport {
        Transport::dial(&self.url("http")).unwrap()
    }

    /// Returns an actor with a connection of its own.
    pub(crate) fn client(&self, name: &str) -> Client {
        Client::over(self.transport(), &self.learner, name)
    }
}
