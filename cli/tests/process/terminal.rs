//! Tests what a person sees on a terminal, which `script` of util-linux makes.

use std::{
    fs,
    io::{Read as _, Write as _, stderr},
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, sleep},
    time::Duration,
};

use crate::{
    outcomes::succeed,
    program::{Running, sqlenv},
};

/// A minute, in which a command on a busy machine has started.
const TRIES: u32 = 3_000;
const PAUSE: Duration = Duration::from_millis(20);

/// A command on a terminal of its own.
struct Terminal {
    process: Running,
    keyboard: ChildStdin,
    /// Everything that the terminal shows, with its escape sequences.
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs the command line that `command` makes of the program's path. Returns `None`, and prints
    /// that the test is skipped, if there is no `script`.
    fn open(command: impl FnOnce(&str) -> String) -> Option<Self> {
        if Command::new("script").arg("--version").output().is_err() {
            let line = "SKIPPED: no terminal was tested, since util-linux's `script` is missing\n";
            let _ = stderr().write_all(line.as_bytes());
            return None;
        }
        let program = sqlenv(&[]);
        let command = command(program.get_program().to_str().unwrap());
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .current_dir(program.get_current_dir().unwrap())
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let screen = Arc::<Mutex<Vec<u8>>>::default();
        let (shown, mut output) = (Arc::clone(&screen), script.stdout.take().unwrap());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().extend(&bytes[..count]);
            }
        });
        Some(Self {
            keyboard: script.stdin.take().unwrap(),
            process: Running(script),
            screen,
        })
    }

    /// Waits until the screen has shown `text` this many times.
    fn wait(&self, text: &str, count: usize) {
        let mut shown = String::new();
        for _ in 0..TRIES {
            shown = String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned();
            if shown.matches(text).count() >= count {
                return;
            }
            sleep(PAUSE);
        }
        panic!("no {text:?} in {shown:?}");
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }
}

/// The left arrow goes back in the line, the up arrow brings earlier lines back. The line about the
/// data has the number of its questions.
#[test]
fn lines_are_edited_and_kept() {
    let Some(mut terminal) = Terminal::open(|program| format!("{program} play")) else {
        return;
    };
    terminal.wait("Answers: one value", 1);
    let shown = String::from_utf8_lossy(&terminal.screen.lock().unwrap()).into_owned();
    let (_, opened) = shown.rsplit_once("opening data").unwrap();
    assert!(
        opened.contains(" questions") && !opened.contains(" 0 questions"),
        "{opened:?}"
    );
    terminal.press("describe abd\x1b[Dc\r");
    terminal.wait("Table 'abcd' not found", 1);
    terminal.press("describe other\r");
    terminal.wait("Table 'other' not found", 1);
    terminal.press("\x1b[A\x1b[A\r");
    terminal.wait("Table 'abcd' not found", 2);
    terminal.press("quit\r");
    terminal.wait("Left before the end", 1);
    assert!(terminal.process.0.wait().unwrap().success());
}

/// As when an ssh session ends whose shell has started a command in the background. The command
/// writes into a pipe, so that it ends after its terminal.
#[test]
fn a_command_survives_its_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let [data, out, code] = ["data", "tokenizer", "code"].map(|name| dir.path().join(name));
    let build = ["data", "procedural", "--databases=20", "--questions=4"];
    succeed(sqlenv(&build).arg("--out").arg(&data));
    assert!(Command::new("mkfifo").arg(&out).status().unwrap().success());
    let terminal = Terminal::open(|program| {
        let [data, out, code] = [&data, &out, &code].map(|it| it.display());
        format!("trap '' HUP; {program} data tokenizer --data {data} --out {out}; echo $? > {code}")
    });
    let Some(mut terminal) = terminal else {
        return;
    };
    terminal.wait("demonstrations", 1);
    terminal.process.0.kill().unwrap();
    terminal.process.0.wait().unwrap();
    let written = thread::spawn(move || fs::read(out));
    // Its last message, which names the file, finds no terminal.
    let mut ended = String::new();
    for _ in 0..TRIES {
        ended = fs::read_to_string(&code).unwrap_or_default();
        if ended.ends_with('\n') {
            break;
        }
        sleep(PAUSE);
    }
    assert_eq!(ended, "0\n");
    assert!(!written.join().unwrap().unwrap().is_empty());
}
