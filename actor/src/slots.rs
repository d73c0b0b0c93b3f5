//! Slots of the KV cache: which tokens each one holds, and which slot serves a context best. Pure.
//!
//! A slot keeps its tokens between turns, so the next turn of a conversation prefills only what is
//! new. With prefix sharing, a conversation also copies a prefix that another slot holds, even
//! while that slot is in use. The members of a group share their prompt, which is then prefilled
//! once and not once per member. A new conversation overwrites the least recently used free slot.
//! The conversation that the slot held is prefilled again later. The kernels give the same bits
//! either way.
//!
//! Invariant: keys and values of one weights version are never used under another one.

/// A row waits for a prefix that a running row is prefilling only if it saves at least this many
/// tokens. One pass without the row costs about as much as prefilling a few tokens.
const WORTH_WAITING_TOKENS: usize = 16;

/// A slot assigned to one completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotAssignment {
    pub(crate) slot: usize,
    /// Leading tokens of the context whose keys and values exist already. At least one token of the
    /// context is left to prefill.
    pub(crate) reused_tokens: usize,
    /// The slot to copy them from, if they do not lie in `slot` itself.
    pub(crate) copy_from: Option<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The cached tokens and, while the slot is in use, the rest of the context being prefilled.
    tokens: Vec<u32>,
    /// How many leading tokens have their keys and values in the slot.
    cached_tokens: usize,
    weights_version: u64,
    in_use: bool,
    last_used: u64,
}

/// The slots of one cache.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    prefix_sharing: bool,
    assignments: u64,
}

impl Slots {
    /// Creates `count` empty slots. Without `prefix_sharing`, a slot reuses only its own tokens.
    pub(crate) fn new(count: usize, prefix_sharing: bool) -> Self {
        Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            prefix_sharing,
            assignments: 0,
        }
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether a running row is about to prefill a prefix of `context` that is worth
    /// waiting for. The wait ends: running rows never wait, and what they prefilled stays in their
    /// slot.
    pub(crate) fn is_prefix_pending(&self, context: &[u32], weights_version: u64) -> bool {
        let longest = |prefix: fn(&Slot, &[u32], u64) -> usize| {
            let slots = self.slots.iter();
            let lengths = slots.map(|slot| prefix(slot, context, weights_version));
            lengths.max().unwrap_or(0)
        };
        self.prefix_sharing
            && longest(Slot::common_prefix) >= longest(Slot::cached_prefix) + WORTH_WAITING_TOKENS
    }

    /// Assigns a free slot: the one whose conversation `context` continues, or else the least
    /// recently used one. Returns none if all slots are in use.
    pub(crate) fn assign(
        &mut self,
        context: &[u32],
        weights_version: u64,
    ) -> Option<SlotAssignment> {
        let prefixes: Vec<usize> = self
            .slots
            .iter()
            .map(|slot| slot.cached_prefix(context, weights_version))
            .collect();
        let free = || (0..self.slots.len()).filter(|&index| !self.slots[index].in_use);
        // A slot is continued only if the context contains all of it. Taking a slot of which only a
        // part matches would destroy another conversation, whereas a copy leaves it intact.
        let continued = free()
            .filter(|&index| {
                prefixes[index] > 0 && prefixes[index] == self.slots[index].cached_tokens
            })
            .max_by_key(|&index| prefixes[index]);
        let index =
            continued.or_else(|| free().min_by_key(|&index| self.slots[index].last_used))?;
        let source = if self.prefix_sharing {
            // Among equal prefixes the slot itself wins, which saves the copy.
            (0..self.slots.len()).max_by_key(|&other| (prefixes[other], other == index))?
        } else {
            index
        };
        self.assignments += 1;
        self.slots[index] = Slot {
            tokens: context.to_vec(),
            cached_tokens: prefixes[source],
            weights_version,
            in_use: true,
            last_used: self.assignments,
        };
        Some(SlotAssignment {
            slot: index,
            reused_tokens: prefixes[source],
            copy_from: (source != index && prefixes[source] > 0).then_some(source),
        })
    }

    /// Records that a slot in use now holds this many leading tokens of its row.
    pub(crate) fn record_cached(&mut self, slot: usize, tokens: usize) {
        let slot = &mut self.slots[slot];
        slot.cached_tokens = tokens.min(slot.tokens.len());
    }

    /// Frees a slot that now holds the keys and values of `tokens`.
    pub(crate) fn release(&mut self, slot: usize, tokens: &[u32]) {
        let slot = &mut self.slots[slot];
        slot.tokens = tokens.to_vec();
        slot.cached_tokens = tokens.len();
        slot.in_use = false;
    }
}

impl Slot {
    /// Returns how many leading tokens of `context` are cached here.
    fn cached_prefix(&self, context: &[u32], weights_version: u64) -> usize {
        self.common_prefix(context, weights_version)
            .min(self.cached_tokens)
    }

    /// Returns how many leading tokens of `context` are cached here or will be. At least one token
    /// of the context is left to prefill, because the first sample needs the logits after it.
    fn common_prefix(&self, context: &[u32], weights_version: u64) -> usize {
        if self.weights_version != weights_version {
            return 0;
        }
        let pairs = self.tokens.iter().zip(context);
        let equal = pairs
            .take_while(|(cached, wanted)| cached == wanted)
            .count();
        equal.min(context.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(slot: usize, reused_tokens: usize, copy_from: Option<usize>) -> SlotAssignment {
        SlotAssignment {
            slot,
            reused_tokens,
            copy_from,
        }
    }

    /// Slots that hold these tokens of version 0, assigned and released in this order.
    fn holding(contents: &[&[u32]]) -> Slots {
        let mut slots = Slots::new(contents.len(), true);
        for index in 0..contents.len() {
            assert_eq!(
                slots.assign(&[index as u32 + 1_000], 0).unwrap().slot,
                index
            );
        }
        for (index, tokens) in contents.iter().enumerate() {
            slots.release(index, tokens);
        }
        slots
    }

    #[test]
    fn a_conversation_finds_its_slot_again() {
        let mut slots = holding(&[&[1, 2, 3, 7], &[1, 2, 4, 8]]);
        assert_eq!(
            slots.assign(&[1, 2, 4, 8, 9, 10], 0),
            Some(assigned(1, 4, None))
        );
        assert_eq!(
            slots.assign(&[1, 2, 3, 7, 9], 0),
            Some(assigned(0, 4, None))
        );
        assert_eq!(slots.assign(&[5], 0), None);
    }

    #[test]
    fn a_shared_prefix_is_copied_even_from_a_slot_in_use() {
        let mut slots = holding(&[&[], &[1, 2, 3, 7], &[]]);
        assert_eq!(
            slots.assign(&[1, 2, 3, 9], 0),
            Some(assigned(0, 3, Some(1)))
        );
        assert_eq!(
            slots.assign(&[1, 2, 3, 7, 5], 0),
            Some(assigned(1, 4, None))
        );
        assert_eq!(
            slots.assign(&[1, 2, 3, 4], 0),
            Some(assigned(2, 3, Some(1)))
        );
    }

    #[test]
    fn a_conversation_whose_middle_was_elided_reuses_its_prefix() {
        let mut slots = holding(&[&[1, 2, 3, 7]]);
        assert_eq!(
            slots.assign(&[1, 2, 9, 9, 9], 0),
            Some(assigned(0, 2, None))
        );
    }

    #[test]
    fn another_weights_version_reuses_nothing() {
        let mut slots = holding(&[&[1, 2], &[1, 2]]);
        assert_eq!(slots.assign(&[1, 2, 3], 1), Some(assigned(0, 0, None)));
    }

    #[test]
    fn at_least_one_token_is_left_to_prefill() {
        let mut slots = holding(&[&[1, 2]]);
        assert_eq!(slots.assign(&[1, 2], 0), Some(assigned(0, 1, None)));
    }

    #[test]
    fn the_least_recently_used_slot_is_overwritten() {
        let mut slots = holding(&[&[1, 2], &[3, 4]]);
        assert_eq!(slots.assign(&[5, 6], 0), Some(assigned(0, 0, None)));
        assert_eq!(slots.assign(&[3, 4, 5], 0), Some(assigned(1, 2, None)));
    }

    const PROMPT: [u32; 40] = [7; 40];

    #[test]
    fn a_prefix_is_pending_until_it_is_cached() {
        let mut slots = Slots::new(2, true);
        assert!(!slots.is_prefix_pending(&PROMPT, 0));
        slots.assign(&PROMPT, 0).unwrap();
        assert!(slots.is_prefix_pending(&PROMPT, 0));
        assert!(!slots.is_prefix_pending(&PROMPT, 1), "other weights");
        assert!(!slots.is_prefix_pending(&PROMPT[..16], 0), "too short");
        slots.record_cached(0, 23);
        assert!(slots.is_prefix_pending(&PROMPT, 0));
        slots.record_cached(0, 24);
        assert!(
            !slots.is_prefix_pending(&PROMPT, 0),
            "the rest is too short"
        );
        assert_eq!(slots.assign(&PROMPT, 0), Some(assigned(1, 24, Some(0))));
    }

    #[test]
    fn a_released_slot_has_no_pending_prefix() {
        let mut slots = Slots::new(2, true);
        slots.assign(&PROMPT, 0).unwrap();
        slots.record_cached(0, 20);
        slots.release(0, &PROMPT[..20]);
        assert!(!slots.is_prefix_pending(&PROMPT, 0));
        assert_eq!(slots.assign(&PROMPT, 0), Some(assigned(0, 20, None)));
        assert!(slots.is_prefix_pending(&PROMPT, 0));
        slots.release(0, &[]);
        assert_eq!(slots.assign(&PROMPT, 0), Some(assigned(1, 0, None)));
    }

    #[test]
    fn without_sharing_no_prefix_is_copied_or_pending() {
        let mut slots = Slots::new(2, false);
        slots.assign(&PROMPT, 0).unwrap();
        assert!(!slots.is_prefix_pending(&PROMPT, 0));
        slots.record_cached(0, 40);
        assert_eq!(slots.assign(&PROMPT, 0), Some(assigned(1, 0, None)));
        slots.release(0, &PROMPT);
        let longer = [&PROMPT[..], &[1]].concat();
        assert_eq!(slots.assign(&longer, 0), Some(assigned(0, 40, None)));
    }
}
