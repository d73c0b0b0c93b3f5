//! Writes a folder of the own layout: question files by split, and the manifest. The databases are
//! there before.
//!
//! Invariant: the folder appears whole or not at all, also after a power loss. It is written beside
//! its path, synced and renamed.

use std::collections::BTreeMap;
use std::path::Path;

use crate::folder;
use crate::manifest::{DataOrigin, FILE_NAME, Manifest};
use crate::{DataError, Question, hash};

/// Lets `write` fill a folder beside `out`, and renames it to `out`. A folder that the same command
/// wrote before is replaced. The caller holds the lock on `out`. Returns what `write` returns.
///
/// # Errors
/// Fails if `out` exists and another command wrote it, if a path cannot be written, or as `write`
/// does.
pub(crate) fn replace_folder<T>(
    out: &Path,
    origin: DataOrigin,
    write: impl FnOnce(&Path) -> Result<T, DataError>,
) -> Result<T, DataError> {
    let out = &folder::resolved(out);
    check_out(out, origin)?;
    let unfinished = folder::sibling(out, "new");
    folder::remove(&unfinished)?;
    let synced = |written| folder::sync_tree(&unfinished).map(|()| written);
    let written = write(&unfinished).and_then(synced).map_err(|error| {
        // The first error is the one to report.
        let _ = folder::remove(&unfinished);
        error.moved(&unfinished, out)
    })?;
    folder::replace(&unfinished, out)?;
    Ok(written)
}

/// Fails if `out` holds what a command of this origin must not replace.
fn check_out(out: &Path, origin: DataOrigin) -> Result<(), DataError> {
    if !out.exists() || folder::is_empty_folder(out) {
        return Ok(());
    }
    let problem = match Manifest::read(out) {
        Ok(manifest) if manifest.origin == origin => return only_its_files(out, &manifest),
        Ok(manifest) => format!(
            "exists, and `sqlenv data {}` did not write it (the manifest names {}); choose another \
             folder or remove it",
            origin.command(),
            manifest.origin.command()
        ),
        Err(_) => format!(
            "exists and is not an earlier {}; choose another folder or remove it",
            origin.command()
        ),
    };
    Err(DataError::format(out, problem))
}

/// Fails if the folder holds a file of somebody else, or one that was changed: replacing the folder
/// would lose it.
fn only_its_files(out: &Path, manifest: &Manifest) -> Result<(), DataError> {
    // What follows from a seed is made again whenever it is damaged.
    if manifest.origin.is_generated() {
        return Ok(());
    }
    let mut folders = vec![out.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(DataError::io(&folder, "read"))?;
        for entry in entries {
            let path = entry.map_err(DataError::io(&folder, "read"))?.path();
            let name = path.strip_prefix(out).unwrap_or(&path).to_string_lossy();
            if path.is_dir() {
                folders.push(path);
            } else if name != FILE_NAME {
                let known = manifest.files.get(name.as_ref());
                let same = |sha256: &String| {
                    hash::file_sha256(&path).is_ok_and(|(found, _)| found == *sha256)
                };
                if !known.is_some_and(same) {
                    return Err(DataError::format(
                        &path,
                        "was added or changed since the folder was written, and would be lost; \
                         move it away, or choose another folder",
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Writes the question files and the manifest into `dir`, where the databases of the manifest are.
/// Counts the questions and hashes the files for it.
///
/// # Errors
/// A file cannot be written, or a database is missing.
pub(crate) fn finish_folder<'a>(
    dir: &Path,
    mut manifest: Manifest,
    questions: impl IntoIterator<Item = &'a Question>,
) -> Result<Manifest, DataError> {
    folder::create_folder(&dir.join("questions"))?;
    let mut splits: BTreeMap<&str, Vec<&Question>> = BTreeMap::new();
    for question in questions {
        splits.entry(&question.split).or_default().push(question);
    }
    let mut names = Vec::new();
    for (split, questions) in &splits {
        let name = format!("questions/{}.jsonl", split.replace('/', "-"));
        write_questions(&dir.join(&name), questions)?;
        names.push(name);
    }
    let databases = manifest.databases.iter();
    names.extend(databases.map(|it| format!("databases/{0}/{0}.sqlite", it.name)));
    let hashed = |name: String| {
        let path = dir.join(&name);
        let (sha256, _) = hash::file_sha256(&path).map_err(DataError::io(&path, "read"))?;
        Ok((name, sha256))
    };
    let count = |(split, questions): (&&str, &Vec<_>)| ((*split).to_owned(), questions.len());
    manifest.questions = splits.iter().map(count).collect();
    let files = names.into_iter().map(hashed);
    manifest.files = files.collect::<Result<_, DataError>>()?;
    let text =
        serde_json::to_string_pretty(&manifest).expect("a manifest is plain data: this is a bug");
    folder::write_file(&dir.join(FILE_NAME), &format!("{text}\n"))?;
    Ok(manifest)
}

fn write_questions(path: &Path, questions: &[&Question]) -> Result<(), DataError> {
    let line = |question| {
        serde_json::to_string(question).expect("a question is plain data: this is a bug") + "\n"
    };
    folder::write_file(path, &questions.iter().map(line).collect::<String>())
}
