//! The documents that describe the server: metadata, schemas, OpenAPI, and a page that shows it and
//! sends requests.
//!
//! Invariant: the documents are made once, at start, and list what the server serves. The page
//! loads nothing but `openapi.json`, so it works without a network.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    routing::{MethodRouter, get},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{config::Mode, service::OpenEnvService};
use crate::web::WebConfig;

/// The environment's name on the wire; `SQLEnv`'s own.
pub(super) const ENVIRONMENT_NAME: &str = "sql_env";
/// Version of the HTTP interface. `1` tells OpenEnv's validators which rules apply.
const VERSION: &str = "1.0.0";

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = include_str!("docs.css");
/// The page needs no other file, so it also works without `/web/`.
const SCRIPT: &str = concat!(include_str!("../web/dom.js"), include_str!("docs.js"));

/// Paths that production mode does not have.
const SIMULATION_PATHS: [&str; 3] = ["/reset", "/step", "/state"];

/// The one request that is neither authenticated nor limited.
const HEALTH: &str = "/health";
/// What the layers in front of every other request answer, and when.
const LAYERS: [(&str, &str); 3] = [
    ("401", "The bearer token is missing or wrong"),
    ("408", "The request took too long; it can be sent again"),
    ("503", "The node is overloaded; retry after a pause"),
];

/// Serves the documents.
pub(super) fn routes(mode: Mode, web: &WebConfig) -> Router<Arc<OpenEnvService>> {
    let openapi = openapi(mode, web.enabled);
    let schemas = schemas(&openapi);
    let page = Bytes::from(page());
    let policy = page_policy(&web.frame_sources());
    let docs = move || async move {
        let headers = [
            (CONTENT_TYPE, HTML.to_owned()),
            (CONTENT_SECURITY_POLICY, policy),
            (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        ];
        (headers, page)
    };
    Router::new()
        .route("/metadata", document(metadata().to_string()))
        .route("/schema", document(schemas.to_string()))
        .route("/openapi.json", document(openapi.to_string()))
        .route("/docs", get(docs.clone()))
        .route("/redoc", get(docs))
}

fn document(text: String) -> MethodRouter<Arc<OpenEnvService>> {
    let body = Bytes::from(text);
    get(move || async move { ([(CONTENT_TYPE, JSON)], body) })
}

/// Returns the description of the environment, for `/metadata` and the page.
pub(crate) fn metadata() -> Value {
    json!({
        "name": ENVIRONMENT_NAME,
        "description": "Questions on SQL databases: explore the schema, run queries, answer.",
        "readme_content": null,
        "version": VERSION,
        "author": null,
        "documentation_url": null,
    })
}

/// Returns the OpenAPI document. `has_page` says whether `/web/` is served.
fn openapi(mode: Mode, has_page: bool) -> Value {
    let mut openapi: Value = serde_json::from_str(include_str!("openapi.json"))
        .expect("the document is compiled in: this is a bug");
    if let Some(paths) = openapi["paths"].as_object_mut() {
        let is_served = |path: &str| match path {
            page if page.starts_with("/web/") => has_page,
            path => mode == Mode::Simulation || !SIMULATION_PATHS.contains(&path),
        };
        paths.retain(|path, _| is_served(path));
    }
    declare_layers(&mut openapi);
    openapi
}

/// Adds the responses of the layers in front to every operation.
fn declare_layers(openapi: &mut Value) {
    let content = openapi["components"]["responses"]["Rejected"]["content"].clone();
    let paths = openapi["paths"].as_object_mut().into_iter().flatten();
    let limited = paths.filter(|(path, _)| *path != HEALTH);
    let operations = limited.filter_map(|(_, operations)| operations.as_object_mut());
    for operation in operations.flat_map(|operations| operations.values_mut()) {
        for (status, description) in LAYERS {
            operation["responses"][status] =
                json!({ "description": description, "content": content });
        }
    }
}

/// Returns the schemas of action, observation and state from the OpenAPI document.
fn schemas(openapi: &Value) -> Value {
    let schemas = &openapi["components"]["schemas"];
    json!({
        "action": schemas["SQLAction"],
        "observation": schemas["SQLObservation"],
        "state": schemas["State"],
        "reset_observation": schemas["SQLObservation"],
    })
}

/// Returns the page, whose script shows the OpenAPI document and sends requests.
fn page() -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{ENVIRONMENT_NAME}: HTTP API</title><style>{STYLE}</style></head>\
         <body><main><noscript>This page needs JavaScript; \
         <a href=\"openapi.json\">openapi.json</a> does not.</noscript></main>\
         <script type=\"module\">{SCRIPT}</script></body></html>"
    )
}

/// Returns the policy that lets the browser run only the page's own script and style, talk only to
/// this server, and show the page only in the frames of these ancestors: a foreign page could let a
/// person send requests without knowing it.
fn page_policy(ancestors: &str) -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(openapi: &Value, value: &Value) {
            if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
                let target = openapi.pointer(&reference[1..]);
                assert!(target.is_some(), "{reference}");
            }
            match value {
                Value::Array(items) => items.iter().for_each(|item| check(openapi, item)),
                Value::Object(fields) => fields.values().for_each(|item| check(openapi, item)),
                _ => {}
            }
        }
        let openapi = openapi(Mode::Simulation, true);
        check(&openapi, &openapi);
        let schemas = schemas(&openapi);
        assert!(schemas.as_object().unwrap().values().all(Value::is_object));
    }

    #[test]
    fn every_operation_but_health_has_the_responses_of_the_layers() {
        let openapi = openapi(Mode::Simulation, true);
        for (path, operations) in openapi["paths"].as_object().unwrap() {
            for operation in operations.as_object().unwrap().values() {
                let responses = operation["responses"].as_object().unwrap();
                for (status, _) in LAYERS {
                    assert_eq!(responses.contains_key(status), path != HEALTH, "{path}");
                }
            }
        }
    }

    #[test]
    fn the_page_stands_alone() {
        let page = page();
        assert_eq!(page.matches("<script").count(), 1);
        for outside in ["http://", "https://", "src=", "import "] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
