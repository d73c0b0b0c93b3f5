//! The manifest of an own build: what was built, from which seed, and the hash of every file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{DataError, hash};

/// Name of the manifest inside a build.
pub(crate) const FILE_NAME: &str = "manifest.json";

/// The record of a build. Two builds are equal exactly when their manifests are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Hash of everything a build depends on but the seed: generator version, domains, grammar, SQLite's version.
    pub recipe: String,
    /// The seed of the build.
    pub seed: u64,
    /// SPDX name of the licence of questions and databases.
    pub licence: String,
    /// The databases, sorted by name.
    pub databases: Vec<ManifestDatabase>,
    /// Number of questions by split.
    pub questions: BTreeMap<String, usize>,
    /// Hex SHA-256 of every file but the manifest, by path relative to the folder.
    pub files: BTreeMap<String, String>,
}

/// One database of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestDatabase {
    /// The database's name.
    pub name: String,
    /// The domain it is an instance of.
    pub domain: String,
    /// Whether it may be trained on.
    pub role: Role,
    /// Rows in all tables together.
    pub rows: u64,
}

/// What a database is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Its questions are divided into `train` and `eval`.
    Known,
    /// A new database of a known domain: `eval-unseen/database`.
    UnseenDatabase,
    /// A database of a domain that is never trained on: `eval-unseen/domain`.
    UnseenDomain,
}

impl Manifest {
    /// Reads the manifest of a build.
    ///
    /// # Errors
    /// A file that cannot be read or is not a manifest of this version.
    pub fn read(dir: &Path) -> Result<Self, DataError> {
        let path = dir.join(FILE_NAME);
        let text = std::fs::read(&path).map_err(DataError::io(&path, "read"))?;
        serde_json::from_slice(&text).map_err(|error| {
            DataError::format(
                &path,
                format!("not a manifest ({error}); run `sqlenv data build` again"),
            )
        })
    }

    /// The first file of the build under `dir` that is missing or altered, as an error.
    pub(crate) fn verify_files(&self, dir: &Path) -> Result<(), DataError> {
        self.files
            .iter()
            .try_for_each(|(name, sha256)| verify_file(&dir.join(name), sha256))
    }
}

/// Compares a file with the hash that the manifest gives.
pub(crate) fn verify_file(path: &Path, sha256: &str) -> Result<(), DataError> {
    let (found, _) = hash::file_sha256(path)?;
    if found == sha256 {
        return Ok(());
    }
    Err(DataError::format(
        path,
        format!(
            "altered: its SHA-256 is {found}, manifest.json says {sha256}; run `sqlenv data build` again"
        ),
    ))
}
