//! Tests a person's episode on the page, by keyboard and mouse.

use env::EnvSettings;
use env_node::EnvNodeSettings;
use serde_json::json;

use crate::{browser::Browser, common::served::Served, garage};

/// Asserts that the page requested nothing outside its site, and that the browser reported no
/// problem.
pub(crate) fn assert_quiet(browser: &Browser, site: &Served) {
    assert_eq!(browser.problems(), Vec::<&serde_json::Value>::new());
    let home = format!("http://{}/web/", site.address);
    let requests = browser.requests();
    assert!(requests.len() > 10, "the log works: {requests:?}");
    for request in requests {
        assert!(
            request.starts_with(&home) || request == "about:blank",
            "{request}"
        );
    }
}

/// Runs the query in the text area by keyboard.
async fn query(browser: &mut Browser, sql: &str, steps: usize) {
    browser
        .wait("document.activeElement?.matches('textarea')")
        .await;
    browser.press("Ctrl+a").await;
    browser.write(sql).await;
    browser.press("Ctrl+Enter").await;
    browser
        .wait(&format!(
            "document.querySelectorAll('.step').length === {steps}"
        ))
        .await;
}

#[tokio::test]
async fn an_episode_is_played_to_its_end() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    browser.open(&format!("http://{}/web/", site.address)).await;
    browser
        .wait("document.querySelectorAll('.questions a').length === 3")
        .await;
    browser.write("cars there").await;
    browser
        .wait("document.querySelectorAll('.questions a').length === 1")
        .await;
    browser.press("ArrowDown").await;
    browser.pictures("questions").await;
    browser.press("Enter").await;
    assert_eq!(
        browser.text(".episode h1").await,
        "How many cars are there?"
    );
    assert!(
        browser
            .text(".left-over")
            .await
            .contains("15 of 15 steps left")
    );

    explore(&mut browser).await;
    answer_wrong_then_right(&mut browser).await;
    // No other question matches the filter, so that this one begins again.
    browser.press("n").await;
    browser
        .wait("document.querySelector('.left-over')?.innerText.includes('15 of 15 steps left')")
        .await;
    assert_quiet(&browser, &site);
}

/// Describes a table, then queries it with an error and without.
async fn explore(browser: &mut Browser) {
    browser
        .click(".schema li:nth-child(2) button[aria-label='Describe Cars']")
        .await;
    browser
        .wait("document.querySelector('.schema .known .columns')")
        .await;
    assert!(browser.text(".schema .known").await.contains("Horsepower"));
    assert!(browser.text(".schema .known").await.contains("40 rows"));
    query(browser, "SELECT count(*) FROM Car", 2).await;
    assert!(browser.text(".now .error").await.contains("no such table"));
    query(browser, "SELECT count(*) FROM Cars", 3).await;
    assert_eq!(browser.text(".now .rows td").await, "40");
    assert_eq!(
        browser.text(".now .parts").await,
        "operational +0.01 · progress +0.15"
    );
    assert_eq!(
        browser
            .text(".score tfoot")
            .await
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["total", "+0.16", "+0.14"]
    );

    browser.pictures("episode").await;
}

/// Gives a wrong answer, takes it back, gives the right one, and returns to the first branch.
async fn answer_wrong_then_right(browser: &mut Browser) {
    browser.press("Escape").await;
    browser.press("a").await;
    browser.write("39").await;
    browser.press("Enter").await;
    assert!(
        browser
            .text(".verdict.wrong")
            .await
            .starts_with("Wrong after 4 steps")
    );
    let gold = browser.text(".verdict .gold[open]").await;
    assert!(
        gold.contains("40") && gold.contains("SELECT count(*) FROM Cars"),
        "{gold}"
    );
    browser.press("u").await;
    browser
        .wait("document.querySelector('.verdict').hidden && document.querySelector('.step.ahead')")
        .await;
    browser
        .wait("document.activeElement?.matches('textarea')")
        .await;
    browser.write("40").await;
    browser.press("Enter").await;
    assert!(
        browser
            .text(".verdict.right")
            .await
            .starts_with("Right after 4 steps, +1.14 in total.")
    );
    assert!(
        browser
            .text(".now .branches")
            .await
            .contains("branch 2 of 2")
    );
    browser.pictures("end").await;
    browser.click(".now .branches button").await;
    browser
        .wait("document.querySelector('.verdict.wrong:not([hidden])')")
        .await;
}

#[tokio::test]
async fn every_action_can_be_typed_and_help_lists_the_keys() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    browser
        .open(&format!("http://{}/web/#/play/cars-2", site.address))
        .await;
    for (key, argument, kind) in [
        ("d", "makers", "DESCRIBE"),
        ("s", "Cars", "SAMPLE"),
        ("d", "nope", "DESCRIBE"),
    ] {
        browser
            .wait("document.activeElement?.matches('textarea, .write input')")
            .await;
        browser.press("Escape").await;
        browser.press(key).await;
        browser.press("Ctrl+a").await;
        browser.write(argument).await;
        browser.press("Enter").await;
        browser.wait(&format!(
            "document.querySelector('.now .action')?.innerText.includes({}) && document.querySelector('.now code').innerText === {}",
            json!(kind),
            json!(argument)
        ))
        .await;
    }
    assert!(
        browser
            .text(".now .error")
            .await
            .contains("Available tables: makers, Cars")
    );
    browser.press("Escape").await;
    browser.press("?").await;
    let keys = browser.text("dialog[open]").await;
    for word in ["undo", "another question", "leave a text field"] {
        assert!(keys.contains(word), "{keys}");
    }
    browser.press("Escape").await;
    browser
        .wait("!document.querySelector('dialog[open]')")
        .await;

    browser.value("(location.hash = '#/play/none', 0)").await;
    assert!(
        browser
            .text(".browse .fault")
            .await
            .contains("no question \"none\"")
    );
    // The browser itself reports the status 404.
    assert_eq!(browser.problems().len(), 1);
}

#[tokio::test]
async fn a_request_to_a_busy_node_is_retried_and_then_reported() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    browser
        .open(&format!("http://{}/web/#/play/cars-1", site.address))
        .await;
    browser.wait("document.querySelector('.composer')").await;
    let fail = |times: &str| {
        format!(
            "globalThis.real ??= fetch; globalThis.left = {times}; globalThis.fetch = (...request) => left-- > 0 \
             ? Promise.resolve(new Response(JSON.stringify({{detail: 'too busy'}}), {{status: 503}})) : real(...request); 0"
        )
    };
    browser.value(&fail("2")).await;
    query(&mut browser, "SELECT 1", 1).await;
    browser.value(&fail("Infinity")).await;
    browser.press("Ctrl+Enter").await;
    browser
        .wait("document.querySelector('.composer .fault').innerText === 'too busy'")
        .await;
    browser.value(&fail("0")).await;
    query(&mut browser, "SELECT 2", 2).await;
    browser
        .wait("document.querySelector('.composer .fault').hidden")
        .await;
}

#[tokio::test]
async fn a_question_at_random_that_is_not_found_is_reported() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::site(EnvNodeSettings::default()).await;
    browser.open(&format!("{}/web/", site.url())).await;
    browser
        .wait("document.querySelectorAll('.questions a').length === 3")
        .await;
    browser.write("no such words").await;
    browser
        .wait("document.querySelectorAll('.questions a').length === 0")
        .await;
    browser.click(".filters button").await;
    browser
        .wait("document.querySelector('#fault').innerText.includes('No question matches')")
        .await;
    browser.press("Escape").await;
    browser
        .wait("document.querySelector('#fault').hidden")
        .await;

    let refuse = "globalThis.fetch = () => Promise.resolve(new Response(\
                  JSON.stringify({detail: 'refused'}), {status: 400})); 0";
    browser.value(refuse).await;
    browser.click(".filters button").await;
    browser
        .wait("document.querySelector('#fault:not([hidden])')?.innerText === 'refused'")
        .await;
}

#[tokio::test]
async fn what_looks_like_markup_stays_text() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let site = Served::dataset(
        garage::dataset,
        EnvSettings::default(),
        EnvNodeSettings::default(),
    )
    .await;
    browser.open(&format!("http://{}/web/", site.address)).await;
    assert!(browser.text(".questions .tags").await.contains("level-<0>"));
    browser.click(".questions a").await;
    assert_eq!(browser.text(".episode h1").await, garage::QUESTION);
    assert_eq!(browser.text(".table-name").await, garage::TABLE);
    browser.click(".acts button").await;
    browser
        .wait("document.querySelector('.schema .columns')")
        .await;
    assert!(
        browser
            .text(".schema .columns")
            .await
            .contains(garage::COLUMN)
    );
    query(
        &mut browser,
        &format!(
            "SELECT \"{}\", '{}' FROM \"{}\"",
            garage::COLUMN,
            garage::CELL,
            garage::TABLE
        ),
        2,
    )
    .await;
    assert_eq!(browser.text(".now .rows td").await, garage::CELL);
    query(&mut browser, "SELECT <img src=x onerror=alert(5)>", 3).await;
    assert!(browser.text(".now .error").await.contains("near"));
    browser.press("Escape").await;
    browser.press("a").await;
    browser.write(garage::CELL).await;
    browser.press("Enter").await;
    assert!(
        browser
            .text(".verdict:not([hidden])")
            .await
            .starts_with("Right")
    );
    let foreign = "document.querySelectorAll('img, svg, b > b, h1 b, i:not(.strip i), script:not([src])').length";
    assert_eq!(browser.value(foreign).await, 0);
    assert_quiet(&browser, &site);
    assert_attempts_are_stopped(&mut browser).await;
}

/// The browser stops what a page must not do even if the page let it through.
async fn assert_attempts_are_stopped(browser: &mut Browser) {
    for attempt in [
        "document.body.innerHTML = '<img src=x>'",
        "document.querySelector('#status').insertAdjacentHTML('beforeend', '<b>x</b>')",
        "(async () => { await fetch('http://127.0.0.2:1/') })()",
    ] {
        let outcome = format!(
            "(async () => {{ try {{ await ({attempt}); return 'done' }} catch {{ return 'stopped' }} }})()"
        );
        assert_eq!(browser.value(&outcome).await, "stopped", "{attempt}");
    }
    assert!(!browser.problems().is_empty(), "violations are reported");
}
