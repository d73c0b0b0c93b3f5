//! Shows the progress of long stages: bars on a terminal, lines of text elsewhere.
//!
//! A stage shows what it does, its position, its speed and the time that is left. Without a
//! terminal it prints a line at most every few seconds, so that a log file stays short. There is no
//! global state; clones share the display.
//!
//! Invariant: no text of a file, a model or a peer controls the terminal.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use report::{number::seconds as seconds_in_words, safe_text};

const BAR: &str =
    "{prefix:>24} {bar:28.cyan/dim} {human_pos}/{human_len} {unit}  {rate}  {left}  {msg}";
const SPINNER: &str = "{prefix:>24} {spinner} {human_pos} {unit}  {rate}  {took}  {msg}";
const DONE: &str = "{prefix:>24} ✓ {human_pos} {unit} in {took}  {msg}";

/// Seconds between two lines of a stage without a terminal.
const LINE_EVERY_SECONDS: f64 = 5.0;

/// Seconds after which a stage has a speed.
const LEAST_SECONDS: f64 = 0.1;

type Output = Arc<Mutex<dyn Write + Send>>;

/// The display of stages. Clones are cheap and share it. What is written to it, such as a log line,
/// appears above the bars.
#[derive(Clone)]
pub(crate) enum Progress {
    Bars(MultiProgress),
    Lines(Output),
}

impl Progress {
    /// Shows bars on stderr if it is a terminal, else lines.
    pub(crate) fn stderr() -> Self {
        if io::stderr().is_terminal() {
            Self::Bars(MultiProgress::new())
        } else {
            Self::Lines(Arc::new(Mutex::new(io::stderr())))
        }
    }

    /// Starts a stage of `total` units, or of an unknown number.
    pub(crate) fn stage(
        &self,
        name: &str,
        total: impl Into<Option<u64>>,
        unit: &str,
    ) -> ProgressStage {
        let total = total.into();
        if let Self::Lines(out) = self {
            print(out, &opening(name, total, unit));
        }
        self.brief_stage(name, total, unit)
    }

    /// Starts a stage that returns often. Without a terminal a short one prints a line at its end
    /// only.
    pub(crate) fn brief_stage(&self, name: &str, total: Option<u64>, unit: &str) -> ProgressStage {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden())
            .with_prefix(name.to_owned());
        let origin = Arc::new(Mutex::new(Origin::default()));
        if let Self::Bars(bars) = self {
            hide_if_lost(bars);
            bars.add(bar.clone());
            let template = if total.is_some() { BAR } else { SPINNER };
            bar.set_style(style(template, unit, &origin));
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        ProgressStage {
            bar,
            unit: unit.to_owned(),
            origin,
            progress: self.clone(),
            last_line: Mutex::new(0.0),
        }
    }

    /// Prints a line above the bars.
    pub(crate) fn print(&self, line: &str) {
        match self {
            Self::Bars(bars) => {
                // As in `print` below.
                let _ = write_above(bars, &format!("{}\n", safe_text(line)));
            }
            Self::Lines(out) => print(out, line),
        }
    }
}

impl Write for Progress {
    /// Writes a log line. It must be whole, since its end could lie within a character otherwise.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = safe_text(&String::from_utf8_lossy(bytes));
        match self {
            Self::Bars(bars) => write_above(bars, &line)?,
            Self::Lines(out) => out.lock().write_all(line.as_bytes())?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where a stage began, from which its speed counts.
#[derive(Clone, Copy, Default)]
struct Origin {
    position: u64,
    seconds: f64,
}

impl Origin {
    /// Returns units per second since the origin, if any was done and there was time to tell.
    fn speed(self, position: u64, seconds: f64) -> Option<f64> {
        let (units, seconds) = (
            position.saturating_sub(self.position),
            seconds - self.seconds,
        );
        (units > 0 && seconds >= LEAST_SECONDS).then(|| units as f64 / seconds)
    }
}

/// Returns the seconds that `total - position` units take.
fn seconds_left(total: u64, position: u64, speed: f64) -> f64 {
    total.saturating_sub(position) as f64 / speed
}

/// One long stage. If it is dropped without [`ProgressStage::finish`], its last state stays
/// visible.
pub(crate) struct ProgressStage {
    /// The state of the stage. Without a terminal the bar is hidden.
    bar: ProgressBar,
    unit: String,
    origin: Arc<Mutex<Origin>>,
    progress: Progress,
    /// Without a terminal, the seconds at the last line.
    last_line: Mutex<f64>,
}

impl ProgressStage {
    /// Sets the number of units that are done.
    pub(crate) fn set(&self, units: u64) {
        self.bar.set_position(units);
        match &self.progress {
            Progress::Bars(bars) => hide_if_lost(bars),
            Progress::Lines(out) => self.print_if_due(out),
        }
    }

    /// Sets the number of units that an interrupted stage had done when it began again.
    pub(crate) fn continue_from(&self, units: u64) {
        self.begin_at(units, self.bar.elapsed().as_secs_f64());
    }

    fn begin_at(&self, position: u64, seconds: f64) {
        self.bar.set_position(position);
        *self.origin.lock() = Origin { position, seconds };
    }

    /// Sets what is shown beside the next position, such as the loss there.
    pub(crate) fn note(&self, text: &str) {
        self.bar.set_message(safe_text(text));
    }

    /// Ends the stage with a result.
    pub(crate) fn finish(self, result: &str) {
        match &self.progress {
            Progress::Bars(_) => {
                self.bar.set_style(style(DONE, &self.unit, &self.origin));
                self.bar.finish_with_message(safe_text(result));
            }
            Progress::Lines(out) => print(out, &self.closing(result)),
        }
    }

    fn print_if_due(&self, out: &Output) {
        let seconds = self.bar.elapsed().as_secs_f64();
        let line = self.line_due(&mut self.last_line.lock(), seconds);
        line.iter().for_each(|line| print(out, line));
    }

    fn line_due(&self, last: &mut f64, seconds: f64) -> Option<String> {
        if seconds - *last < LINE_EVERY_SECONDS {
            return None;
        }
        *last = seconds;
        let (name, unit, position) = (self.bar.prefix(), &self.unit, self.bar.position());
        let mut line = match self.bar.length() {
            Some(total) => {
                let percent = 100 * position / total.max(1);
                format!("{name}: {position}/{total} {unit} ({percent} %)")
            }
            None => format!("{name}: {position} {unit}"),
        };
        if let Some(speed) = self.origin.lock().speed(position, seconds) {
            line += &format!(", {}", rate(speed));
            if let Some(total) = self.bar.length() {
                let left = seconds_left(total, position, speed);
                line += &format!(", {} left", seconds_in_words(left));
            }
        }
        let note = self.bar.message();
        if !note.is_empty() {
            line += &format!(", {note}");
        }
        Some(line)
    }

    fn closing(&self, result: &str) -> String {
        let took = seconds_in_words(self.bar.elapsed().as_secs_f64());
        let (name, position) = (self.bar.prefix(), self.bar.position());
        let comma = if result.is_empty() { "" } else { ", " };
        format!("{name}: {position} {} in {took}{comma}{result}", self.unit)
    }
}

impl Drop for ProgressStage {
    fn drop(&mut self) {
        if !self.bar.is_finished() {
            self.bar.abandon();
        }
    }
}

fn opening(name: &str, total: Option<u64>, unit: &str) -> String {
    match total {
        Some(total) => format!("{name}: {total} {unit}"),
        None => format!("{name}: started"),
    }
}

fn style(template: &str, unit: &str, origin: &Arc<Mutex<Origin>>) -> ProgressStyle {
    let template = template.replace("{unit}", &unit.replace(['{', '}'], ""));
    let origins = [Arc::clone(origin), Arc::clone(origin)];
    let [of_rate, of_left] = origins.map(|origin| {
        move |state: &ProgressState| {
            origin
                .lock()
                .speed(state.pos(), state.elapsed().as_secs_f64())
        }
    });
    ProgressStyle::with_template(&template)
        .expect("the templates above are well-formed: this is a bug")
        .progress_chars("━╸─")
        .with_key(
            "rate",
            move |state: &ProgressState, w: &mut dyn fmt::Write| {
                if let Some(speed) = of_rate(state) {
                    let _ = w.write_str(&rate(speed));
                }
            },
        )
        .with_key(
            "left",
            move |state: &ProgressState, w: &mut dyn fmt::Write| {
                let left = of_left(state)
                    .zip(state.len())
                    .filter(|_| !state.is_finished());
                if let Some((speed, total)) = left {
                    let left = seconds_left(total, state.pos(), speed);
                    let _ = write!(w, "{} left", seconds_in_words(left));
                }
            },
        )
        .with_key("took", |state: &ProgressState, w: &mut dyn fmt::Write| {
            let _ = w.write_str(&seconds_in_words(state.elapsed().as_secs_f64()));
        })
}

/// Writes whole lines above the bars. `MultiProgress::println` would write them without their ends,
/// and a terminal then copies them as one line.
fn write_above(bars: &MultiProgress, lines: &str) -> io::Result<()> {
    hide_if_lost(bars);
    bars.suspend(|| io::stderr().write_all(lines.as_bytes()))
}

/// Hides the bars for good if their terminal has gone, such as that of an ssh session.
///
/// Every draw fails from then on: [`MultiProgress::suspend`] would panic, and the text of each tick
/// would stay in memory.
fn hide_if_lost(bars: &MultiProgress) {
    if !io::stderr().is_terminal() {
        bars.set_draw_target(ProgressDrawTarget::hidden());
    }
}

fn print(out: &Output, line: &str) {
    // The run must not fail if nobody reads its progress any more.
    let _ = writeln!(out.lock(), "{}", safe_text(line));
}

/// Formats a speed as units per second, or as the time of one unit.
fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 100.0 => format!("{r:.0}/s"),
        r if r >= 1.0 => format!("{r:.1}/s"),
        r => format!("{} each", seconds_in_words(1.0 / r)),
    }
}

#[cfg(test)]
mod tests;
