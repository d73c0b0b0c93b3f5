//! Imports databases and questions of users into a folder of the own layout.
//!
//! Invariant: what is imported passes [`crate::check()`], which runs before the folder appears.
//! What cannot be a question is left out with a reason. The sources are only read.

mod column_type;
mod csv_folder;
mod csv_text;
mod duckdb;
mod dump;
mod external;
mod postgres;
mod question_fields;
mod question_file;
mod questions;
mod source;
mod splits;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::check::long_answers;
use crate::sql::GoldDatabase;
use crate::sqlite_file::{self, CopiedDatabase};
use crate::{
    DataError, DataOrigin, DatabaseRole, LeftOut, Manifest, ManifestDatabase, NO_LICENCE, check,
    folder, hash, own_writer,
};

use questions::{MadeQuestions, OpenDatabases};
pub(crate) use source::check_names;
pub use source::{DatabaseSource, SourceKind};
use table::{FilledTable, TableSpec};

/// The version of the rules by which files become questions. Raise it with every change of them.
const VERSION: &str = "import-6";
/// The folder for files that are needed only while importing.
const SCRATCH: &str = "scratch";

/// What to import.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// The databases.
    pub databases: Vec<DatabaseSource>,
    /// The question files; none if only databases are imported.
    pub questions: Vec<PathBuf>,
    /// The seed of the splits.
    pub seed: u64,
    /// The databases whose questions are all held out; `None`: one in five, at least one, from
    /// three databases on.
    pub held_out: Option<BTreeSet<String>>,
    /// The SPDX name of the licence of the data.
    pub licence: Option<String>,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportReport {
    /// The manifest of the folder.
    pub manifest: Manifest,
    /// The databases, sorted by name.
    pub databases: Vec<ImportedDatabase>,
    /// The records that are no questions.
    pub left_out: Vec<LeftOut>,
    /// The fields of records that have no use, by file.
    pub unused_fields: BTreeMap<String, BTreeSet<String>>,
}

/// An imported database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedDatabase {
    /// Its name.
    pub name: String,
    /// What it was imported from.
    pub kind: SourceKind,
    /// The number of its tables.
    pub tables: usize,
    /// The number of its views.
    pub views: usize,
    /// The number of rows in all tables together.
    pub rows: u64,
    /// What was not imported, or not as it was, a sentence each.
    pub notes: Vec<String>,
}

/// Imports databases and questions into `out`, and replaces an earlier import. `progress` is called
/// with the name of each database before it is read.
///
/// # Errors
/// Fails if `out` holds other files, if a database cannot be read whole, if a question file has no
/// known form, or if no record can be a question. The error names the file, the record and the
/// remedy.
pub fn import(
    out: &Path,
    request: &ImportRequest,
    progress: &mut dyn FnMut(&str),
) -> Result<ImportReport, DataError> {
    check_databases(request)?;
    let records = read_questions(&request.questions)?;
    let _lock = folder::lock(out)?;
    own_writer::replace_folder(out, DataOrigin::Import, |unfinished| {
        write(unfinished, request, records, progress)
    })
}

fn check_databases(request: &ImportRequest) -> Result<(), DataError> {
    check_names(&request.databases)?;
    let is_unknown = |name: &&String| !request.databases.iter().any(|it| it.name == **name);
    match request.held_out.iter().flatten().find(is_unknown) {
        Some(name) => Err(DataError::Request(format!(
            "--held-out: no database `{name}` is imported; there are {}",
            request
                .databases
                .iter()
                .map(|it| &*it.name)
                .collect::<Vec<_>>()
                .join(", ")
        ))),
        None => Ok(()),
    }
}

fn read_questions(
    files: &[PathBuf],
) -> Result<Vec<(String, question_file::FileRecord)>, DataError> {
    let mut records = Vec::new();
    for path in files {
        let read = question_file::read(path)?.into_iter();
        records.extend(read.map(|record| (path.display().to_string(), record)));
    }
    Ok(records)
}

fn write(
    dir: &Path,
    request: &ImportRequest,
    records: Vec<(String, question_file::FileRecord)>,
    progress: &mut dyn FnMut(&str),
) -> Result<ImportReport, DataError> {
    let mut sources: Vec<&DatabaseSource> = request.databases.iter().collect();
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    let mut databases = Vec::new();
    let mut open = OpenDatabases::new();
    for source in sources {
        progress(&source.name);
        let folder = dir.join("databases").join(&source.name);
        folder::create_folder(&folder)?;
        let path = folder.join(format!("{}.sqlite", source.name));
        databases.push(import_database(source, &path, &dir.join(SCRATCH))?);
        open.insert(source.name.clone(), GoldDatabase::open(&path)?);
    }
    let made = questions::make(records, &open, request.seed, request.held_out.as_ref());
    drop(open);
    if made.questions.is_empty()
        && let Some(first) = made.left_out.first()
    {
        return Err(DataError::Request(format!(
            "none of {} records can be a question; the first: {first}",
            made.left_out.len()
        )));
    }
    let mut long = long_answers(&made.questions);
    for database in &mut databases {
        database.notes.extend(long.remove(database.name.as_str()));
    }
    let manifest = finish(dir, request, &databases, &made)?;
    Ok(ImportReport {
        manifest,
        databases,
        left_out: made.left_out,
        unused_fields: made.unused_fields,
    })
}

fn finish(
    dir: &Path,
    request: &ImportRequest,
    databases: &[ImportedDatabase],
    made: &MadeQuestions,
) -> Result<Manifest, DataError> {
    let is_unseen = |name: &str| {
        let mut questions = made.questions.iter();
        questions.any(|it| it.database_name == name && it.split == splits::UNSEEN)
    };
    let database = |it: &ImportedDatabase| ManifestDatabase {
        name: it.name.clone(),
        domain: "imported".to_owned(),
        role: match is_unseen(&it.name) {
            true => DatabaseRole::UnseenDatabase,
            false => DatabaseRole::Known,
        },
        rows: it.rows,
    };
    let licence = request.licence.as_deref().unwrap_or(NO_LICENCE);
    let manifest = Manifest {
        recipe: hex::encode(hash::name_hash(&[VERSION, rusqlite::version()])),
        seed: request.seed,
        origin: DataOrigin::Import,
        licence: licence.to_owned(),
        databases: databases.iter().map(database).collect(),
        ..Manifest::default()
    };
    let manifest = own_writer::finish_folder(dir, manifest, &made.questions)?;
    let report = check(dir, None)?;
    match report.problems.first() {
        None => Ok(manifest),
        Some(first) => Err(DataError::Request(format!(
            "what was imported does not pass `sqlenv data check` ({} problems): {first}",
            report.problems.len()
        ))),
    }
}

fn import_database(
    source: &DatabaseSource,
    path: &Path,
    scratch: &Path,
) -> Result<ImportedDatabase, DataError> {
    folder::create_folder(scratch)?;
    let imported = write_database(source, path, scratch);
    folder::remove(scratch)?;
    let (copied, mut notes) = imported?;
    notes.extend(copied.unreadable_views);
    let names = &copied.virtual_tables;
    if !names.is_empty() {
        notes.push(format!(
            "agents cannot query its virtual tables {}",
            names.join(", ")
        ));
    }
    Ok(ImportedDatabase {
        name: source.name.clone(),
        kind: source.kind,
        tables: copied.tables,
        views: copied.views,
        rows: copied.rows,
        notes,
    })
}

fn write_database(
    source: &DatabaseSource,
    path: &Path,
    scratch: &Path,
) -> Result<(CopiedDatabase, Vec<String>), DataError> {
    let place = &source.place;
    let made = scratch.join("new.sqlite");
    let (tables, others) = match source.kind {
        SourceKind::Sqlite => return Ok((sqlite_file::copy(place, path)?, Vec::new())),
        SourceKind::SqlDump => {
            dump::run(place, &made)?;
            return Ok((
                sqlite_file::copy(&made, path).map_err(naming(place))?,
                Vec::new(),
            ));
        }
        SourceKind::CsvFolder => csv_folder::read(place)?,
        SourceKind::DuckDb => duckdb::export(place, scratch)?,
        SourceKind::Postgres => postgres::export(&source.address, place, scratch)?,
    };
    let filled = fill(source, &made, &tables)?;
    let lost_numbers = filled.lost_numbers;
    let mut notes = filled.notes;
    if !others.is_empty() {
        notes.push(format!("not imported: {}", others.join(", ")));
    }
    if lost_numbers > 0 {
        notes.push(format!(
            "{lost_numbers} numbers became NULL, because SQLite has no NaN and no infinity"
        ));
    }
    Ok((sqlite_file::copy(&made, path)?, notes))
}

/// Fills a new database from CSV files. Returns what is not in all tables as the files have it.
fn fill(
    source: &DatabaseSource,
    made: &Path,
    tables: &[TableSpec],
) -> Result<FilledTable, DataError> {
    let mut connection = Connection::open(made).map_err(DataError::sqlite(made))?;
    // Tables are filled in any order, and the rows are as the source has them.
    connection
        .execute_batch("PRAGMA foreign_keys = OFF; PRAGMA synchronous = OFF;")
        .map_err(DataError::sqlite(made))?;
    let mut all = FilledTable::default();
    for spec in tables {
        let filled = table::fill(&mut connection, made, spec).map_err(|error| match source.kind {
            SourceKind::CsvFolder => error,
            // The file is only needed while importing.
            _ => naming(&source.place)(error),
        });
        let filled = filled?;
        all.lost_numbers += filled.lost_numbers;
        all.notes.extend(filled.notes);
    }
    Ok(all)
}

/// Lets an error about a file that is only needed while importing name the source of the file.
fn naming(source: &Path) -> impl FnOnce(DataError) -> DataError {
    move |error| match error {
        DataError::Format { problem, .. } => DataError::format(source, problem),
        other => other,
    }
}
