//! A run in this process: how it is opened, what its owner sees, the loop over its steps on the
//! trainer's thread, and what that thread shares with the server.

pub(crate) mod context;
pub(crate) mod evaluator;
mod intake;
pub(crate) mod learner;
pub(crate) mod open;
mod traces;
mod training_loop;
