//! Tests OpenEnv's protocols over a real port: the wire by tables and raw frames, sessions and
//! their limit, and unmodified clients.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bounds;
mod clients;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../env/tests/common/counters.rs"]
mod counters;
mod limits;
mod server;
mod sessions;
mod wire;
