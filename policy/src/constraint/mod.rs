//! Constrained decoding: which tokens a completion may continue with.
//!
//! Invariant: the sets of a completion are a function of its context's tokens, its own tokens and
//! the setting alone. So the learner finds the sets that the sampler had, and renormalises its
//! log-probabilities over them. The grammar is matched by `llguidance`.

mod grammar;
mod shown_names;
mod vocabulary;

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toktrie::InferenceCapabilities;

use crate::chat::{Chat, ChatRole, Message};
use crate::error::{PolicyError, Result};
use crate::model::Model;
use crate::ops::TokenSet;
use shown_names::{ShownTable, shown_names};
use vocabulary::Vocabulary;

/// The grammars that are kept. The members of a group share theirs.
const KEPT_GRAMMARS: usize = 64;
/// A database with more names than this constrains the calls only: matching takes time in
/// proportion.
const MOST_NAMES: usize = 4_000;

/// What completions are constrained to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    /// Any text.
    #[default]
    None,
    /// One well-formed tool call.
    ToolCall,
    /// One well-formed tool call. A query is a SELECT whose tables and columns the episode has
    /// shown, and a table to describe or sample is one of the list.
    Sql,
}

/// Constrains the completions of a model.
pub struct Constrainer {
    constraint: Constraint,
    chat: Arc<Chat>,
    shots: usize,
    /// The stop tokens that are nothing but an end.
    ends: Vec<u32>,
    factory: ParserFactory,
    /// The compiled grammars, at most [`KEPT_GRAMMARS`], the oldest first.
    matchers: Mutex<VecDeque<(String, Matcher)>>,
}

impl std::fmt::Debug for Constrainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Constrainer")
            .field(&self.constraint)
            .finish()
    }
}

impl Constrainer {
    /// Returns what constrains the completions of conversations with `shots` solved examples; none
    /// if nothing does.
    ///
    /// # Errors
    /// The tokenizer cannot be matched against a grammar, or names cannot be read from what the
    /// chat template prints.
    pub fn new(constraint: Constraint, chat: &Arc<Chat>, shots: usize) -> Result<Option<Self>> {
        if constraint == Constraint::None {
            return Ok(None);
        }
        let Vocabulary { trie, ends } = Vocabulary::new(chat, chat.turn_end())?;
        let mut factory = ParserFactory::new(&trie, InferenceCapabilities::default(), &[])
            .map_err(|error| failed(&error))?;
        factory.quiet();
        // The defaults protect servers from the grammars of strangers. This one's size depends on
        // the number of names.
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel *= 20;
        limits.step_lexer_fuel *= 20;
        limits.step_max_items *= 4;
        let constrainer = Self {
            constraint,
            chat: Arc::clone(chat),
            shots,
            ends,
            factory,
            matchers: Mutex::default(),
        };
        constrainer.check_template()?;
        Ok(Some(constrainer))
    }

    /// Returns what constrains the completions of a model.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_model(constraint: Constraint, model: &Model, shots: usize) -> Result<Option<Self>> {
        Self::new(constraint, &Arc::new(model.chat.clone()), shots)
    }

    /// Begins a completion after a context.
    ///
    /// # Errors
    /// The context cannot be decoded, or its grammar cannot be compiled.
    pub fn begin(&self, context: &[u32]) -> Result<ConstrainedCompletion> {
        let mut tables = None;
        if self.constraint == Constraint::Sql {
            let found = self.shown_names(context)?;
            let names = found.iter().map(|table| 1 + table.columns.len());
            tables = (1..=MOST_NAMES).contains(&names.sum()).then_some(found);
        }
        Ok(ConstrainedCompletion {
            matcher: self.matcher(tables.as_deref())?,
            is_over: false,
            stop_ids: self.chat.stop_ids().to_vec(),
            ends: self.ends.clone(),
            vocabulary: self.chat.vocabulary_size(),
            last: None,
        })
    }

    /// Returns the names of the tools and of their arguments that a call can have.
    pub fn tools() -> impl Iterator<Item = (&'static str, &'static str)> {
        let named = |(name, parameter, _)| (name, parameter);
        grammar::TOOLS.into_iter().map(named)
    }

    /// Returns the set at each position of a completion.
    ///
    /// # Errors
    /// [`PolicyError::Text`] if a token is not in its set, or follows a stop token.
    pub fn sets(&self, context: &[u32], completion: &[u32]) -> Result<Vec<TokenSet>> {
        let mut constrained = self.begin(context)?;
        let mut sets = Vec::with_capacity(completion.len());
        for &token in completion {
            let allowed = constrained.allowed();
            if constrained.is_over || !allowed.contains(token) {
                return Err(PolicyError::Text(format!(
                    "token {token} of a completion is excluded by rollout.constraint"
                )));
            }
            constrained.push(token);
            sets.push(allowed);
        }
        Ok(sets)
    }

    /// Reads the names of tables and columns from the text of a context.
    fn shown_names(&self, context: &[u32]) -> Result<Vec<ShownTable>> {
        let text = self.chat.decode(context)?;
        let text = text.replace(self.chat.turn_end(), "\n");
        Ok(shown_names(&text, self.shots))
    }

    /// Checks that names can be read from what the chat template prints. Some templates print tool
    /// results as JSON, on one line.
    fn check_template(&self) -> Result<()> {
        const QUESTION: &str = "x\nAvailable tables:\n- t";
        const DESCRIBED: &str = "Table 't' columns:\n- c: TEXT\nRow count: 1";
        if self.constraint != Constraint::Sql {
            return Ok(());
        }
        let question = Message::new(ChatRole::User, QUESTION);
        let mut context = self.chat.prompt_ids(&[question], &[])?;
        context.extend(self.chat.completion_ids("x")?);
        let described = Message::new(ChatRole::Tool, DESCRIBED);
        context.extend(self.chat.tool_suffix_ids(&[described])?);
        let expected = ShownTable {
            name: "t".to_owned(),
            columns: vec!["c".to_owned()],
        };
        match self.shown_names(&context)?.as_slice() == [expected] {
            true => Ok(()),
            false => Err(PolicyError::Text(
                "the chat template does not print questions and tool results line by line, so the \
                 names of tables and columns cannot be read; set rollout.constraint to \"tool_call\""
                    .to_owned(),
            )),
        }
    }

    /// Returns a matcher of the grammar for these tables. Where it cannot be compiled, calls alone
    /// are constrained; whether it can is a function of the grammar.
    fn matcher(&self, tables: Option<&[ShownTable]>) -> Result<Matcher> {
        let grammar = grammar::grammar(tables, self.chat.turn_end());
        if let Some(matcher) = kept(&self.matchers.lock(), &grammar) {
            return Ok(matcher.deep_clone());
        }
        // Without the lock, because other completions need not wait for this compilation.
        let compiled = TopLevelGrammar::from_lark(grammar.clone());
        let matcher = match (self.factory.create_parser(compiled), tables) {
            (Ok(parser), _) => Matcher::new(Ok(parser)),
            (Err(error), None) => return Err(failed(&error)),
            (Err(error), Some(_)) => {
                tracing::warn!("rollout.constraint: only calls are constrained: {error}");
                // Kept below, so that the next completion neither compiles nor warns again.
                self.matcher(None)?
            }
        };
        let mut matchers = self.matchers.lock();
        // Another completion may have compiled it meanwhile.
        if kept(&matchers, &grammar).is_none() {
            if matchers.len() >= KEPT_GRAMMARS {
                matchers.pop_front();
            }
            matchers.push_back((grammar, matcher.deep_clone()));
        }
        Ok(matcher)
    }
}

fn kept<'a>(matchers: &'a VecDeque<(String, Matcher)>, grammar: &str) -> Option<&'a Matcher> {
    let (_, matcher) = matchers.iter().find(|(it, _)| it == grammar)?;
    Some(matcher)
}

/// A completion that is being sampled or scored.
pub struct ConstrainedCompletion {
    matcher: Matcher,
    stop_ids: Vec<u32>,
    ends: Vec<u32>,
    vocabulary: usize,
    last: Option<TokenSet>,
    /// Whether a stop token was pushed.
    is_over: bool,
}

impl ConstrainedCompletion {
    /// Returns the tokens that may come next. Where none fits, the turn ends.
    pub fn allowed(&mut self) -> TokenSet {
        let mut words = vec![0_u32; self.vocabulary.div_ceil(32)];
        match self.matcher.compute_mask_or_eos() {
            Ok(mask) => words
                .iter_mut()
                .zip(mask.as_slice())
                .for_each(|(word, mask)| *word = *mask),
            Err(error) => tracing::warn!("rollout.constraint ends a turn early: {error}"),
        }
        let is_end = |id: u32| {
            words
                .get(id as usize / 32)
                .is_some_and(|it| it >> (id % 32) & 1 == 1)
        };
        if is_end(self.stop_ids[0]) || words.iter().all(|&word| word == 0) {
            words.fill(0);
            for &id in &self.ends {
                if let Some(word) = words.get_mut(id as usize / 32) {
                    *word |= 1 << (id % 32);
                }
            }
        }
        let set = TokenSet::new(&words);
        // Inside of a text the set stays the same, and is shared.
        let set = match self.last.take() {
            Some(last) if last == set => last,
            _ => set,
        };
        self.last = Some(set.clone());
        set
    }

    /// Appends a token of the set. After one that is not in it, only the end of the turn is
    /// allowed.
    pub fn push(&mut self, token: u32) {
        if self.stop_ids.contains(&token) {
            self.is_over = true;
        } else {
            // The matcher remembers the error, and `allowed` reports it.
            drop(self.matcher.consume_token(token));
        }
    }
}

impl std::fmt::Debug for ConstrainedCompletion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConstrainedCompletion")
            .finish_non_exhaustive()
    }
}

fn failed(error: &impl std::fmt::Display) -> PolicyError {
    PolicyError::Text(format!("rollout.constraint: {error}"))
}

#[cfg(test)]
mod tests;
