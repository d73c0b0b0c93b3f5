//! Solutions of questions, which the oracle and the demonstrators know.
//!
//! They come from the data set. The environment never reveals the gold SQL or the gold answer.

use std::collections::BTreeMap;

use data::Question;

/// How one question is solved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The database's name.
    pub database_name: String,
    /// Tables to describe, in order.
    pub tables: Vec<String>,
    /// The gold SQL.
    pub sql: String,
    /// The gold answer, as a model would write it.
    pub answer: String,
}

impl From<&Question> for Solution {
    fn from(question: &Question) -> Self {
        Self {
            database_name: question.database_name.clone(),
            tables: question.tables_involved.clone(),
            sql: question.gold_sql.clone(),
            answer: data::answer_text(question),
        }
    }
}

/// Solutions by question id.
#[derive(Clone, Debug, Default)]
pub struct Solutions(BTreeMap<String, Solution>);

impl<'a> FromIterator<&'a Question> for Solutions {
    fn from_iter<I: IntoIterator<Item = &'a Question>>(questions: I) -> Self {
        let solved = |question: &Question| (question.question_id.clone(), question.into());
        Self(questions.into_iter().map(solved).collect())
    }
}

impl FromIterator<(String, Solution)> for Solutions {
    fn from_iter<I: IntoIterator<Item = (String, Solution)>>(solutions: I) -> Self {
        Self(solutions.into_iter().collect())
    }
}

impl Solutions {
    /// Returns the solution of a question.
    pub(crate) fn get(&self, question_id: &str) -> Option<&Solution> {
        self.0.get(question_id)
    }

    /// Returns the answers to all questions on a database, in the order of the question ids.
    pub(crate) fn answers_on<'a>(
        &'a self,
        database_name: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let solutions = self.0.values();
        let same = solutions.filter(move |solution| solution.database_name == database_name);
        same.map(|solution| solution.answer.as_str())
    }
}
