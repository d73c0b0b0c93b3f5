//! The page `/web`, on which a person plays and replays episodes.

use axum::Router;

use crate::node::EnvNode;

/// The page and what it asks for.
pub(crate) fn router(_node: &EnvNode) -> Router {
    Router::new()
}
