//! What `sqlenv` does beyond the roles: settings, the stages of a run, its folder and report, and
//! what people type.

pub mod admin;
pub mod args;
pub mod bench_command;
pub mod command_outcome;
pub mod commands;
pub mod config;
pub mod data_command;
pub mod doctor;
pub mod eval_command;
pub mod evaluation;
pub mod import_gguf;
pub mod local;
mod openenv_variables;
pub mod play;
pub mod play_command;
pub mod progress;
pub mod roles;
pub mod run_info;
pub mod setup;
pub mod shutdown;
pub mod stdout;
pub mod threads;
pub mod train;
pub mod trajectories;
pub mod warm_start;
