//! The task API: the node's splits and questions, as tasks that a reset can name by split and
//! index.
//!
//! Invariant: the task at an index is the question that `reset(split=.., index=..)` starts. Tasks
//! do not hold answers.

use std::{ops::Range, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use data::Question;
use env::QuestionPage;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    http::{read_body, reject},
    service::{ENVIRONMENT_NAME, OpenEnvService},
    validation::Integer,
};
use crate::{node::EnvNode, rejection::Rejection, wire};

type JsonResult = Result<Json<Value>, Rejection>;

pub(super) fn routes() -> Router<Arc<OpenEnvService>> {
    Router::new()
        .route("/list_environments", get(environments))
        .route("/{environment}/splits", get(splits))
        .route("/{environment}/tasks", post(tasks))
        .route("/{environment}/num_tasks", post(num_tasks))
        .route("/{environment}/task", post(task))
        .route("/{environment}/task_range", post(task_range))
}

/// The body of a request about all tasks of a split.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitBody {
    split: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskBody {
    split: String,
    index: Integer,
}

/// Bounds as Python's slices have them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskRangeBody {
    split: String,
    start: Option<Integer>,
    stop: Option<Integer>,
}

async fn environments() -> Json<Value> {
    Json(json!([ENVIRONMENT_NAME]))
}

async fn splits(
    State(service): State<Arc<OpenEnvService>>,
    Path(environment): Path<String>,
) -> JsonResult {
    check_name(&environment)?;
    let splits = service.node.environment().splits();
    let splits = splits.map(|(name, _)| json!({"name": name, "type": split_type(name)}));
    Ok(Json(splits.collect()))
}

/// Returns one of OpenEnv's three types of split. Questions on databases that are never trained on
/// are the test split.
fn split_type(name: &str) -> &'static str {
    match name.split('/').next() {
        Some("train") => "train",
        Some("test" | "eval-unseen") => "test",
        _ => "validation",
    }
}

async fn tasks(
    State(service): State<Arc<OpenEnvService>>,
    Path(environment): Path<String>,
    body: Bytes,
) -> JsonResult {
    let SplitBody { split } = read_body(&body)?;
    check_name(&environment)?;
    let tasks = tasks_between(&service.node, &split, 0, usize::MAX)?;
    Ok(Json(json!({"tasks": tasks, "env_name": ENVIRONMENT_NAME})))
}

async fn num_tasks(
    State(service): State<Arc<OpenEnvService>>,
    Path(environment): Path<String>,
    body: Bytes,
) -> JsonResult {
    let SplitBody { split } = read_body(&body)?;
    check_name(&environment)?;
    let count = list(&service.node, &split, 0..0)?.total;
    Ok(Json(json!({"num_tasks": count})))
}

async fn task(
    State(service): State<Arc<OpenEnvService>>,
    Path(environment): Path<String>,
    body: Bytes,
) -> JsonResult {
    let TaskBody { split, index } = read_body(&body)?;
    check_name(&environment)?;
    let questions = match usize::try_from(index.0) {
        Ok(index) => list(&service.node, &split, index..index.saturating_add(1))?.questions,
        Err(_) => Vec::new(),
    };
    match questions.first() {
        Some(question) => Ok(Json(json!({"task": task_of(question)}))),
        None => Err(Rejection::new(
            StatusCode::BAD_REQUEST,
            "Invalid task index",
        )),
    }
}

async fn task_range(
    State(service): State<Arc<OpenEnvService>>,
    Path(environment): Path<String>,
    body: Bytes,
) -> JsonResult {
    let TaskRangeBody { split, start, stop } = read_body(&body)?;
    check_name(&environment)?;
    let count = list(&service.node, &split, 0..0)?.total;
    let start = start.map_or(0, |start| slice_bound(start.0, count));
    let stop = stop.map_or(count, |stop| slice_bound(stop.0, count));
    let tasks = tasks_between(&service.node, &split, start, stop)?;
    Ok(Json(json!({"tasks": tasks})))
}

/// Returns the place of a bound of a Python slice: a negative one counts from the end, and none
/// lies outside of the list.
fn slice_bound(bound: i64, length: usize) -> usize {
    match usize::try_from(bound) {
        Ok(bound) => bound.min(length),
        Err(_) => length.saturating_sub(bound.unsigned_abs() as usize),
    }
}

fn check_name(environment: &str) -> Result<(), Rejection> {
    if environment.eq_ignore_ascii_case(ENVIRONMENT_NAME) {
        return Ok(());
    }
    let detail = format!("no environment {environment:?}; there is {ENVIRONMENT_NAME}");
    Err(Rejection::new(StatusCode::NOT_FOUND, &detail))
}

/// Returns the tasks of a split from `start` on and before `stop`, in the node's order.
fn tasks_between(
    node: &EnvNode,
    split: &str,
    start: usize,
    stop: usize,
) -> Result<Vec<Value>, Rejection> {
    let questions = list(node, split, start..stop)?.questions;
    Ok(questions.into_iter().map(task_of).collect())
}

fn list<'a>(
    node: &'a EnvNode,
    split: &str,
    range: Range<usize>,
) -> Result<QuestionPage<'a>, Rejection> {
    let page = node.environment().list_questions(split, "", range);
    page.map_err(|error| reject(&error))
}

fn task_of(question: &Question) -> Value {
    wire::question_json(question, "question")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_python() {
        for (bound, expected) in [(0, 0), (2, 2), (3, 3), (9, 3), (-1, 2), (-3, 0), (-9, 0)] {
            assert_eq!(slice_bound(bound, 3), expected, "{bound}");
        }
        assert_eq!(slice_bound(i64::MIN, 3), 0);
    }
}
