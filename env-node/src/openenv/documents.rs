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
            body.push_str(&operation_text(method, path, operation));
        }
    }
    body.push_str("<h1>Schemas</h1>");
    let schemas = openapi["components"]["schemas"].as_object();
    for (name, schema) in schemas.into_iter().flatten() {
        body.push_str(&schema_text(name, schema));
    }
    format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>{body}</body></html>"
    )
}

const STYLE: &str = "body{max-width:52rem;margin:2rem auto;padding:0 1rem;font-family:sans-serif;\
    line-height:1.45;color-scheme:light dark}h2{margin-top:2.2rem}pre{overflow-x:auto}\
    table{border-collapse:collapse;display:block;overflow-x:auto}\
    td,th{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top}\
    th{font-weight:600}";

/// Renders an operation: its parameters, its request, its responses.
fn operation_text(method: &str, path: &str, operation: &Value) -> String {
    let mut rows = String::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let place = format!(
            "{} ({})",
            text_of(&parameter["name"]),
            text_of(&parameter["in"])
        );
        rows += &row(
            &place,
            &type_text(&parameter["schema"]),
            &parameter["description"],
        );
    }
    let request = &operation["requestBody"];
    if request.is_object() {
        rows += &row("request", &content_text(request), &request["description"]);
    }
    for (code, response) in operation["responses"].as_object().into_iter().flatten() {
        let name = format!("response {}", escaped(code));
        rows += &row(&name, &content_text(response), &response["description"]);
    }
    format!(
        "<h2><code>{} {}</code></h2><p><b>{}</b></p><p>{}</p><table>{rows}</table>",
        escaped(&method.to_uppercase()),
        escaped(path),
        text_of(&operation["summary"]),
        text_of(&operation["description"]),
    )
}

/// Renders a schema: a table of its fields, or the schema itself if it has none.
fn schema_text(name: &str, schema: &Value) -> String {
    let name = escaped(name);
    let heading = format!(
        "<h2 id=\"{name}\">{name}</h2><p>{}</p>",
        text_of(&schema["description"])
    );
    let Some(fields) = schema["properties"].as_object() else {
        let schema = serde_json::to_string_pretty(schema).unwrap_or_default();
        return format!("{heading}<pre>{}</pre>", escaped(&schema));
    };
    let required = |name: &str| {
        let names = schema["required"].as_array();
        names.is_some_and(|names| names.iter().any(|it| it == name))
    };
    let mut rows = String::new();
    for (field, of) in fields {
        let mark = if required(field) { ", required" } else { "" };
        let name = format!("<code>{}</code>{mark}", escaped(field));
        rows += &row(&name, &type_text(of), &of["description"]);
    }
    format!("{heading}<table>{rows}</table>")
}

fn row(name: &str, kind: &str, description: &Value) -> String {
    let description = text_of(description);
    format!("<tr><th>{name}</th><td>{kind}</td><td>{description}</td></tr>")
}

/// Returns the type of a request's or a response's JSON.
fn content_text(value: &Value) -> String {
    type_text(&value["content"]["application/json"]["schema"])
}

/// Returns a type in words, with a link if it has a name.
fn type_text(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = escaped(reference.rsplit('/').next().unwrap_or_default());
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    for of_several in ["anyOf", "oneOf", "allOf"] {
        if let Some(options) = schema[of_several].as_array() {
            let options: Vec<String> = options.iter().map(type_text).collect();
            return options.join(" or ");
        }
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => {
            format!("array of {}", type_text(&schema["items"]))
        }
        Value::Array(kinds) => kinds.iter().map(text_of).collect::<Vec<_>>().join(" or "),
        kind => text_of(kind),
    }
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
        assert!(
            page.contains("<a href=\"#SQLAction\">"),
            "requests name their schema"
        );
        assert!(page.contains("<h2 id=\"SQLAction\">"));
        for outside in ["http://", "https://", "<script", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
