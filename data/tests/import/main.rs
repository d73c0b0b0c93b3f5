//! Tests the import of users' databases and questions: the worked example, odd files, and what is
//! refused.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

mod example;
mod external;
mod folders;
mod questions;
mod sqlite_files;

use std::path::{Path, PathBuf};

use data::{DatabaseSource, ImportReport, ImportRequest, check, import};
use tempfile::TempDir;

/// A folder with files to import, and the folder to import them into.
struct Desk {
    dir: TempDir,
}

impl Desk {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn out(&self) -> PathBuf {
        self.path("out")
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a SQLite file.
    fn database(&self, name: &str, sql: &str) -> PathBuf {
        let path = self.path(name);
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch(sql).unwrap();
        path
    }

    /// Imports, and checks what was imported.
    fn import(&self, databases: &[&Path], questions: &[&Path]) -> Result<ImportReport, String> {
        let texts = databases.iter().map(|it| it.to_str().unwrap());
        self.import_named(&texts.collect::<Vec<_>>(), questions)
    }

    fn import_named(
        &self,
        databases: &[&str],
        questions: &[&Path],
    ) -> Result<ImportReport, String> {
        let sources = databases.iter().map(|it| DatabaseSource::parse(it));
        let sources: Result<Vec<_>, _> = sources.collect();
        let request = ImportRequest {
            databases: sources.map_err(|error| error.to_string())?,
            questions: questions.iter().map(|it| it.to_path_buf()).collect(),
            seed: 1,
            held_out: None,
            licence: None,
        };
        let report = import(&self.out(), &request, &mut |_| {});
        let report = report.map_err(|error| error.to_string())?;
        let checked = check(&self.out(), None).unwrap();
        assert!(checked.problems.is_empty(), "{checked}");
        Ok(report)
    }

    /// Returns the answer of one query on the imported database, and its type.
    fn answer(&self, database: &Path, sql: &str) -> (String, &'static str) {
        let record = serde_json::json!([{"question": "?", "sql": sql}]).to_string();
        let questions = self.write("one.json", record);
        let report = self.import(&[database], &[&questions]).unwrap();
        assert_eq!(report.left_out, []);
        let dataset = data::Dataset::open(&self.out(), None).unwrap();
        let question = &dataset.questions[0];
        (
            question.gold_answer.to_string(),
            question.answer_type.name(),
        )
    }

    /// Imports, expects failure, and checks that nothing is left behind.
    fn refusal(&self, databases: &[&Path], questions: &[&Path]) -> String {
        let error = self.import(databases, questions).unwrap_err();
        let names = std::fs::read_dir(self.dir.path()).unwrap();
        let names: Vec<String> = names
            .map(|it| it.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        let is_left = |name: &String| name.starts_with(".out") || name == "out";
        assert!(!names.iter().any(is_left), "{names:?}");
        error
    }
}

/// Fails unless the text has all parts.
fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text}\nlacks {part}");
    }
}
