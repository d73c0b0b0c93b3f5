//! A folder of CSV files as a database: each file is a table.

use std::path::{Path, PathBuf};

use super::csv_text::delimiter_of;
use super::table::{self, TableSpec};
use crate::DataError;

/// Finds the tables of a folder, sorted by name, and the names of the files in it that are none.
///
/// # Errors
/// The folder cannot be read, has no table, or has two of one name.
pub(crate) fn read(folder: &Path) -> Result<(Vec<TableSpec>, Vec<String>), DataError> {
    let entries = std::fs::read_dir(folder).map_err(DataError::io(folder, "read"))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: std::io::Result<Vec<PathBuf>> = paths.collect();
    let mut paths = paths.map_err(DataError::io(folder, "read"))?;
    paths.sort();
    let (mut tables, mut others) = (Vec::new(), Vec::new());
    for path in paths {
        let lossy = |part: Option<&std::ffi::OsStr>| {
            part.unwrap_or_default().to_string_lossy().into_owned()
        };
        let Some(delimiter) = delimiter_of(&path).filter(|_| path.is_file()) else {
            others.push(lossy(path.file_name()));
            continue;
        };
        tables.push(TableSpec {
            name: lossy(path.file_stem()).trim().to_owned(),
            csv: path,
            delimiter,
            columns: None,
            primary_key: Vec::new(),
            foreign_keys: Vec::new(),
        });
    }
    if tables.is_empty() {
        return Err(DataError::format(
            folder,
            "the folder holds no .csv or .tsv file; give a folder with one file for each table, or \
             the database files themselves",
        ));
    }
    table::check_names(folder, tables.iter().map(|it| it.name.as_str()))?;
    Ok((tables, others))
}
