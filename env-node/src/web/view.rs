//! What the page sees of questions and replies, as JSON.
//!
//! Invariant: fields are named one by one, so that a gold answer cannot slip out.

use data::Question;
use proto::v1::Observation;
use serde_json::{Value, json};

use crate::openenv::Seen;

/// A question as a player may know it.
pub(super) fn question(question: &Question) -> Value {
    json!({
        "question_id": question.question_id,
        "question_text": question.question_text,
        "database_name": question.database_name,
        "split": question.split,
        "difficulty": question.difficulty,
    })
}

/// An observation with `done` and `reward` inside.
pub(super) fn observation(observation: &Observation) -> Value {
    let mut fields = json!(Seen::from(observation));
    fields["done"] = json!(observation.done);
    fields["reward"] = json!(observation.reward);
    fields
}
