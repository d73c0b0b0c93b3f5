//! Runs the program: to its end, or until something has happened.

use std::{process::Command, thread::sleep, time::Duration};

use crate::program::Running;

/// Runs a command that must succeed, and returns what it printed on standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must end with this exit code, and returns what it printed on standard error.
#[track_caller]
pub(crate) fn fail(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {errors}");
    assert!(!errors.contains("panicked"), "{command:?}: {errors}");
    errors
}

impl Running {
    /// Waits until `is_reached` returns true. Panics if the process ends before.
    #[track_caller]
    pub(crate) fn until(&mut self, is_reached: impl Fn() -> bool) {
        while !is_reached() {
            let ended = self.0.try_wait().unwrap();
            assert!(ended.is_none(), "the process ended early: {ended:?}");
            sleep(Duration::from_millis(5));
        }
    }
}
