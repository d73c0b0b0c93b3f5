//! The generator of the project's own databases and questions.
//!
//! Invariant: the bytes of a build depend only on its seed and on what is compiled in (domains,
//! grammar, SQLite). They are the same on every machine and with any number of threads, because
//! each database is built from random streams of its own.

pub(crate) mod binding;
pub(crate) mod domain;
pub(crate) mod filter;
mod procedural;
pub(crate) mod questions;
pub(crate) mod render;
pub(crate) mod rng;
pub(crate) mod rows;
pub(crate) mod schema;
mod specs;
mod store;
pub(crate) mod template;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::manifest::{DataOrigin, Manifest, ManifestDatabase};
use crate::{DataError, folder, hash, own_writer};

use procedural::Lexicon;
pub use procedural::WordShare;
use questions::{BuiltDatabase, DatabaseSpec, GeneratorInputs};
pub use specs::ProceduralData;
use specs::{database_specs, procedural_specs};

/// The seed of the default data.
pub const DEFAULT_SEED: u64 = 1;

/// The version of the generator's code. Raise it with every change that alters the default data.
/// Procedural data is built anew by every command that needs it.
const VERSION: &str = "6";
const LICENCE: &str = env!("CARGO_PKG_LICENSE");

/// Builds databases and questions into `out`, and replaces an earlier build. A build of the same
/// seed and recipe whose files are intact is kept, so that several processes that need the same
/// folder at the same time build it once.
///
/// The folder appears whole or not at all: the build is written to a folder beside it, which is
/// renamed. `progress` is called after each database with the number of those that are done and of
/// all.
///
/// # Errors
/// Fails if `out` exists and is not an earlier build, if the path cannot be written, or if the disk
/// is full.
pub fn build(
    out: &Path,
    seed: u64,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Manifest, DataError> {
    let intact = |manifest: &Manifest| {
        manifest.seed == seed
            && manifest.recipe == recipe(&[])
            && manifest.verify_files(out).is_ok()
    };
    let find = || Manifest::read(out).ok().filter(intact);
    if let Some(manifest) = find() {
        return Ok(manifest);
    }
    let _lock = folder::lock(out)?;
    let domains = domain::domains();
    let plan = BuildPlan {
        origin: DataOrigin::Build,
        seed,
        recipe: recipe(&[]),
        databases: database_specs(&domains),
    };
    let mut report = |done, total| {
        progress(done, total);
        ControlFlow::Continue(())
    };
    find().map_or_else(|| build_locked(out, &plan, &mut report), Ok)
}

/// Builds procedural databases and their questions into `out`, and replaces an earlier build.
/// `progress` is called as that of [`build`], and can stop the build.
///
/// # Errors
/// Fails like [`build`], and with [`DataError::Stopped`].
pub fn build_procedural(
    out: &Path,
    data: &ProceduralData,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Manifest, DataError> {
    let _lock = folder::lock(out)?;
    let lexicon = Lexicon::read(data.words);
    let domains = domain::domains();
    let plan = BuildPlan {
        origin: DataOrigin::Procedural,
        seed: data.seed,
        recipe: recipe(&procedural::sources()),
        databases: procedural_specs(data, &lexicon, &domains),
    };
    build_locked(out, &plan, progress)
}

/// What a build contains.
struct BuildPlan<'a> {
    origin: DataOrigin,
    seed: u64,
    recipe: String,
    databases: Vec<DatabaseSpec<'a>>,
}

fn build_locked(
    out: &Path,
    plan: &BuildPlan<'_>,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Manifest, DataError> {
    own_writer::replace_folder(out, plan.origin, |unfinished| {
        write_build(unfinished, plan, progress)
    })
}

fn write_build(
    dir: &Path,
    plan: &BuildPlan<'_>,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Manifest, DataError> {
    let inputs = GeneratorInputs {
        words: domain::word_lists(),
        templates: template::templates(),
        seed: plan.seed,
    };
    let specs = &plan.databases;
    let built = build_databases(specs, &inputs, &dir.join("databases"), progress)?;
    let database = |(spec, built): (&DatabaseSpec<'_>, &BuiltDatabase)| ManifestDatabase {
        name: spec.name.clone(),
        domain: spec.schema.domain_name().to_owned(),
        role: spec.role,
        rows: built.rows,
    };
    let questions = built.iter().flat_map(|database| &database.questions);
    let manifest = Manifest {
        recipe: plan.recipe.clone(),
        seed: plan.seed,
        origin: plan.origin,
        licence: LICENCE.to_owned(),
        databases: specs.iter().zip(&built).map(database).collect(),
        ..Manifest::default()
    };
    own_writer::finish_folder(dir, manifest, questions)
}

/// Builds every database. The results have the order of `specs`, whatever the threads do.
fn build_databases(
    specs: &[DatabaseSpec<'_>],
    inputs: &GeneratorInputs,
    folder: &Path,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Vec<BuiltDatabase>, DataError> {
    let total = specs.len();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (sender, receiver) = mpsc::channel();
    let mut results: Vec<Option<BuiltDatabase>> = specs.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(total) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(spec) = specs.get(index) else { return };
                    let built = questions::build_database(spec, inputs, folder);
                    if built.is_err() {
                        // No thread starts another database.
                        next.store(total, Ordering::Relaxed);
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
            if progress(done + 1, total).is_break() {
                next.store(total, Ordering::Relaxed);
                return Err(DataError::Stopped);
            }
            results[index] = Some(built);
        }
        Ok::<(), DataError>(())
    })?;
    Ok(results.into_iter().flatten().collect())
}

/// Hashes everything but the seed that a build depends on. `words` are the lists that procedural
/// databases are composed of.
fn recipe(words: &[&'static str]) -> String {
    let parts: Vec<&str> = [VERSION, rusqlite::version()]
        .into_iter()
        .chain(domain::sources())
        .chain(template::sources())
        .chain(words.iter().copied())
        .collect();
    hex::encode(hash::name_hash(&parts))
}
