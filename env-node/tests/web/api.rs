//! Tests the files of the page and its interface.

use env_node::{EnvNodeSettings, WebConfig};
use serde_json::{Value, json};

use crate::common::served::Served;

async fn site() -> Served {
    Served::site(EnvNodeSettings::default()).await
}

#[tokio::test]
async fn the_page_has_security_headers() {
    let site = site().await;
    let page = site.get("/web/").await;
    assert_eq!(page.status, 200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    for part in page.body().split(['"']).filter(|part| {
        std::path::Path::new(part)
            .extension()
            .is_some_and(|end| ["js", "css", "svg"].iter().any(|known| end == *known))
    }) {
        let file = site.get(&format!("/web/{part}")).await;
        assert_eq!(file.status, 200, "{part}");
        let csp = file.header("content-security-policy").unwrap();
        assert!(csp.starts_with("default-src 'none'; script-src 'self';"));
        for rule in [
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(csp.contains(rule), "{csp}");
        }
        assert!(!csp.contains("unsafe"), "{csp}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(file.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(file.header("cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn short_addresses_redirect_to_the_page() {
    let site = site().await;
    for path in ["/", "/web"] {
        let reply = site.get(path).await;
        assert_eq!(
            (reply.status, reply.header("location")),
            (307, Some("/web/"))
        );
    }
    let unknown = site.get("/web/nothing.js").await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn a_disabled_page_is_not_found() {
    let config = EnvNodeSettings {
        web: WebConfig {
            enabled: false,
            ..WebConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let site = Served::site(config).await;
    for path in ["/", "/web/", "/web/api/info", "/web/state"] {
        assert_eq!(site.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn info_names_what_can_be_chosen() {
    let info = site().await.get("/web/api/info").await.json();
    assert_eq!(
        info["databases"],
        json!([{"name": "cars", "question_count": 3}])
    );
    assert_eq!(info["levels"], json!(["level-1"]));
    assert_eq!(info["default_step_budget"], 15);
    assert_eq!(
        info["reward_profiles"],
        json!(["default", "sqlenv-final", "sqlenv-f003"])
    );
    let splits = info["splits"].as_array().unwrap();
    assert!(splits.contains(&json!({"name": "eval-unseen", "question_count": 1})));
}

#[tokio::test]
async fn questions_are_filtered_and_paged() {
    let site = site().await;
    for (filter, total, ids) in [
        ("", 3, vec!["cars-1", "cars-2", "cars-3"]),
        ("limit=2", 3, vec!["cars-1", "cars-2"]),
        ("limit=2&offset=2", 3, vec!["cars-3"]),
        ("offset=18446744073709551615", 3, vec![]),
        ("limit=0", 3, vec![]),
        ("text=HOW+many", 2, vec!["cars-1", "cars-3"]),
        ("text=many+how+maker", 1, vec!["cars-3"]),
        ("text=cars-2", 1, vec!["cars-2"]),
        ("split=train", 2, vec!["cars-1", "cars-2"]),
        ("split=eval-unseen", 1, vec!["cars-3"]),
        ("split=eval-unseen%2Fdomain", 1, vec!["cars-3"]),
        ("split=eval", 0, vec![]),
        (
            "database=cars&level=level-1&text=",
            3,
            vec!["cars-1", "cars-2", "cars-3"],
        ),
        ("database=boats", 0, vec![]),
        ("level=level-2", 0, vec![]),
    ] {
        let page = site
            .get(&format!("/web/api/questions?{filter}"))
            .await
            .json();
        let found: Vec<&str> = page["questions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|question| question["question_id"].as_str().unwrap())
            .collect();
        assert_eq!(
            (page["total"].as_u64(), found),
            (Some(total), ids),
            "{filter}"
        );
    }
    let all = site.get("/web/api/questions").await;
    let all = all.body();
    assert!(!all.contains("SELECT") && !all.contains("gold"), "{all}");
}

#[tokio::test]
async fn an_episode_is_played_forked_and_ended() {
    let site = site().await;
    let start = site
        .post(
            "/web/api/reset",
            &json!({"question_id": "cars-1", "step_budget": 4}),
        )
        .await
        .json();
    assert_eq!(start["question"]["database_name"], "cars");
    assert_eq!(start["observation"]["budget_remaining"], 4);
    assert_eq!(start["observation"]["reward"], Value::Null);
    let step = async |token: &Value, action_type: &str, argument: &str| {
        let action = json!({"token": token, "action_type": action_type, "argument": argument});
        let reply = site.post("/web/api/step", &action).await;
        assert_eq!(reply.status, 200, "{}", reply.body());
        reply.json()
    };
    let queried = step(&start["token"], "query", "SELECT count(*) FROM Cars").await;
    assert_eq!(queried["observation"]["result"], "1. 40");
    assert_eq!(
        queried["reward_components"],
        json!({"operational": 0.01, "progress": 0.15, "terminal": 0.0, "clip": 0.0})
    );
    let wrong = step(&queried["token"], "ANSWER", "41").await;
    assert_eq!(
        (&wrong["observation"]["done"], &wrong["correct"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(queried["gold"], Value::Null, "the episode goes on");
    assert_eq!(
        wrong["gold"],
        json!({"answer": "40", "sql": "SELECT count(*) FROM Cars"})
    );
    let right = step(&queried["token"], "ANSWER", "40").await;
    assert_eq!(
        (&right["observation"]["reward"], &right["correct"]),
        (&json!(1.0), &json!(true))
    );
    let over = step(&right["token"], "QUERY", "SELECT 1").await;
    assert_eq!(
        over["observation"]["error"],
        "Episode is over. Reset to start another."
    );
    assert_eq!(over["token"], right["token"]);
}

#[tokio::test]
async fn gold_answers_can_be_withheld() {
    let config = EnvNodeSettings {
        web: WebConfig {
            gold_answers: false,
            ..WebConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let site = Served::site(config).await;
    let start = json!({"question_id": "cars-1", "step_budget": 1});
    let start = site.post("/web/api/reset", &start).await.json();
    let answer = json!({"token": start["token"], "action_type": "ANSWER", "argument": "41"});
    let end = site.post("/web/api/step", &answer).await;
    assert_eq!(end.json()["observation"]["done"], true);
    assert!(!end.body().contains("SELECT"), "{}", end.body());
}

#[tokio::test]
async fn the_schema_names_the_columns_of_every_table() {
    let site = site().await;
    let path = "/web/api/schema?question_id=";
    let schema = site.get(&format!("{path}cars-1")).await.json();
    let text = schema["schema_info"].as_str().unwrap();
    assert!(
        text.starts_with("Table 'makers' columns:\n- Id: INTEGER\n- Name: TEXT\n"),
        "{text}"
    );
    assert!(
        text.contains("\nTable 'Cars' columns:\n- Id: INTEGER\n"),
        "{text}"
    );
    let unknown = site.get(&format!("{path}other")).await.json();
    assert_eq!(unknown, json!({"schema_info": ""}));
}

/// Sends each body to its path, and checks the status and a part of the detail.
async fn assert_refused(cases: &[(&str, &str, u16, &str)]) {
    let site = site().await;
    let openapi = site.get("/openapi.json").await.json();
    for &(path, body, status, part) in cases {
        let address = format!("/web/api/{path}");
        let reply = site.post_text(&address, body).await;
        let declared = &openapi["paths"][address]["post"]["responses"];
        assert!(declared[status.to_string()].is_object(), "{path}: {status}");
        assert_eq!(
            reply.status,
            status,
            "{path} {:.80}: {}",
            body,
            reply.body()
        );
        assert!(
            reply.detail().contains(part),
            "{path} {body:.80}: {}",
            reply.body()
        );
    }
}

#[tokio::test]
async fn bad_resets_are_named() {
    assert_refused(&[
        ("reset", "", 400, "EOF"),
        ("reset", "nonsense", 400, "expected"),
        ("reset", "[1]", 422, "expected a string"),
        ("reset", "{}", 422, "missing field `question_id`"),
        ("reset", r#"{"question_id": 3}"#, 422, "expected a string"),
        (
            "reset",
            r#"{"question_id": ""}"#,
            400,
            "question_id is empty",
        ),
        (
            "reset",
            r#"{"question_id": "x", "gold": 1}"#,
            422,
            "unknown field `gold`",
        ),
        (
            "reset",
            r#"{"question_id": "cars-9"}"#,
            404,
            "no question \"cars-9\"",
        ),
        (
            "reset",
            r#"{"question_id": "cars-1", "step_budget": 1001}"#,
            400,
            "give 1 to 1000",
        ),
        (
            "reset",
            r#"{"question_id": "cars-1", "step_budget": -1}"#,
            422,
            "step_budget",
        ),
        (
            "reset",
            r#"{"question_id": "cars-1", "reward_profile": "mine"}"#,
            400,
            "unknown reward profile",
        ),
    ])
    .await;
}

#[tokio::test]
async fn bad_steps_are_named() {
    let long =
        json!({"token": "A".repeat(9 << 20), "action_type": "QUERY", "argument": ""}).to_string();
    assert_refused(&[
        ("step", "{}", 422, "missing field `token`"),
        (
            "step",
            r#"{"token": "??", "action_type": "QUERY", "argument": ""}"#,
            400,
            "token is not base64",
        ),
        (
            "step",
            r#"{"token": "", "action_type": "QUERY", "argument": ""}"#,
            400,
            "malformed",
        ),
        (
            "step",
            r#"{"token": "AAAA", "action_type": "QUERY", "argument": ""}"#,
            400,
            "malformed",
        ),
        ("step", &long, 413, "limit"),
    ])
    .await;
}

#[tokio::test]
async fn bad_queries_methods_and_content_types_are_named() {
    let site = site().await;
    for (query, part) in [
        ("limit=x", "invalid digit"),
        ("offset=-1", "invalid digit"),
        ("gold=1", "unknown field `gold`"),
    ] {
        let reply = site.get(&format!("/web/api/questions?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
        assert!(reply.detail().contains(part), "{query}: {}", reply.body());
    }
    let reply = site.get("/web/api/step").await;
    assert_eq!(
        (reply.status, reply.detail().as_str()),
        (405, "Method Not Allowed")
    );
    let form = site
        .send("POST /web/api/reset", &["Content-Type: text/plain"], "{}")
        .await;
    assert_eq!(form.status, 415);
    assert!(form.detail().contains("Content-Type"), "{}", form.body());
    assert_eq!(site.get("/web/api/info").await.status, 200);
}

#[tokio::test]
async fn an_altered_token_is_refused() {
    let site = site().await;
    let start = site
        .post("/web/api/reset", &json!({"question_id": "cars-1"}))
        .await
        .json();
    let token = start["token"].as_str().unwrap();
    let flipped = if token.ends_with('A') { "B" } else { "A" };
    let altered = format!("{}{flipped}{}", &token[..99], &token[100..]);
    let action = json!({"token": altered, "action_type": "ANSWER", "argument": "40"});
    let reply = site.post("/web/api/step", &action).await;
    assert_eq!(reply.status, 400, "{}", reply.body());
}
