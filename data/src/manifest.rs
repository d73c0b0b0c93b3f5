//! The manifest of a folder of the own layout: its content, its seed, and the hash of every file.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::{DataError, hash};

/// The name of the manifest in a folder of the own layout.
pub(crate) const FILE_NAME: &str = "manifest.json";

/// SPDX's word for a licence that nobody states.
pub const NO_LICENCE: &str = "NOASSERTION";

/// The record of what a folder holds. Two builds or imports are equal if and only if their
/// manifests are equal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The hash of the rules that made the content of the seed and the user's files: version of
    /// the rules, version of SQLite, and in a build domains, grammar and word lists.
    pub recipe: String,
    /// The seed of the build or the draft, or of the splits of an import.
    pub seed: u64,
    /// The command that wrote the folder.
    #[serde(default, skip_serializing_if = "DataOrigin::is_build")]
    pub origin: DataOrigin,
    /// The SPDX name of the licence of questions and databases.
    pub licence: String,
    /// The databases, sorted by name.
    pub databases: Vec<ManifestDatabase>,
    /// The number of questions by split.
    pub questions: BTreeMap<String, usize>,
    /// The hexadecimal SHA-256 of every file except the manifest, by path relative to the folder.
    pub files: BTreeMap<String, String>,
}

/// One database of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestDatabase {
    /// The name of the database.
    pub name: String,
    /// The domain of the database; `imported` in an import, `drafted` in a draft.
    pub domain: String,
    /// How the database is used.
    pub role: DatabaseRole,
    /// The number of rows in all tables together.
    pub rows: u64,
}

/// The command that wrote a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataOrigin {
    /// `sqlenv data build`.
    #[default]
    Build,
    /// `sqlenv data procedural`, or a shard of `sqlenv pretrain`.
    Procedural,
    /// `sqlenv data import`.
    Import,
    /// `sqlenv data draft`.
    Draft,
}

impl DataOrigin {
    /// Whether `sqlenv data build` wrote the folder. The manifests of builds do not name their
    /// origin.
    pub fn is_build(&self) -> bool {
        *self == Self::Build
    }

    /// Whether the folder follows from its seed alone, so that it can be made again.
    pub fn is_generated(self) -> bool {
        matches!(self, Self::Build | Self::Procedural)
    }

    /// Returns the name of the command, after `sqlenv data`.
    pub fn command(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Procedural => "procedural",
            Self::Import => "import",
            Self::Draft => "draft",
        }
    }

    /// Returns what to do if the folder is damaged.
    pub fn remedy(self) -> String {
        let again = format!("run `sqlenv data {}` again", self.command());
        match self.is_generated() {
            true => again,
            false => format!(
                "remove the folder and {again}, with other files if they are the cause; to keep \
                 questions that you changed, import them into another folder"
            ),
        }
    }
}

/// How a database is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatabaseRole {
    /// A database whose questions are divided into `train` and `eval`.
    Known,
    /// A new database of a known domain: `eval-unseen/database`.
    UnseenDatabase,
    /// A database of a domain that is never trained on: `eval-unseen/domain`.
    UnseenDomain,
    /// A database whose questions are all for training: `train`.
    Training,
    /// A procedural database whose words training never uses: `eval-unseen/words`.
    UnseenWords,
}

impl Manifest {
    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a manifest of this version.
    pub fn read(dir: &Path) -> Result<Self, DataError> {
        let path = dir.join(FILE_NAME);
        let text = std::fs::read(&path).map_err(DataError::io(&path, "read"))?;
        let problem = |error| {
            format!(
                "not a manifest ({error}); run `sqlenv data build`, `sqlenv data import` or \
                 `sqlenv data draft` again"
            )
        };
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| DataError::format(&path, problem(error)))?;
        let is_inside = |name: &&String| {
            let mut parts = Path::new(name).components();
            parts.all(|part| matches!(part, Component::Normal(_)))
        };
        match manifest.files.keys().find(|name| !is_inside(name)) {
            Some(name) => {
                let problem = format!("files: {name:?} is not a path inside of the folder");
                Err(DataError::format(&path, problem))
            }
            None => Ok(manifest),
        }
    }

    /// Fails with the first file in `dir` that is missing or altered.
    pub(crate) fn verify_files(&self, dir: &Path) -> Result<(), DataError> {
        let mut files = self.files.iter();
        files.try_for_each(|(name, sha256)| self.verify_file(&dir.join(name), sha256))
    }

    /// Compares a file with its hash in this manifest.
    pub(crate) fn verify_file(&self, path: &Path, sha256: &str) -> Result<(), DataError> {
        let (found, _) = hash::file_sha256(path).map_err(DataError::io(path, "read"))?;
        self.verify(path, sha256, &found)
    }

    /// Compares the hash of a file, `found`, with the one in this manifest.
    pub(crate) fn verify(&self, path: &Path, sha256: &str, found: &str) -> Result<(), DataError> {
        if found == sha256 {
            return Ok(());
        }
        let remedy = self.origin.remedy();
        Err(DataError::format(
            path,
            format!("altered: its SHA-256 is {found}, manifest.json says {sha256}; {remedy}"),
        ))
    }
}
