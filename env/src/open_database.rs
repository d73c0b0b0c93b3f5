//! A database that is open for queries, and whether its file is still the one that was hashed.
//!
//! Invariant: what is read while the file changes is not kept. SQLite keeps the pages of an
//! immutable file and does not notice that it changes. So the file is checked before and after a
//! query if the last check is a second old, before a result is kept, and after a fault of the file.
//! After a fault, or if the file was found in another state since it was opened, it is opened
//! again, also if it was restored.

use std::{
    cell::Cell,
    fs::File,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use data::DatabaseFile;

use crate::{
    database::Database,
    error::EnvError,
    sandbox::{Failure, QueryError, Sandbox, WorkBudget},
    settings::SqlLimits,
};

/// `EMFILE` and `ENFILE`, the same on Linux, macOS and the BSDs.
const NO_MORE_FILES: [i32; 2] = [24, 23];

/// How often the file is checked. Checks at each statement would take a twentieth of the time of a
/// step.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A sandbox on a database.
pub(crate) struct OpenDatabase {
    pub(crate) sandbox: Sandbox,
    database: Arc<Database>,
    /// How often the file had been found in another state when it was opened.
    changes: u64,
    /// When the file was last checked. `None` after a fault.
    checked: Cell<Option<Instant>>,
}

impl OpenDatabase {
    /// Opens the file.
    ///
    /// # Errors
    /// It has another content than the one that was hashed, or cannot be opened.
    pub(crate) fn open(
        database: &Arc<Database>,
        limits: &SqlLimits,
        budget: WorkBudget,
    ) -> Result<Self, EnvError> {
        let changes = database.check_unchanged()?;
        let sandbox = Sandbox::open(database, limits, budget)
            .map_err(|error| cannot_open(&database.file, &error))?;
        let opened = Self {
            sandbox,
            database: Arc::clone(database),
            changes,
            checked: Cell::new(Some(now())),
        };
        opened.check()?;
        Ok(opened)
    }

    pub(crate) fn name(&self) -> &str {
        &self.database.file.name
    }

    /// Returns whether queries may go on: there was no fault, and the file is as it was when it was
    /// opened, as far as the last second tells.
    pub(crate) fn is_current(&self) -> bool {
        self.checked.get().is_some() && self.check_if_due().is_ok()
    }

    /// Checks the file, unless it was checked within the last second.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn check_if_due(&self) -> Result<(), EnvError> {
        let checked = self.checked.get();
        if checked.is_some_and(|checked| checked.elapsed() < CHECK_EVERY) {
            return Ok(());
        }
        self.checked.set(Some(now()));
        self.check()
    }

    /// Checks that the file is as it was when it was opened.
    ///
    /// # Errors
    /// It changed.
    pub(crate) fn check(&self) -> Result<(), EnvError> {
        let changes = self.database.check_unchanged();
        if changes
            .as_ref()
            .is_ok_and(|&changes| changes == self.changes)
        {
            return Ok(());
        }
        self.checked.set(None);
        changes?;
        Err(EnvError::Internal(format!(
            "the file of database {:?} changed while it was read",
            self.name()
        )))
    }

    /// Returns what is wrong with the file, if that is why a query failed. A file that was damaged
    /// when it was hashed fails in the same way on every node, so there the query failed.
    pub(crate) fn fault(&self, error: &QueryError) -> Option<EnvError> {
        let fault = match error.failure {
            Failure::Damaged => self.check().err(),
            Failure::Unreadable => Some(unreadable(&self.database.file, &error.message)),
            _ => None,
        };
        if fault.is_some() {
            self.checked.set(None);
        }
        fault
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: when a file is checked decides only how soon a change is found"
)]
fn now() -> Instant {
    Instant::now()
}

fn unreadable(file: &DatabaseFile, problem: &str) -> EnvError {
    EnvError::Database {
        name: file.name.clone(),
        path: file.path.clone(),
        reason: format!("cannot be read: {problem}; check the disk or the network that it is on"),
    }
}

/// Explains why a database cannot be opened. SQLite reports a missing file and a process with too
/// many open files alike.
fn cannot_open(file: &DatabaseFile, error: &rusqlite::Error) -> EnvError {
    let is_out_of_files = |cause: &io::Error| {
        cause
            .raw_os_error()
            .is_some_and(|code| NO_MORE_FILES.contains(&code))
    };
    match File::open(&file.path) {
        Err(cause) if is_out_of_files(&cause) => EnvError::Overloaded {
            problem: format!(
                "no file is left to open for database {:?}; if this lasts, raise `ulimit -n` or \
                 lower connections_per_thread",
                file.name
            ),
        },
        _ => EnvError::Database {
            name: file.name.clone(),
            path: file.path.clone(),
            reason: format!("cannot be opened: {error}; check that the file is still there"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::OnceLock, time::SystemTime};

    use data::{AnswerType, Question};
    use rusqlite::Connection;
    use serde_json::Value;

    use super::*;
    use crate::{gold::GoldRows, rows::ResultLimits};

    const SQL: &str = "SELECT b FROM v INDEXED BY i WHERE b IS NOT NULL";

    /// Writes a database whose table `v` and index `i` have one text, each on a page of its own.
    fn create(path: &Path) -> Vec<u8> {
        let schema = "CREATE TABLE v (a, b); CREATE INDEX i ON v (b) WHERE b IS NOT NULL;
            INSERT INTO v VALUES (1, 'right');";
        Connection::open(path)
            .unwrap()
            .execute_batch(schema)
            .unwrap();
        std::fs::read(path).unwrap()
    }

    fn database(path: &Path) -> Arc<Database> {
        let file = DatabaseFile::open("a", path).unwrap();
        Arc::new(Database::open(&file, &ResultLimits::default(), &SqlLimits::default()).unwrap())
    }

    fn open(database: &Arc<Database>) -> Result<OpenDatabase, EnvError> {
        OpenDatabase::open(database, &SqlLimits::default(), WorkBudget::Full)
    }

    /// Overwrites a file where it is. The clock of a file system may stand still for milliseconds,
    /// so the file gets a time that it had not.
    fn overwrite(path: &Path, content: &[u8], seconds: u64) {
        std::fs::write(path, content).unwrap();
        let file = File::options().append(true).open(path).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(time).unwrap();
    }

    /// Returns the text that the query reads, or the fault or message of its error.
    fn text(open: &OpenDatabase) -> Result<String, Result<EnvError, String>> {
        match open.sandbox.query(SQL).unwrap().rows {
            Ok(rows) => Ok(rows.rows[0][0].to_string()),
            Err(error) => Err(open.fault(&error).ok_or(error.message)),
        }
    }

    fn question() -> Question {
        Question {
            question_id: "a_train_0".to_owned(),
            question_text: String::new(),
            database_name: "a".to_owned(),
            gold_sql: SQL.to_owned(),
            gold_answer: Value::Null,
            answer_type: AnswerType::List,
            difficulty: String::new(),
            tables_involved: Vec::new(),
            split: "train".to_owned(),
        }
    }

    #[test]
    fn what_is_read_while_a_file_is_overwritten_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        let whole = create(&path);
        let mut wrong = whole.clone();
        for place in 0..wrong.len() {
            if wrong[place..].starts_with(b"right") {
                wrong[place..][..5].copy_from_slice(b"wrong");
            }
        }
        let mut torn = whole.clone();
        torn[4096..].fill(0);
        for content in [wrong, torn, whole.clone()] {
            overwrite(&path, &whole, 0);
            let database = database(&path);
            let (opened, kept) = (open(&database).unwrap(), OnceLock::new());
            overwrite(&path, &content, 1);
            let read = text(&opened);
            assert!(!matches!(read, Err(Err(_))), "an observation: {read:?}");
            let gold = GoldRows::get_or_run(&question(), &kept, &opened).unwrap();
            assert!(gold.is_err());
            assert!(!opened.is_current());
            assert_eq!(open(&database).is_ok(), content == whole);
            overwrite(&path, &whole, 2);
            assert!(
                !opened.is_current(),
                "it may have pages of the other content"
            );
            let opened = open(&database).unwrap();
            assert_eq!(text(&opened).unwrap(), "right");
            let gold = GoldRows::get_or_run(&question(), &kept, &opened).unwrap();
            assert!(gold.is_ok_and(|gold| gold.rows.is_some()));
            assert!(opened.is_current());
        }
    }

    #[test]
    fn a_file_that_was_damaged_when_it_was_hashed_fails_queries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        let mut content = create(&path);
        content[2 * 4096..].fill(0);
        std::fs::write(&path, content).unwrap();
        let opened = open(&database(&path)).unwrap();
        let Err(Err(message)) = text(&opened) else {
            panic!("the index is damaged");
        };
        assert!(message.contains("malformed"), "{message}");
        assert!(opened.is_current());
    }
}
