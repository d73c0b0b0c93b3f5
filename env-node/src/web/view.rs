//! The JSON of questions and observations for the page.
//!
//! Invariant: fields are named one by one, so that a gold answer cannot leak. Only [`gold`] has it.

use data::Question;
use env::Observation;
use serde_json::{Value, json};

use crate::wire;

/// Returns a question without its answer.
pub(super) fn question(question: &Question) -> Value {
    wire::question_json(question, "question_text")
}

/// Returns the gold answer and SQL of a question, for the end of an episode.
pub(super) fn gold(question: &Question) -> Value {
    json!({"answer": data::answer_text(question), "sql": question.gold_sql})
}

/// Returns an observation with `done` and `reward` in it.
pub(super) fn observation(observation: &Observation) -> Value {
    let mut fields = json!(observation);
    fields["done"] = json!(observation.done);
    fields["reward"] = json!(observation.reward);
    fields
}
