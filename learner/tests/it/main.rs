//! Tests of the learner as its users see it, in one binary.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail it")]

mod common;
mod config;
mod evaluation;
mod golden_cases;
mod golden_loss;
mod golden_optimizer;
mod golden_run;
mod hostile;
mod limits;
mod prefixes;
mod ranks;
#[allow(dead_code, reason = "each test file uses a part")]
#[path = "../../../env-node/tests/server/raw.rs"]
mod raw;
mod run;
mod scheduler;
mod security;
mod service;
mod sft;
mod storage;
