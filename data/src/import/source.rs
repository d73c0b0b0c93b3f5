//! What `--database` names: a file, a folder or the address of a database, and its name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::DataError;

const MAX_NAME_CHARS: usize = 64;
const SQLITE_HEADER: &[u8] = b"SQLite format 3\0";
const DUCKDB_HEADER: &[u8] = b"DUCK";
/// DuckDB's mark follows the checksum of the page.
const DUCKDB_HEADER_AT: usize = 8;
const PARQUET_HEADER: &[u8] = b"PAR1";
/// The archives of `pg_dump -Fc`. Its other dumps are text.
const PG_DUMP_HEADER: &[u8] = b"PGDMP";
/// An Excel file is a ZIP file of XML files.
const ZIP_HEADER: &[u8] = b"PK\x03\x04";

/// A database to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseSource {
    /// The name that questions use.
    pub name: String,
    /// What is there.
    pub kind: SourceKind,
    /// The path, or the address without its password.
    pub place: PathBuf,
    /// The address, for PostgreSQL.
    pub(super) address: String,
}

/// What a database is imported from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A SQLite file.
    Sqlite,
    /// A SQL dump in SQLite's dialect.
    SqlDump,
    /// A folder of CSV files.
    CsvFolder,
    /// A DuckDB file.
    DuckDb,
    /// A PostgreSQL database.
    Postgres,
}

impl SourceKind {
    /// Returns the kind in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite file",
            Self::SqlDump => "SQL dump",
            Self::CsvFolder => "folder of CSV files",
            Self::DuckDb => "DuckDB file",
            Self::Postgres => "PostgreSQL database",
        }
    }
}

impl DatabaseSource {
    /// Recognises `PLACE` or `NAME=PLACE`. Without a name the database has that of the file without
    /// its extension, of the folder, or of the PostgreSQL database.
    ///
    /// # Errors
    /// Nothing is there, it is nothing that can be imported, or the name cannot be used.
    pub fn parse(text: &str) -> Result<Self, DataError> {
        let (name, place) = match text.split_once('=') {
            Some((name, place)) if !is_address(text) && !Path::new(text).exists() => {
                (Some(name), place)
            }
            _ => (None, text),
        };
        if is_address(place) {
            let name = name.map_or_else(|| database_of(place), str::to_owned);
            return Ok(Self {
                name: checked_name(&name, text)?,
                kind: SourceKind::Postgres,
                place: PathBuf::from(without_password(place)),
                address: place.to_owned(),
            });
        }
        let path = PathBuf::from(place);
        let kind = kind_of(&path)?;
        let of_path = match kind {
            SourceKind::CsvFolder => path.canonicalize().ok().and_then(|it| {
                let name = it.file_name()?;
                Some(name.to_string_lossy().into_owned())
            }),
            _ => path.file_stem().map(|it| it.to_string_lossy().into_owned()),
        };
        let name = name.map(str::to_owned).or(of_path).unwrap_or_default();
        Ok(Self {
            name: checked_name(&name, text)?,
            kind,
            place: path,
            address: String::new(),
        })
    }
}

/// Refuses two databases of one name.
pub(crate) fn check_names<'a>(
    sources: impl IntoIterator<Item = &'a DatabaseSource>,
) -> Result<(), DataError> {
    let mut seen = BTreeMap::new();
    for source in sources {
        // Some file systems do not tell the cases of letters apart.
        if let Some(first) = seen.insert(source.name.to_lowercase(), source) {
            return Err(DataError::Request(format!(
                "--database: {} and {} have the same name `{}`; give one another by --database \
                 NAME=PLACE",
                first.place.display(),
                source.place.display(),
                source.name
            )));
        }
    }
    Ok(())
}

fn is_address(text: &str) -> bool {
    ["postgresql://", "postgres://"]
        .iter()
        .any(|scheme| text.starts_with(scheme))
}

/// Divides `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS` into the scheme, the user
/// without the password, and host and database.
fn parts_of(address: &str) -> (&str, Option<&str>, &str) {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    // A password may hold `?` and `@`. After a host without a user, `?` begins the options.
    let authority = rest.split('/').next().unwrap_or_default();
    let is_user = |at: &usize| {
        let before = &rest[..*at];
        let (name, password) = before.split_once(':').unwrap_or((before, ""));
        // `HOST:PORT?NAME=VALUE` is no user with a password.
        let is_port = password.split_once('?').is_some_and(|(port, options)| {
            port.bytes().all(|byte| byte.is_ascii_digit()) && options.contains('=')
        });
        !name.contains('?') && !is_port
    };
    let (user, rest) = match authority.rfind('@').filter(is_user) {
        Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
        None => (None, rest),
    };
    let rest = rest.split('?').next().unwrap_or_default();
    // A password with `/` is not shown all the same.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((before, rest)) => (user.or(Some(before)), rest),
        None => (user, rest),
    };
    let user = user.map(|it| it.split(':').next().unwrap_or_default());
    (scheme, user, rest)
}

/// Returns the name of the database of an address.
fn database_of(address: &str) -> String {
    match parts_of(address).2.split_once('/') {
        Some((_, name)) if !name.is_empty() => name.to_owned(),
        _ => "postgres".to_owned(),
    }
}

/// Returns the address without password and options, which may hold one as well.
fn without_password(address: &str) -> String {
    match parts_of(address) {
        (scheme, Some(user), place) => format!("{scheme}://{user}@{place}"),
        (scheme, None, place) => format!("{scheme}://{place}"),
    }
}

fn checked_name(name: &str, text: &str) -> Result<String, DataError> {
    let is_allowed = |it: char| it.is_alphanumeric() || "_-. ".contains(it);
    let is_name = !name.is_empty()
        && name.chars().count() <= MAX_NAME_CHARS
        && name.chars().all(is_allowed)
        && name.trim() == name
        && !name.starts_with('.')
        && name != "all";
    if is_name {
        return Ok(name.to_owned());
    }
    let place = match is_address(text) {
        true => without_password(text),
        false => text.to_owned(),
    };
    Err(DataError::Request(format!(
        "--database {place}: {name:?} cannot name a database; give one to {MAX_NAME_CHARS} \
         letters, digits and any of `_-. ` by --database NAME=PLACE"
    )))
}

fn kind_of(path: &Path) -> Result<SourceKind, DataError> {
    let metadata = path.metadata().map_err(DataError::io(path, "read"))?;
    if metadata.is_dir() {
        return Ok(SourceKind::CsvFolder);
    }
    if metadata.len() == 0 {
        return Err(DataError::format(path, "is empty; give a database"));
    }
    let mut head = Vec::new();
    let file = File::open(path).map_err(DataError::io(path, "read"))?;
    file.take(64)
        .read_to_end(&mut head)
        .map_err(DataError::io(path, "read"))?;
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let extension = extension.to_ascii_lowercase();
    if head.starts_with(SQLITE_HEADER) {
        return Ok(SourceKind::Sqlite);
    }
    let is_duckdb = head
        .get(DUCKDB_HEADER_AT..)
        .is_some_and(|it| it.starts_with(DUCKDB_HEADER));
    if is_duckdb {
        return Ok(SourceKind::DuckDb);
    }
    if head.starts_with(PARQUET_HEADER) {
        let problem = "is a Parquet file; make a DuckDB file of it with DuckDB's program, `duckdb \
                       new.duckdb \"CREATE TABLE t AS FROM 'a.parquet'\"`, and give that";
        return Err(DataError::format(path, problem));
    }
    if head.starts_with(PG_DUMP_HEADER) {
        let problem = "is an archive of pg_dump; restore it with `pg_restore`, and give the \
                       address postgresql://HOST/DATABASE";
        return Err(DataError::format(path, problem));
    }
    match extension.as_str() {
        "sql" | "dump" => Ok(SourceKind::SqlDump),
        "csv" | "tsv" => Err(DataError::format(
            path,
            "a database of CSV files is a folder with one file for each table; put the file into a \
             folder and give that",
        )),
        "gz" | "zip" | "bz2" | "xz" | "zst" => {
            Err(DataError::format(path, "is compressed; unpack it first"))
        }
        _ if head.starts_with(ZIP_HEADER) => Err(DataError::format(
            path,
            "is an Excel file (.xlsx), or another ZIP file; save each sheet as a CSV file, and \
             give the folder of these",
        )),
        _ => Err(DataError::format(
            path,
            "is neither a SQLite file nor a DuckDB file (an encrypted one is neither); give one, a \
             SQL dump (.sql), a folder of CSV files, or the address of a PostgreSQL database",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_folders_and_addresses_are_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("a b.db"), b"SQLite format 3\0...").unwrap();
        std::fs::write(path("x=y.db"), b"SQLite format 3\0...").unwrap();
        std::fs::write(path("d.db"), b"12345678DUCK").unwrap();
        std::fs::write(path("s.sql"), "CREATE TABLE t (x)").unwrap();
        std::fs::create_dir(path("shop")).unwrap();
        for (text, name, kind) in [
            (path("a b.db"), "a b", SourceKind::Sqlite),
            (path("d.db"), "d", SourceKind::DuckDb),
            (format!("n={}", path("d.db")), "n", SourceKind::DuckDb),
            (format!("n={}", path("x=y.db")), "n", SourceKind::Sqlite),
            (path("s.sql"), "s", SourceKind::SqlDump),
            (path("shop/"), "shop", SourceKind::CsvFolder),
            (path("shop/."), "shop", SourceKind::CsvFolder),
            (
                "postgresql://me@host/sales?sslmode=require".to_owned(),
                "sales",
                SourceKind::Postgres,
            ),
            (
                "postgresql://me:pa?ss@host/sales?sslmode=require".to_owned(),
                "sales",
                SourceKind::Postgres,
            ),
            ("n=postgres://host".to_owned(), "n", SourceKind::Postgres),
        ] {
            let source = DatabaseSource::parse(&text).unwrap();
            assert_eq!((&*source.name, source.kind), (name, kind), "{text}");
        }
        let error = DatabaseSource::parse(&path("x=y.db"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("NAME=PLACE"), "{error}");
    }

    #[test]
    fn what_cannot_be_imported_is_named_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        for (file, content, part) in [
            ("empty.db", "", "is empty"),
            ("a.csv", "a,b\n", "put the file into a folder"),
            ("a.sql.gz", "...", "unpack"),
            ("a.db", "text", "neither a SQLite file"),
            (
                "sales.parquet",
                "PAR1...",
                "CREATE TABLE t AS FROM 'a.parquet'",
            ),
            ("sales.xlsx", "PK\u{3}\u{4}...", "save each sheet as a CSV"),
            ("sales.dump", "PGDMP\u{1}...", "pg_restore"),
            ("sales.zip", "PK\u{3}\u{4}...", "unpack"),
        ] {
            let path = dir.path().join(file);
            std::fs::write(&path, content).unwrap();
            let error = DatabaseSource::parse(path.to_str().unwrap())
                .unwrap_err()
                .to_string();
            assert!(error.contains(part) && error.contains(file), "{error}");
        }
        let error = DatabaseSource::parse("/nowhere/a.db")
            .unwrap_err()
            .to_string();
        assert!(error.contains("check the path"), "{error}");
    }

    #[test]
    fn passwords_are_not_shown() {
        for address in [
            "postgresql://me:secret@host:5432/sales",
            "postgresql://me:sec@ret@host/sales",
            "postgresql://me:sec?ret@host/sales",
            "postgresql://me:sec/ret@host/sales",
            "postgresql://host?user=me&password=sec@ret",
            "postgresql://host:5432?user=me&password=sec@ret",
            "postgresql://host/sales?user=me&password=secret",
            "postgresql://me:secret@host/all",
        ] {
            let shown = match DatabaseSource::parse(address) {
                Ok(source) => source.place.display().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(!shown.contains("sec") && !shown.contains("ret"), "{shown}");
            assert!(shown.contains("host"), "{shown}");
        }
    }
}
