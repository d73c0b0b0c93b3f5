//! Tests the list of runs, and replays one of them in a browser.

use std::{fs, os::unix::fs::symlink, path::Path};

use env::{EnvSettings, Environment};
use env_node::{EnvNode, EnvNodeSettings, WebConfig};
use serde_json::{Value, json};

use crate::{
    browser::Browser,
    common::{self, served::Served},
    page::assert_quiet,
};

fn settings(folder: &Path) -> EnvNodeSettings {
    EnvNodeSettings {
        web: WebConfig {
            runs_dir: Some(folder.to_owned()),
            ..WebConfig::default()
        },
        ..EnvNodeSettings::default()
    }
}

/// Writes a run with a transcript of one SAMPLE and a right answer.
fn write_run(folder: &Path, name: &str) -> String {
    let step = |action_type: &str, argument: &str, result: &str| json!({"action_type": action_type, "argument": argument, "result": result, "error": "", "reward": 0.0});
    let transcript = json!({
        "policy": "GRPO", "question_id": "cars-1", "question": "How many cars are there?", "database": "cars",
        "difficulty": "level-1", "gold_sql": "SELECT count(*) FROM Cars", "gold_answer": "40", "correct": true,
        "reward": 1.0,
        "steps": [
            step("sample", " MAKERS ", "1. 1 | Audi | Germany\n2. 2 | Citroën | France"),
            step("ANSWER", "40", "Answer submitted: correct."),
        ],
    })
    .to_string();
    fs::create_dir_all(folder.join(name)).unwrap();
    fs::write(folder.join(name).join("transcripts.jsonl"), &transcript).unwrap();
    transcript
}

async fn names(site: &Served) -> Vec<String> {
    let list = site.get("/web/api/runs").await.json();
    let runs = list["runs"].as_array().unwrap().iter();
    runs.map(|run| run["name"].as_str().unwrap().to_owned())
        .collect()
}

/// What is beside the runs, above them, or behind a link is neither listed nor read.
#[tokio::test]
async fn only_transcripts_of_listed_runs_are_read() {
    let outside = tempfile::tempdir().unwrap();
    write_run(outside.path(), "secret");
    let folder = outside.path().join("runs");
    let transcript = write_run(&folder, "run ä");
    fs::create_dir(folder.join("empty")).unwrap();
    fs::write(folder.join("transcripts.jsonl"), "secret").unwrap();
    symlink(outside.path().join("secret"), folder.join("linked")).unwrap();
    fs::create_dir(folder.join("link-inside")).unwrap();
    let target = outside.path().join("secret/transcripts.jsonl");
    symlink(target, folder.join("link-inside/transcripts.jsonl")).unwrap();

    let site = Served::site(settings(&folder)).await;
    assert_eq!(names(&site).await, ["run ä"]);
    let read = site.get("/web/api/runs/run%20%C3%A4").await;
    assert_eq!(read.status, 200);
    assert!(read.body().contains(&transcript), "{}", read.body());
    for path in [
        "empty",
        "linked",
        "link-inside",
        "transcripts.jsonl",
        "..",
        ".",
        "..%2Fsecret",
        "run%20%C3%A4%2F",
        "%2e%2e%2fsecret",
        "%00",
        "other",
    ] {
        let refused = site.get(&format!("/web/api/runs/{path}")).await;
        assert_eq!(refused.status, 404, "{path}: {}", refused.body());
    }
}

#[tokio::test]
async fn a_file_that_is_too_long_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path(), "long");
    let file = fs::File::create(folder.path().join("long/transcripts.jsonl")).unwrap();
    file.set_len((64 << 20) + 1).unwrap();
    let site = Served::site(settings(folder.path())).await;
    let refused = site.get("/web/api/runs/long").await;
    assert_eq!(refused.status, 403);
    assert!(
        refused.detail().contains("choose a part of it as a file"),
        "{}",
        refused.body()
    );
}

#[tokio::test]
async fn without_a_folder_the_list_is_empty() {
    let site = Served::site(EnvNodeSettings::default()).await;
    assert_eq!(names(&site).await, [""; 0]);
    assert_eq!(site.get("/web/api/runs/run-001").await.status, 404);
}

#[test]
fn a_folder_that_does_not_exist_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = common::dataset(folder.path());
    let environment = Environment::open(dataset, EnvSettings::default()).unwrap();
    let missing = settings(&folder.path().join("missing"));
    let error = EnvNode::new(environment, missing)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("web.runs_dir"), "{error}");
}

#[tokio::test]
async fn a_run_is_replayed_from_the_list() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path(), "run-001");
    write_run(folder.path(), "<img src=x>");
    let site = Served::site(settings(folder.path())).await;
    browser
        .open(&format!("http://{}/web/#/replay", site.address))
        .await;
    browser
        .wait("document.querySelectorAll('.questions a').length === 2")
        .await;
    browser.pictures("runs").await;
    browser.click("a[href='#/replay/run-001']").await;
    assert_eq!(browser.text(".file").await, "run-001");
    browser.press("ArrowRight").await;
    browser.wait("document.querySelector('.now thead')").await;
    assert_eq!(
        browser
            .text(".now thead")
            .await
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["Id", "Name", "Country"]
    );
    browser.click(".side.left > button").await;
    browser
        .wait("location.hash === '#/replay' && document.querySelectorAll('.questions a').length === 2")
        .await;
    assert_quiet(&browser, &site);
}

/// Plays SAMPLE on the page and compares the headings with the columns.
#[tokio::test]
async fn a_sample_has_the_names_of_its_columns() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    browser
        .open(&format!("http://{}/web/#/play/cars-1", site.address))
        .await;
    browser.click("button[aria-label='Sample Cars']").await;
    assert_eq!(
        browser
            .text(".now thead")
            .await
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["Id", "Maker", "Horsepower", "Accelerate", "Year"]
    );
    let columns = "[...document.querySelectorAll('.schema .columns')].length";
    assert_eq!(browser.value(columns).await, Value::from(0));
    assert_quiet(&browser, &site);
}
