//! A folder of CSV files as a database: each file is a table.

use std::path::{Path, PathBuf};

use super::table::{self, TableSpec};
use crate::DataError;

/// The tables of a folder, and the files in it that are none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CsvFolder {
    pub(crate) tables: Vec<TableSpec>,
    pub(crate) others: Vec<String>,
}

/// Finds the tables of a folder, sorted by name.
///
/// # Errors
/// The folder cannot be read, has no table, or has two of one name.
pub(crate) fn read(folder: &Path) -> Result<CsvFolder, DataError> {
    let entries = std::fs::read_dir(folder).map_err(DataError::io(folder, "read"))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: std::io::Result<Vec<PathBuf>> = paths.collect();
    let mut paths = paths.map_err(DataError::io(folder, "read"))?;
    paths.sort();
    let mut found = CsvFolder::default();
    for path in paths {
        let lossy = |part: Option<&std::ffi::OsStr>| {
            part.unwrap_or_default().to_string_lossy().into_owned()
        };
        let delimiter = match lossy(path.extension()).to_ascii_lowercase().as_str() {
            "csv" if path.is_file() => b',',
            "tsv" if path.is_file() => b'\t',
            _ => {
                found.others.push(lossy(path.file_name()));
                continue;
            }
        };
        found.tables.push(TableSpec {
            name: lossy(path.file_stem()).trim().to_owned(),
            csv: path,
            delimiter,
            columns: None,
            primary_key: Vec::new(),
            foreign_keys: Vec::new(),
        });
    }
    if found.tables.is_empty() {
        return Err(DataError::format(
            folder,
            "the folder holds no .csv or .tsv file; give a folder with one file for each table, or \
             the database files themselves",
        ));
    }
    table::check_names(folder, found.tables.iter().map(|it| it.name.as_str()))?;
    Ok(found)
}
