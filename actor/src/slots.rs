//! What lies in the slots of the KV cache, and which slot serves a context best.
//!
//! A slot keeps its tokens between turns, so that the next turn of a conversation feeds only what is new, and other
//! conversations may copy a beginning that they share. When slots run out, the conversation that was quiet longest is
//! forgotten and fed again later; the kernels give the same bits either way. Invariant: keys and values of one edition of the
//! weights are never used under another.

/// A slot taken for one completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: usize,
    /// Leading tokens of the context whose keys and values are there already; fewer than the context's length.
    pub(crate) reused_tokens: usize,
    /// The slot to copy them from, where they do not lie in `slot` itself.
    pub(crate) copy_from: Option<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    tokens: Vec<u32>,
    edition: u64,
    busy: bool,
    last_used: u64,
}

/// The slots of one cache.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    uses: u64,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            uses: 0,
        }
    }

    /// Their number.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes a free slot: the one whose conversation `context` continues, or else the one that was quiet longest. None where
    /// all are busy.
    pub(crate) fn take(&mut self, context: &[u32], edition: u64) -> Option<Taken> {
        let shared: Vec<usize> = self
            .slots
            .iter()
            .map(|slot| slot.shared_tokens(context, edition))
            .collect();
        let free = || (0..self.slots.len()).filter(|&index| !self.slots[index].busy);
        let continued = free()
            .filter(|&index| shared[index] > 0 && shared[index] == self.slots[index].tokens.len())
            .max_by_key(|&index| shared[index]);
        let index =
            continued.or_else(|| free().min_by_key(|&index| self.slots[index].last_used))?;
        let source = (0..self.slots.len()).max_by_key(|&other| (shared[other], other == index))?;
        self.uses += 1;
        self.slots[index] = Slot {
            // While it is busy, this much is sure to lie there.
            tokens: context[..shared[source]].to_vec(),
            edition,
            busy: true,
            last_used: self.uses,
        };
        Some(Taken {
            slot: index,
            reused_tokens: shared[source],
            copy_from: (source != index && shared[source] > 0).then_some(source),
        })
    }

    /// Frees a slot that now holds the keys and values of `tokens`.
    pub(crate) fn give_back(&mut self, slot: usize, tokens: &[u32]) {
        let slot = &mut self.slots[slot];
        slot.tokens = tokens.to_vec();
        slot.busy = false;
    }

    /// Forgets what a slot holds.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.slots[slot].tokens.clear();
    }
}

impl Slot {
    /// Leading tokens of `context` that lie here; at least one of the context is left to feed.
    fn shared_tokens(&self, context: &[u32], edition: u64) -> usize {
        if self.edition != edition {
            return 0;
        }
        let equal = self
            .tokens
            .iter()
            .zip(context)
            .take_while(|(held, wanted)| held == wanted)
            .count();
        equal.min(context.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(slot: usize, reused_tokens: usize, copy_from: Option<usize>) -> Taken {
        Taken {
            slot,
            reused_tokens,
            copy_from,
        }
    }

    /// Slots that hold these tokens of version 0, taken and given back in this order.
    fn holding(contents: &[&[u32]]) -> Slots {
        let mut slots = Slots::new(contents.len());
        for index in 0..contents.len() {
            assert_eq!(slots.take(&[index as u32 + 1_000], 0).unwrap().slot, index);
        }
        for (index, tokens) in contents.iter().enumerate() {
            slots.give_back(index, tokens);
        }
        slots
    }

    #[test]
    fn a_conversation_finds_its_slot_again() {
        let mut slots = holding(&[&[1, 2, 3, 7], &[1, 2, 4, 8]]);
        assert_eq!(slots.take(&[1, 2, 4, 8, 9, 10], 0), Some(taken(1, 4, None)));
        assert_eq!(slots.take(&[1, 2, 3, 7, 9], 0), Some(taken(0, 4, None)));
        assert_eq!(slots.take(&[5], 0), None);
    }

    #[test]
    fn a_shared_beginning_is_copied_also_from_a_busy_slot() {
        let mut slots = holding(&[&[], &[1, 2, 3, 7], &[]]);
        assert_eq!(slots.take(&[1, 2, 3, 9], 0), Some(taken(0, 3, Some(1))));
        assert_eq!(slots.take(&[1, 2, 3, 7, 5], 0), Some(taken(1, 4, None)));
        assert_eq!(slots.take(&[1, 2, 3, 4], 0), Some(taken(2, 3, Some(1))));
    }

    #[test]
    fn a_conversation_that_lost_its_middle_rewinds() {
        let mut slots = holding(&[&[1, 2, 3, 7]]);
        assert_eq!(slots.take(&[1, 2, 9, 9, 9], 0), Some(taken(0, 2, None)));
    }

    #[test]
    fn another_version_starts_anew() {
        let mut slots = holding(&[&[1, 2], &[1, 2]]);
        assert_eq!(slots.take(&[1, 2, 3], 1), Some(taken(0, 0, None)));
    }

    #[test]
    fn at_least_one_token_is_left_to_feed() {
        let mut slots = holding(&[&[1, 2]]);
        assert_eq!(slots.take(&[1, 2], 0), Some(taken(0, 1, None)));
    }

    #[test]
    fn the_longest_quiet_slot_is_forgotten() {
        let mut slots = holding(&[&[1, 2], &[3, 4]]);
        assert_eq!(slots.take(&[5, 6], 0), Some(taken(0, 0, None)));
        assert_eq!(slots.take(&[3, 4, 5], 0), Some(taken(1, 2, None)));
    }
}
