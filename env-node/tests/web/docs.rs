//! Tests the page `/docs` in a browser, and the document that it shows.

use env_node::{EnvNodeSettings, WebConfig};
use serde_json::{Value, json};

use crate::{browser::Browser, common::served::Served};

/// Every documented route exists, whatever it answers to an empty request.
#[tokio::test]
async fn every_documented_route_is_served() {
    let site = Served::site(EnvNodeSettings::default()).await;
    let openapi = site.get("/openapi.json").await.json();
    let paths = openapi["paths"].as_object().unwrap();
    assert!(paths.len() > 20);
    for (path, operations) in paths {
        for method in operations.as_object().unwrap().keys() {
            let address = path
                .replace("{environment}", "sql_env")
                .replace("{name}", "none");
            let line = format!("{} {address}", method.to_uppercase());
            let reply = site.send(&line, &[], "").await;
            let is_absent = reply.body() == r#"{"detail":"Not Found"}"#;
            assert!(
                reply.status != 405 && !is_absent,
                "{line}: {}",
                reply.body()
            );
        }
    }
}

#[tokio::test]
async fn a_node_without_the_page_does_not_document_it() {
    let config = EnvNodeSettings {
        web: WebConfig {
            enabled: false,
            ..WebConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let site = Served::site(config).await;
    let openapi = site.get("/openapi.json").await.json();
    let paths = openapi["paths"].as_object().unwrap();
    assert!(paths.contains_key("/reset"));
    assert!(paths.keys().all(|path| !path.starts_with("/web")));
}

/// A page of another origin cannot show it in a frame and let visitors click on what it sends.
#[tokio::test]
async fn the_document_may_not_be_framed() {
    let site = Served::site(EnvNodeSettings::default()).await;
    let page = site.get("/docs").await;
    assert_eq!(page.status, 200);
    let csp = page.header("content-security-policy").unwrap();
    assert!(csp.contains("frame-ancestors 'none'"), "{csp}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
}

/// Sends the request of an operation, and returns what the page shows as the reply.
async fn try_it(browser: &mut Browser, id: &str, status: &str) -> String {
    let element = format!("document.getElementById('{id}')");
    browser
        .value(&format!(
            "{element}.open = true; {element}.querySelector('form button').click()"
        ))
        .await;
    browser
        .wait(&format!(
            "{element}.querySelector('.reply b')?.innerText.startsWith('{status}')"
        ))
        .await;
    let reply = format!("{element}.querySelector('.reply pre').innerText");
    browser.value(&reply).await.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_route_can_be_read_and_tried() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    let openapi = site.get("/openapi.json").await.json();
    browser.open(&format!("http://{}/docs", site.address)).await;
    browser.wait("document.querySelector('.operation')").await;
    for (path, operations) in openapi["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let id = json!(format!("{method}{path}"));
            let has_form = format!("document.getElementById({id}).querySelector('form') !== null");
            assert_eq!(browser.value(&has_form).await, true, "{method} {path}");
        }
    }
    for name in openapi["components"]["schemas"].as_object().unwrap().keys() {
        let is_there = format!("document.getElementById('{name}') !== null");
        assert_eq!(browser.value(&is_there).await, true, "{name}");
    }

    let reset = try_it(&mut browser, "post/reset", "200").await;
    let reset: Value = serde_json::from_str(&reset).unwrap();
    assert_eq!(reset["observation"]["step_count"], 0);
    // The request got the token of the reply.
    let step = try_it(&mut browser, "post/step", "200").await;
    let step: Value = serde_json::from_str(&step).unwrap();
    assert_eq!(step["observation"]["step_count"], 1);
    let splits = try_it(&mut browser, "get/{environment}/splits", "200").await;
    assert!(splits.contains("train"), "{splits}");
    let page = try_it(&mut browser, "get/web/api/questions", "200").await;
    assert!(page.contains("cars-3"), "{page}");
    // The browser logs each refused request as a problem, so this one is the last.
    assert!(browser.problems().is_empty(), "{:?}", browser.problems());
    let refused = try_it(&mut browser, "get/web/state", "409").await;
    assert!(
        refused.contains("the environment was not reset"),
        "{refused}"
    );

    let home = format!("http://{}/", site.address);
    for request in browser.requests() {
        assert!(
            request.starts_with(&home) || request == "about:blank",
            "{request}"
        );
    }
    browser.pictures("docs").await;
    browser.set_display(390, 860, "light").await;
    let width = "document.documentElement.scrollWidth";
    assert_eq!(browser.value(width).await, 390, "the page fits a phone");
}
