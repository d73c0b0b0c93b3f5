//! What the page and OpenEnv's web routes see of questions and replies, as JSON.
//!
//! Invariant: fields are named one by one, so that a gold answer cannot slip out.

use data::Question;
use proto::v1::{Observation, RewardComponents};
use serde_json::{Value, json};

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
    let mut fields = seen(observation);
    fields["done"] = json!(observation.done);
    fields["reward"] = json!(observation.reward);
    fields
}

/// An observation in OpenEnv's shape: `done` and `reward` stand beside it.
pub(super) fn openenv_reply(observation: &Observation) -> Value {
    json!({"observation": seen(observation), "reward": observation.reward, "done": observation.done})
}

/// The reward of a step by layer.
pub(super) fn components(components: RewardComponents) -> Value {
    json!({
        "operational": components.operational,
        "progress": components.progress,
        "terminal": components.terminal,
        "clip": components.clip,
    })
}

fn seen(observation: &Observation) -> Value {
    json!({
        "question": observation.question,
        "schema_info": observation.schema_info,
        "result": observation.result,
        "error": observation.error,
        "step_count": observation.step_count,
        "budget_remaining": observation.budget_remaining,
        "action_history": observation.action_history,
    })
}
