//! Messages about services whose calls fail: one for each outage, then rarely, however many
//! episodes wait for the service.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proto::{WaitReminder, status_text};
use tonic::Status;

/// Shorter outages are of no interest: the next attempt succeeds.
const FIRST: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(60);

/// The services whose last call failed.
pub(crate) struct Outages {
    /// Whether there is an outage, so that a call that succeeds needs no lock.
    any: AtomicBool,
    ongoing: Mutex<BTreeMap<&'static str, WaitReminder>>,
}

impl Outages {
    pub(crate) const fn new() -> Self {
        Self {
            any: AtomicBool::new(false),
            ongoing: Mutex::new(BTreeMap::new()),
        }
    }

    /// Notes that an attempt of `call` failed and will be repeated. Returns a message if it is due.
    pub(crate) fn failed(&self, call: &str, status: &Status, now: Instant) -> Option<String> {
        let service = service_name(call);
        let mut ongoing = self.ongoing.lock();
        let reminder = ongoing
            .entry(service)
            .or_insert_with(|| WaitReminder::new(now, FIRST, EVERY));
        self.any.store(true, Ordering::Relaxed);
        let seconds = reminder.due(now)?.as_secs();
        let reason = status_text(status);
        Some(format!(
            "calls of {service} have failed for {seconds} s, and are repeated: {reason}; check that \
             it runs, and the address (http or https) and the credentials that are given for it"
        ))
    }

    /// Notes that `call` succeeded. Returns a message if there was one about its outage.
    pub(crate) fn succeeded(&self, call: &str, now: Instant) -> Option<String> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let service = service_name(call);
        let mut ongoing = self.ongoing.lock();
        let ended = ongoing.remove(service);
        self.any.store(!ongoing.is_empty(), Ordering::Relaxed);
        let seconds = ended?.end(now)?.as_secs();
        Some(format!("{service} answers again after {seconds} s"))
    }
}

fn service_name(call: &str) -> &'static str {
    match call.split('.').next() {
        Some("Env") => "env-node",
        Some("Learner") => "the learner",
        _ => "the chat API",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_has_one_message_for_all_calls_and_one_for_its_end() {
        let outages = Outages::new();
        let began = tokio::time::Instant::now().into_std();
        let after = |seconds| began + Duration::from_secs(seconds);
        let away = Status::unavailable("connection refused");
        assert_eq!(outages.succeeded("Env.Step", began), None);
        assert_eq!(outages.failed("Env.Step", &away, began), None);
        let message = outages.failed("Env.Reset", &away, after(6)).unwrap();
        assert_eq!(
            message,
            "calls of env-node have failed for 6 s, and are repeated: connection refused; check \
             that it runs, and the address (http or https) and the credentials that are given for it"
        );
        assert_eq!(outages.failed("Env.Step", &away, after(7)), None);
        assert_eq!(outages.succeeded("Learner.Claim", after(8)), None);
        let message = outages.succeeded("Env.Step", after(9)).unwrap();
        assert_eq!(message, "env-node answers again after 9 s");
        assert_eq!(outages.succeeded("Env.Step", after(9)), None);
    }

    #[test]
    fn a_message_names_the_service() {
        for (call, service) in [
            ("Env.Info", "env-node"),
            ("Learner.Claim", "the learner"),
            ("ChatModel", "the chat API"),
        ] {
            assert_eq!(service_name(call), service);
        }
    }
}
