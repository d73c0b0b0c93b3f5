//! What `sqlenv` does beyond the roles: settings, the stages of a run, its folder and report, and
//! what people type.

mod admin;
pub mod args;
mod bench_command;
mod command_outcome;
pub mod commands;
mod config;
mod data_command;
mod doctor;
mod eval_command;
mod evaluation;
mod import_gguf;
mod local;
mod openenv_variables;
pub mod play;
mod play_command;
mod progress;
mod roles;
mod run_info;
mod setup;
mod shutdown;
mod stdout;
pub mod threads;
mod train;
mod trajectories;
mod warm_start;
