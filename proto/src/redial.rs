//! A channel that is dialed again after its server failed a call.
//!
//! By itself tonic connects again only if a connection is lost, and with the credentials that it
//! has. It stays with a server that answers and cannot serve, though others may have the same name,
//! and it never reads a file again.
//!
//! Invariant: a call ends on the connection on which it began.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{
    body::Body,
    codegen::{
        Service,
        http::{self, Uri, header},
    },
    transport::Channel,
};
use tower::ServiceExt as _;

use crate::{
    dial::{self, CredentialFiles, Credentials, TransportError},
    failover::is_broken,
    log_pacing::RareWarning,
    transport::BoxError,
};

/// The shortest time between two dials, however many calls fail. An actor repeats an episode for
/// 30 s before it gives it up, and may reach several servers meanwhile.
const PAUSE: Duration = Duration::from_secs(5);

/// The channel of one address; cheap to clone.
#[derive(Clone)]
pub(crate) struct RedialedChannel(Arc<Shared>);

struct Shared {
    address: Uri,
    credentials: Credentials,
    state: Mutex<State>,
}

struct State {
    dialed: Arc<Dialed>,
    /// When the files were last read again.
    read_again: Option<Instant>,
    warning: RareWarning,
}

/// A channel, with the files of which it was made.
struct Dialed {
    channel: Channel,
    files: CredentialFiles,
}

impl Dialed {
    fn open(address: &Uri, files: CredentialFiles) -> Result<Self, TransportError> {
        let channel = dial::open(address, &files)?;
        Ok(Self { channel, files })
    }
}

impl RedialedChannel {
    pub(crate) fn dial(address: Uri, credentials: &Credentials) -> Result<Self, TransportError> {
        let dialed = Dialed::open(&address, credentials.read(&address)?)?;
        Ok(Self(Arc::new(Shared {
            address,
            credentials: credentials.clone(),
            state: Mutex::new(State {
                dialed: Arc::new(dialed),
                read_again: None,
                warning: RareWarning::default(),
            }),
        })))
    }
}

impl Shared {
    /// Lets later calls use a new channel, after one over `used` failed. If that call was not
    /// answered, tonic connects again by itself where the connection was lost. More channels would
    /// only make more connections to a server that is away, so then a new one is for other files
    /// only.
    fn redial(&self, used: &Arc<Dialed>, is_answered: bool) {
        if !self.is_due(used) {
            return;
        }
        let files = self.credentials.read(&self.address);
        let files = files.unwrap_or_else(|error| {
            self.warn(&error);
            used.files.clone()
        });
        if !is_answered && files == used.files {
            return;
        }
        match Dialed::open(&self.address, files) {
            Ok(dialed) => self.state.lock().dialed = Arc::new(dialed),
            Err(error) => self.warn(&error),
        }
    }

    fn warn(&self, error: &(dyn Error + 'static)) {
        if self.state.lock().warning.note().is_some() {
            tracing::warn!(
                error,
                "the credentials for {} cannot be used again; keeping those read before",
                self.address
            );
        }
    }

    /// Returns whether `used` is still the channel of later calls, and the last dial is a while
    /// ago.
    fn is_due(&self, used: &Arc<Dialed>) -> bool {
        let mut state = self.state.lock();
        let is_early = state.read_again.is_some_and(|at| at.elapsed() < PAUSE);
        if is_early || !Arc::ptr_eq(&state.dialed, used) {
            return false;
        }
        state.read_again = Some(Instant::now());
        true
    }
}

impl Service<http::Request<Body>> for RedialedChannel {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let used = Arc::clone(&shared.state.lock().dialed);
            if let Some(bearer) = &used.files.bearer {
                let headers = request.headers_mut();
                headers.insert(header::AUTHORIZATION, bearer.clone());
            }
            let outcome = used.channel.clone().oneshot(request).await;
            let outcome = outcome.map_err(BoxError::from);
            if is_broken(&outcome) {
                shared.redial(&used, outcome.is_ok());
            }
            outcome
        })
    }
}
