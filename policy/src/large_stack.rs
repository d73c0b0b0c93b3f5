//! Runs a function on a thread with a large stack, for what recurses as deep as a file says.
//!
//! Invariant: the result is that of the function, which runs to its end before this returns.

use std::thread;

/// Memory is taken only for the part that is used.
const STACK_BYTES: usize = 128 << 20;

/// Runs `work`.
///
/// # Errors
/// There is no thread for it, or it panics.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("large stack".to_owned());
        let thread = builder.stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        let ended = thread.join();
        ended.map_err(|_| "the library that reads it failed".to_owned())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_deep_recursion_fits() {
        fn depth(left: usize) -> usize {
            let frame = std::hint::black_box([left; 64]);
            if left == 0 {
                0
            } else {
                1 + depth(frame[63] - 1)
            }
        }
        assert_eq!(super::run(|| depth(50_000)), Ok(50_000));
    }
}
