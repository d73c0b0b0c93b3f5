//! Tests the program with real processes, ports and signals.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

#[cfg(target_os = "linux")]
mod announced;
mod bad_input;
mod bench;
mod compare;
mod data;
mod draft;
mod endings;
mod evaluation;
mod gpu_check;
mod health;
mod hostile;
#[path = "../watching/http.rs"]
mod http;
mod object_store;
mod open_files;
mod outage;
mod outcomes;
mod play;
mod pretrain;
mod program;
mod ranks;
mod reproducible;
mod roles;
mod second_learner;
mod security;
mod sft;
mod terminal;
mod threads;
mod traces;
mod watching;
mod your_database;
