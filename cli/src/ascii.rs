//! What the embedded base policy cannot read: it was pretrained on words in ASCII alone.

use std::collections::{BTreeMap, BTreeSet};

use env::Environment;
use proto::v1::Question;

use crate::progress::Progress;

/// The databases that have names outside ASCII, each with a table that is or has one.
#[derive(Default)]
pub(crate) struct NamesBeyondAscii(BTreeMap<String, String>);

impl NamesBeyondAscii {
    /// Looks at the names of tables and columns in an environment.
    pub(crate) fn of(environment: &Environment) -> Self {
        let mut seen = BTreeSet::new();
        let named = |question: &data::Question| {
            if !seen.insert(question.database_name.clone()) {
                return None;
            }
            let (question, schema) = environment.question(&question.question_id)?;
            let mut tables = schema.tables.iter();
            let table = tables.find(|table| !table.columns_text.is_ascii())?;
            Some((question.database_name.clone(), table.name.clone()))
        };
        Self(environment.questions().filter_map(named).collect())
    }

    /// Warns that the base policy fails on questions such as the first of these that is not in
    /// ASCII, or whose database has other names.
    pub(crate) fn warn(&self, questions: &[Question], progress: &Progress) {
        if let Some(example) = questions.iter().find_map(|it| self.example(it)) {
            progress.print(&format!(
                "warning: the base policy was pretrained on words in ASCII alone, and answers no \
                 question that needs another character, such as those of {example}; give a \
                 pretrained model by --model DIR (docs/your-database.md)"
            ));
        }
    }

    /// Names what in a question, or in its database, is not in ASCII.
    fn example(&self, question: &Question) -> Option<String> {
        if !question.question_text.is_ascii() {
            return Some(format!("the question {:?}", question.question_text));
        }
        let database = &question.database_name;
        let table = self.0.get(database)?;
        Some(format!("the table {table:?} of {database}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_ascii_is_named() {
        let names = [("shop".to_owned(), "größe".to_owned())];
        let names = NamesBeyondAscii(names.into());
        let example = |text: &str, database: &str| {
            names.example(&Question {
                question_text: text.to_owned(),
                database_name: database.to_owned(),
                ..Question::default()
            })
        };
        assert_eq!(example("How many are from Lima?", "zoo"), None);
        let question = example("Who lives in Köln?", "zoo");
        assert_eq!(
            question.as_deref(),
            Some("the question \"Who lives in Köln?\"")
        );
        let table = example("How many are from Lima?", "shop");
        assert_eq!(table.as_deref(), Some("the table \"größe\" of shop"));
    }
}
