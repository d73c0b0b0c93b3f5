//! The token sequence that the model sees in one episode, cut into segments that fit the context.
//!
//! Invariant: tokens are only ever appended or dropped whole, never re-encoded; a sampled token bears mask 1 in exactly one
//! segment, the one it was sampled in; no segment grows past the limit. When room runs out the oldest tool results give way
//! first (a note stands in their place), then whole old turns; what is kept opens a new segment with mask 0.
//! Leaves out what the tokens mean.

use proto::v1::Segment;

/// One turn as it lies in the context: what the model said, closed, and what it was told.
#[derive(Debug)]
struct Exchange {
    completion: Vec<u32>,
    /// The end-of-turn token where the completion was cut before it.
    closing: Vec<u32>,
    result: Vec<u32>,
}

/// Where a completion lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the segment.
    pub segment: u32,
    /// First token in the segment.
    pub start: u32,
    /// Number of tokens.
    pub tokens: u32,
}

/// The growing context of one episode.
#[derive(Debug)]
pub struct Context {
    limit_tokens: usize,
    prompt: Vec<u32>,
    note: Vec<u32>,
    exchanges: Vec<Exchange>,
    /// Exchanges before this one show the note in place of their result.
    elided: usize,
    /// Exchanges before this one are gone altogether.
    dropped: usize,
    segments: Vec<Segment>,
}

impl Context {
    /// Opens a context of at most `limit_tokens` with a prompt; `note` replaces a tool result that gives way.
    #[must_use]
    pub fn new(prompt: Vec<u32>, note: Vec<u32>, limit_tokens: usize) -> Self {
        Self {
            limit_tokens,
            segments: vec![given(&[&prompt])],
            prompt,
            note,
            exchanges: Vec::new(),
            elided: 0,
            dropped: 0,
        }
    }

    /// The tokens that the model sees now.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.open().tokens
    }

    /// Tokens that still fit.
    #[must_use]
    pub fn room_tokens(&self) -> usize {
        self.limit_tokens.saturating_sub(self.tokens().len())
    }

    /// Segments begun so far.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Appends a completion with its log-probabilities, one a token.
    pub fn push_completion(&mut self, tokens: &[u32], logprobs: &[f32]) -> Span {
        assert_eq!(
            tokens.len(),
            logprobs.len(),
            "one log-probability a token: this is a bug"
        );
        let span = Span {
            segment: (self.segments.len() - 1) as u32,
            start: self.tokens().len() as u32,
            tokens: tokens.len() as u32,
        };
        let open = self.open_mut();
        open.tokens.extend_from_slice(tokens);
        open.mask.resize(open.tokens.len(), 1);
        open.logprobs.extend_from_slice(logprobs);
        self.exchanges.push(Exchange {
            completion: tokens.to_vec(),
            closing: Vec::new(),
            result: Vec::new(),
        });
        span
    }

    /// Appends what follows the last completion and makes room for `wanted_tokens` more.
    ///
    /// `closing` is the end-of-turn token where the completion lacks it; `result` runs up to the next generation prompt.
    /// Where all does not fit, a new segment begins; room for `wanted_tokens` is then found unless the prompt alone is too long.
    pub fn push_result(&mut self, closing: &[u32], result: &[u32], wanted_tokens: usize) {
        let last = self
            .exchanges
            .last_mut()
            .expect("a result follows a completion: this is a bug");
        last.closing = closing.to_vec();
        last.result = result.to_vec();
        let next = self.tokens().len() + closing.len() + result.len();
        if next + wanted_tokens <= self.limit_tokens {
            append_given(self.open_mut(), closing);
            append_given(self.open_mut(), result);
        } else {
            self.give_way(wanted_tokens);
            self.segments.push(self.kept());
        }
    }

    /// Elides results, oldest first, until a quarter of the limit is free besides the room wanted, so that segments stay
    /// few; then, only as far as the room wanted demands, drops whole turns and at last elides the newest result.
    fn give_way(&mut self, wanted_tokens: usize) {
        let newest = self.exchanges.len() - 1;
        let most = self.limit_tokens.saturating_sub(wanted_tokens);
        let comfortable = most.saturating_sub(self.limit_tokens / 4);
        while self.elided < newest && self.kept_tokens() > comfortable {
            self.elided += 1;
        }
        while self.dropped < newest && self.kept_tokens() > most {
            self.dropped += 1;
        }
        if self.kept_tokens() > most {
            self.elided = newest + 1;
        }
        if self.kept_tokens() > most {
            self.dropped = newest + 1;
        }
    }

    fn kept_tokens(&self) -> usize {
        self.kept_runs().map(<[u32]>::len).sum()
    }

    fn kept(&self) -> Segment {
        given(&self.kept_runs().collect::<Vec<_>>())
    }

    fn kept_runs(&self) -> impl Iterator<Item = &[u32]> {
        let turns = self.exchanges.iter().enumerate().skip(self.dropped);
        let turns = turns.flat_map(|(index, exchange)| {
            let result = if index < self.elided {
                &self.note
            } else {
                &exchange.result
            };
            [&exchange.completion[..], &exchange.closing, result]
        });
        std::iter::once(&self.prompt[..]).chain(turns)
    }

    fn open(&self) -> &Segment {
        self.segments
            .last()
            .expect("a context has an open segment: this is a bug")
    }

    fn open_mut(&mut self) -> &mut Segment {
        self.segments
            .last_mut()
            .expect("a context has an open segment: this is a bug")
    }
}

/// A segment of tokens that were given, not sampled.
fn given(runs: &[&[u32]]) -> Segment {
    let mut segment = Segment::default();
    for run in runs {
        append_given(&mut segment, run);
    }
    segment
}

fn append_given(segment: &mut Segment, tokens: &[u32]) {
    segment.tokens.extend_from_slice(tokens);
    segment.mask.resize(segment.tokens.len(), 0);
    segment.logprobs.resize(segment.tokens.len(), 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(context: &mut Context, tokens: &[u32]) -> Span {
        context.push_completion(tokens, &vec![-0.5; tokens.len()])
    }

    #[test]
    fn turns_are_appended_while_they_fit() {
        let mut context = Context::new(vec![1, 2], vec![9], 12);
        assert_eq!(
            said(&mut context, &[10, 11]),
            Span {
                segment: 0,
                start: 2,
                tokens: 2
            }
        );
        context.push_result(&[7], &[3, 4], 5);
        assert_eq!(context.tokens(), [1, 2, 10, 11, 7, 3, 4]);
        assert_eq!(
            said(&mut context, &[12]),
            Span {
                segment: 0,
                start: 7,
                tokens: 1
            }
        );
        let segments = context.segments().to_vec();
        assert_eq!(segments.len(), 1);
        assert_eq!(segments[0].mask, [0, 0, 1, 1, 0, 0, 0, 1]);
        assert_eq!(
            segments[0].logprobs,
            [0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5]
        );
    }

    #[test]
    fn the_oldest_result_gives_way_and_the_newest_stays() {
        let mut context = Context::new(vec![1, 2], vec![9], 16);
        said(&mut context, &[10]);
        context.push_result(&[], &[20, 21, 22, 23, 24, 25], 4);
        said(&mut context, &[11]);
        context.push_result(&[], &[30, 31, 32], 4);
        assert_eq!(context.tokens(), [1, 2, 10, 9, 11, 30, 31, 32]);
        assert_eq!(
            context.segments()[0].tokens,
            [1, 2, 10, 20, 21, 22, 23, 24, 25, 11]
        );
        assert_eq!(
            said(&mut context, &[12]),
            Span {
                segment: 1,
                start: 8,
                tokens: 1
            }
        );
        assert_eq!(context.segments()[1].mask, [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn whole_turns_go_before_the_newest_result() {
        let mut context = Context::new(vec![1], vec![9], 12);
        said(&mut context, &[10, 10, 10]);
        context.push_result(&[], &[20], 3);
        said(&mut context, &[11, 11]);
        context.push_result(&[], &[30, 31, 32, 33], 3);
        assert_eq!(context.tokens(), [1, 11, 11, 30, 31, 32, 33]);
    }

    #[test]
    fn a_result_that_can_never_fit_is_elided() {
        let mut context = Context::new(vec![1], vec![9], 10);
        said(&mut context, &[10]);
        context.push_result(&[], &[20; 40], 4);
        assert_eq!(context.tokens(), [1, 10, 9]);
    }

    #[test]
    fn a_prompt_that_is_too_long_leaves_no_room() {
        let context = Context::new(vec![1; 10], vec![9], 10);
        assert_eq!(context.room_tokens(), 0);
    }

    proptest! {
        /// Completions hold unique tokens, so that each can be found again.
        #[test]
        fn every_sampled_token_is_masked_once_and_nothing_outgrows_the_limit(
            prompt in 1usize..8,
            limit in 16usize..48,
            turns in prop::collection::vec((1usize..8, 0usize..30, any::<bool>()), 1..12),
        ) {
            const WANTED: usize = 8;
            let mut context = Context::new(vec![1; prompt], vec![2, 2], limit);
            let mut next = 1_000;
            let mut spans = Vec::new();
            for (completion, result, cut) in turns {
                let room = context.room_tokens().min(WANTED);
                prop_assert!(room > 0);
                let tokens: Vec<u32> = (next..next + completion.min(room) as u32).collect();
                next += tokens.len() as u32;
                spans.push((context.push_completion(&tokens, &vec![-1.0; tokens.len()]), tokens));
                context.push_result(if cut { &[5] } else { &[] }, &vec![3; result], WANTED);
                prop_assert!(context.room_tokens() >= WANTED, "room is made for a whole completion");
            }
            let segments = context.segments().to_vec();
            let mut sampled = Vec::new();
            for segment in &segments {
                prop_assert!(segment.tokens.len() <= limit);
                prop_assert_eq!(segment.tokens.len(), segment.mask.len());
                prop_assert_eq!(segment.tokens.len(), segment.logprobs.len());
                prop_assert_eq!(&segment.tokens[..prompt], &vec![1; prompt][..]);
                for ((token, mask), logprob) in segment.tokens.iter().zip(&segment.mask).zip(&segment.logprobs) {
                    prop_assert_eq!(*logprob != 0.0, *mask == 1);
                    if *mask == 1 {
                        sampled.push(*token);
                    }
                }
            }
            prop_assert_eq!(sampled, (1_000..next).collect::<Vec<_>>());
            for (span, tokens) in spans {
                let (start, end) = (span.start as usize, (span.start + span.tokens) as usize);
                prop_assert_eq!(&segments[span.segment as usize].tokens[start..end], &tokens[..]);
            }
        }
    }
}
