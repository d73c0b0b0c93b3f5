//! Finds the model folder that --model or `compare` names: a folder, a run, or a name on Hugging
//! Face whose files are in its cache.

use std::{
    env, fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Result, bail};

/// The folder of the last policy of a run.
pub(crate) const LAST: &str = "model";

/// Folders below which Hugging Face's programs keep models, the first one first. They are those of
/// `huggingface_hub.constants`.
fn cache_folders() -> Vec<PathBuf> {
    let folder = |name: &str| {
        env::var_os(name)
            .filter(|it| !it.is_empty())
            .map(PathBuf::from)
    };
    let home = folder("HF_HOME").or_else(|| {
        let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        Some(cache?.join("huggingface"))
    });
    let hub = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
    hub.or_else(|| Some(home?.join("hub")))
        .into_iter()
        .collect()
}

/// Returns the model folder that `model` names.
///
/// # Errors
/// It is a run without a model, a GGUF file that does not exist, or a name that is not in the
/// cache. A path that is none of these is returned as it is, so that opening it names what it
/// lacks.
pub(crate) fn find(model: &Path) -> Result<PathBuf> {
    find_in(model, &cache_folders())
}

fn find_in(model: &Path, caches: &[PathBuf]) -> Result<PathBuf> {
    if model.join("config.toml").is_file() && !model.join("config.json").exists() {
        return of_run(model);
    }
    if model.exists() {
        return Ok(model.to_owned());
    }
    if model.extension().is_some_and(|ending| ending == "gguf") {
        bail!(
            "{}: no such file; a model is a folder, which `sqlenv import-gguf FILE DIR` makes of \
             a GGUF file",
            model.display()
        );
    }
    match hub_name(model) {
        Some(name) => of_cache(&name, caches),
        None => Ok(model.to_owned()),
    }
}

/// Returns the last policy of a run.
fn of_run(run: &Path) -> Result<PathBuf> {
    let last = run.join(LAST);
    if last.is_dir() {
        return Ok(last);
    }
    bail!(
        "{} is a run without a model, because it has not ended; continue it with `sqlenv train \
         --resume`, or give one of its checkpoints: {}",
        run.display(),
        run.join("checkpoints/step_N/hf").display()
    )
}

/// Returns ORG/NAME if the path has this form.
fn hub_name(model: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = model
        .components()
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    let is_name = |part: &&str| {
        part.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    match parts?.as_slice() {
        [organisation, name] if [*organisation, *name].iter().all(is_name) => {
            Some(format!("{organisation}/{name}"))
        }
        _ => None,
    }
}

/// Returns the newest snapshot of a model in the cache. It has the layout that
/// <https://huggingface.co/docs/huggingface_hub/guides/manage-cache> describes.
fn of_cache(name: &str, caches: &[PathBuf]) -> Result<PathBuf> {
    let folder_name = format!("models--{}", name.replace('/', "--"));
    for cache in caches {
        let folder = cache.join(&folder_name);
        let Ok(revision) = fs::read_to_string(folder.join("refs/main")) else {
            continue;
        };
        let snapshot = folder.join("snapshots").join(revision.trim());
        if snapshot.join("config.json").exists() {
            return Ok(snapshot);
        }
    }
    let caches: Vec<String> = caches.iter().map(|it| it.display().to_string()).collect();
    bail!(
        "{name} is neither a folder nor in Hugging Face's cache ({}); check the path, or, if it is \
         the name of a model there, fetch it by `hf download {name}` where there is a network, and \
         copy the cache here",
        caches.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(cache: &Path, revision: &str) -> PathBuf {
        let folder = cache.join("models--org--name-1.5B");
        let snapshot = folder.join("snapshots").join(revision);
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join("config.json"), "{}").unwrap();
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::write(folder.join("refs/main"), revision).unwrap();
        snapshot
    }

    #[test]
    fn a_name_is_found_in_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let empty = tempfile::tempdir().unwrap();
        let caches = [empty.path().to_owned(), cache.path().to_owned()];
        let model = Path::new("org/name-1.5B");
        let fault = find_in(model, &caches).unwrap_err().to_string();
        assert!(
            fault.contains("fetch it by `hf download org/name-1.5B`"),
            "{fault}"
        );
        assert!(!fault.contains(['\\', '\n']), "{fault}");
        let old = cached(cache.path(), "aaaa");
        assert_eq!(find_in(model, &caches).unwrap(), old);
        let new = cached(cache.path(), "bbbb");
        assert_eq!(find_in(model, &caches).unwrap(), new);
    }

    #[test]
    fn a_run_stands_for_its_last_model() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join("config.toml"), "").unwrap();
        let fault = find_in(run.path(), &[]).unwrap_err().to_string();
        assert!(fault.contains("`sqlenv train --resume`"), "{fault}");
        fs::create_dir(run.path().join("model")).unwrap();
        assert_eq!(find_in(run.path(), &[]).unwrap(), run.path().join("model"));
    }

    #[test]
    fn a_gguf_file_is_imported_first() {
        for path in ["model.gguf", "org/name.gguf", "/nowhere/model.gguf"] {
            let fault = find_in(Path::new(path), &[]).unwrap_err().to_string();
            assert!(
                fault.contains(path) && fault.contains("`sqlenv import-gguf FILE DIR`"),
                "{fault}"
            );
        }
        // Opening one that exists says the same.
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        assert_eq!(find_in(file.path(), &[]).unwrap(), file.path());
    }

    #[test]
    fn other_paths_stay() {
        for path in ["/tmp/none", "../models/x", "model", "a/b/c", "./org/name"] {
            assert_eq!(find_in(Path::new(path), &[]).unwrap(), Path::new(path));
        }
    }
}
