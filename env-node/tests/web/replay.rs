//! Tests recorded episodes on the page.

use env_node::EnvNodeSettings;
use serde_json::json;

use crate::{browser::Browser, common::served::Served, garage, page::assert_quiet};

/// Returns a file with two transcripts as a run writes them, the second without a gold answer, two
/// lines that are none, and a trajectory whose prompt has an example and whose first turn is
/// malformed.
fn recordings() -> String {
    let components = |progress: f64| json!({"operational": 0.01, "progress": progress, "terminal": 0.0, "clip": 0.0});
    let step = |action_type: &str, argument: &str, result: &str, reward: f64| json!({"action_type": action_type, "argument": argument, "malformed": false, "result": result, "reward": reward, "components": components(reward)});
    let transcript = |question: &str, correct: bool, steps: Vec<serde_json::Value>| {
        json!({
            "policy": "GRPO", "question_id": "cars-1", "question": question, "database": "cars", "difficulty": "level-1",
            "gold_sql": "SELECT count(*) FROM Cars", "gold_answer": "40", "correct": correct, "reward": 1.02, "steps": steps,
        })
    };
    let mut failed = step("QUERY", "SELEC 1", "", -0.02);
    failed["error"] = json!("SQL error: near \"SELEC\": syntax error");
    failed["completion"] = json!(garage::CELL);
    failed["malformed"] = json!(true);
    let right = transcript(
        "How many cars are there?",
        true,
        vec![
            step(
                "DESCRIBE",
                "Cars",
                "Table 'Cars' columns:\n- Id: INTEGER\n- Year: INTEGER\nRow count: 40",
                0.0,
            ),
            failed,
            step(
                "QUERY",
                "SELECT Id,\n Year FROM Cars",
                "1. 1 | 1971\n2. 2 | 1972\n... (first 2 rows shown, there are more)",
                0.04,
            ),
            step("ANSWER", "40", "Answer submitted: correct.", 1.0),
        ],
    );
    let mut wrong = transcript(
        garage::QUESTION,
        false,
        vec![step("ANSWER", "1", "Answer submitted: incorrect.", 0.0)],
    );
    wrong["gold_sql"] = json!("");
    wrong["gold_answer"] = json!("");
    let trajectory = json!({
        "question_id": "cars-2", "group_index": 3, "member": 1, "return": 0.0, "correct": false, "scored": true,
        "messages": [
            {"role": "assistant", "content": "", "tool_calls": [{"id": "example_2", "type": "function", "function": {"name": "sample", "arguments": "{\"table_name\":\"shelves\"}"}}]},
            {"role": "tool", "tool_call_id": "example_2", "content": "1. 1 | wood"},
            {"role": "user", "content": "Which countries have makers?"},
            {"role": "assistant", "content": "SELECT 3"},
            {"role": "user", "content": "1. 3", "is_error": false, "malformed_call": true, "reward": -0.02},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "sample", "arguments": "{\"table_name\":\"makers\"}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "1. 1 | Audi", "is_error": false, "malformed_call": false, "reward": 0.0},
        ],
    });
    format!("{right}\n\nnonsense\n{{}}\n{wrong}\n{trajectory}\n")
}

/// Opens the page and gives it the file of [`recordings`].
async fn upload(browser: &mut Browser, site: &Served) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("transcripts.jsonl");
    std::fs::write(&file, recordings()).unwrap();
    browser.open(&format!("{}/web/#/replay", site.url())).await;
    browser.choose_file("input[type=file]", &file).await;
    browser
        .wait("document.querySelectorAll('.recordings button').length === 3")
        .await;
}

#[tokio::test]
async fn a_recording_is_replayed_and_continued() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    upload(&mut browser, &site).await;
    let fault = browser.text(".fault").await;
    assert!(
        fault.contains("Line 3") && fault.contains("Line 4: neither"),
        "{fault}"
    );
    assert_eq!(
        browser.text(".episode h1").await,
        "How many cars are there?"
    );
    assert_eq!(browser.text(".count").await, "0 / 4");
    let gold_panels = "document.querySelectorAll('.gold').length";
    assert_eq!(browser.value(gold_panels).await, 1);

    step_through(&mut browser).await;

    browser.press("j").await;
    assert_eq!(browser.text(".episode h1").await, garage::QUESTION);
    assert_eq!(browser.value(gold_panels).await, 0);
    browser.press("j").await;
    browser
        .wait("document.querySelector('h1').innerText === 'Which countries have makers?'")
        .await;
    see_malformed_turn(&mut browser).await;
    browser.click(".check input").await;
    browser
        .wait("document.querySelectorAll('.recordings button').length === 2")
        .await;

    browser.press("End").await;
    browser.press("p").await;
    browser
        .wait(
            "document.querySelector('.composer') && document.querySelectorAll('.step').length === 2",
        )
        .await;
    // A cell holds ` | `, so the row can be read in two ways and is shown as text.
    assert!(
        browser
            .text(".now pre.result")
            .await
            .contains("O'Hara | Sons")
    );
    assert!(browser.text(".left-over").await.contains("13 of 15"));
    assert_quiet(&browser, &site);
}

/// Replays the first recording step by step, then by itself.
async fn step_through(browser: &mut Browser) {
    browser.press("ArrowRight").await;
    assert!(browser.text(".schema").await.contains("Year"));
    browser.press("ArrowRight").await;
    assert!(browser.text(".now .error").await.contains("syntax error"));
    assert!(
        browser
            .text(".now .action")
            .await
            .contains("malformed call")
    );
    browser.click(".now .completion summary").await;
    assert_eq!(browser.text(".now .completion pre").await, garage::CELL);
    browser.press("ArrowRight").await;
    assert_eq!(
        browser
            .text(".now .rows tr:nth-child(2)")
            .await
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["2", "2", "1972"]
    );
    assert_eq!(
        browser.text(".now caption").await,
        "first 2 rows shown, there are more"
    );
    browser.press("End").await;
    assert!(
        browser
            .text(".ending")
            .await
            .starts_with("Right after 4 steps, +1.02")
    );
    assert_eq!(browser.text(".count").await, "4 / 4");
    browser.pictures("replay").await;
    browser.press("Home").await;
    assert_eq!(browser.text(".count").await, "0 / 4");
    browser.click(".controls [aria-label=Play]").await;
    browser.wait("document.querySelector('.count').innerText === '4 / 4' && document.querySelector('[aria-label=Play]')").await;
}

/// Replays the first turn of the trajectory. The environment got its text as a query.
async fn see_malformed_turn(browser: &mut Browser) {
    assert_eq!(browser.text(".count").await, "0 / 2");
    browser.press("ArrowRight").await;
    let malformed = browser.text(".now .action").await;
    for part in ["QUERY", "SELECT 3", "malformed call"] {
        assert!(malformed.contains(part), "{malformed}");
    }
}

/// The actions after one that failed would be another episode.
#[tokio::test]
async fn a_continued_recording_stops_at_an_action_that_fails() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    upload(&mut browser, &site).await;
    let refuse_the_second = "globalThis.real = fetch; globalThis.sent = 0; \
                             globalThis.fetch = (...request) => \
                             request[0].includes('api/step') && ++sent === 2 \
                             ? Promise.resolve(new Response(JSON.stringify({detail: 'refused'}), \
                             {status: 400})) : real(...request); 0";
    browser.value(refuse_the_second).await;
    browser.press("End").await;
    browser.press("p").await;
    browser
        .wait("document.querySelector('.composer .fault')?.innerText === 'refused'")
        .await;
    // A third action would be sent at once.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(browser.value("sent").await, 2);
    let steps = "document.querySelectorAll('.step').length";
    assert_eq!(browser.value(steps).await, 1);
}

#[tokio::test]
async fn a_file_can_be_dropped() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    browser
        .open(&format!("http://{}/web/#/replay", site.address))
        .await;
    browser.wait("document.querySelector('.drop')").await;
    browser
        .value(&format!(
            "(() => {{ const dataTransfer = new DataTransfer(); \
             dataTransfer.items.add(new File([{}], 'dropped.jsonl')); \
             document.body.dispatchEvent(new DragEvent('drop', {{ dataTransfer, bubbles: true, cancelable: true }})); }})()",
            json!(recordings())
        ))
        .await;
    assert_eq!(browser.text(".file").await, "dropped.jsonl");
    assert_eq!(
        browser.text(".episode h1").await,
        "How many cars are there?"
    );
}

#[tokio::test]
async fn a_file_without_recordings_is_reported() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.json");
    browser
        .open(&format!("http://{}/web/#/replay", site.address))
        .await;
    for (content, part) in [
        ("[1, {}", "The file is not JSON"),
        ("[1]", "Element 1: neither"),
        ("{", "Line 1"),
        ("", "holds no episode"),
    ] {
        std::fs::write(&file, content).unwrap();
        browser.choose_file("input[type=file]", &file).await;
        browser
            .wait(&format!(
                "document.querySelector('.fault')?.innerText.includes({})",
                json!(part)
            ))
            .await;
    }
    assert_quiet(&browser, &site);
}
