//! Opens and verifies a folder of questions and databases. The four layouts (own, Spider, BIRD,
//! SQLEnv) differ only in how their records are read.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{DataError, Dataset, bird, manifest, own, spider, sqlenv_json};

impl Dataset {
    /// Opens a folder in the layout that its files show: an own one (`manifest.json`), BIRD
    /// (`dev_databases`, `train_databases`), Spider (`database` or `tables.json`) or SQLEnv
    /// (`questions/questions_train.json`).
    ///
    /// `databases` selects databases by name. The single name `all` selects every database. Without
    /// a selection Spider opens the ten databases that SQLEnv uses, and the other layouts open all.
    ///
    /// # Errors
    /// Fails if the folder has no known layout, if a record is malformed (the error names file,
    /// index and field), if a database is missing, broken or different from the manifest, if the
    /// selection names an unknown database, or if no question can be used.
    pub fn open(dir: &Path, databases: Option<&[String]>) -> Result<Self, DataError> {
        let dataset = Self::open_with_or_without_questions(dir, databases)?;
        if dataset.questions.is_empty() {
            let problem = match dataset.left_out.first() {
                None => "no question about these databases; choose others, or import questions \
                         with `sqlenv data import --questions FILE`"
                    .to_owned(),
                Some(first) => format!(
                    "no usable question ({} left out, the first {first}); correct the records or \
                     choose other databases",
                    dataset.left_out.len()
                ),
            };
            return Err(DataError::format(dir, problem));
        }
        Ok(dataset)
    }

    /// Opens a folder like [`Self::open`], even if no question can be used.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn open_with_or_without_questions(
        dir: &Path,
        databases: Option<&[String]>,
    ) -> Result<Self, DataError> {
        let mut dataset = read_layout(dir, databases)?;
        dataset.name = dir.file_name().map_or_else(
            || dir.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        );
        let mut ids = BTreeSet::new();
        let mut in_order = dataset
            .questions
            .iter()
            .map(|question| &question.question_id);
        if let Some(id) = in_order.find(|id| !ids.insert(*id)) {
            let problem = format!("question_id `{id}` occurs twice; give each question its own id");
            return Err(DataError::format(dir, problem));
        }
        Ok(dataset)
    }
}

/// Reads the folder in the layout that its files show, without a name.
fn read_layout(dir: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    if dir.is_file() {
        return Err(DataError::format(
            dir,
            "is a file, not a data folder; draft questions about a database with `sqlenv data \
             draft DIR --database FILE`, or import yours with `sqlenv data import DIR --database \
             FILE --questions FILE`, and give DIR",
        ));
    }
    if !dir.is_dir() {
        return Err(DataError::format(
            dir,
            "no such folder; check the path, or build data with `sqlenv data build`",
        ));
    }
    if dir.join(manifest::FILE_NAME).is_file() {
        return own::open(dir, databases);
    }
    if bird::is_layout(dir) {
        return bird::open(dir, databases);
    }
    if spider::is_layout(dir) {
        return spider::open(dir, databases);
    }
    if let Some(root) = sqlenv_json::root(dir) {
        return sqlenv_json::open(&root, databases);
    }
    Err(DataError::format(
        dir,
        "not a data folder: it holds neither manifest.json (own layout), nor database/ or \
         tables.json (Spider), nor dev_databases/ or train_databases/ (BIRD), nor \
         questions/questions_train.json (SQLEnv); `sqlenv data import` makes a data folder of \
         other files",
    ))
}
