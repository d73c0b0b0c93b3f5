//! Tests of the live page: as text, and in a browser while its server changes.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
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
    records.info.as_mut().unwrap().status = RunStatus::Running;
    let settings = RunSettings {
        steps: Some(60),
        ..RunSettings::default()
    };
    let mut status = LiveStatus::of_records(&records, "run", settings);
    status.is_live = true;
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

/// What `sqlenv train` does after GRPO needs no actors and makes no steps.
#[test]
fn after_grpo_the_page_expects_neither_actors_nor_steps() {
    let time = " left, without evaluations";
    let no_actor = "No actor has called yet.";
    let mut live = status(40);
    live.actors.clear();
    let page = live_page(Some(&live));
    assert!(page.contains(time) && page.contains(no_actor), "{page}");
    let mut ended = status(60);
    ended.is_live = false;
    ended.actors.clear();
    let page = live_page(Some(&ended));
    assert!(!page.contains(time) && !page.contains(no_actor), "{page}");
    let head = "Step 60 of 60, all steps are made; evaluations may follow";
    assert!(page.contains(head), "{page}");
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

/// Reads a request and returns its path; none if the browser sends no request.
fn path_of(stream: &TcpStream) -> Option<String> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    Some(first.split(' ').nth(1).unwrap().to_owned())
}

fn answer(stream: &mut TcpStream, asked: &Mutex<Vec<String>>) {
    let Some(path) = path_of(stream) else { return };
    asked.lock().unwrap().push(path.clone());
    let body = match path.as_str() {
        "/" => live_page(Some(&status(20))),
        "/fragment" => live_fragment(Some(&status(40))),
        _ => String::new(),
    };
    send(stream, &body, &live_security_policy());
}

fn send(stream: &mut TcpStream, body: &str, security_policy: &str) {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\
         Content-Security-Policy: {security_policy}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    // The browser may have closed the connection.
    let _ = stream.write_all((head + body).as_bytes());
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

/// The longest wait for the second request of a fragment.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the requests of the fragment.
type Fragments = (Mutex<usize>, Condvar);

/// Serves the page as a learner that hangs from then on: it accepts connections and answers
/// nothing. An image makes the page load until the script has asked for the fragment twice, since
/// Chromium prints a page that has loaded.
fn serve_hanging() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let fragments = Arc::new(Fragments::default());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let fragments = Arc::clone(&fragments);
            thread::spawn(move || hang(stream.unwrap(), &fragments));
        }
    });
    port
}

fn hang(mut stream: TcpStream, (count, changed): &Fragments) {
    match path_of(&stream).as_deref() {
        Some("/") => {
            let page = live_page(Some(&status(20)));
            let page = page.replace("</body>", "<img src=\"image\"></body>");
            let policy = live_security_policy() + "; img-src 'self'";
            send(&mut stream, &page, &policy);
        }
        Some("/fragment") => {
            *count.lock().unwrap() += 1;
            changed.notify_all();
            // Returns when the browser closes the connection.
            path_of(&stream);
        }
        Some("/image") => {
            let count = count.lock().unwrap();
            let is_first = |count: &mut usize| *count < 2;
            let waited = changed.wait_timeout_while(count, PATIENCE, is_first);
            drop(waited.unwrap());
            send(&mut stream, "", "");
        }
        _ => {}
    }
}

#[test]
fn a_learner_that_hangs_is_noticed() {
    if !browser::is_wanted("the live page of a learner that hangs was not opened in a browser") {
        return;
    }
    let address = format!("http://127.0.0.1:{}/", serve_hanging());
    let (dom, _) = browser::open(&address, &[]);
    let (_, banner) = dom.split_once("id=\"away\"").unwrap();
    let attributes = banner.split('>').next().unwrap();
    assert!(!attributes.contains("hidden"), "{dom}");
}
