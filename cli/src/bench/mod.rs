//! `sqlenv bench`: how fast the parts of the system are, measured from outside.

pub mod env;
mod latency;
mod load;
mod node;
mod session;
