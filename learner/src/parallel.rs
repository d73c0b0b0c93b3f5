//! Work on several things at a time.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
};

use parking_lot::Mutex;

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
        let mut items = items.lock();
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

/// Calls `work` on the numbers below `count`, on up to `threads` threads, and gives the results to
/// `take` in order. A thread that is done begins with the next number, also while an earlier one is
/// at work, but no more than `threads` numbers ahead of it: results that wait take memory.
///
/// # Errors
/// The first error in order, of `work` or `take`.
pub(crate) fn in_order<T: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    if threads <= 1 || count <= 1 {
        return (0..count).try_for_each(|number| take(work(number)?));
    }
    let panicked = || LearnerError::Thread("gradient");
    let (numbers, queue) = mpsc::channel();
    let queue = Mutex::new(queue);
    let next = || {
        let queue = queue.lock();
        queue.recv()
    };
    let one_thread = |done: mpsc::Sender<(usize, Result<T>)>| {
        while let Ok(number) = next() {
            let result = catch_unwind(AssertUnwindSafe(|| work(number)));
            let result = result.unwrap_or_else(|_| Err(panicked()));
            if done.send((number, result)).is_err() {
                // Nobody listens after an error.
                break;
            }
        }
    };
    let one_thread = &one_thread;
    let (done, results) = mpsc::channel();
    // The closure owns its ends of the channels, so that the threads end with it.
    thread::scope(move |scope| -> Result<()> {
        for _ in 0..threads.min(count) {
            let done = done.clone();
            scope.spawn(move || one_thread(done));
        }
        drop(done);
        // Never fails: the other end of the queue outlives the threads.
        let begin = |number: usize| numbers.send(number).map_err(|_| panicked());
        (0..count.min(threads + 1)).try_for_each(begin)?;
        let mut waiting = BTreeMap::new();
        for number in 0..count {
            let result = loop {
                if let Some(result) = waiting.remove(&number) {
                    break result;
                }
                let (number, result) = results.recv().map_err(|_| panicked())?;
                waiting.insert(number, result);
            };
            take(result?)?;
            if number + threads + 1 < count {
                begin(number + threads + 1)?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_come_in_order_and_no_thread_runs_far_ahead() {
        for threads in [0, 1, 2, 5] {
            let most_ahead = Mutex::new((0, 0));
            let work = |number: usize| {
                let mut seen = most_ahead.lock();
                seen.1 = seen.1.max(number.saturating_sub(seen.0));
                drop(seen);
                // The first is the slowest.
                if number == 0 {
                    thread::sleep(Duration::from_millis(50));
                }
                Ok(number)
            };
            let mut taken = Vec::new();
            in_order(threads, 40, work, |number| {
                taken.push(number);
                most_ahead.lock().0 = taken.len();
                Ok(())
            })
            .unwrap();
            assert_eq!(taken, (0..40).collect::<Vec<_>>());
            assert!(most_ahead.lock().1 <= threads, "{threads}");
        }
    }

    #[test]
    fn an_error_and_a_panic_end_the_work() {
        for threads in [1, 3] {
            let work = |number| match number {
                7 => Err(LearnerError::Stopped),
                number => Ok(number),
            };
            let ended = in_order(threads, 40, work, |_| Ok(()));
            assert!(matches!(ended, Err(LearnerError::Stopped)));
        }
        for first in [7, 0] {
            let work = |number| match number < first {
                true => Ok(number),
                false => panic!("on purpose"),
            };
            let ended = in_order(3, 40, work, |_| Ok(()));
            assert!(matches!(ended, Err(LearnerError::Thread(_))));
        }
    }

    #[test]
    fn a_thread_that_is_done_begins_with_the_next_number() {
        let (began, begins) = mpsc::channel();
        let begins = Mutex::new(begins);
        let began = Mutex::new(began);
        let work = |number: usize| {
            if number == 2 {
                began.lock().send(()).unwrap();
            }
            let waited = match number {
                0 => begins.lock().recv_timeout(Duration::from_secs(60)),
                _ => Ok(()),
            };
            waited.map_err(|_| LearnerError::Stopped)
        };
        in_order(2, 3, work, |()| Ok(())).unwrap();
    }

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
