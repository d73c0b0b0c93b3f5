//! The JSON of questions and observations for the page.
//!
//! Invariant: fields are named one by one, so that a gold answer cannot leak.

use data::Question;
use env::Observation;
use serde_json::{Value, json};

use crate::{openenv::ObservationView, wire};

/// Returns a question without its answer.
pub(super) fn question(question: &Question) -> Value {
    wire::question_json(question, "question_text")
}

/// Returns an observation with `done` and `reward` in it.
pub(super) fn observation(observation: &Observation) -> Value {
    let mut fields = json!(ObservationView::from(observation));
    fields["done"] = json!(observation.done);
    fields["reward"] = json!(observation.reward);
    fields
}
