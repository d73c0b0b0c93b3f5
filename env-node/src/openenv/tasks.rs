//! The task API: the node's splits and questions, as tasks that a reset can name by split and index.
//!
//! Invariant: the task at an index is the question that `reset(split=.., index=..)` plays. Answers are not in it.

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use data::Question;
use env::QuestionPage;
use serde_json::{Map, Value, json};

use super::{
    ENVIRONMENT_NAME, SharedFace,
    fields::Fields,
    http::{Refusal, required_object_in},
    python_repr,
};
use crate::{node::EnvNode, wire};

pub(super) fn routes() -> Router<SharedFace> {
    Router::new()
        .route("/list_environments", get(environments))
        .route("/{environment}/splits", get(splits))
        .route("/{environment}/tasks", post(tasks))
        .route("/{environment}/num_tasks", post(num_tasks))
        .route("/{environment}/task", post(task))
        .route("/{environment}/task_range", post(task_range))
}

async fn environments() -> Json<Value> {
    Json(json!([ENVIRONMENT_NAME]))
}

async fn splits(
    State(face): State<SharedFace>,
    Path(environment): Path<String>,
) -> Result<Json<Value>, Refusal> {
    check_name(&environment)?;
    let splits = face.node.environment().splits();
    let splits = splits.map(|(name, _)| json!({"name": name, "type": split_type(name)}));
    Ok(Json(splits.collect()))
}

/// OpenEnv knows three types. Questions on databases that are never trained on are the test.
fn split_type(name: &str) -> &'static str {
    match name.split('/').next() {
        Some("train") => "train",
        Some("test" | "eval-unseen") => "test",
        _ => "validation",
    }
}

async fn tasks(
    State(face): State<SharedFace>,
    Path(environment): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = required_object_in(&body)?;
    let split = read_split(&body, |_| ())?.0;
    check_name(&environment)?;
    let tasks = tasks_between(&face.node, &split, 0, usize::MAX)?;
    Ok(Json(json!({"tasks": tasks, "env_name": ENVIRONMENT_NAME})))
}

async fn num_tasks(
    State(face): State<SharedFace>,
    Path(environment): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = required_object_in(&body)?;
    let split = read_split(&body, |_| ())?.0;
    check_name(&environment)?;
    let count = page(&face.node, &split, 0, 1)?.total;
    Ok(Json(json!({"num_tasks": count})))
}

async fn task(
    State(face): State<SharedFace>,
    Path(environment): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = required_object_in(&body)?;
    let (split, index) = read_split(&body, |fields| fields.required_int("index"))?;
    check_name(&environment)?;
    let questions = match index.and_then(|index| usize::try_from(index).ok()) {
        Some(index) => page(&face.node, &split, index, 1)?.questions,
        None => Vec::new(),
    };
    let question = questions
        .first()
        .ok_or_else(|| Refusal::Detail(StatusCode::BAD_REQUEST, "Invalid task index".to_owned()))?;
    Ok(Json(json!({"task": task_of(question)})))
}

async fn task_range(
    State(face): State<SharedFace>,
    Path(environment): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = required_object_in(&body)?;
    let (split, (start, stop)) = read_split(&body, |fields| {
        (fields.optional_int("start"), fields.optional_int("stop"))
    })?;
    check_name(&environment)?;
    let count = page(&face.node, &split, 0, 1)?.total;
    let start = slice_bound(start.unwrap_or(0), count);
    let stop = slice_bound(stop.unwrap_or(i64::MAX), count);
    let tasks = tasks_between(&face.node, &split, start, stop)?;
    Ok(Json(json!({"tasks": tasks})))
}

/// A bound as Python's slices take it: from the end if negative, never outside.
fn slice_bound(bound: i64, length: usize) -> usize {
    match usize::try_from(bound) {
        Ok(bound) => bound.min(length),
        Err(_) => length.saturating_sub(bound.unsigned_abs() as usize),
    }
}

/// The split that a body names, and what else `read` finds in it.
fn read_split<T>(
    body: &Map<String, Value>,
    read: impl FnOnce(&mut Fields<'_>) -> T,
) -> Result<(String, T), Refusal> {
    let mut fields = Fields::of(body, &["body"]);
    let split = fields.required_string("split");
    let more = read(&mut fields);
    fields.refuse_others();
    fields.finish()?;
    Ok((split, more))
}

fn check_name(environment: &str) -> Result<(), Refusal> {
    if environment.eq_ignore_ascii_case(ENVIRONMENT_NAME) {
        return Ok(());
    }
    let name = python_repr::repr(&json!(environment));
    let detail = format!("unknown environment {name}");
    Err(Refusal::Detail(StatusCode::NOT_FOUND, detail))
}

/// The tasks of a split from `start` on and before `stop`, in the node's order.
fn tasks_between(
    node: &EnvNode,
    split: &str,
    start: usize,
    stop: usize,
) -> Result<Vec<Value>, Refusal> {
    let page = node.environment().list_questions(split, "", start..stop)?;
    Ok(page.questions.into_iter().map(task_of).collect())
}

/// At most `size` questions of a split, from `start` on, and how many there are.
fn page<'a>(
    node: &'a EnvNode,
    split: &str,
    start: usize,
    size: usize,
) -> Result<QuestionPage<'a>, Refusal> {
    let range = start..start.saturating_add(size);
    Ok(node.environment().list_questions(split, "", range)?)
}

fn task_of(question: &Question) -> Value {
    wire::question_json(question, "question")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_pythons() {
        for (bound, expected) in [(0, 0), (2, 2), (3, 3), (9, 3), (-1, 2), (-3, 0), (-9, 0)] {
            assert_eq!(slice_bound(bound, 3), expected, "{bound}");
        }
        assert_eq!(slice_bound(i64::MIN, 3), 0);
    }
}
