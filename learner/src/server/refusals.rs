//! The actors whose groups or calls were refused.
//!
//! Pure. Invariant: memory is bounded whatever actors send, and the log has one line for the first
//! refusal of an actor, the tenth, the hundredth, and so on.

use std::collections::BTreeMap;

/// Further actors are counted under one name.
const MAX_ACTORS: usize = 256;
/// The name of all of them.
const OTHERS: &str = "others";
/// The name of those that submit work that the learner did not give them: they can write any name.
pub(crate) const WITHOUT_LEASE: &str = "(without a lease)";
/// Longer names and reasons are cut.
const MAX_NAME_CHARACTERS: usize = 256;
const MAX_REASON_CHARACTERS: usize = 512;

/// An actor that was refused something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedActor {
    /// Its name. Actors choose it, so it may contain anything.
    pub id: String,
    /// How often it was refused.
    pub count: u64,
    /// Why, the last time.
    pub reason: String,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(BTreeMap<String, RefusedActor>);

impl Refusals {
    /// Notes a refusal. Returns how often the actor was refused so far if that is worth a line in
    /// the log.
    pub(crate) fn note(&mut self, actor_id: &str, reason: &str) -> Option<u64> {
        let mut id: String = actor_id.chars().take(MAX_NAME_CHARACTERS).collect();
        if !self.0.contains_key(&id) && self.0.len() >= MAX_ACTORS {
            OTHERS.clone_into(&mut id);
        }
        let actor = self.0.entry(id.clone()).or_default();
        actor.id = id;
        actor.count += 1;
        actor.reason = reason.chars().take(MAX_REASON_CHARACTERS).collect();
        is_power_of_ten(actor.count).then_some(actor.count)
    }

    /// Returns them in the order of their names.
    pub(crate) fn actors(&self) -> Vec<RefusedActor> {
        self.0.values().cloned().collect()
    }
}

fn is_power_of_ten(count: u64) -> bool {
    10_u64.checked_pow(count.ilog10()) == Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_logged_and_then_few() {
        let mut refusals = Refusals::default();
        let logged: Vec<u64> = (0..1_000)
            .filter_map(|number| refusals.note("liar", &format!("reason {number}")))
            .collect();
        assert_eq!(logged, [1, 10, 100, 1_000]);
        let actors = refusals.actors();
        assert_eq!(
            (actors[0].count, actors[0].reason.as_str()),
            (1_000, "reason 999")
        );
    }

    #[test]
    fn invented_names_take_bounded_memory() {
        let mut refusals = Refusals::default();
        for number in 0..10_000 {
            refusals.note(
                &format!("{number}{}", "x".repeat(1_000)),
                &"y".repeat(9_999),
            );
        }
        let actors = refusals.actors();
        assert_eq!(actors.len(), MAX_ACTORS + 1);
        assert!(
            actors
                .iter()
                .all(|it| it.id.len() <= 256 && it.reason.len() <= 512)
        );
        let others = actors.iter().find(|it| it.id == OTHERS).unwrap();
        assert_eq!(others.count, 10_000 - MAX_ACTORS as u64);
    }
}
