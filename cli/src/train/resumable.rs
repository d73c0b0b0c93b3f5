//! Tells runs of `sqlenv train` from folders of other commands. These have settings as well, and
//! `sqlenv train --resume` would damage their records.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result, bail};
use learner::{checkpoint::CHECKPOINTS, journal};
use report::SETTINGS;
use serde_json::Value;

use crate::pretrain::MODEL_FILES;

const TRAIN: &str = "train";
const RUN: &str = "run.json";

/// Refuses a folder with settings that is not that of a run of `sqlenv train`.
pub(super) fn check_is_of_train(folder: &Path) -> Result<()> {
    match command_of(folder) {
        Some(TRAIN) => Ok(()),
        Some(other) => bail!(
            "{} is a folder of `sqlenv {other}`; continue it by that command, or give another \
             --name",
            folder.display()
        ),
        None if is_of_run(folder) => bail!(
            "{} has no readable {RUN}, so the command that began the run is unknown; restore the \
             file, continue a run of `sqlenv learner` by that command, or give another --name",
            folder.display()
        ),
        None => bail!(
            "{} has the file {SETTINGS} and is no run of `sqlenv train`; give another --name",
            folder.display()
        ),
    }
}

/// Returns the command that made a folder with settings, if one did.
fn command_of(folder: &Path) -> Option<&'static str> {
    if folder.join(MODEL_FILES).exists() {
        return Some("pretrain");
    }
    match fs::read(folder.join(RUN)) {
        // Only a run over several processes has an env-node, whose rules are recorded.
        Ok(info) => {
            let info: Value = serde_json::from_slice(&info).ok()?;
            let is_train = info["environment"].is_null();
            Some(if is_train { TRAIN } else { "learner" })
        }
        Err(_) => has_only_settings(folder).then_some(TRAIN),
    }
}

/// Returns whether a folder has files that only a run writes.
fn is_of_run(folder: &Path) -> bool {
    let mut signs = [RUN, journal::FOLDER, CHECKPOINTS].into_iter();
    signs.any(|name| folder.join(name).exists())
}

/// Returns whether a folder has nothing but settings and hidden files, such as the lock. These are
/// the first files of a run.
fn has_only_settings(folder: &Path) -> bool {
    let is_first = |entry: io::Result<fs::DirEntry>| {
        let name = entry.map(|it| it.file_name());
        name.is_ok_and(|it| it == SETTINGS || it.to_string_lossy().starts_with('.'))
    };
    fs::read_dir(folder).is_ok_and(|mut entries| entries.all(is_first))
}

/// Returns the name of the run of `sqlenv train` whose settings were written last.
pub(super) fn newest(runs_dir: &Path) -> Result<String> {
    let entries = fs::read_dir(runs_dir).with_context(|| {
        format!(
            "there is no run to resume in {}; start one without --resume, or name the folder of \
             the runs by --runs-dir",
            runs_dir.display()
        )
    })?;
    entries
        .filter_map(Result::ok)
        .filter(|entry| match command_of(&entry.path()) {
            // A run that has lost its `run.json` is refused by name, and not passed over.
            None => is_of_run(&entry.path()),
            command => command == Some(TRAIN),
        })
        .filter_map(|entry| {
            let settings = entry.path().join(SETTINGS).metadata().ok()?;
            let name = entry.file_name().display().to_string();
            Some((settings.modified().ok()?, name))
        })
        .max()
        .map(|(_, name)| name)
        .with_context(|| {
            format!(
                "{} contains no run to resume; start one with `sqlenv train`",
                runs_dir.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and contents.
    type Files = &'static [(&'static str, &'static str)];

    #[test]
    fn only_runs_of_train_are_resumed() {
        let runs = tempfile::tempdir().unwrap();
        let runs = runs.path();
        let make = |name: &str, files: Files| {
            let folder = runs.join(name);
            fs::create_dir(&folder).unwrap();
            for (name, content) in files.iter().chain(&[(SETTINGS, "")]) {
                fs::write(folder.join(name), content).unwrap();
            }
            folder
        };
        let refused: [(&str, Files, &str); 7] = [
            (
                "base",
                &[(MODEL_FILES, ""), (".lock", "")],
                "`sqlenv pretrain`",
            ),
            (
                "spread",
                &[(RUN, r#"{"environment": "1"}"#)],
                "`sqlenv learner`",
            ),
            (
                "just-begun-spread",
                &[("evaluations.jsonl", "")],
                "no run of `sqlenv train`",
            ),
            ("lost", &[(journal::FOLDER, "")], "no readable run.json"),
            ("lost-too", &[(CHECKPOINTS, "")], "no readable run.json"),
            ("cut", &[(RUN, r#"{"environ"#)], "no readable run.json"),
            ("site", &[("index.html", "")], "no run of `sqlenv train`"),
        ];
        for (name, files, part) in refused {
            let folder = make(name, files);
            let fault = check_is_of_train(&folder).unwrap_err().to_string();
            assert!(fault.contains(name) && fault.contains(part), "{fault}");
            match part {
                "no readable run.json" => {
                    assert_eq!(newest(runs).unwrap(), name);
                    fs::remove_dir_all(folder).unwrap();
                }
                _ => {
                    let fault = newest(runs).unwrap_err().to_string();
                    assert!(fault.contains("contains no run to resume"), "{fault}");
                }
            }
        }
        let resumed: [(&str, Files); 2] = [
            ("just-begun", &[(".lock", "")]),
            ("whole", &[(RUN, "{}"), ("metrics.jsonl", "")]),
        ];
        for (name, files) in resumed {
            let folder = make(name, files);
            check_is_of_train(&folder).unwrap();
            assert_eq!(newest(runs).unwrap(), name);
            fs::remove_dir_all(folder).unwrap();
        }
    }
}
