//! Lines without a terminal, and bars whose terminal has gone.

use indicatif::TermLike;

use super::*;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn without_a_terminal_a_stage_opens_and_closes_with_a_line() {
    let out = Shared::default();
    let mut progress = Progress::Lines(Arc::new(Mutex::new(out.clone())));
    drop(progress.stage("opening data", None, "files"));
    drop(progress.brief_stage("curve", Some(3), "episodes"));
    let stage = progress.stage("warm start", 40, "steps");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| stage.set(40));
        }
    });
    stage.finish("loss 0.41");
    progress.print("done");
    progress.write_all(b"a log line \x1b[31m\n").unwrap();
    let lines = out.lines();
    assert_eq!(
        lines[..2],
        ["opening data: started", "warm start: 40 steps"]
    );
    assert!(lines[2].starts_with("warm start: 40 steps in ") && lines[2].ends_with(", loss 0.41"));
    assert_eq!(lines[3..], ["done", "a log line \u{fffd}[31m"]);
}

#[test]
fn bars_accept_any_unit() {
    for template in [BAR, SPINNER, DONE] {
        style(template, "steps of {x}", &Arc::default());
    }
}

fn plain_stage(name: &str, total: Option<u64>, unit: &str) -> ProgressStage {
    Progress::Lines(Arc::new(Mutex::new(io::sink()))).stage(name, total, unit)
}

#[test]
fn a_plain_line_is_due_every_few_seconds() {
    let stage = plain_stage("evaluating warm start", Some(300), "questions");
    stage.set(60);
    stage.note("right 0.41");
    let mut last = 0.0;
    assert_eq!(stage.line_due(&mut last, 4.9), None);
    assert_eq!(
        stage.line_due(&mut last, 6.0).as_deref(),
        Some("evaluating warm start: 60/300 questions (20 %), 10.0/s, 24 s left, right 0.41")
    );
    assert_eq!(stage.line_due(&mut last, 10.9), None);
    assert!(stage.line_due(&mut last, 11.0).is_some());
}

#[test]
fn the_speed_of_a_stage_that_continues_is_that_since_it_began_again() {
    let stage = plain_stage("imitating the oracle", Some(2_000), "tokens");
    stage.begin_at(1_000, 10.0);
    stage.set(1_100);
    assert_eq!(
        stage.line_due(&mut 0.0, 10.000_001).as_deref(),
        Some("imitating the oracle: 1100/2000 tokens (55 %)")
    );
    assert_eq!(
        stage.line_due(&mut 0.0, 20.0).as_deref(),
        Some("imitating the oracle: 1100/2000 tokens (55 %), 10.0/s, 1 min 30 s left")
    );
}

#[test]
fn stages_of_unknown_and_of_zero_length_have_lines() {
    assert_eq!(
        plain_stage("rolling out", None, "episodes")
            .line_due(&mut 0.0, 5.0)
            .as_deref(),
        Some("rolling out: 0 episodes")
    );
    assert_eq!(
        plain_stage("steps", Some(0), "steps")
            .line_due(&mut 0.0, 5.0)
            .as_deref(),
        Some("steps: 0/0 steps (0 %)")
    );
}

#[test]
fn rates_read_well() {
    for (per_second, text) in [(1234.5, "1234/s"), (2.25, "2.2/s"), (0.1, "10 s each")] {
        assert_eq!(rate(per_second), text);
    }
}

/// A terminal that has gone.
#[derive(Debug)]
struct Lost;

impl Lost {
    fn write(&self) -> io::Result<()> {
        Err(io::Error::other("the terminal has gone"))
    }
}

impl TermLike for Lost {
    fn width(&self) -> u16 {
        80
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        self.write()
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        self.write()
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        self.write()
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        self.write()
    }

    fn write_line(&self, _: &str) -> io::Result<()> {
        self.write()
    }

    fn write_str(&self, _: &str) -> io::Result<()> {
        self.write()
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write()
    }

    fn flush(&self) -> io::Result<()> {
        self.write()
    }
}

/// The tests themselves may have a terminal.
#[test]
fn bars_without_their_terminal_are_hidden() {
    let is_lost = !io::stderr().is_terminal();
    let lost = || ProgressDrawTarget::term_like(Box::new(Lost));
    let bars = MultiProgress::with_draw_target(lost());
    let stage = Progress::Bars(bars.clone()).stage("warm start", None, "steps");
    assert_eq!(bars.is_hidden(), is_lost);
    bars.set_draw_target(lost());
    stage.set(1);
    assert_eq!(bars.is_hidden(), is_lost);
}
