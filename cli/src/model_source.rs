//! Finds the model folder that --model or `compare` names: a folder, a run, or a name on Hugging
//! Face whose files are in its cache.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use policy::DecoderConfig;
use report::SETTINGS;

use crate::shutdown::shell_quoted;

/// The folder of the last policy of a run.
pub(crate) const LAST: &str = "model";

/// Returns the folder in which Hugging Face's programs keep models, if the environment names one,
/// as `huggingface_hub.constants` finds it.
fn cache_folder() -> Option<PathBuf> {
    let folder = |name: &str| {
        env::var_os(name)
            .filter(|it| !it.is_empty())
            .map(PathBuf::from)
    };
    let hub = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
    hub.or_else(|| {
        let home = folder("HF_HOME").or_else(|| {
            let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
            Some(cache?.join("huggingface"))
        });
        Some(home?.join("hub"))
    })
}

/// Returns whether a folder is that of a run or of a pretraining. Other programs have files that
/// are called `config.toml`, too.
pub(crate) fn is_run(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).is_file();
    has(SETTINGS) && (has("run.json") || has("metrics.jsonl"))
}

/// Returns the tokens of a context, but not more than the model was trained for.
pub(crate) fn fitted_context(tokens: u32, model: &DecoderConfig) -> u32 {
    tokens.min(u32::try_from(model.max_positions).unwrap_or(u32::MAX))
}

/// Returns the model folder that `model` names.
///
/// # Errors
/// It is a run without a model, a GGUF file that does not exist, or a name that is not in the
/// cache. A path that is none of these is returned as it is, so that opening it names what it
/// lacks.
pub(crate) fn find(model: &Path) -> Result<PathBuf> {
    find_in(model, cache_folder().as_deref())
}

fn find_in(model: &Path, cache: Option<&Path>) -> Result<PathBuf> {
    if is_run(model) && !model.join("config.json").exists() {
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
        Some(name) => of_cache(&name, cache),
        None => Ok(model.to_owned()),
    }
}

/// Returns the last policy of a run.
fn of_run(run: &Path) -> Result<PathBuf> {
    let last = run.join(LAST);
    if last.is_dir() {
        return Ok(last);
    }
    let whole = run.canonicalize().unwrap_or_else(|_| run.to_owned());
    let quoted = |part: Option<&OsStr>| shell_quoted(&part.unwrap_or_default().to_string_lossy());
    bail!(
        "{} is a run without a model, because it has not ended; continue it by `sqlenv train \
         --resume --name {} --runs-dir {}`, or by the command of `sqlenv learner` or `sqlenv \
         pretrain` that began it, or give one of its checkpoints: {}",
        run.display(),
        quoted(whole.file_name()),
        quoted(whole.parent().map(Path::as_os_str)),
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

fn of_cache(name: &str, cache: Option<&Path>) -> Result<PathBuf> {
    let snapshot = cache.and_then(|cache| newest_snapshot(name, cache));
    snapshot.with_context(|| {
        let place = cache.unwrap_or(Path::new("HOME is not set")).display();
        format!(
            "{name} is neither a folder nor in Hugging Face's cache ({place}); check the path, or, \
             if it is the name of a model there, fetch it by `hf download {name}` where there is a \
             network, and copy the cache here"
        )
    })
}

/// Returns the newest snapshot of a model in the cache. It has the layout that
/// <https://huggingface.co/docs/huggingface_hub/guides/manage-cache> describes.
fn newest_snapshot(name: &str, cache: &Path) -> Option<PathBuf> {
    let folder = cache.join(format!("models--{}", name.replace('/', "--")));
    let revision = fs::read_to_string(folder.join("refs/main")).ok()?;
    let snapshot = folder.join("snapshots").join(revision.trim());
    snapshot.join("config.json").exists().then_some(snapshot)
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
        let model = Path::new("org/name-1.5B");
        let fault = find_in(model, None).unwrap_err().to_string();
        assert!(fault.contains("HOME is not set"), "{fault}");
        let cached_in = Some(cache.path());
        let fault = find_in(model, cached_in).unwrap_err().to_string();
        assert!(
            fault.contains("fetch it by `hf download org/name-1.5B`"),
            "{fault}"
        );
        assert!(!fault.contains(['\\', '\n']), "{fault}");
        let old = cached(cache.path(), "aaaa");
        assert_eq!(find_in(model, cached_in).unwrap(), old);
        let new = cached(cache.path(), "bbbb");
        assert_eq!(find_in(model, cached_in).unwrap(), new);
    }

    #[test]
    fn a_run_stands_for_its_last_model() {
        let runs = tempfile::tempdir().unwrap();
        let run = runs.path().join("mine");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("config.toml"), "").unwrap();
        // Settings of something else.
        assert_eq!(find_in(&run, None).unwrap(), run);
        fs::write(run.join("run.json"), "{}").unwrap();
        let fault = find_in(&run, None).unwrap_err().to_string();
        for part in [
            "--resume --name mine --runs-dir /",
            "sqlenv learner",
            "pretrain",
        ] {
            assert!(fault.contains(part), "{fault}");
        }
        fs::create_dir(run.join("model")).unwrap();
        assert_eq!(find_in(&run, None).unwrap(), run.join("model"));
    }

    #[test]
    fn a_gguf_file_is_imported_first() {
        for path in ["model.gguf", "org/name.gguf", "/nowhere/model.gguf"] {
            let fault = find_in(Path::new(path), None).unwrap_err().to_string();
            assert!(
                fault.contains(path) && fault.contains("`sqlenv import-gguf FILE DIR`"),
                "{fault}"
            );
        }
        // Opening one that exists says the same.
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        assert_eq!(find_in(file.path(), None).unwrap(), file.path());
    }

    #[test]
    fn other_paths_stay() {
        for path in ["/tmp/none", "../models/x", "model", "a/b/c", "./org/name"] {
            assert_eq!(find_in(Path::new(path), None).unwrap(), Path::new(path));
        }
    }
}
