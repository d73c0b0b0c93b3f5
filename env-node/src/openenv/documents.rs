//! The documents that describe the server: metadata, schemas, OpenAPI and a page made from it.
//!
//! Invariant: the documents are made once, at start, and list what the server's mode serves. The
//! page loads nothing else, so it works without a network.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    http::header::CONTENT_TYPE,
    routing::{MethodRouter, get},
};
use serde_json::{Value, json};

use super::{
    config::Mode,
    service::{ENVIRONMENT_NAME, OpenEnvService, VERSION},
};

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

/// Paths that production mode does not have.
const SIMULATION_PATHS: [&str; 3] = ["/reset", "/step", "/state"];

pub(super) fn routes(mode: Mode) -> Router<Arc<OpenEnvService>> {
    let openapi = openapi(mode);
    let schemas = schemas(&openapi);
    let page = page(&openapi);
    Router::new()
        .route("/metadata", document(JSON, metadata().to_string()))
        .route("/schema", document(JSON, schemas.to_string()))
        .route("/openapi.json", document(JSON, openapi.to_string()))
        .route("/docs", document(HTML, page.clone()))
        .route("/redoc", document(HTML, page))
}

fn document(content_type: &'static str, text: String) -> MethodRouter<Arc<OpenEnvService>> {
    let body = Bytes::from(text);
    get(move || async move { ([(CONTENT_TYPE, content_type)], body) })
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

fn openapi(mode: Mode) -> Value {
    let mut openapi: Value = serde_json::from_str(include_str!("openapi.json"))
        .expect("the document is compiled in: this is a bug");
    if let (Mode::Production, Some(paths)) = (mode, openapi["paths"].as_object_mut()) {
        for path in SIMULATION_PATHS {
            paths.shift_remove(path);
        }
    }
    openapi
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

/// Renders the OpenAPI document as a page for people.
fn page(openapi: &Value) -> String {
    let title = text_of(&openapi["info"]["title"]);
    let mut body = format!(
        "<h1>{title}</h1><p>{}</p><p><a href=\"openapi.json\">openapi.json</a></p>",
        text_of(&openapi["info"]["description"])
    );
    let paths = openapi["paths"].as_object().into_iter().flatten();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            body.push_str(&format!(
                "<h2><code>{} {}</code></h2><p><b>{}</b></p><p>{}</p>",
                escaped(&method.to_uppercase()),
                escaped(path),
                text_of(&operation["summary"]),
                text_of(&operation["description"]),
            ));
        }
    }
    body.push_str("<h1>Schemas</h1>");
    let schemas = openapi["components"]["schemas"].as_object();
    for (name, schema) in schemas.into_iter().flatten() {
        let schema = serde_json::to_string_pretty(schema).unwrap_or_default();
        body.push_str(&format!(
            "<h2>{}</h2><pre>{}</pre>",
            escaped(name),
            escaped(&schema)
        ));
    }
    format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>body{{max-width:50rem;margin:2rem auto;padding:0 1rem;font-family:sans-serif}}\
         pre{{overflow-x:auto}}</style></head><body>{body}</body></html>"
    )
}

fn text_of(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_documents_what_it_serves() {
        for (mode, has) in [(Mode::Simulation, true), (Mode::Production, false)] {
            let openapi = openapi(mode);
            for path in SIMULATION_PATHS {
                assert_eq!(openapi["paths"].get(path).is_some(), has, "{path}");
            }
            assert!(openapi["paths"].get("/mcp").is_some());
            assert!(openapi["paths"].get("/health").is_some());
        }
    }

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
        let openapi = openapi(Mode::Simulation);
        check(&openapi, &openapi);
        let schemas = schemas(&openapi);
        assert!(schemas.as_object().unwrap().values().all(Value::is_object));
    }

    #[test]
    fn the_page_stands_alone() {
        let page = page(&openapi(Mode::Simulation));
        assert!(page.contains("POST /reset"));
        for outside in ["http://", "https://", "<script", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
