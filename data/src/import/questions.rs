//! Makes questions of the records of question files: what is not given is derived from the gold
//! SQL, and what is given must agree with it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::question_fields::{self, QuestionFields};
use super::question_file::FileRecord;
use super::splits::{self, SplitQuery};
use crate::error::Refused;
use crate::gold::{Derived, derive_for_agents, level};
use crate::question::text_of_answer;
use crate::sql::GoldDatabase;
use crate::sql_text::{case_folded_form, query_key};
use crate::{AnswerType, LeftOut, Question};

/// The databases by name.
pub(crate) type OpenDatabases = BTreeMap<String, GoldDatabase>;

/// What became of the records.
#[derive(Debug, Default)]
pub(crate) struct MadeQuestions {
    pub(crate) questions: Vec<Question>,
    pub(crate) left_out: Vec<LeftOut>,
    /// The fields without a use, by file.
    pub(crate) unused_fields: BTreeMap<String, BTreeSet<String>>,
}

/// A record whose gold SQL has an answer.
struct AnsweredRecord {
    file: String,
    index: usize,
    line: Option<u64>,
    database_name: String,
    fields: QuestionFields,
    derived: Derived,
}

/// Makes questions of all records, which are pairs of file and record.
pub(crate) fn make(
    records: Vec<(String, FileRecord)>,
    databases: &OpenDatabases,
    seed: u64,
    held_out: Option<&BTreeSet<String>>,
) -> MadeQuestions {
    let mut made = MadeQuestions::default();
    let mut answered = Vec::new();
    for (file, record) in records {
        let unused = made.unused_fields.entry(file.clone()).or_default();
        let database_name = question_fields::database_name(&record);
        match answer(&file, &record, databases, unused) {
            Ok(record) => answered.push(record),
            Err(refused) => made.left_out.push(LeftOut {
                file,
                index: record.index,
                line: record.line,
                question_id: question_fields::question_id(&record),
                database_name: database_name
                    .or_else(|| only_name(databases).map(str::to_owned))
                    .unwrap_or_default(),
                reason: refused.reason,
                is_wrong: refused.is_wrong,
            }),
        }
    }
    made.unused_fields.retain(|_, fields| !fields.is_empty());
    let queries: Vec<SplitQuery> = answered.iter().map(split_query).collect();
    let splits = splits::assign(&queries, seed, held_out);
    let mut ids = Ids::new(&answered);
    let mut seen = BTreeMap::new();
    let records = answered.into_iter().zip(splits).zip(queries);
    for ((record, split), query) in records {
        let place = format!("{}[{}]", record.file, record.index);
        let key = (
            query.database,
            query.query,
            record.fields.question_text.clone(),
        );
        let taken = match (split, seen.get(&key)) {
            (Err(problem), _) => Err(Refused::wrong(problem)),
            (Ok(_), Some(twin)) => Err(Refused {
                reason: format!("it repeats question and SQL of {twin}"),
                is_wrong: false,
            }),
            (Ok(split), None) => ids.next(&record, split).map(|id| (id, split)),
        };
        match taken {
            Ok((question_id, split)) => {
                seen.insert(key, place);
                made.questions.push(question(record, question_id, split));
            }
            Err(refused) => made.left_out.push(left_out(record, refused)),
        }
    }
    made
}

fn left_out(record: AnsweredRecord, refused: Refused) -> LeftOut {
    LeftOut {
        file: record.file,
        index: record.index,
        line: record.line,
        question_id: record.fields.question_id,
        database_name: record.database_name,
        reason: refused.reason,
        is_wrong: refused.is_wrong,
    }
}

fn split_query(record: &AnsweredRecord) -> SplitQuery {
    SplitQuery {
        database: record.database_name.clone(),
        query: query_key(&record.fields.gold_sql),
        spelling: case_folded_form(&record.fields.gold_sql),
        text: folded_text(&record.fields.question_text),
        given: record.fields.split,
    }
}

/// Returns a question without what its meaning does not depend on: case and white space.
fn folded_text(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

fn only_name(databases: &OpenDatabases) -> Option<&str> {
    let mut names = databases.keys();
    names
        .next()
        .filter(|_| databases.len() == 1)
        .map(String::as_str)
}

/// Runs the gold SQL of a record and compares the result with what the record says.
fn answer(
    file: &str,
    record: &FileRecord,
    databases: &OpenDatabases,
    unused: &mut BTreeSet<String>,
) -> Result<AnsweredRecord, Refused> {
    let fields = question_fields::read(record, unused).map_err(Refused::wrong)?;
    let there_are = || {
        let names: Vec<&str> = databases.keys().map(String::as_str).collect();
        names.join(", ")
    };
    let name = fields
        .database_name
        .as_deref()
        .or_else(|| only_name(databases));
    let name = name.ok_or_else(|| {
        let names = there_are();
        Refused::wrong(format!(
            "the field database_name is missing; write one of {names}"
        ))
    })?;
    // No two databases have names that differ only in case.
    let folded = name.to_lowercase();
    let mut all = databases.iter();
    let found = all.find(|(it, _)| it.to_lowercase() == folded);
    let (name, database) = found.ok_or_else(|| {
        Refused::wrong(format!(
            "there is no database `{name}`; write one of {}, or import it with --database \
             NAME=FILE",
            there_are()
        ))
    })?;
    let mut derived = derive_for_agents(database, &fields.gold_sql)?;
    if let Some(answer_type) = fields.answer_type {
        derived.answer_type =
            compatible(answer_type, derived.answer_type).map_err(Refused::wrong)?;
    }
    if let Some(given) = &fields.gold_answer {
        compare(given, &derived).map_err(Refused::wrong)?;
    }
    if let Some(given) = &fields.tables_involved {
        derived.tables = tables(given, database).map_err(Refused::wrong)?;
    }
    Ok(AnsweredRecord {
        file: file.to_owned(),
        index: record.index,
        line: record.line,
        database_name: name.clone(),
        fields,
        derived,
    })
}

/// A number may be compared as a whole number, within one per cent, or as text. Other types follow
/// from the result.
fn compatible(given: AnswerType, derived: AnswerType) -> Result<AnswerType, String> {
    use AnswerType::{Float, Integer, String};
    let is_compatible = match (given, derived) {
        (Float | String, Integer) | (String, Float) => true,
        (given, derived) => given == derived,
    };
    match is_compatible {
        true => Ok(given),
        false => Err(format!(
            "the field answer_type is {}, but the gold SQL gives {}; correct it, or leave it out",
            given.name(),
            derived.name()
        )),
    }
}

/// Compares a given answer with the result of the gold SQL. Numbers are equal by value, and the
/// elements of a list may have another order. A text may be the answer as it is, or JSON of it, as
/// CSV has lists and tables.
fn compare(given: &Value, derived: &Derived) -> Result<(), String> {
    let as_text = text_of_answer(&derived.answer, derived.answer_type);
    let equals = |given: &Value| sorted(given) == sorted(&derived.answer);
    let is_equal = match given.as_str() {
        Some(text) => {
            text.trim() == as_text.trim()
                || equals(given)
                || serde_json::from_str(text).is_ok_and(|value| equals(&value))
        }
        None => equals(given),
    };
    if is_equal {
        return Ok(());
    }
    Err(format!(
        "the field gold_answer is {given}, but the gold SQL gives {}; correct one of them, or leave \
         the answer out",
        derived.answer
    ))
}

/// Returns a text that is equal for answers of the same elements.
fn sorted(answer: &Value) -> Vec<String> {
    fn text(value: &Value) -> String {
        match value {
            Value::Number(number) => match number.as_i64() {
                Some(whole) => whole.to_string(),
                None => match number.as_f64() {
                    Some(real) if real.fract() == 0.0 && real.abs() < 1e15 => {
                        format!("{}", real as i64)
                    }
                    _ => number.to_string(),
                },
            },
            Value::String(text) => format!("{:?}", text.trim()),
            Value::Array(cells) => cells.iter().map(text).collect::<Vec<_>>().join("|"),
            other => other.to_string(),
        }
    }
    match answer {
        Value::Array(elements) => {
            let mut texts: Vec<String> = elements.iter().map(text).collect();
            texts.sort();
            texts
        }
        scalar => vec![text(scalar)],
    }
}

fn tables(given: &[String], database: &GoldDatabase) -> Result<Vec<String>, String> {
    let declared = |name: &String| {
        database.declared_name(name).ok_or_else(|| {
            format!(
                "the field tables_involved names `{name}`, which the database does not have; \
                 correct it, or leave it out"
            )
        })
    };
    given.iter().map(declared).collect()
}

/// Gives ids to questions: the record's, or `DATABASE_SPLIT_INDEX`.
struct Ids {
    /// The ids that records name, with the record.
    given: BTreeMap<String, (String, usize)>,
    next: BTreeMap<(String, &'static str), usize>,
}

impl Ids {
    fn new(records: &[AnsweredRecord]) -> Self {
        let mut given = BTreeMap::new();
        for record in records {
            if let Some(id) = &record.fields.question_id {
                let place = (record.file.clone(), record.index);
                given.entry(id.clone()).or_insert(place);
            }
        }
        Self {
            given,
            next: BTreeMap::new(),
        }
    }

    fn next(&mut self, record: &AnsweredRecord, split: &'static str) -> Result<String, Refused> {
        if let Some(id) = &record.fields.question_id {
            let (file, index) = &self.given[id];
            return match (file, index) == (&record.file, &record.index) {
                true => Ok(id.clone()),
                false => Err(Refused::wrong(format!(
                    "the field question_id is `{id}`, as in {file}[{index}]; give it another"
                ))),
            };
        }
        let database = &record.database_name;
        let index = self.next.entry((database.clone(), split)).or_default();
        loop {
            let id = format!("{database}_{}_{index:03}", split.replace('/', "-"));
            *index += 1;
            if !self.given.contains_key(&id) {
                return Ok(id);
            }
        }
    }
}

fn question(record: AnsweredRecord, question_id: String, split: &'static str) -> Question {
    let AnsweredRecord {
        fields, derived, ..
    } = record;
    Question {
        question_id,
        question_text: fields.question_text,
        database_name: record.database_name,
        gold_sql: fields.gold_sql,
        gold_answer: derived.answer,
        answer_type: derived.answer_type,
        difficulty: fields
            .difficulty
            .unwrap_or_else(|| level(&derived.tables).to_owned()),
        tables_involved: derived.tables,
        split: split.to_owned(),
    }
}
