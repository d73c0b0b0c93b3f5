//! What `sqlenv` does beyond the roles: settings, the stages of a run, its folder and report, and what people type.

pub mod admin;
pub mod args;
pub mod commands;
pub mod config;
mod data_command;
mod doctor;
mod eval_command;
pub mod evaluation;
pub mod local;
mod number;
pub mod play;
mod play_command;
pub mod progress;
pub mod report;
mod roles;
pub mod run;
pub mod setup;
pub mod shutdown;
pub mod train;
pub mod warm_start;
