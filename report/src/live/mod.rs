//! What a person needs to know of a run while it trains: one value, from which the live page, the
//! terminal and the diagnosis are made.
//!
//! Pure. Invariant: the value is bounded in size, however long a run is, and the same value gives
//! the same page, lines and findings everywhere.

mod findings;
mod page;
mod rules;
mod status;

pub use findings::{Finding, Severity};
pub use page::{live_fragment, live_page, live_security_policy};
pub use rules::diagnose;
pub use status::{ActorStatus, EnvNodeStatus, LiveEpisode, LiveStatus, RunSettings, shorten_steps};
