//! Work on several tensors at a time.

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use crate::error::{LearnerError, Result};

/// Calls `work` on all items, on up to `threads` threads, of which each takes the next item when it
/// has done one. Which thread does an item must not matter.
///
/// # Errors
/// The first error that a thread met. It does no further items then, and the others do.
pub(crate) fn for_each<T: Send>(
    threads: usize,
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let items = Mutex::new(items);
    let next = || {
        let mut items = items.lock().unwrap_or_else(PoisonError::into_inner);
        items.next()
    };
    let one_thread = || {
        while let Some(item) = next() {
            work(item)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(one_thread)).collect();
        let mut result = one_thread();
        for other in others {
            let ended = other
                .join()
                .unwrap_or(Err(LearnerError::Thread("optimizer")));
            result = result.and(ended);
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once() {
        for threads in [0, 1, 2, 5] {
            let mut done = vec![0; 100];
            for_each(threads, done.iter_mut(), |it| {
                *it += 1;
                Ok(())
            })
            .unwrap();
            assert!(done.iter().all(|it| *it == 1));
        }
    }

    #[test]
    fn an_error_of_any_thread_is_returned() {
        let work = |item: u32| match item {
            63 => Err(LearnerError::Stopped),
            _ => Ok(()),
        };
        for threads in [1, 3] {
            let ended = for_each(threads, 0..100, work);
            assert!(matches!(ended, Err(LearnerError::Stopped)));
        }
    }
}
