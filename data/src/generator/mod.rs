//! The generator of the project's own databases and questions.
//!
//! Invariant: the bytes of a build are a function of its seed and of what is compiled in (domains, grammar, SQLite), on
//! every machine and with any number of threads. Databases are built side by side, each from streams of its own.

mod domain;
mod folder;
mod keep;
mod questions;
mod render;
mod rows;
mod schema;
mod store;
mod stream;
mod template;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::manifest::{FILE_NAME, Manifest, ManifestDatabase, Role};
use crate::{DataError, Question, hash};

use domain::{Domain, Words};
use template::Template;

/// The seed of the default data.
pub const DEFAULT_SEED: u64 = 1;

/// Changes with the generator's code wherever that changes what it builds.
const VERSION: &str = "1";
const LICENCE: &str = env!("CARGO_PKG_LICENSE");

/// How far a build has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildProgress {
    /// The database that was finished last.
    pub database_name: String,
    /// Its number of questions.
    pub questions: usize,
    /// Databases finished.
    pub done: usize,
    /// Databases in all.
    pub total: usize,
}

/// A database to build.
struct Plan<'a> {
    name: String,
    domain: &'a Domain,
    role: Role,
}

/// Everything that all databases are built from.
struct Stock {
    words: Words,
    templates: Vec<Template>,
    seed: u64,
}

/// Builds databases and questions into `out`, replacing an earlier build.
///
/// The folder appears whole or not at all: it is written beside its place and renamed.
///
/// # Errors
/// A folder that is not a build of ours, a path that cannot be written, a full disk.
pub fn build(
    out: &Path,
    seed: u64,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Manifest, DataError> {
    let _lock = folder::lock(out)?;
    build_locked(out, seed, progress)
}

/// Like [`build`], but keeps a build of the same seed and recipe whose files are intact. Processes that need the same
/// folder at the same time build it once.
///
/// # Errors
/// As [`build`].
pub fn build_if_needed(
    out: &Path,
    seed: u64,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Manifest, DataError> {
    let intact = |manifest: &Manifest| {
        manifest.seed == seed && manifest.recipe == recipe() && manifest.verify_files(out).is_ok()
    };
    let find = || Manifest::read(out).ok().filter(intact);
    if let Some(manifest) = find() {
        return Ok(manifest);
    }
    let _lock = folder::lock(out)?;
    find().map_or_else(|| build_locked(out, seed, progress), Ok)
}

fn build_locked(
    out: &Path,
    seed: u64,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Manifest, DataError> {
    let is_foreign = out.exists() && Manifest::read(out).is_err() && !folder::is_empty_folder(out);
    if is_foreign {
        return Err(DataError::format(
            out,
            "exists and is not an earlier build; choose another folder or remove it",
        ));
    }
    let draft = folder::sibling(out, "draft");
    folder::remove(&draft)?;
    let manifest = write_build(&draft, seed, progress).inspect_err(|_| {
        // The first error is the one to report.
        let _ = folder::remove(&draft);
    })?;
    folder::replace(&draft, out)?;
    Ok(manifest)
}

fn write_build(
    dir: &Path,
    seed: u64,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Manifest, DataError> {
    folder::create_folder(&dir.join("questions"))?;
    let domains = domain::domains();
    let plans = plans(&domains);
    let stock = Stock {
        words: domain::words(),
        templates: template::templates(),
        seed,
    };
    let mut built = run_all(&plans, &stock, &dir.join("databases"), progress)?;
    let mut splits: BTreeMap<String, Vec<Question>> = BTreeMap::new();
    for question in built
        .iter_mut()
        .flat_map(|database| std::mem::take(&mut database.questions))
    {
        splits
            .entry(question.split.clone())
            .or_default()
            .push(question);
    }
    let mut files = BTreeMap::new();
    for (split, questions) in &splits {
        let name = format!("questions/{}.jsonl", split.replace('/', "-"));
        write_questions(&dir.join(&name), questions)?;
        files.insert(name.clone(), hash::file_sha256(&dir.join(&name))?.0);
    }
    for plan in &plans {
        let name = format!("databases/{0}/{0}.sqlite", plan.name);
        files.insert(name.clone(), hash::file_sha256(&dir.join(&name))?.0);
    }
    let databases = plans
        .iter()
        .zip(&built)
        .map(|(plan, built)| ManifestDatabase {
            name: plan.name.clone(),
            domain: plan.domain.name.clone(),
            role: plan.role,
            rows: built.rows,
        });
    let manifest = Manifest {
        recipe: recipe(),
        seed,
        licence: LICENCE.to_owned(),
        databases: databases.collect(),
        questions: splits
            .iter()
            .map(|(split, questions)| (split.clone(), questions.len()))
            .collect(),
        files,
    };
    let text =
        serde_json::to_string_pretty(&manifest).expect("a manifest is plain data: this is a bug");
    folder::write_file(&dir.join(FILE_NAME), &format!("{text}\n"))?;
    Ok(manifest)
}

/// One database of each domain, and a second, unseen one of each domain that is trained on; sorted by name.
fn plans(domains: &[Domain]) -> Vec<Plan<'_>> {
    let mut plans = Vec::new();
    for domain in domains {
        let first = if domain.held_out {
            Role::UnseenDomain
        } else {
            Role::Known
        };
        plans.push(Plan {
            name: domain.name.clone(),
            domain,
            role: first,
        });
        if !domain.held_out {
            plans.push(Plan {
                name: format!("{}_2", domain.name),
                domain,
                role: Role::UnseenDatabase,
            });
        }
    }
    plans.sort_by(|left, right| left.name.cmp(&right.name));
    plans
}

/// Builds every database, in the order of the plans whatever the threads do.
fn run_all(
    plans: &[Plan<'_>],
    stock: &Stock,
    folder: &Path,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Vec<questions::Built>, DataError> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(plans.len());
    let (sender, receiver) = mpsc::channel();
    let mut results: Vec<Option<questions::Built>> = plans.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some((index, plan)) = take(next, plans) {
                    let built = questions::build_database(plan, stock, folder);
                    if built.is_err() {
                        // Nobody starts another one.
                        next.store(plans.len(), Ordering::Relaxed);
                    }
                    if sender.send((index, built)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (done, (index, built)) in receiver.iter().enumerate() {
            let built = built?;
            let (database_name, questions) = (plans[index].name.clone(), built.questions.len());
            progress(BuildProgress {
                database_name,
                questions,
                done: done + 1,
                total: plans.len(),
            });
            results[index] = Some(built);
        }
        Ok::<(), DataError>(())
    })?;
    Ok(results.into_iter().flatten().collect())
}

fn take<'a, 'b>(next: &AtomicUsize, plans: &'a [Plan<'b>]) -> Option<(usize, &'a Plan<'b>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    plans.get(index).map(|plan| (index, plan))
}

fn recipe() -> String {
    let parts: Vec<&str> = [VERSION, rusqlite::version()]
        .into_iter()
        .chain(domain::sources())
        .chain([template::source()])
        .collect();
    hex::encode(hash::name_hash(&parts))
}

fn write_questions(path: &Path, questions: &[Question]) -> Result<(), DataError> {
    let line = |question| {
        serde_json::to_string(question).expect("a question is plain data: this is a bug")
    };
    let lines: Vec<String> = questions.iter().map(line).collect();
    folder::write_file(path, &format!("{}\n", lines.join("\n")))
}
