//! `sqlenv watch`: the status of a run in a terminal, or as lines of text elsewhere.

mod lines;
mod screen;

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use report::RunStatus;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{lines::Lines, screen::View};
use crate::{
    args::WatchArgs,
    config::WrongSettings,
    shutdown::unless_interrupted,
    status_source::{Fetched, StatusSource},
    stdout,
};

/// The pause between two requests. A learner shows the end of a run for longer.
const PAUSE: Duration = Duration::from_secs(1);
/// How soon a key has its effect.
const KEY_PAUSE: Duration = Duration::from_millis(100);

/// Shows a run until it ends, or until `q` in a terminal.
pub(crate) async fn watch(args: &WatchArgs, shutdown: CancellationToken) -> Result<()> {
    let source = StatusSource::parse(&args.run).map_err(WrongSettings)?;
    if io::stdout().is_terminal() && io::stdin().is_terminal() {
        show(args.run.clone(), source, shutdown).await
    } else {
        unless_interrupted(&shutdown, print_lines(&args.run, &source)).await?
    }
}

async fn print_lines(address: &str, source: &StatusSource) -> Result<()> {
    let mut lines = Lines::default();
    loop {
        match source.fetch().await? {
            Fetched::Status(status) => {
                for line in lines.of_status(&status) {
                    stdout::print(format_args!("{line}\n"))?;
                }
                if status.state != RunStatus::Running {
                    return Ok(());
                }
            }
            Fetched::Away(reason) => {
                if let Some(line) = lines.of_absence(address, &reason) {
                    let _ = writeln!(io::stderr(), "{line}");
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Draws the screen on a thread of its own, since reading keys blocks.
async fn show(address: String, source: StatusSource, shutdown: CancellationToken) -> Result<()> {
    // The first request may find an error that belongs on the terminal as it was.
    let mut view = View::new(address);
    view.fetched(source.fetch().await?);
    let (sender, receiver) = watch::channel(view);
    let fetching = tokio::spawn(fetch_again(source, sender));
    let screen = tokio::task::spawn_blocking(move || {
        let mut terminal = ratatui::try_init().context("cannot open the terminal")?;
        let shown = draw_until_quit(&mut terminal, receiver, &shutdown);
        ratatui::restore();
        shown
    });
    let shown = screen.await.context("the screen panicked")?;
    fetching.abort();
    shown
}

async fn fetch_again(source: StatusSource, view: watch::Sender<View>) {
    while !view.is_closed() {
        tokio::time::sleep(PAUSE).await;
        let fetched = source.fetch().await;
        let fetched = fetched.unwrap_or_else(|error| Fetched::Away(format!("{error:#}")));
        view.send_modify(|view| view.fetched(fetched));
    }
}

fn draw_until_quit(
    terminal: &mut DefaultTerminal,
    mut view: watch::Receiver<View>,
    shutdown: &CancellationToken,
) -> Result<()> {
    let mut is_changed = true;
    while !shutdown.is_cancelled() {
        if is_changed {
            let view = view.borrow_and_update().clone();
            terminal.draw(|frame| screen::draw(frame, &view))?;
        }
        is_changed = event::poll(KEY_PAUSE)?;
        if is_changed {
            match event::read()? {
                Event::Key(key) if is_quit(key) => return Ok(()),
                // Another size or a key: drawing again does no harm.
                _ => {}
            }
        }
        is_changed |= view.has_changed().unwrap_or(false);
    }
    Ok(())
}

fn is_quit(key: KeyEvent) -> bool {
    let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
    let is_quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || is_interrupt;
    is_quit && key.kind == KeyEventKind::Press
}
