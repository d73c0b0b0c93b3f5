//! The fields of a record, by any of the names that question files use. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::question_file::FileRecord;
use super::splits::{EVAL, TRAIN, UNSEEN};
use crate::AnswerType;
use crate::records::with_evidence;

const MAX_ID_CHARS: usize = 200;
const MAX_LEVEL_CHARS: usize = 64;

/// The names of a field. The first is that of the own layout. Of several in one record, the first
/// counts that has a value.
const QUESTION_TEXT: &[&str] = &["question_text", "question", "utterance"];
/// Spider's records have the query as `query` and its syntax tree as `sql`.
const GOLD_SQL: &[&str] = &["gold_sql", "query", "sql"];
const DATABASE_NAME: &[&str] = &["database_name", "database", "db_id", "db"];
const QUESTION_ID: &[&str] = &["question_id", "id"];
const GOLD_ANSWER: &[&str] = &["gold_answer", "answer"];
const ANSWER_TYPE: &[&str] = &["answer_type"];
const DIFFICULTY: &[&str] = &["difficulty", "level", "hardness"];
const TABLES_INVOLVED: &[&str] = &["tables_involved", "tables"];
const SPLIT: &[&str] = &["split"];
const EVIDENCE: &[&str] = &["evidence", "hint"];

/// What a record says about a question. Only text and SQL are needed.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct QuestionFields {
    pub(crate) question_text: String,
    pub(crate) gold_sql: String,
    pub(crate) database_name: Option<String>,
    pub(crate) question_id: Option<String>,
    pub(crate) gold_answer: Option<Value>,
    pub(crate) answer_type: Option<AnswerType>,
    pub(crate) difficulty: Option<String>,
    pub(crate) tables_involved: Option<Vec<String>>,
    pub(crate) split: Option<&'static str>,
}

/// Reads the fields of a record, and adds the names of those without a use to `unused`.
///
/// # Errors
/// Says which field is missing or wrong, and what to write.
pub(crate) fn read(
    record: &FileRecord,
    unused: &mut BTreeSet<String>,
) -> Result<QuestionFields, String> {
    let mut fields = Fields::new(&record.fields);
    let question = fields
        .text(QUESTION_TEXT)?
        .ok_or_else(|| missing(QUESTION_TEXT))?;
    let gold_sql = fields.text(GOLD_SQL)?.ok_or_else(|| missing(GOLD_SQL))?;
    let evidence = fields.text(EVIDENCE)?.unwrap_or_default();
    let read = QuestionFields {
        question_text: with_evidence(question.trim(), &evidence),
        gold_sql,
        database_name: fields.text(DATABASE_NAME)?,
        question_id: fields.short_text(QUESTION_ID, MAX_ID_CHARS)?,
        gold_answer: fields.find(GOLD_ANSWER).cloned(),
        answer_type: fields.answer_type()?,
        difficulty: fields.short_text(DIFFICULTY, MAX_LEVEL_CHARS)?,
        tables_involved: fields.tables(record.is_csv)?,
        split: fields
            .text(SPLIT)?
            .map(|it| checked_split(&it))
            .transpose()?,
    };
    let names = record.fields.keys();
    unused.extend(names.filter(|it| !fields.used.contains(*it)).cloned());
    Ok(read)
}

/// Returns the database that a record names, even if the rest of the record is wrong.
pub(crate) fn database_name(record: &FileRecord) -> Option<String> {
    Fields::new(&record.fields)
        .text(DATABASE_NAME)
        .ok()
        .flatten()
}

/// Returns the id of a record, even if the rest of the record is wrong.
pub(crate) fn question_id(record: &FileRecord) -> Option<String> {
    let mut fields = Fields::new(&record.fields);
    fields.short_text(QUESTION_ID, MAX_ID_CHARS).ok().flatten()
}

fn missing(names: &[&str]) -> String {
    format!(
        "the field {} is missing or empty; write it (other names of it: {})",
        names[0],
        names[1..].join(", ")
    )
}

/// Returns the split in which a question is written.
fn checked_split(split: &str) -> Result<&'static str, String> {
    match split {
        TRAIN => Ok(TRAIN),
        EVAL => Ok(EVAL),
        "eval-unseen" | UNSEEN => Ok(UNSEEN),
        other => Err(format!(
            "the field split is `{other}`; write train, eval or eval-unseen, or leave it out"
        )),
    }
}

/// The fields of a record, and which of them were used.
struct Fields<'a> {
    fields: &'a Map<String, Value>,
    used: BTreeSet<String>,
}

impl<'a> Fields<'a> {
    fn new(fields: &'a Map<String, Value>) -> Self {
        Self {
            fields,
            used: BTreeSet::new(),
        }
    }

    /// Returns the first field of these names that has a value. Case, blanks and hyphens in names
    /// do not count. Those without a value are used as well: they say that there is none.
    fn find(&mut self, names: &[&str]) -> Option<&'a Value> {
        let is_blank = |value: &Value| {
            value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
        };
        let fields = self.fields;
        for (key, value) in fields {
            if is_blank(value) && names.contains(&plain(key).as_str()) {
                self.used.insert(key.clone());
            }
        }
        let (key, value) = names.iter().find_map(|name| {
            let mut fields = fields.iter();
            fields.find(|(key, value)| plain(key) == *name && !is_blank(value))
        })?;
        self.used.insert(key.clone());
        Some(value)
    }

    fn text(&mut self, names: &[&str]) -> Result<Option<String>, String> {
        match self.find(names) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(format!(
                "the field {} is {}; write text",
                names[0],
                kind_of(other)
            )),
        }
    }

    fn short_text(&mut self, names: &[&str], most: usize) -> Result<Option<String>, String> {
        let text = match self.find(names) {
            // Levels and ids are often numbers.
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => self.text(names)?.map(|text| text.trim().to_owned()),
        };
        match text {
            Some(text) if text.chars().count() > most || text.contains(char::is_control) => {
                Err(format!(
                    "the field {} has more than {most} characters, or one that cannot be printed; \
                     shorten it",
                    names[0]
                ))
            }
            text => Ok(text),
        }
    }

    fn answer_type(&mut self) -> Result<Option<AnswerType>, String> {
        let Some(name) = self.text(ANSWER_TYPE)? else {
            return Ok(None);
        };
        let named = |name: &str| serde_json::from_value(Value::from(name)).ok();
        match named(&name.trim().to_lowercase()) {
            Some(AnswerType::Unknown) | None => Err(format!(
                "the field answer_type is `{name}`; write integer, float, string, list or table, \
                 or leave it out"
            )),
            known => Ok(known),
        }
    }

    fn tables(&mut self, is_csv: bool) -> Result<Option<Vec<String>>, String> {
        let wrong = || {
            "the field tables_involved is no list of names; write one, or leave it out".to_owned()
        };
        let list = |value: &Value| -> Option<Vec<String>> {
            let names = value.as_array()?.iter();
            names.map(|name| name.as_str().map(str::to_owned)).collect()
        };
        match self.find(TABLES_INVOLVED) {
            None => Ok(None),
            Some(Value::String(text)) if is_csv => {
                let parsed: Option<Value> = serde_json::from_str(text).ok();
                let names = || text.split(',').map(|name| name.trim().to_owned()).collect();
                Ok(Some(parsed.as_ref().and_then(list).unwrap_or_else(names)))
            }
            Some(value) => list(value).map(Some).ok_or_else(wrong),
        }
    }
}

fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace([' ', '-'], "_")
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Number(_) => "a number",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
        Value::Bool(_) => "true or false",
        Value::String(_) | Value::Null => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(fields: Value, is_csv: bool) -> (Result<QuestionFields, String>, Vec<String>) {
        let Value::Object(fields) = fields else {
            panic!("an object")
        };
        let record = FileRecord {
            index: 0,
            line: None,
            fields,
            is_csv,
        };
        let mut unused = BTreeSet::new();
        let read = read(&record, &mut unused);
        (read, unused.into_iter().collect())
    }

    #[test]
    fn fields_have_several_names() {
        let spider = json!({"db_id": "d", "query": "SELECT 1", "sql": {"from": []},
            "question": "How many?", "query_toks": ["SELECT"]});
        let (read, unused) = of(spider, false);
        let read = read.unwrap();
        assert_eq!(
            (&*read.gold_sql, read.database_name.as_deref()),
            ("SELECT 1", Some("d"))
        );
        assert_eq!(unused, ["query_toks", "sql"]);
        let bird = json!({"question_id": 3, "db_id": "d", "SQL": "SELECT 1", "question": "How many?",
            "evidence": "Rows count.", "difficulty": "simple"});
        let (read, unused) = of(bird, false);
        let read = read.unwrap();
        assert_eq!(read.question_text, "How many? Hint: Rows count.");
        assert_eq!(
            (read.question_id.as_deref(), read.difficulty.as_deref()),
            (Some("3"), Some("simple"))
        );
        assert!(unused.is_empty());
        let blank = json!({"db_id": "d", "SQL": "SELECT 1", "query": null, "question": "How many?",
            "evidence": " ", "difficulty": "", "notes": ""});
        let (read, unused) = of(blank, false);
        assert_eq!(read.unwrap().question_text, "How many?");
        assert_eq!(unused, ["notes"], "BIRD has records without evidence");
        let csv = json!({"Question": "?", "Gold SQL": "SELECT 1", "Tables-Involved": "a, b",
            "answer": "[1, 2]", "split": "eval-unseen", "Answer_Type": "LIST"});
        let (read, _) = of(csv, true);
        let read = read.unwrap();
        assert_eq!(
            read.tables_involved,
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(read.gold_answer, Some(json!("[1, 2]")));
        assert_eq!(read.answer_type, Some(AnswerType::List));
        assert_eq!(read.split, Some("eval-unseen/database"));
    }

    #[test]
    fn wrong_fields_are_named_with_a_remedy() {
        let good = json!({"question": "?", "sql": "SELECT 1"});
        for (field, value, part) in [
            ("question", json!("  "), "question_text is missing"),
            ("sql", json!(null), "gold_sql is missing"),
            (
                "sql",
                json!({"from": 1}),
                "gold_sql is an object; write text",
            ),
            ("split", json!("dev"), "`dev`; write train, eval"),
            ("answer_type", json!("bool"), "`bool`; write integer"),
            ("tables", json!("a"), "no list of names"),
            ("id", json!("a\nb"), "cannot be printed"),
            ("difficulty", json!(["a"]), "difficulty is a list"),
            ("db_id", json!(3), "database_name is a number"),
        ] {
            let mut fields = good.clone();
            fields[field] = value;
            let problem = of(fields, false).0.unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
