//! A headless Chromium, controlled over its DevTools socket. The tests that use it are opt-in:
//! `SQLENV_BROWSER_TESTS=1 cargo test`.
//!
//! It leaves no process and no profile behind. `SQLENV_CHROMIUM` names another binary.
//! `SQLENV_WEB_SHOTS` names a folder for screenshots; without it none are taken.

use std::{
    io::{BufRead as _, BufReader, Write as _, stderr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
];
/// The longest wait for the browser. A page that hangs fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// One page of a browser of its own.
pub(crate) struct Browser {
    process: Child,
    _profile: TempDir,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    calls: u64,
    session: Value,
    /// Everything the browser reported, oldest first.
    events: Vec<Value>,
}

impl Browser {
    /// Starts a browser. Returns `None`, and prints that the test is skipped, if none is wanted.
    pub(crate) async fn start() -> Option<Self> {
        if !is_wanted() {
            // The test harness hides what a passing test prints with `eprintln!`.
            let line = "SKIPPED: the page was not tested in a browser; SQLENV_BROWSER_TESTS=1 does it, with Chromium\n";
            let _ = stderr().write_all(line.as_bytes());
            return None;
        }
        let (process, profile, address) = launch(&find());
        let (socket, _) = connect_async(address).await.unwrap();
        let mut browser = Self {
            process,
            _profile: profile,
            socket,
            calls: 0,
            session: Value::Null,
            events: Vec::new(),
        };
        let target = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", attach).await["sessionId"].clone();
        for domain in ["Runtime", "Log", "Network", "Page", "DOM"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser.set_display(1280, 860, "light").await;
        Some(browser)
    }

    /// Sets the size and the color scheme.
    pub(crate) async fn set_display(&mut self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics)
            .await;
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [feature]}))
            .await;
    }

    pub(crate) async fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address})).await;
    }

    /// Evaluates an expression. A promise is awaited.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let evaluate =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let reply = self.call("Runtime.evaluate", evaluate).await;
        assert!(
            reply.get("exceptionDetails").is_none(),
            "{expression}: {reply}"
        );
        reply["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) async fn wait(&mut self, expression: &str) {
        let is_true = async {
            while self.value(&format!("Boolean({expression})")).await != json!(true) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(PATIENCE, is_true).await.is_err() {
            let seen = self.value("document.body.innerText").await;
            panic!(
                "timed out waiting for {expression}; the page shows: {seen}\n{:?}",
                self.problems()
            );
        }
    }

    /// Returns the visible text of a selector's first element, once it exists.
    pub(crate) async fn text(&mut self, selector: &str) -> String {
        let element = format!("document.querySelector({})", json!(selector));
        self.wait(&element).await;
        let text = self.value(&format!("{element}.innerText")).await;
        text.as_str().unwrap().to_owned()
    }

    /// Presses a key: a character, or `Enter`, `ArrowDown`, …. A prefix `Ctrl+` holds the control
    /// key.
    pub(crate) async fn press(&mut self, chord: &str) {
        let (key, modifiers) = chord
            .strip_prefix("Ctrl+")
            .map_or((chord, 0), |key| (key, 2));
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => u32::from(key.as_bytes()[0].to_ascii_uppercase()),
        };
        let text = match key {
            "Enter" => "\r",
            key if key.len() == 1 && modifiers == 0 => key,
            _ => "",
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers, "text": text});
        self.call("Input.dispatchKeyEvent", event.clone()).await;
        event["type"] = json!("keyUp");
        self.call("Input.dispatchKeyEvent", event).await;
    }

    /// Types into the focused element.
    pub(crate) async fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Clicks the middle of a selector's first element, once it exists.
    pub(crate) async fn click(&mut self, selector: &str) {
        let element = format!("document.querySelector({})", json!(selector));
        self.wait(&element).await;
        let middle = self
            .value(&format!(
                "(() => {{ const element = {element}; element.scrollIntoView({{block: 'center'}}); \
                 const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
            ))
            .await;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": middle[0], "y": middle[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Chooses a file in a file picker.
    pub(crate) async fn choose_file(&mut self, selector: &str, path: &Path) {
        self.wait(&format!("document.querySelector({})", json!(selector)))
            .await;
        let root = self.call("DOM.getDocument", json!({})).await["root"]["nodeId"].clone();
        let query = json!({"nodeId": root, "selector": selector});
        let node = self.call("DOM.querySelector", query).await["nodeId"].clone();
        self.call(
            "DOM.setFileInputFiles",
            json!({"nodeId": node, "files": [path]}),
        )
        .await;
    }

    /// Takes screenshots, light, dark and in a phone's width, if `SQLENV_WEB_SHOTS` is set.
    pub(crate) async fn pictures(&mut self, name: &str) {
        for (look, width, scheme) in [
            ("phone", 390, "light"),
            ("dark", 1280, "dark"),
            ("light", 1280, "light"),
        ] {
            self.set_display(width, 860, scheme).await;
            self.picture(&format!("{name}-{look}")).await;
        }
    }

    async fn picture(&mut self, name: &str) {
        #[expect(
            clippy::disallowed_methods,
            reason = "screenshots are for people who look at the page"
        )]
        let Ok(folder) = std::env::var("SQLENV_WEB_SHOTS") else {
            return;
        };
        // Wait for the fade-in.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let picture = self
            .call("Page.captureScreenshot", json!({"format": "png"}))
            .await;
        let bytes = BASE64_STANDARD
            .decode(picture["data"].as_str().unwrap())
            .unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), bytes).unwrap();
    }

    /// Returns what the browser reported: exceptions, dialogs, warnings, errors, violations of the
    /// policy.
    pub(crate) fn problems(&self) -> Vec<&Value> {
        let is_problem = |event: &&Value| {
            let level = |path: &str| {
                let level = event.pointer(path).and_then(Value::as_str);
                matches!(level, Some("error" | "warning" | "assert"))
            };
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Page.javascriptDialogOpening") => true,
                Some("Log.entryAdded") => level("/params/entry/level"),
                Some("Runtime.consoleAPICalled") => level("/params/type"),
                _ => false,
            }
        };
        self.events.iter().filter(is_problem).collect()
    }

    /// Returns the addresses that the page requested.
    pub(crate) fn requests(&self) -> Vec<&str> {
        let sent = self
            .events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event.pointer("/params/request/url")?.as_str())
            .collect()
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if !self.session.is_null() {
            call["sessionId"] = self.session.clone();
        }
        self.socket
            .send(Message::text(call.to_string()))
            .await
            .unwrap();
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await;
            let Message::Text(text) = message.expect("the browser answers").unwrap().unwrap()
            else {
                continue;
            };
            let message: Value = serde_json::from_str(&text).unwrap();
            if message["id"] == call["id"] {
                assert!(message.get("error").is_none(), "{call}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Launches a browser with a new profile. Returns the address of its DevTools.
fn launch(binary: &Path) -> (Child, TempDir, String) {
    let profile = tempfile::tempdir().unwrap();
    let mut process = Command::new(binary)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("about:blank")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let address = lines
        .find_map(|line| {
            Some(
                line.ok()?
                    .strip_prefix("DevTools listening on ")?
                    .to_owned(),
            )
        })
        .unwrap();
    // The browser would block if nobody read its further output.
    std::thread::spawn(move || lines.for_each(drop));
    (process, profile, address)
}

/// Returns whether tests start a browser. They do not by themselves, since one on the PATH may be a
/// stub that does not run.
#[expect(clippy::disallowed_methods, reason = "opt-in by environment variable")]
fn is_wanted() -> bool {
    std::env::var("SQLENV_BROWSER_TESTS").as_deref() == Ok("1")
}

#[expect(clippy::disallowed_methods, reason = "tests look for a browser")]
fn find() -> PathBuf {
    if let Ok(named) = std::env::var("SQLENV_CHROMIUM") {
        return named.into();
    }
    let folders = std::env::var("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let found = NAMES.iter().find_map(|name| {
        folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
    });
    found.unwrap_or_else(|| {
        panic!("none of {NAMES:?} is on the PATH: install chromium, or unset SQLENV_BROWSER_TESTS")
    })
}
