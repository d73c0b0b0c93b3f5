//! Drafts questions about any SQLite database: the query grammar of the generator, applied to a
//! schema that is described from its names, keys and values.
//!
//! Invariant: what is drafted depends only on the database, the file of words, the count and the
//! seed. SQL joins tables only along keys that are declared, named in the file of words, or
//! inferred by name and inclusion.

mod columns;
mod counts;
mod dictionary;
mod faithful;
mod flags;
mod keys;
mod kind;
mod labels;
mod links;
mod moments;
mod name_lists;
mod overlooked;
mod questions;
mod report;
mod same_answer;
mod sample;
mod schema;
mod source;
mod splits;
mod statistics;
mod table_nouns;
mod twin;
mod units;
mod unread;
mod unusable;
mod word_file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::generator::rng::RngStream;
use crate::generator::template::drafting_templates;
use crate::import::{DatabaseSource, SourceKind, check_names};
use crate::manifest::{DataOrigin, DatabaseRole, Manifest, ManifestDatabase};
use crate::sql::{GoldDatabase, open_immutable};
use crate::{DataError, Question, folder, hash, own_writer, sqlite_file, text};

use dictionary::Dictionary;
use links::Links;
use questions::{DraftedQuestions, Drafter};
pub use report::{DraftReport, DraftedDatabase};
use schema::DescribedDatabase;
use source::SourceDatabase;
use word_file::WordFile;

/// The version of drafting. Raise it with every change that alters what is drafted, also of the
/// templates, the wordings and the lists of words.
const VERSION: &str = "9";
/// The number of resampled copies of a database.
const TWINS: usize = 3;

/// What to draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftSettings {
    /// The SQLite files and their names.
    pub databases: Vec<DatabaseSource>,
    /// The file of words of the only database. Without it, `NAME.words.toml` beside each
    /// `NAME.sqlite` is read if it exists.
    pub words: Option<PathBuf>,
    /// The seed of all draws.
    pub seed: u64,
    /// The number of questions about each database, if it has so many.
    pub count: usize,
    /// The SPDX name of the licence of the databases, for the manifest.
    pub licence: String,
}

/// How far drafting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftProgress<'a> {
    /// The number of databases that are done.
    pub databases: usize,
    /// The name of the database that questions are drafted about, or was at last.
    pub name: &'a str,
    /// The number of questions about it so far; 0 if it is done.
    pub questions: usize,
}

/// Drafts questions about databases into `out`, and replaces an earlier draft. `progress` is called
/// after each query that was tried, and after each database.
///
/// # Errors
/// Fails if a database or a file of words cannot be used, if several databases share a name or
/// [`DraftSettings::words`], if `out` exists and is not an earlier draft, if no question can be
/// drafted, or if a path cannot be written.
pub fn draft(
    out: &Path,
    settings: &DraftSettings,
    progress: &mut dyn FnMut(DraftProgress<'_>),
) -> Result<DraftReport, DataError> {
    if settings.words.is_some() && settings.databases.len() > 1 {
        return Err(DataError::Request(
            "--words is for one --database; put NAME.words.toml beside each NAME.sqlite, or draft \
             one database at a time"
                .to_owned(),
        ));
    }
    let named = named_sources(&settings.databases)?;
    let _lock = folder::lock(out)?;
    own_writer::replace_folder(out, DataOrigin::Draft, |dir| {
        let mut report = DraftReport::default();
        let mut questions: Vec<Question> = Vec::new();
        let mut databases = Vec::new();
        for (done, (name, source)) in named.iter().enumerate() {
            let mut at = |databases, questions| {
                progress(DraftProgress {
                    databases,
                    name,
                    questions,
                });
            };
            at(done, 0);
            let mut kept = |questions| at(done, questions);
            let drafted = draft_database(name, source, settings, dir, &mut kept)?;
            at(done + 1, 0);
            databases.push(ManifestDatabase {
                name: name.clone(),
                domain: "drafted".to_owned(),
                role: DatabaseRole::Known,
                rows: drafted.rows,
            });
            report.databases.push(drafted.record);
            questions.extend(drafted.questions);
        }
        if questions.is_empty() {
            return Err(nothing_drafted(&report));
        }
        let manifest = Manifest {
            recipe: hex::encode(hash::name_hash(&["draft", VERSION, rusqlite::version()])),
            seed: settings.seed,
            origin: DataOrigin::Draft,
            licence: settings.licence.clone(),
            databases,
            ..Manifest::default()
        };
        own_writer::finish_folder(dir, manifest, &questions)?;
        Ok(report)
    })
}

/// Returns the sources by their names.
fn named_sources(
    sources: &[DatabaseSource],
) -> Result<BTreeMap<String, &DatabaseSource>, DataError> {
    check_names(sources)?;
    for source in sources {
        if source.kind != SourceKind::Sqlite {
            let problem = format!(
                "is a {}, and questions are drafted about SQLite files; import it with `sqlenv \
                 data import DIR`, and draft about DIR/databases/{1}/{1}.sqlite",
                source.kind.name(),
                source.name
            );
            return Err(DataError::format(&source.place, problem));
        }
    }
    if sources.is_empty() {
        return Err(DataError::Request(
            "no database to draft questions about; name a SQLite file".to_owned(),
        ));
    }
    let named = sources.iter().map(|it| (it.name.clone(), it));
    Ok(named.collect())
}

fn nothing_drafted(report: &DraftReport) -> DataError {
    let notes = report.databases.iter().flat_map(|it| &it.notes).take(3);
    let notes: Vec<&str> = notes.map(String::as_str).collect();
    DataError::Request(format!(
        "no question could be drafted ({}); the databases need tables with rows and with columns \
         of several values",
        notes.join("; ")
    ))
}

/// The questions of one database, and what was found in it.
struct Drafted {
    record: DraftedDatabase,
    questions: Vec<Question>,
    rows: u64,
}

/// Copies a database to its place in the folder, and drafts questions about the copy.
fn draft_database(
    name: &str,
    source: &DatabaseSource,
    settings: &DraftSettings,
    dir: &Path,
    progress: &mut dyn FnMut(usize),
) -> Result<Drafted, DataError> {
    let path = &source.place;
    let folder = dir.join("databases").join(name);
    folder::create_folder(&folder)?;
    let copy = folder.join(format!("{name}.sqlite"));
    let copied = sqlite_file::copy(path, &copy)?;
    let connection = open_immutable(&copy).map_err(DataError::sqlite(path))?;
    let mut database = source::read(&connection).map_err(DataError::sqlite(path))?;
    database.left_out.extend(copied.unreadable_views);
    let file = read_words(path, settings.words.as_deref(), &database)?;
    let dictionary = Dictionary::read();
    let links = links::find(&connection, &database, &file, &dictionary);
    let links = links.map_err(DataError::sqlite(path))?;
    let mut described = schema::describe(&database, &links, &file, &dictionary);
    let twin = |index: usize| {
        let mut rng = RngStream::new(settings.seed, &["draft", name, "twin", &index.to_string()]);
        let twin = twin::resampled(&database, &links, &mut rng);
        twin.and_then(GoldDatabase::guard)
            .map_err(DataError::sqlite(path))
    };
    let twins: Vec<GoldDatabase> = (0..TWINS).map(twin).collect::<Result<_, _>>()?;
    described.take_rows(&mut database);
    let drafted = Drafter {
        name,
        described: &described,
        templates: &drafting_templates(),
        database: &GoldDatabase::open(&copy)?,
        twins: &twins,
        seed: settings.seed,
    }
    .draft(settings.count, progress);
    Ok(Drafted {
        record: record(name, &database, &links, described, &drafted),
        rows: database.tables.iter().map(|table| table.row_count).sum(),
        questions: drafted.questions,
    })
}

fn record(
    name: &str,
    database: &SourceDatabase,
    links: &Links,
    described: DescribedDatabase,
    drafted: &DraftedQuestions,
) -> DraftedDatabase {
    let tables = &described.schema.tables;
    let mut record = DraftedDatabase {
        name: name.to_owned(),
        tables: tables.len(),
        columns: tables.iter().map(|table| table.columns.len()).sum(),
        declared_keys: links.links.iter().filter(|it| it.is_declared).count(),
        inferred_keys: links.links.iter().filter(|it| !it.is_declared).count(),
        notes: database.left_out.clone(),
        drafted: drafted.drafted,
        dropped: drafted.dropped.clone(),
        kept: drafted.kept.clone(),
        splits: BTreeMap::new(),
    };
    record.notes.extend(links.notes.iter().cloned());
    record.notes.extend(described.notes);
    for question in &drafted.questions {
        let split = if question.split == "eval" {
            "eval"
        } else {
            "train"
        };
        *record.splits.entry(split).or_default() += 1;
    }
    record
}

/// Reads the file of words of the database at `place`: the one that is named, or the one beside it.
fn read_words(
    place: &Path,
    named: Option<&Path>,
    database: &SourceDatabase,
) -> Result<WordFile, DataError> {
    let beside = place.with_extension("words.toml");
    let found = || beside.is_file().then_some(beside.as_path());
    let Some(path) = named.or_else(found) else {
        return Ok(WordFile::default());
    };
    WordFile::parse(path, &text::read(path)?, database)
}
