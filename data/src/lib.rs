//! Questions and their databases: loaders for four layouts, the import of other files, the
//! generator of the project's own data, and drafting of questions about any database.
//!
//! A [`Dataset`] is read-only and verified: every question names a database that exists, and every
//! database carries its SHA-256. The generator is a pure function of its seed: the same seed gives
//! the same bytes on every machine. What an agent may do with a database is decided in the crate
//! `env`.

mod bird;
mod check;
mod dataset;
mod draft;
mod error;
mod file_stamp;
mod folder;
mod generator;
mod gold;
mod hash;
mod import;
mod integrity;
mod layout;
mod manifest;
mod own;
mod own_writer;
mod question;
mod records;
mod spider;
mod sql;
pub mod sql_name;
pub mod sql_text;
mod sqlenv_json;
mod sqlite_file;
mod stats;
mod text;
mod words;

pub use check::{CheckReport, check, queries_in_train};
pub use dataset::{DatabaseFile, Dataset, LeftOut};
pub use draft::{DraftProgress, DraftReport, DraftSettings, DraftedDatabase, draft};
pub use error::DataError;
pub use file_stamp::HashedFile;
pub use generator::{DEFAULT_SEED, ProceduralData, WordShare, build, build_procedural};
pub use hash::file_sha256;
pub use import::{
    DatabaseSource, ImportReport, ImportRequest, ImportedDatabase, SourceKind, import,
};
pub use integrity::{faults, unread_log};
pub use manifest::{DataOrigin, DatabaseRole, Manifest, ManifestDatabase, NO_LICENCE};
pub use question::{AnswerType, Question, answer_from_rows, answer_text, cut_decimals, real_text};
pub use sql::{
    FIXED_CLOCK, STATEMENT_LIMITS, harden, is_reserved_table, is_sql_function, longest_row_sql,
    open_immutable, register_fixed_clock, shadow_tables,
};
pub use stats::stats;
