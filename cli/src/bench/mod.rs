//! `sqlenv bench`: how fast the parts of the system are, measured from outside.

pub(crate) mod args;
pub mod env;
mod latency;
mod load;
mod memory;
mod node;
pub mod policy;
mod session;
