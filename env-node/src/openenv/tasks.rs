//! The task API: the node's splits and questions, as tasks that a reset can name by split and
//! index.
//!
//! Invariant: the task at an index is the question that `reset(split=.., index=..)` starts. Tasks
//! do not hold answers.

use std::{ops::Range, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
    routing::{MethodRouter, get, post},
};
use data::Question;
use env::QuestionPage;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    documents::ENVIRONMENT_NAME,
    http::{Body, read_body},
    service::OpenEnvService,
    validation::Integer,
};
use crate::{node::EnvNode, rejection::Rejection, wire};

pub(super) fn routes() -> Router<Arc<OpenEnvService>> {
    Router::new()
        .route("/list_environments", get(environments))
        .route("/{environment}/splits", get(splits))
        .route("/{environment}/tasks", about_tasks(tasks))
        .route("/{environment}/num_tasks", about_tasks(num_tasks))
        .route("/{environment}/task", about_tasks(task))
        .route("/{environment}/task_range", about_tasks(task_range))
}

/// The environment's name in a path, or why it cannot be read.
type Named = Result<Path<String>, PathRejection>;

/// Reads the body and checks the environment's name before `respond` gets the body.
fn about_tasks<T: DeserializeOwned + 'static>(
    respond: fn(&EnvNode, T) -> Result<Value, Rejection>,
) -> MethodRouter<Arc<OpenEnvService>> {
    let handler =
        async move |State(service): State<Arc<OpenEnvService>>, environment: Named, body: Body| {
            let body = read_body(&body?)?;
            check_name(environment)?;
            respond(&service.node, body).map(Json)
        };
    post(handler)
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
    environment: Named,
) -> Result<Json<Value>, Rejection> {
    check_name(environment)?;
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

fn tasks(node: &EnvNode, SplitBody { split }: SplitBody) -> Result<Value, Rejection> {
    let tasks = tasks_between(node, &split, 0, usize::MAX)?;
    Ok(json!({"tasks": tasks, "env_name": ENVIRONMENT_NAME}))
}

fn num_tasks(node: &EnvNode, SplitBody { split }: SplitBody) -> Result<Value, Rejection> {
    let count = list(node, &split, 0..0)?.total;
    Ok(json!({"num_tasks": count}))
}

fn task(node: &EnvNode, TaskBody { split, index }: TaskBody) -> Result<Value, Rejection> {
    let questions = match usize::try_from(index.0) {
        Ok(index) => list(node, &split, index..index.saturating_add(1))?.questions,
        Err(_) => Vec::new(),
    };
    match questions.first() {
        Some(question) => Ok(json!({"task": task_of(question)})),
        None => Err(Rejection::new(
            StatusCode::BAD_REQUEST,
            "Invalid task index",
        )),
    }
}

fn task_range(node: &EnvNode, body: TaskRangeBody) -> Result<Value, Rejection> {
    let TaskRangeBody { split, start, stop } = body;
    let count = list(node, &split, 0..0)?.total;
    let start = start.map_or(0, |start| slice_bound(start.0, count));
    let stop = stop.map_or(count, |stop| slice_bound(stop.0, count));
    let tasks = tasks_between(node, &split, start, stop)?;
    Ok(json!({"tasks": tasks}))
}

/// Returns the place of a bound of a Python slice: a negative one counts from the end, and none
/// lies outside of the list.
fn slice_bound(bound: i64, length: usize) -> usize {
    match usize::try_from(bound) {
        Ok(bound) => bound.min(length),
        Err(_) => length.saturating_sub(bound.unsigned_abs() as usize),
    }
}

fn check_name(environment: Named) -> Result<(), Rejection> {
    let Path(environment) = environment?;
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
    Ok(node.environment().list_questions(split, "", range)?)
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
