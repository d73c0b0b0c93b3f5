//! The JSON of questions and observations for the page.
//!
//! Invariant: fields are named one by one, so that a gold answer cannot leak.

use data::Question;
use proto::v1::Observation;
use serde_json::{Value, json};

use crate::openenv::ObservationView;

/// Returns a question without its answer.
pub(super) fn question(question: &Question) -> Value {
    json!({
        "question_id": question.question_id,
        "question_text": question.question_text,
        "database_name": question.database_name,
        "split": question.split,
        "difficulty": question.difficulty,
    })
}

/// Returns an observation with `done` and `reward` in it.
pub(super) fn observation(observation: &Observation) -> Value {
    let mut fields = json!(ObservationView::from(observation));
    fields["done"] = json!(observation.done);
    fields["reward"] = json!(observation.reward);
    fields
}
