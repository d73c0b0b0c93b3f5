//! The token sequence that the policy sees in one episode, split into segments that fit the
//! context. Pure.
//!
//! Invariant: tokens are appended or dropped as whole runs and never encoded again. Each sampled
//! token has mask 1 in exactly one segment, the one it was sampled in. No segment exceeds the
//! limit.
//!
//! When the room runs out, a new segment starts with what is retained of the conversation, all with
//! mask 0. Old tool results are dropped first, because they are the longest part and a later turn
//! rarely needs them: it can run the query again. A short note replaces each of them, so that the
//! conversation still alternates as the chat template demands. If that is not enough, whole old
//! turns are dropped. The newest turn goes last, since the next completion responds to it. Without
//! it the policy would repeat its first call, so the completion first gets less room.

use proto::v1::Segment;

/// The tokens of a short completion. Of the 11 tool calls in the solved examples of prompts, 10
/// have at most 28 tokens under the embedded policy's tokenizer, and one has 51.
const SHORT_COMPLETION_TOKENS: usize = 48;

/// The tokens of one turn: the completion and the tool result that follows it.
#[derive(Debug)]
struct TurnTokens {
    completion: Vec<u32>,
    /// The end-of-turn token, if the completion was truncated before it.
    closing: Vec<u32>,
    result: Vec<u32>,
}

/// The position of a completion in the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletionSpan {
    /// Index of the segment.
    pub(crate) segment: u32,
    /// First token within the segment.
    pub(crate) start: u32,
    /// Number of tokens.
    pub(crate) tokens: u32,
}

/// The growing context of one episode.
#[derive(Debug)]
pub(crate) struct Context {
    limit_tokens: usize,
    prompt: Vec<u32>,
    elision_note: Vec<u32>,
    turns: Vec<TurnTokens>,
    /// The results of the turns before this one are replaced by the note.
    elided: usize,
    /// The turns before this one are dropped entirely.
    dropped: usize,
    segments: Vec<Segment>,
}

impl Context {
    /// Creates a context of at most `limit_tokens` that starts with a prompt. `elision_note`
    /// replaces a tool result that is dropped.
    pub(crate) fn new(prompt: Vec<u32>, elision_note: Vec<u32>, limit_tokens: usize) -> Self {
        Self {
            limit_tokens,
            segments: vec![unsampled_segment([&prompt[..]])],
            prompt,
            elision_note,
            turns: Vec::new(),
            elided: 0,
            dropped: 0,
        }
    }

    /// Returns the tokens that the policy sees now.
    pub(crate) fn tokens(&self) -> &[u32] {
        let open = self.segments.last();
        &open
            .expect("the last segment is open: this is a bug")
            .tokens
    }

    /// Returns the number of tokens that still fit.
    pub(crate) fn room_tokens(&self) -> usize {
        self.limit_tokens.saturating_sub(self.tokens().len())
    }

    /// Returns whether a turn may fit behind the prompt together with the completion that follows
    /// it, for which `wanted_tokens` are wanted. Otherwise every segment would be the prompt alone.
    pub(crate) fn may_retain_turns(&self, wanted_tokens: usize) -> bool {
        self.prompt.len() + least_room(wanted_tokens) < self.limit_tokens
    }

    /// Takes the segments out. The context is not used afterwards.
    pub(crate) fn take_segments(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.segments)
    }

    /// Appends a completion with the log-probability of each token.
    pub(crate) fn push_completion(&mut self, tokens: &[u32], logprobs: &[f32]) -> CompletionSpan {
        assert_eq!(
            tokens.len(),
            logprobs.len(),
            "each token has a log-probability: this is a bug"
        );
        let span = CompletionSpan {
            segment: (self.segments.len() - 1) as u32,
            start: self.tokens().len() as u32,
            tokens: tokens.len() as u32,
        };
        let open = self.open_segment();
        open.tokens.extend_from_slice(tokens);
        open.mask.resize(open.tokens.len(), 1);
        open.logprobs.extend_from_slice(logprobs);
        self.turns.push(TurnTokens {
            completion: tokens.to_vec(),
            closing: Vec::new(),
            result: Vec::new(),
        });
        span
    }

    /// Appends what follows the last completion, and makes room for `wanted_tokens` more.
    ///
    /// `closing` is the end-of-turn token if the completion lacks it. `result` includes the next
    /// generation prompt. If not everything fits, a new segment starts. There is less room than
    /// `wanted_tokens` if the newest turn would not fit otherwise, or if the prompt is too long.
    pub(crate) fn push_result(&mut self, closing: &[u32], result: &[u32], wanted_tokens: usize) {
        let last = self
            .turns
            .last_mut()
            .expect("a result follows a completion: this is a bug");
        last.closing = closing.to_vec();
        last.result = result.to_vec();
        let needed = self.tokens().len() + closing.len() + result.len() + wanted_tokens;
        if needed > self.limit_tokens && self.make_room(wanted_tokens) {
            let retained = unsampled_segment(self.retained());
            self.segments.push(retained);
        } else {
            append_unsampled(self.open_segment(), closing);
            append_unsampled(self.open_segment(), result);
        }
    }

    /// Decides which results and turns the next segment drops. Returns false if it drops none that
    /// the open segment has.
    ///
    /// Each new segment trains on its whole prefix again, so segments should be few. Old results
    /// are therefore elided until a quarter of the limit is free in addition to `wanted_tokens`.
    /// Old turns are dropped only as far as `wanted_tokens` requires, and the newest result and the
    /// newest turn only as far as the least room does.
    fn make_room(&mut self, wanted_tokens: usize) -> bool {
        let before = (self.elided, self.dropped);
        let newest = self.turns.len() - 1;
        let most = self.limit_tokens.saturating_sub(wanted_tokens);
        let comfortable = most.saturating_sub(self.limit_tokens / 4);
        while self.elided < newest && self.retained_tokens() > comfortable {
            self.elided += 1;
        }
        while self.dropped < newest && self.retained_tokens() > most {
            self.dropped += 1;
        }
        let most = self.limit_tokens.saturating_sub(least_room(wanted_tokens));
        if self.retained_tokens() > most {
            self.elided = newest + 1;
        }
        if self.retained_tokens() > most {
            self.dropped = newest + 1;
        }
        before != (self.elided, self.dropped)
    }

    fn retained_tokens(&self) -> usize {
        self.retained().map(<[u32]>::len).sum()
    }

    /// Returns the token runs of the next segment: the prompt and what is left of the turns.
    fn retained(&self) -> impl Iterator<Item = &[u32]> {
        let turns = self.turns.iter().enumerate().skip(self.dropped);
        let turns = turns.flat_map(|(index, turn)| {
            let result = if index < self.elided {
                &self.elision_note
            } else {
                &turn.result
            };
            [&turn.completion[..], &turn.closing, result]
        });
        std::iter::once(&self.prompt[..]).chain(turns)
    }

    fn open_segment(&mut self) -> &mut Segment {
        let open = self.segments.last_mut();
        open.expect("the last segment is open: this is a bug")
    }
}

/// Returns the room for a completion below which the newest turn is left out, if `wanted_tokens`
/// are wanted. Policies that are given many tokens write longer completions.
fn least_room(wanted_tokens: usize) -> usize {
    wanted_tokens.min(SHORT_COMPLETION_TOKENS.max(wanted_tokens / 4))
}

/// Returns a segment of tokens that were not sampled.
fn unsampled_segment<'a>(runs: impl IntoIterator<Item = &'a [u32]>) -> Segment {
    let mut segment = Segment::default();
    for run in runs {
        append_unsampled(&mut segment, run);
    }
    segment
}

fn append_unsampled(segment: &mut Segment, tokens: &[u32]) {
    segment.tokens.extend_from_slice(tokens);
    segment.mask.resize(segment.tokens.len(), 0);
    segment.logprobs.resize(segment.tokens.len(), 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(context: &mut Context, tokens: &[u32]) -> CompletionSpan {
        context.push_completion(tokens, &vec![-0.5; tokens.len()])
    }

    #[test]
    fn turns_are_appended_while_they_fit() {
        let mut context = Context::new(vec![1, 2], vec![9], 12);
        assert_eq!(
            complete(&mut context, &[10, 11]),
            CompletionSpan {
                segment: 0,
                start: 2,
                tokens: 2
            }
        );
        context.push_result(&[7], &[3, 4], 5);
        assert_eq!(context.tokens(), [1, 2, 10, 11, 7, 3, 4]);
        assert_eq!(
            complete(&mut context, &[12]),
            CompletionSpan {
                segment: 0,
                start: 7,
                tokens: 1
            }
        );
        let segments = context.segments.to_vec();
        assert_eq!(segments.len(), 1);
        assert_eq!(segments[0].mask, [0, 0, 1, 1, 0, 0, 0, 1]);
        assert_eq!(
            segments[0].logprobs,
            [0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5]
        );
    }

    #[test]
    fn the_oldest_result_is_elided_and_the_newest_is_retained() {
        let mut context = Context::new(vec![1, 2], vec![9], 16);
        complete(&mut context, &[10]);
        context.push_result(&[], &[20, 21, 22, 23, 24, 25], 4);
        complete(&mut context, &[11]);
        context.push_result(&[], &[30, 31, 32], 4);
        assert_eq!(context.tokens(), [1, 2, 10, 9, 11, 30, 31, 32]);
        assert_eq!(
            context.segments[0].tokens,
            [1, 2, 10, 20, 21, 22, 23, 24, 25, 11]
        );
        assert_eq!(
            complete(&mut context, &[12]),
            CompletionSpan {
                segment: 1,
                start: 8,
                tokens: 1
            }
        );
        assert_eq!(context.segments[1].mask, [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn old_turns_are_dropped_before_the_newest_result() {
        let mut context = Context::new(vec![1], vec![9], 12);
        complete(&mut context, &[10, 10, 10]);
        context.push_result(&[], &[20], 3);
        complete(&mut context, &[11, 11]);
        context.push_result(&[], &[30, 31, 32, 33], 3);
        assert_eq!(context.tokens(), [1, 11, 11, 30, 31, 32, 33]);
    }

    #[test]
    fn a_result_that_can_never_fit_is_elided() {
        let mut context = Context::new(vec![1], vec![9], 10);
        complete(&mut context, &[10]);
        context.push_result(&[], &[20; 40], 4);
        assert_eq!(context.tokens(), [1, 10, 9]);
    }

    /// Without the newest turn a policy would see the prompt alone, and repeat its first call.
    #[test]
    fn a_completion_gets_less_room_before_the_newest_turn_is_left_out() {
        const WANTED: usize = 96;
        let mut context = Context::new(vec![1; 20], vec![9], 130);
        complete(&mut context, &[10; 10]);
        context.push_result(&[], &[20; 20], WANTED);
        assert_eq!(
            context.tokens(),
            [vec![1; 20], vec![10; 10], vec![20; 20]].concat()
        );
        assert_eq!((context.segments.len(), context.room_tokens()), (1, 80));
        complete(&mut context, &[11; 12]);
        context.push_result(&[], &[30; 50], WANTED);
        assert_eq!(
            context.tokens(),
            [vec![1; 20], vec![11; 12], vec![30; 50]].concat()
        );
        assert_eq!((context.segments.len(), context.room_tokens()), (2, 48));
        // One token more, and the result is left out for a short completion.
        complete(&mut context, &[12; 12]);
        context.push_result(&[], &[40; 51], WANTED);
        assert_eq!(
            context.tokens(),
            [vec![1; 20], vec![12; 12], vec![9]].concat()
        );
    }

    #[test]
    fn the_least_room_is_a_short_completion_or_a_quarter() {
        for (wanted, least) in [(8, 8), (48, 48), (96, 48), (192, 48), (512, 128)] {
            assert_eq!(least_room(wanted), least);
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_leaves_no_room() {
        let context = Context::new(vec![1; 10], vec![9], 10);
        assert_eq!(context.room_tokens(), 0);
        assert!(!context.may_retain_turns(1));
        let longest = Context::new(vec![1; 10], vec![9], 10 + 48);
        assert!(!longest.may_retain_turns(96) && longest.may_retain_turns(40));
    }
}
