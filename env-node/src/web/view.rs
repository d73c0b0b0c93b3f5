//! What the page sees of questions and replies, as JSON.
//!
//! Invariant: fields are named one by one, so that a gold answer cannot slip out.

use data::Question;
use env::Observation;
use serde_json::{Value, json};

use crate::{openenv::Seen, wire};

/// A question as a player may know it.
pub(super) fn question(question: &Question) -> Value {
    wire::question_json(question, "question_text")
}

/// An observation with `done` and `reward` inside.
pub(super) fn observation(observation: &Observation) -> Value {
    let mut fields = json!(Seen::from(observation));
    fields["done"] = json!(observation.done);
    fields["reward"] = json!(observation.reward);
    fields
}
