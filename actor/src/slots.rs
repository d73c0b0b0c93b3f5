//! What lies in the slots of the KV cache, and which slot serves a context best.
//!
//! A slot keeps its tokens between turns, so that the next turn of a conversation feeds only what is new, and other
//! conversations may copy a beginning that they share, from a running row as soon as it was fed. When slots run out, the
//! conversation that was quiet longest is forgotten and fed again later; the kernels give the same bits either way.
//! Invariant: keys and values of one edition of the weights are never used under another.

/// Tokens that a row must save to wait for a running one: what a pass without the row costs is about a few tokens' feeding.
const WORTH_WAITING_TOKENS: usize = 16;

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
    /// What lies here and, while it is busy, the rest of the context that is being fed.
    tokens: Vec<u32>,
    /// How many of them lie here.
    held_tokens: usize,
    edition: u64,
    busy: bool,
    last_used: u64,
}

/// The slots of one cache.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    prefix_sharing: bool,
    uses: u64,
}

impl Slots {
    /// Without `prefix_sharing`, a slot reuses only what lies in itself.
    pub(crate) fn new(count: usize, prefix_sharing: bool) -> Self {
        Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            prefix_sharing,
            uses: 0,
        }
    }

    /// Their number.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a running row is about to feed a beginning of `context` that is worth waiting for. It ends: running rows
    /// never wait, and what they fed stays.
    pub(crate) fn promise(&self, context: &[u32], edition: u64) -> bool {
        let most = |shared: fn(&Slot, &[u32], u64) -> usize| {
            let each = self.slots.iter().map(|slot| shared(slot, context, edition));
            each.max().unwrap_or(0)
        };
        self.prefix_sharing
            && most(Slot::common_tokens) >= most(Slot::shared_tokens) + WORTH_WAITING_TOKENS
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
            .filter(|&index| shared[index] > 0 && shared[index] == self.slots[index].held_tokens)
            .max_by_key(|&index| shared[index]);
        let index =
            continued.or_else(|| free().min_by_key(|&index| self.slots[index].last_used))?;
        let source = if self.prefix_sharing {
            (0..self.slots.len()).max_by_key(|&other| (shared[other], other == index))?
        } else {
            index
        };
        self.uses += 1;
        self.slots[index] = Slot {
            tokens: context.to_vec(),
            held_tokens: shared[source],
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

    /// Takes note that a busy slot now holds this many leading tokens of its row.
    pub(crate) fn fed(&mut self, slot: usize, tokens: usize) {
        let slot = &mut self.slots[slot];
        slot.held_tokens = tokens.min(slot.tokens.len());
    }

    /// Frees a slot that now holds the keys and values of `tokens`.
    pub(crate) fn give_back(&mut self, slot: usize, tokens: &[u32]) {
        let slot = &mut self.slots[slot];
        slot.tokens = tokens.to_vec();
        slot.held_tokens = tokens.len();
        slot.busy = false;
    }

    /// Forgets what a free slot holds.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.give_back(slot, &[]);
    }
}

impl Slot {
    /// Leading tokens of `context` that lie here.
    fn shared_tokens(&self, context: &[u32], edition: u64) -> usize {
        self.common_tokens(context, edition).min(self.held_tokens)
    }

    /// Leading tokens of `context` that lie here or will; at least one of the context is left to feed.
    fn common_tokens(&self, context: &[u32], edition: u64) -> usize {
        if self.edition != edition {
            return 0;
        }
        let pairs = self.tokens.iter().zip(context);
        let equal = pairs.take_while(|(held, wanted)| held == wanted).count();
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
        let mut slots = Slots::new(contents.len(), true);
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

    const PROMPT: [u32; 40] = [7; 40];

    #[test]
    fn a_beginning_that_is_being_fed_is_promised_until_it_lies_there() {
        let mut slots = Slots::new(2, true);
        assert!(!slots.promise(&PROMPT, 0));
        slots.take(&PROMPT, 0).unwrap();
        assert!(slots.promise(&PROMPT, 0));
        assert!(!slots.promise(&PROMPT, 1), "other weights");
        assert!(!slots.promise(&PROMPT[..16], 0), "too short");
        slots.fed(0, 23);
        assert!(slots.promise(&PROMPT, 0));
        slots.fed(0, 24);
        assert!(!slots.promise(&PROMPT, 0), "the rest is too short");
        assert_eq!(slots.take(&PROMPT, 0), Some(taken(1, 24, Some(0))));
    }

    #[test]
    fn a_row_that_goes_promises_nothing_more() {
        let mut slots = Slots::new(2, true);
        slots.take(&PROMPT, 0).unwrap();
        slots.fed(0, 20);
        slots.give_back(0, &PROMPT[..20]);
        assert!(!slots.promise(&PROMPT, 0));
        assert_eq!(slots.take(&PROMPT, 0), Some(taken(0, 20, None)));
        assert!(slots.promise(&PROMPT, 0));
        slots.forget(0);
        assert_eq!(slots.take(&PROMPT, 0), Some(taken(1, 0, None)));
    }

    #[test]
    fn without_sharing_nothing_is_copied_or_waited_for() {
        let mut slots = Slots::new(2, false);
        slots.take(&PROMPT, 0).unwrap();
        assert!(!slots.promise(&PROMPT, 0));
        slots.fed(0, 40);
        assert_eq!(slots.take(&PROMPT, 0), Some(taken(1, 0, None)));
        slots.give_back(0, &PROMPT);
        let longer = [&PROMPT[..], &[1]].concat();
        assert_eq!(slots.take(&longer, 0), Some(taken(0, 40, None)));
    }
}
