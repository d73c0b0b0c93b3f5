//! Shows the progress of long stages: bars on a terminal, lines of text elsewhere.
//!
//! A stage shows what it does, its position, its speed and the time that is left. Without a
//! terminal it prints a line at most every few seconds, so that a log file stays short. There is no
//! global state; clones share the display.

mod plain;

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use tracing_subscriber::fmt::MakeWriter;

use plain::{PlainStage, rate};
use report::number::seconds as seconds_in_words;

const BAR: &str =
    "{prefix:>24} {bar:28.cyan/dim} {human_pos}/{human_len} {unit}  {rate}  {left}  {msg}";
const SPINNER: &str = "{prefix:>24} {spinner} {human_pos} {unit}  {rate}  {took}  {msg}";
const DONE: &str = "{prefix:>24} ✓ {human_pos} {unit} in {took}  {msg}";

/// The display of stages. Clones are cheap and share it.
#[derive(Clone)]
pub(crate) struct Progress(Display);

#[derive(Clone)]
enum Display {
    Bars(MultiProgress),
    Lines(Arc<Mutex<dyn Write + Send>>),
}

impl Progress {
    /// Shows bars on stderr if it is a terminal, else lines.
    pub(crate) fn stderr() -> Self {
        if io::stderr().is_terminal() {
            Self(Display::Bars(MultiProgress::new()))
        } else {
            Self::lines(io::stderr())
        }
    }

    /// Shows lines on `out`.
    pub(crate) fn lines(out: impl Write + Send + 'static) -> Self {
        Self(Display::Lines(Arc::new(Mutex::new(out))))
    }

    /// Starts a stage of `total` units, or of an unknown number.
    pub(crate) fn stage(
        &self,
        name: &str,
        total: impl Into<Option<u64>>,
        unit: &str,
    ) -> ProgressStage {
        let total = total.into();
        match &self.0 {
            Display::Bars(bars) => {
                let bar = bars.add(ProgressBar::new(total.unwrap_or(0)));
                bar.set_style(style(if total.is_some() { BAR } else { SPINNER }, unit));
                bar.set_prefix(name.to_owned());
                bar.enable_steady_tick(Duration::from_millis(200));
                ProgressStage(StageDisplay::Bar {
                    bar,
                    unit: unit.to_owned(),
                })
            }
            Display::Lines(out) => {
                let stage = PlainStage::new(name, total, unit);
                print(out, &stage.opening());
                ProgressStage(StageDisplay::Lines {
                    started: now(),
                    stage: Mutex::new(stage),
                    out: Arc::clone(out),
                })
            }
        }
    }

    /// Prints a line above the bars.
    pub(crate) fn say(&self, line: &str) {
        match &self.0 {
            Display::Bars(bars) => bars.suspend(|| eprintln!("{line}")),
            Display::Lines(out) => print(out, line),
        }
    }

    /// Returns a writer for `tracing_subscriber::fmt().with_writer(…)` that keeps the bars intact.
    pub(crate) fn log_writer(&self) -> LogWriter {
        LogWriter(self.clone())
    }
}

/// One long stage. If it is dropped without [`ProgressStage::finish`], its last state stays
/// visible.
pub(crate) struct ProgressStage(StageDisplay);

enum StageDisplay {
    Bar {
        bar: ProgressBar,
        unit: String,
    },
    Lines {
        started: Instant,
        stage: Mutex<PlainStage>,
        out: Arc<Mutex<dyn Write + Send>>,
    },
}

impl ProgressStage {
    /// Sets the number of units that are done.
    pub(crate) fn set(&self, units: u64) {
        match &self.0 {
            StageDisplay::Bar { bar, .. } => bar.set_position(units),
            StageDisplay::Lines { .. } => self.update(|stage| stage.position = units),
        }
    }

    /// Shows a note beside the bar, such as the loss.
    pub(crate) fn note(&self, text: &str) {
        match &self.0 {
            StageDisplay::Bar { bar, .. } => bar.set_message(text.to_owned()),
            StageDisplay::Lines { .. } => self.update(|stage| text.clone_into(&mut stage.note)),
        }
    }

    /// Ends the stage with a result.
    pub(crate) fn finish(self, result: &str) {
        match &self.0 {
            StageDisplay::Bar { bar, unit } => {
                bar.set_style(style(DONE, unit));
                bar.finish_with_message(result.to_owned());
            }
            StageDisplay::Lines {
                started,
                stage,
                out,
            } => {
                let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
                let seconds = now().duration_since(*started).as_secs_f64();
                print(out, &stage.closing(seconds, result));
            }
        }
    }

    fn update(&self, change: impl FnOnce(&mut PlainStage)) {
        let StageDisplay::Lines {
            started,
            stage,
            out,
        } = &self.0
        else {
            return;
        };
        let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut stage);
        let seconds = now().duration_since(*started).as_secs_f64();
        if let Some(line) = stage.line_due(seconds) {
            print(out, &line);
        }
    }
}

impl Drop for ProgressStage {
    fn drop(&mut self) {
        if let StageDisplay::Bar { bar, .. } = &self.0
            && !bar.is_finished()
        {
            bar.abandon();
        }
    }
}

fn style(template: &str, unit: &str) -> ProgressStyle {
    let template = template.replace("{unit}", &unit.replace(['{', '}'], ""));
    ProgressStyle::with_template(&template)
        .expect("the templates above are well-formed: this is a bug")
        .progress_chars("━╸─")
        .with_key("rate", |state: &ProgressState, w: &mut dyn fmt::Write| {
            let _ = w.write_str(&rate(state.per_sec()));
        })
        .with_key("left", |state: &ProgressState, w: &mut dyn fmt::Write| {
            if state.pos() > 0 && !state.is_finished() {
                let _ = write!(w, "{} left", seconds_in_words(state.eta().as_secs_f64()));
            }
        })
        .with_key("took", |state: &ProgressState, w: &mut dyn fmt::Write| {
            let _ = w.write_str(&seconds_in_words(state.elapsed().as_secs_f64()));
        })
}

fn print(out: &Mutex<dyn Write + Send>, line: &str) {
    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
    // The run must not fail if nobody reads its progress any more.
    let _ = writeln!(out, "{line}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock of the display; no result depends on it"
)]
fn now() -> Instant {
    Instant::now()
}

/// Writes log lines above the bars, see [`Progress::log_writer`].
#[derive(Clone)]
pub(crate) struct LogWriter(Progress);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0.0 {
            Display::Bars(bars) => bars.suspend(|| io::stderr().write_all(bytes))?,
            Display::Lines(out) => out
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn lines(&self) -> Vec<String> {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    #[test]
    fn without_a_terminal_a_stage_opens_and_closes_with_a_line() {
        let out = Shared::default();
        let progress = Progress::lines(out.clone());
        drop(progress.stage("opening data", None, "files"));
        let stage = progress.stage("warm start", 40, "steps");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| stage.set(40));
            }
        });
        stage.finish("loss 0.41");
        progress.say("done");
        progress
            .log_writer()
            .make_writer()
            .write_all(b"a log line\n")
            .unwrap();
        let lines = out.lines();
        assert_eq!(
            lines[..2],
            ["opening data: started", "warm start: 40 steps"]
        );
        assert!(
            lines[2].starts_with("warm start: 40 steps in ") && lines[2].ends_with(", loss 0.41")
        );
        assert_eq!(lines[3..], ["done", "a log line"]);
    }

    #[test]
    fn bars_accept_any_unit() {
        for template in [BAR, SPINNER, DONE] {
            style(template, "steps of {x}");
        }
    }
}
