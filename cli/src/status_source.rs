//! Where the status of a run comes from: the admin port of its learner, or its folder.

use std::{
    io,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use actor::evaluation_of;
use anyhow::{Context as _, Result, bail};
use axum::http::{StatusCode, Uri};
use parking_lot::Mutex;
use policy::Chat;
use proto::v1::{Question, Trajectory};
use report::{
    Finding, LiveEpisode, LiveStatus, ReportError, RunFolder, RunRecords, RunSettings, diagnose,
};

use crate::{admin_client, config::WrongSettings, model_folder::newest_chat};

/// The longest wait for a learner.
const PATIENCE: Duration = Duration::from_secs(10);
/// A longer journal takes too long to read again and again, so its episodes are not shown.
const MAX_JOURNAL_BYTES: u64 = 64 << 20;
/// Episodes of the journal that are shown.
const EPISODES: usize = 4;

/// Where the status of a run comes from.
#[derive(Debug)]
pub(crate) enum StatusSource {
    /// The admin port of a learner.
    Learner(Uri),
    /// The folder of a run.
    Folder(Box<WatchedFolder>),
}

/// The folder of a run, with what is not read again and again.
#[derive(Debug)]
pub(crate) struct WatchedFolder {
    path: PathBuf,
    /// The chat of the run, which all its checkpoints share.
    chat: OnceLock<Chat>,
    /// The newest episodes, and the size of the journal that had them.
    episodes: Mutex<(u64, Vec<LiveEpisode>)>,
}

/// The answer of a source.
#[derive(Debug)]
pub(crate) enum Fetched {
    Status(Box<LiveStatus>),
    /// The learner does not answer now, for this reason; it may later.
    Away(String),
}

impl StatusSource {
    /// Parses what a person typed.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.contains("://") {
            return Ok(Self::Learner(admin_client::parse_address(text)?));
        }
        let path = Path::new(text);
        if !path.is_dir() {
            if let Ok(address) = admin_client::parse_address(text) {
                return Ok(Self::Learner(address));
            }
            bail!(
                "{text} is neither a folder nor an address; give the folder of a run, or the admin \
                 port of its learner as HOST:PORT"
            );
        }
        Ok(Self::Folder(Box::new(WatchedFolder {
            path: path.to_owned(),
            chat: OnceLock::new(),
            episodes: Mutex::default(),
        })))
    }

    /// Returns the status of the run now.
    ///
    /// # Errors
    /// The folder cannot be read, or something else than a learner answers.
    pub(crate) async fn fetch(&self) -> Result<Fetched> {
        match self {
            Self::Folder(folder) => Ok(Fetched::Status(Box::new(folder.status()?))),
            Self::Learner(address) => fetch(address).await,
        }
    }
}

async fn fetch(address: &Uri) -> Result<Fetched> {
    match admin_client::get(address, "/status.json", PATIENCE).await {
        Err(error) => {
            let causes = || {
                error
                    .chain()
                    .filter_map(|it| it.downcast_ref::<io::Error>())
            };
            let is_refused = causes().any(|it| it.kind() == io::ErrorKind::ConnectionRefused);
            let remedy = match is_refused {
                true => "; start the run with --admin, or give the address of its admin port",
                false => "",
            };
            Ok(Fetched::Away(format!("{error:#}{remedy}")))
        }
        Ok((StatusCode::SERVICE_UNAVAILABLE, body)) => {
            Ok(Fetched::Away(String::from_utf8_lossy(&body).into_owned()))
        }
        Ok((StatusCode::OK, body)) => {
            let status = serde_json::from_slice(&body).with_context(|| {
                format!("{address} answers with something else than the status of a run")
            })?;
            Ok(Fetched::Status(Box::new(status)))
        }
        Ok((status, _)) => {
            bail!("{address} answers {status}; give the address that the learner got by --admin")
        }
    }
}

impl WatchedFolder {
    fn status(&self) -> Result<LiveStatus> {
        let folder = RunFolder::new(&self.path);
        let records = folder.read()?;
        if !folder.is_of_run(&records) {
            let fault = ReportError::NotARun(self.path.clone());
            return Err(WrongSettings(fault.into()).into());
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let mut status = recorded_status(&records, &name);
        status.silent_seconds = folder.last_recorded().map(seconds_since);
        // The journal is a view for people: a run whose checkpoint cannot be read still has a
        // status.
        status.episodes = self.newest_episodes(&records).unwrap_or_default();
        status.findings = findings(&status, &records);
        if let Some(ended_early) = folder.ended_early(&records) {
            // It says why the run is stalled, too.
            status.findings.retain(|it| it.rule != "stalled");
            status.findings.insert(0, ended_early);
        }
        Ok(status)
    }

    /// Returns the newest episodes. They are read again when the journal has grown.
    fn newest_episodes(&self, records: &RunRecords) -> Result<Vec<LiveEpisode>> {
        let journal_bytes = learner::journal::bytes(&self.path)?;
        if journal_bytes > MAX_JOURNAL_BYTES {
            return Ok(Vec::new());
        }
        let mut known = self.episodes.lock();
        if known.0 != journal_bytes {
            // Also if the read fails: its warning is repeated when the journal has grown.
            *known = (journal_bytes, Vec::new());
            if let Some(chat) = self.chat()? {
                known.1 = read_episodes(&self.path, chat, records)?;
            }
        }
        Ok(known.1.clone())
    }

    /// Returns the chat of the run, if there is a checkpoint.
    fn chat(&self) -> Result<Option<&Chat>> {
        if self.chat.get().is_none()
            && let Some(chat) = newest_chat(&self.path)?
        {
            let _ = self.chat.set(chat);
        }
        Ok(self.chat.get())
    }
}

/// Returns the status that the records of a run show, without what is wrong with it.
pub(crate) fn recorded_status(records: &RunRecords, folder_name: &str) -> LiveStatus {
    let settings = records.config.as_deref().map(settings).unwrap_or_default();
    LiveStatus::of_records(records, folder_name, settings)
}

/// Returns what is wrong with a run of this status and these records.
pub(crate) fn findings(status: &LiveStatus, records: &RunRecords) -> Vec<Finding> {
    let mut findings = diagnose(status);
    // Hints come last.
    findings.extend(records.damage());
    findings
}

/// Returns the settings that the status needs, as far as `config.toml` has them.
fn settings(config: &str) -> RunSettings {
    let config: toml::Table = config.parse().unwrap_or_default();
    let setting = |name: &str| {
        let value = config.get("learner")?.get(name)?.as_integer()?;
        u64::try_from(value).ok()
    };
    let demonstration_weight = || {
        let value = config.get("learner")?.get("demonstration_weight")?;
        // People may write it without a point.
        value
            .as_float()
            .or_else(|| value.as_integer().map(|it| it as f64))
    };
    RunSettings {
        steps: setting("steps"),
        group_size: setting("group_size"),
        max_staleness: setting("max_staleness"),
        lease_seconds: setting("lease_seconds"),
        demonstrates: demonstration_weight().map(|weight| weight > 0.0),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: the age of a file is part of a run's status"
)]
fn seconds_since(recorded: SystemTime) -> f64 {
    // The clock of the machine that writes the folder may be ahead.
    let age = SystemTime::now().duration_since(recorded);
    age.unwrap_or_default().as_secs_f64()
}

/// Reads the first episode of each of the newest groups in the journal, newest first.
fn read_episodes(run_dir: &Path, chat: &Chat, records: &RunRecords) -> Result<Vec<LiveEpisode>> {
    let mut newest = Vec::new();
    for group in learner::journal::read(run_dir)? {
        if newest.len() == EPISODES {
            newest.remove(0);
        }
        newest.push(group?);
    }
    let text = |id: &str| {
        let known = records
            .transcripts
            .iter()
            .find(|it| it.episode.question_id == id);
        known.map_or_else(String::new, |it| it.episode.question.clone())
    };
    let episodes = newest.into_iter().rev().filter_map(|group| {
        let trajectory = group.trajectories.first()?;
        let question = Question {
            question_id: trajectory.question_id.clone(),
            question_text: text(&trajectory.question_id),
            ..Question::default()
        };
        Some(live_episode(
            chat,
            group.group_index,
            group.actor_id,
            question,
            trajectory,
        ))
    });
    Ok(episodes.collect())
}

/// Returns an episode as people read it.
pub(crate) fn live_episode(
    chat: &Chat,
    group_index: u64,
    actor_id: String,
    question: Question,
    trajectory: &Trajectory,
) -> LiveEpisode {
    let (_, mut episodes) = evaluation_of(chat, &[question], [trajectory]);
    LiveEpisode {
        group_index,
        actor_id,
        episode: episodes.swap_remove(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_folders_are_told_apart() {
        let parse = StatusSource::parse;
        for address in ["http://127.0.0.1:9000", "localhost:9000"] {
            assert!(matches!(parse(address).unwrap(), StatusSource::Learner(_)));
        }
        assert!(matches!(parse(".").unwrap(), StatusSource::Folder(_)));
        for (text, remedy) in [
            ("https://host:1", "speaks http only"),
            ("host:port", "HOST:PORT"),
            ("http://", "HOST:PORT"),
            ("http://host", "with a port"),
            (":9000", "neither a folder nor an address"),
            ("http://me:secret@host:9000", "no password"),
            ("s3://runs/one", "not the address of an admin port"),
            ("runs/none", "neither a folder nor an address"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn settings_are_read_as_far_as_they_are_there() {
        let config = "[learner]\nsteps = 40\ngroup_size = 8\nmax_staleness = -1\n";
        let expected = RunSettings {
            steps: Some(40),
            group_size: Some(8),
            ..RunSettings::default()
        };
        assert_eq!(settings(config), expected);
        assert_eq!(settings("not toml ["), RunSettings::default());
        for (weight, demonstrates) in [("0.0", false), ("0.5", true), ("3", true)] {
            let config = format!("[learner]\ndemonstration_weight = {weight}\n");
            assert_eq!(settings(&config).demonstrates, Some(demonstrates));
        }
    }
}
