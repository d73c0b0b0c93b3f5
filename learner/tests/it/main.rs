//! Tests of the learner as its users see it, in one binary.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail it")]

#[path = "../../../proto/tests/support/authority.rs"]
mod authority;
mod common;
mod config;
#[path = "../../../env/tests/common/counters.rs"]
mod counters;
mod demonstrations;
mod evaluation;
mod golden_cases;
mod golden_loss;
mod golden_optimizer;
mod golden_run;
mod hostile;
#[path = "../../../proto/tests/support/http2.rs"]
mod http2;
mod limits;
mod prefixes;
mod ranks;
mod run;
mod scheduler;
mod security;
mod served;
mod service;
mod sft;
mod storage;
mod unscored;
