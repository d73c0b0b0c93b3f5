//! One database of a build with its questions: drawn by levels, kept by rules, split by query.

use std::collections::BTreeSet;
use std::path::Path;

use super::keep::{Kept, keep};
use super::render::{self, Sql};
use super::rows::{self, Rows};
use super::schema::Schema;
use super::stream::Stream;
use super::template::{Binding, Template, bindings};
use super::{Plan, Stock, store};
use crate::manifest::Role;
use crate::sql::{GoldDatabase, normalize};
use crate::{DataError, Question, hash};

/// Per mille of a database's queries at each level.
const LEVEL_SHARES: [usize; 5] = [10, 380, 330, 200, 80];
const EVAL_PERCENT: u64 = 14;
const KNOWN_QUERIES: usize = 480;
const UNSEEN_DATABASE_QUERIES: usize = 40;
const UNSEEN_DOMAIN_QUERIES: usize = 80;
/// A large database answers slowly, so fewer questions are asked about it.
const LARGE_ROWS: u64 = 50_000;
const LARGE_QUERIES: usize = 120;
const FEWEST_WORDINGS: usize = 2;
const MOST_WORDINGS: usize = 3;

/// A finished database.
pub(super) struct Built {
    pub(super) rows: u64,
    pub(super) questions: Vec<Question>,
}

/// A filled template: a query that may be worth asking.
struct Candidate<'a> {
    template: &'a Template,
    binding: Binding,
}

/// Fills a database and its twin, writes the first to `folder/<name>/<name>.sqlite`, and asks about it.
pub(super) fn build_database(
    plan: &Plan<'_>,
    stock: &Stock,
    folder: &Path,
) -> Result<Built, DataError> {
    let renamed = plan.role == Role::UnseenDatabase;
    let schema = Schema::draw(
        plan.domain,
        &mut Stream::new(stock.seed, &["schema", &plan.name]),
        renamed,
    );
    let rows = rows::fill(&schema, &stock.words, &plan.name, stock.seed);
    let path = folder
        .join(&plan.name)
        .join(format!("{}.sqlite", plan.name));
    super::folder::create_folder(&folder.join(&plan.name))?;
    let open = |rows: &Rows| store::in_memory(&schema, rows).map_err(DataError::sqlite(&path));
    let database = open(&rows)?;
    store::write(&database, &path)?;
    let twin = open(&rows::fill(
        &schema,
        &stock.words,
        &format!("{} twin", plan.name),
        stock.seed,
    ))?;
    let row_count = rows.iter().map(|table| table.len() as u64).sum();
    let asker = Asker {
        plan,
        stock,
        schema: &schema,
        rows: &rows,
        database: GoldDatabase::guard(database).map_err(DataError::sqlite(&path))?,
        twin: GoldDatabase::guard(twin).map_err(DataError::sqlite(&path))?,
    };
    Ok(Built {
        rows: row_count,
        questions: asker.questions(query_count(plan.role, row_count)),
    })
}

fn query_count(role: Role, rows: u64) -> usize {
    match role {
        Role::Known if rows >= LARGE_ROWS => LARGE_QUERIES,
        Role::Known => KNOWN_QUERIES,
        Role::UnseenDatabase => UNSEEN_DATABASE_QUERIES,
        Role::UnseenDomain => UNSEEN_DOMAIN_QUERIES,
    }
}

struct Asker<'a> {
    plan: &'a Plan<'a>,
    stock: &'a Stock,
    schema: &'a Schema,
    rows: &'a Rows,
    database: GoldDatabase,
    twin: GoldDatabase,
}

impl Asker<'_> {
    fn questions(&self, queries: usize) -> Vec<Question> {
        let mut seen = BTreeSet::new();
        let mut questions = Vec::new();
        for (level, share) in LEVEL_SHARES.iter().enumerate() {
            let wanted = (queries * share).div_ceil(1000);
            let kept = self
                .candidates(level)
                .into_iter()
                .filter_map(|candidate| self.ask(&candidate, &mut seen));
            questions.extend(kept.take(wanted).flatten());
        }
        number(&mut questions);
        questions
    }

    /// The candidates of a level, taken from its templates in turn, so that no template crowds out the others.
    fn candidates(&self, level: usize) -> Vec<Candidate<'_>> {
        let templates = self
            .stock
            .templates
            .iter()
            .filter(|template| template.level == level);
        let mut queues: Vec<_> = templates
            .map(|template| {
                let mut stream = self.stream(&["bind", &template.name]);
                (
                    template,
                    bindings(template, self.schema, self.rows, &mut stream).into_iter(),
                )
            })
            .collect();
        let mut candidates = Vec::new();
        loop {
            let before = candidates.len();
            for (template, queue) in &mut queues {
                let template: &Template = template;
                candidates.extend(
                    queue
                        .by_ref()
                        .take(template.weight)
                        .map(|binding| Candidate { template, binding }),
                );
            }
            if candidates.len() == before {
                return candidates;
            }
        }
    }

    /// The questions of a candidate, if its query is kept; all of them in one split.
    fn ask(&self, candidate: &Candidate<'_>, seen: &mut BTreeSet<String>) -> Option<Vec<Question>> {
        let Candidate { template, binding } = candidate;
        let sql = render::sql(template, binding, self.schema);
        let normal = normalize(&sql.text);
        if seen.contains(&normal) {
            return None;
        }
        let kept = keep(&sql, template.limit, &self.database, &self.twin)?;
        let wordings = self.wordings(candidate, &normal);
        let split = self.split(&normal);
        seen.insert(normal);
        Some(
            wordings
                .into_iter()
                .map(|text| self.question(text, &sql, &kept, template.level, split))
                .collect(),
        )
    }

    fn wordings(&self, candidate: &Candidate<'_>, normal: &str) -> Vec<String> {
        let mut stream = self.stream(&["words", normal]);
        let mut wordings = render::wordings(candidate.template, &candidate.binding, self.schema);
        stream.shuffle(&mut wordings);
        wordings.truncate(FEWEST_WORDINGS + stream.below(MOST_WORDINGS - FEWEST_WORDINGS + 1));
        wordings
    }

    fn split(&self, normal: &str) -> &'static str {
        match self.plan.role {
            Role::UnseenDatabase => "eval-unseen/database",
            Role::UnseenDomain => "eval-unseen/domain",
            Role::Known if hash::percentile(&["eval", &self.plan.name, normal]) < EVAL_PERCENT => {
                "eval"
            }
            Role::Known => "train",
        }
    }

    fn question(
        &self,
        text: String,
        sql: &Sql,
        kept: &Kept,
        level: usize,
        split: &str,
    ) -> Question {
        Question {
            question_id: String::new(),
            question_text: text,
            database_name: self.plan.name.clone(),
            gold_sql: sql.text.clone(),
            gold_answer: kept.answer.clone(),
            answer_type: kept.answer_type,
            difficulty: format!("level-{level}"),
            tables_involved: kept.tables.clone(),
            split: split.to_owned(),
        }
    }

    fn stream(&self, name: &[&str]) -> Stream {
        Stream::new(
            self.stock.seed,
            &[&[self.plan.name.as_str()], name].concat(),
        )
    }
}

/// Gives each question its id: database, split in short, place among the database's questions of the split.
fn number(questions: &mut [Question]) {
    let mut next = std::collections::BTreeMap::<String, usize>::new();
    for question in questions {
        let short = if question.split.starts_with("eval-unseen") {
            "unseen"
        } else {
            &question.split
        };
        let index = next.entry(short.to_owned()).or_default();
        question.question_id = format!("{}_{short}_{index:04}", question.database_name);
        *index += 1;
    }
}
