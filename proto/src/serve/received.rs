//! Counts what a peer has sent on a connection that became a socket, until its handler takes it.
//!
//! A WebSocket leaves the limits on calls when its request is upgraded. Its library buffers the
//! fragments of a message until the last one is there, and passes on the pings between them, so
//! only the stream sees how much is buffered.
//!
//! Invariant: bytes count from when they are read until their message ends, and the bytes of the
//! message further on until its handler drops the reservation. What exceeds the budget is not read:
//! the stream fails.

use std::{error::Error, fmt, io, sync::Arc};

use parking_lot::Mutex;

use super::body_budget::{BodyBudget, BodyReservation};

/// Bytes of a message that need no share of the budget. Messages of ordinary size therefore never
/// depend on what other peers send.
const FREE_BYTES: usize = 16 << 10;

/// What a connection has received and its handler has not taken. Each request has it as an
/// extension. Cheap to clone.
#[derive(Clone, Default)]
pub struct ReceivedBytes(Arc<Mutex<Option<Counted>>>);

struct Counted {
    budget: BodyBudget,
    bytes: usize,
    reservation: BodyReservation,
    is_closing: bool,
    /// Bytes were not kept, so that those behind them have no meaning.
    has_gap: bool,
}

/// The messages of all sockets together would exceed the budget.
#[derive(Debug)]
pub struct ReceivedTooMuch;

impl fmt::Display for ReceivedTooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the messages in flight hold too many bytes; retry after a pause")
    }
}

impl Error for ReceivedTooMuch {}

impl ReceivedBytes {
    /// Starts to count, against `budget`.
    pub fn count(&self, budget: &BodyBudget) {
        *self.0.lock() = Some(Counted {
            budget: budget.clone(),
            bytes: 0,
            reservation: budget.reservation(usize::MAX),
            is_closing: false,
            has_gap: false,
        });
    }

    /// Drops what exceeds the budget from now on, and what follows it, so that the stream can be
    /// read to its end.
    pub fn close(&self) {
        if let Some(counted) = self.0.lock().as_mut() {
            counted.is_closing = true;
        }
    }

    /// Returns the bytes that belong to no complete message.
    pub fn unfinished(&self) -> usize {
        self.0.lock().as_ref().map_or(0, |counted| counted.bytes)
    }

    /// Takes what was received off the count, because a message is complete. Returns its share of
    /// the budget, which counts until it is dropped; none if nothing is counted.
    pub fn take(&self) -> Option<BodyReservation> {
        let mut counted = self.0.lock();
        let counted = counted.as_mut()?;
        counted.bytes = 0;
        let none = counted.budget.reservation(usize::MAX);
        Some(std::mem::replace(&mut counted.reservation, none))
    }

    /// Takes a part off the count: a frame between the fragments of a message.
    pub fn discount(&self, bytes: usize) {
        if let Some(counted) = self.0.lock().as_mut() {
            counted.bytes = counted.bytes.saturating_sub(bytes);
            // Fewer bytes are never refused.
            let _ = counted.reserve();
        }
    }

    /// Counts what was read from the stream. Returns whether it is to be kept.
    pub(super) fn add(&self, bytes: usize) -> io::Result<bool> {
        let mut counted = self.0.lock();
        let Some(counted) = counted.as_mut() else {
            return Ok(true);
        };
        if counted.is_closing && counted.has_gap {
            return Ok(false);
        }
        counted.bytes += bytes;
        let Err(too_much) = counted.reserve() else {
            return Ok(true);
        };
        counted.bytes -= bytes;
        counted.has_gap = true;
        match counted.is_closing {
            true => Ok(false),
            false => Err(too_much),
        }
    }
}

impl Counted {
    fn reserve(&mut self) -> io::Result<()> {
        let reserved = self
            .reservation
            .resize(self.bytes.saturating_sub(FREE_BYTES));
        reserved.map_err(|_| io::Error::other(ReceivedTooMuch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_until_its_reservation_is_dropped() {
        let budget = BodyBudget::new(100);
        let socket = || {
            let received = ReceivedBytes::default();
            received.count(&budget);
            received
        };
        let (one, other) = (socket(), socket());
        one.add(FREE_BYTES + 60).unwrap();
        assert_eq!(one.unfinished(), FREE_BYTES + 60);
        other.add(FREE_BYTES).unwrap();
        let error = other.add(60).unwrap_err();
        assert!(error.get_ref().is_some_and(|it| it.is::<ReceivedTooMuch>()));

        let message = one.take();
        assert_eq!(one.unfinished(), 0);
        let another = socket();
        assert!(another.add(FREE_BYTES + 60).is_err(), "the message counts");
        drop(message);
        socket().add(FREE_BYTES + 100).unwrap();
    }

    #[test]
    fn a_closing_socket_drops_what_exceeds_the_budget() {
        let received = ReceivedBytes::default();
        received.count(&BodyBudget::new(100));
        received.close();
        for (bytes, is_kept) in [(FREE_BYTES + 60, true), (60, false), (1, false)] {
            assert_eq!(received.add(bytes).unwrap(), is_kept, "{bytes}");
        }
        assert_eq!(received.unfinished(), FREE_BYTES + 60);
        drop(received.take());
        assert!(!received.add(1).unwrap(), "it follows what was dropped");
    }

    #[test]
    fn a_frame_between_fragments_is_taken_off() {
        let budget = BodyBudget::new(100);
        let received = ReceivedBytes::default();
        received.add(1 << 20).unwrap();
        assert_eq!(received.unfinished(), 0, "not counted before the upgrade");
        received.count(&budget);
        received.add(FREE_BYTES + 90).unwrap();
        received.discount(30);
        received.add(30).unwrap();
        received.discount(usize::MAX);
        assert_eq!(received.unfinished(), 0);
        received.add(FREE_BYTES + 100).unwrap();
    }
}
