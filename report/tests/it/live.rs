//! Tests of the live page: as text, and in a browser while its server changes.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use report::{
    ActorStatus, EnvNodeStatus, EpisodeRecord, LiveEpisode, LiveStatus, RunSettings, RunStatus,
    diagnose, live_fragment, live_page, live_security_policy,
};

use crate::{browser, fixture};

const HOSTILE: &str =
    "<img src=/stolen onerror=\"document.title='stolen'\"><script>fetch('/stolen')</script>";

/// Returns the fixture's run at a step, with an actor whose name is markup.
fn status(step: u64) -> LiveStatus {
    let mut records = fixture();
    records.steps.retain(|it| it.step <= step);
    let settings = RunSettings {
        steps: Some(60),
        ..RunSettings::default()
    };
    let mut status = LiveStatus::of_records(&records, "run", settings);
    status.is_live = true;
    status.state = RunStatus::Running;
    status.name = HOSTILE.to_owned();
    status.actors = [("actor-0", true), (HOSTILE, false)]
        .map(|(id, is_connected)| ActorStatus {
            id: id.to_owned(),
            policy_version: Some(step),
            version_lag: Some(0),
            is_connected,
            silent_seconds: 100.0,
            tokens_per_second: Some(1_234_567.0),
            ..ActorStatus::default()
        })
        .into();
    status.env_nodes = vec![EnvNodeStatus {
        address: HOSTILE.to_owned(),
        calls: 9_000,
        mean_latency_seconds: Some(0.003),
        ..EnvNodeStatus::default()
    }];
    status.episodes = vec![LiveEpisode {
        group_index: step,
        actor_id: HOSTILE.to_owned(),
        episode: EpisodeRecord {
            question_id: "q".to_owned(),
            question: HOSTILE.to_owned(),
            database: HOSTILE.to_owned(),
            difficulty: String::new(),
            correct: false,
            reward: -0.25,
            failure: HOSTILE.to_owned(),
            steps: Vec::new(),
        },
    }];
    status.findings = diagnose(&status);
    status
}

#[test]
fn the_page_shows_every_part_and_takes_no_markup() {
    let status = status(40);
    assert!(status.findings.iter().any(|it| it.seen.contains(HOSTILE)));
    let page = live_page(Some(&status));
    for part in [
        "Step 40 of 60",
        "Training reward",
        "Accuracy over training",
        "Actors",
        "actor-0",
        "1.23 M",
        "Env-nodes",
        "3 ms",
        "The newest episodes",
        "−0.25",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for text in [page, live_fragment(Some(&status))] {
        assert!(!text.contains("<img"), "{text}");
        assert_eq!(
            text.matches("<script>").count(),
            usize::from(text.contains("<html"))
        );
    }
    assert!(live_page(None).contains("GRPO has not begun"));
}

#[test]
fn the_policy_allows_one_script_and_no_other_host() {
    let policy = live_security_policy();
    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-"),
        "{policy}"
    );
    assert!(
        !policy.contains("unsafe") && !policy.contains('*'),
        "{policy}"
    );
    assert_eq!(policy.matches("sha256-").count(), 2);
}

/// Serves the page at step 20 and the fragment at step 40, and notes what is asked for.
fn serve() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            answer(&mut stream.unwrap(), &noted);
        }
    });
    (port, asked)
}

fn answer(stream: &mut TcpStream, asked: &Mutex<Vec<String>>) {
    let mut request = String::new();
    let mut lines = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    lines
        .take_while(|line| !line.is_empty())
        .for_each(|line| request += &line);
    let path = first.split(' ').nth(1).unwrap().to_owned();
    asked.lock().unwrap().push(path.clone());
    let body = match path.as_str() {
        "/" => live_page(Some(&status(20))),
        "/fragment" => live_fragment(Some(&status(40))),
        _ => String::new(),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\
         Content-Security-Policy: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        live_security_policy(),
        body.len()
    );
    // The browser may have closed the connection.
    let _ = stream.write_all((head + &body).as_bytes());
}

#[test]
fn a_browser_follows_the_run_and_executes_nothing_of_it() {
    if !browser::is_wanted("the live page was not opened in a browser") {
        return;
    }
    let (port, asked) = serve();
    let address = format!("http://127.0.0.1:{port}/");
    // Timers run at once, until this many milliseconds have passed for the page.
    let (dom, complaints) = browser::open(&address, &["--virtual-time-budget=5000"]);
    assert!(!complaints.contains("CONSOLE"), "{complaints}");
    assert!(
        dom.contains("Step 40 of 60") && !dom.contains("Step 20 of 60"),
        "{dom}"
    );
    assert!(
        dom.contains("actor-0") && dom.contains("id=\"away\""),
        "{dom}"
    );
    assert!(
        !dom.contains("<title>stolen") && !dom.contains("<img"),
        "{dom}"
    );
    let asked = asked.lock().unwrap();
    let count = |path: &str| asked.iter().filter(|it| *it == path).count();
    assert_eq!((count("/"), count("/stolen")), (1, 0), "{asked:?}");
    assert!(count("/fragment") >= 2, "{asked:?}");
}
