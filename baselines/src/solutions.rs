//! The questions with their solutions, which the oracle and the demonstrators know.
//!
//! They come from the data set. The environment never reveals the gold SQL or the gold answer.

use std::collections::BTreeMap;

use data::{Question, answer_text};

/// Questions with their gold SQL and gold answer, by question id.
#[derive(Clone, Debug, Default)]
pub struct Solutions {
    by_id: BTreeMap<String, Question>,
    answers_by_database: BTreeMap<String, Vec<String>>,
}

impl<'a> FromIterator<&'a Question> for Solutions {
    fn from_iter<I: IntoIterator<Item = &'a Question>>(questions: I) -> Self {
        let by_id = |question: &Question| (question.question_id.clone(), question.clone());
        let by_id: BTreeMap<String, Question> = questions.into_iter().map(by_id).collect();
        let mut answers_by_database: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for question in by_id.values() {
            let database = question.database_name.clone();
            let answers = answers_by_database.entry(database).or_default();
            answers.push(answer_text(question));
        }
        Self {
            by_id,
            answers_by_database,
        }
    }
}

impl Solutions {
    /// Returns a question.
    pub(crate) fn get(&self, question_id: &str) -> Option<&Question> {
        self.by_id.get(question_id)
    }

    /// Returns the gold answers of all questions on a database, in the order of the question ids.
    pub(crate) fn answers_on(&self, database_name: &str) -> &[String] {
        self.answers_by_database
            .get(database_name)
            .map_or(&[], Vec::as_slice)
    }
}
