//! How a command ends, and the exit code for it.

use std::process::ExitCode;

use crate::shutdown;

/// How a command ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The command has finished.
    Done,
    /// A check has failed.
    Failed,
    /// No device was found to check.
    NoDevice,
    /// A signal interrupted the command. A run can be resumed.
    Interrupted,
}

impl CommandOutcome {
    /// Returns the exit code of the process.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Failed => ExitCode::FAILURE,
            Self::NoDevice => ExitCode::from(2),
            Self::Interrupted => ExitCode::from(shutdown::EXIT_CODE),
        }
    }
}
