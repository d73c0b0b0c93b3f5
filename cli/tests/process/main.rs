//! The program as people run it: real processes, real ports, real signals.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

mod bad_input;
mod bench;
mod endings;
mod gpu_check;
mod program;
mod ranks;
mod reproducible;
mod roles;
mod threads;
