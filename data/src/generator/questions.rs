//! Generates one database of a build with its questions: queries are drawn by level, filtered, and
//! assigned to splits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::binding::{Binding, bindings, draw_binding};
use super::domain::{Domain, WordLists};
use super::filter::judge;
use super::procedural::{Lexicon, Size, Tidiness, compose};
use super::render;
use super::rng::RngStream;
use super::rows::{self, DatabaseRows};
use super::schema::GrammarSchema;
use super::store;
use super::template::QueryTemplate;
use crate::manifest::DatabaseRole;
use crate::sql::GoldDatabase;
use crate::sql_text::case_folded_form;
use crate::{DataError, Question, folder, hash, sqlite_file};

/// The share of each level in a database's queries, per mille.
const LEVEL_SHARES: [usize; 5] = [10, 320, 310, 220, 140];
const EVAL_PERCENT: u64 = 14;
/// The share of each level in questions that are trained on, per mille. Most failures are joins,
/// which levels 3 and 4 have.
const TRAINING_LEVEL_SHARES: [usize; 5] = [10, 260, 280, 290, 160];
/// The number of templates after which a drawn question is given up.
const TEMPLATES_PER_QUESTION: usize = 20;
/// The number of ways to fill a template after which another is drawn. Without several, templates
/// that few tables can fill would be rare.
const BINDINGS_PER_TEMPLATE: usize = 6;
const FEWEST_WORDINGS: usize = 2;
const MOST_WORDINGS: usize = 3;

/// A database to generate.
pub(super) struct DatabaseSpec<'a> {
    pub(super) name: String,
    pub(super) schema: SchemaSource<'a>,
    pub(super) role: DatabaseRole,
    pub(super) questions: QuestionPlan,
}

/// Where a database's schema comes from.
#[derive(Clone, Copy)]
pub(super) enum SchemaSource<'a> {
    /// A domain file, with or without its alternative names, and with tables of at most so many
    /// rows.
    Declared {
        domain: &'a Domain,
        renamed: bool,
        most_rows: i64,
    },
    /// Words.
    Procedural {
        lexicon: &'a Lexicon,
        size: Size,
        tidiness: Tidiness,
    },
}

impl SchemaSource<'_> {
    /// Returns the name of the domain.
    pub(super) fn domain_name(&self) -> &str {
        match self {
            Self::Declared { domain, .. } => &domain.name,
            Self::Procedural { .. } => "procedural",
        }
    }
}

/// Which questions a database gets.
#[derive(Clone, Copy)]
pub(super) enum QuestionPlan {
    /// This number of queries, from all that the grammar has for the database, each with several
    /// wordings.
    All { queries: usize },
    /// This number of queries, drawn one by one, each with one wording. Up to the level.
    Drawn { count: usize, highest_level: usize },
}

/// What all databases of a build share.
pub(super) struct GeneratorInputs {
    pub(super) words: WordLists,
    pub(super) templates: Vec<QueryTemplate>,
    pub(super) seed: u64,
}

/// A finished database.
pub(super) struct BuiltDatabase {
    pub(super) rows: u64,
    pub(super) questions: Vec<Question>,
}

/// Generates a database and its twin, writes the first to `folder/<name>/<name>.sqlite`, and
/// generates its questions.
pub(super) fn build_database(
    spec: &DatabaseSpec<'_>,
    inputs: &GeneratorInputs,
    folder: &Path,
) -> Result<BuiltDatabase, DataError> {
    let name = &spec.name;
    let mut rng = RngStream::new(inputs.seed, &["schema", name]);
    let (schema, composed_words);
    let words = match spec.schema {
        SchemaSource::Declared {
            domain,
            renamed,
            most_rows,
        } => {
            let mut drawn = GrammarSchema::draw(domain, &mut rng, renamed);
            for table in &mut drawn.tables {
                table.rows = table.rows.map(|rows| rows.min(most_rows));
            }
            schema = drawn;
            &inputs.words
        }
        SchemaSource::Procedural {
            lexicon,
            size,
            tidiness,
        } => {
            (schema, composed_words) = compose(lexicon, size, tidiness, &mut rng);
            &composed_words
        }
    };
    let folder = folder.join(name);
    folder::create_folder(&folder)?;
    let path = folder.join(format!("{name}.sqlite"));
    let fill = |name: &str| rows::fill(&schema, words, name, inputs.seed);
    let open = |rows| store::in_memory(&schema, rows).map_err(DataError::sqlite(&path));
    let guard = |database| GoldDatabase::guard(database).map_err(DataError::sqlite(&path));
    let rows = fill(name);
    let database = open(&rows)?;
    sqlite_file::write(&database, &path)?;
    let generator = QuestionGenerator {
        spec,
        inputs,
        schema: &schema,
        rows: &rows,
        database: guard(database)?,
        twin: guard(open(&fill(&format!("{name} twin")))?)?,
    };
    let row_count = rows.iter().map(|table| table.len() as u64).sum();
    let questions = match spec.questions {
        QuestionPlan::All { queries } => generator.questions(queries),
        QuestionPlan::Drawn {
            count,
            highest_level,
        } => generator.drawn_questions(count, highest_level),
    };
    Ok(BuiltDatabase {
        rows: row_count,
        questions,
    })
}

/// What a database's questions contain so far.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) queries: BTreeSet<String>,
    pub(crate) texts: BTreeSet<String>,
}

struct QuestionGenerator<'a> {
    spec: &'a DatabaseSpec<'a>,
    inputs: &'a GeneratorInputs,
    schema: &'a GrammarSchema,
    rows: &'a DatabaseRows,
    database: GoldDatabase,
    twin: GoldDatabase,
}

impl QuestionGenerator<'_> {
    fn questions(&self, queries: usize) -> Vec<Question> {
        let mut seen = Seen::default();
        let mut questions = Vec::new();
        for (level, share) in LEVEL_SHARES.iter().enumerate() {
            let wanted = (queries * share).div_ceil(1000);
            let accepted = self
                .candidates(level)
                .into_iter()
                .filter_map(|(template, binding)| self.questions_of(template, &binding, &mut seen));
            questions.extend(accepted.take(wanted).flatten());
        }
        assign_ids(&mut questions);
        questions
    }

    /// Draws `count` questions, or fewer if the draws for some are all refused. Unlike
    /// [`Self::questions`] it does not enumerate all queries, which takes too long for thousands of
    /// databases.
    fn drawn_questions(&self, count: usize, highest_level: usize) -> Vec<Question> {
        let mut rng = self.rng(&["draw"]);
        let mut seen = Seen::default();
        let mut questions = Vec::new();
        let shares = match self.spec.role {
            DatabaseRole::Training => TRAINING_LEVEL_SHARES,
            _ => LEVEL_SHARES,
        };
        for _ in 0..count {
            let level = rng.weighted(&shares[..=highest_level]);
            let templates = self.inputs.templates.iter();
            let templates: Vec<_> = templates.filter(|it| it.level == level).collect();
            let weights: Vec<usize> = templates.iter().map(|it| it.weight).collect();
            let mut draw = || {
                let template = templates[rng.weighted(&weights)];
                (0..BINDINGS_PER_TEMPLATE).find_map(|_| {
                    let binding = draw_binding(template, self.schema, self.rows, &mut rng)?;
                    self.questions_of(template, &binding, &mut seen)?.pop()
                })
            };
            questions.extend((0..TEMPLATES_PER_QUESTION).find_map(|_| draw()));
        }
        assign_ids(&mut questions);
        questions
    }

    /// Returns the filled templates of a level, whose queries may become questions. They are taken
    /// from the templates in turn, so that none displaces the others. The order of the templates is
    /// random: a database with few questions does not always take them from the same templates.
    fn candidates(&self, level: usize) -> Vec<(&QueryTemplate, Binding)> {
        let templates = self.inputs.templates.iter();
        let mut queues: Vec<_> = templates
            .filter(|template| template.level == level)
            .map(|template| {
                let mut rng = self.rng(&["bind", &template.name]);
                let bindings = bindings(template, self.schema, self.rows, &mut rng);
                (template, bindings.into_iter())
            })
            .collect();
        self.rng(&["templates", &level.to_string()])
            .shuffle(&mut queues);
        let mut candidates = Vec::new();
        loop {
            let before = candidates.len();
            for (template, queue) in &mut queues {
                let template: &QueryTemplate = template;
                let taken = queue.by_ref().take(template.weight);
                candidates.extend(taken.map(|binding| (template, binding)));
            }
            if candidates.len() == before {
                return candidates;
            }
        }
    }

    /// Returns the questions of a filled template if its query is new and accepted. All of them
    /// belong to one split.
    fn questions_of(
        &self,
        template: &QueryTemplate,
        binding: &Binding,
        seen: &mut Seen,
    ) -> Option<Vec<Question>> {
        let sql = render::sql(template, binding, self.schema);
        let normal = case_folded_form(&sql.text);
        if seen.queries.contains(&normal) {
            return None;
        }
        let twins = std::slice::from_ref(&self.twin);
        let accepted = judge(&sql, template.limit, &self.database, twins).ok()?;
        let split = self.split(&normal);
        let question = |question_text| Question {
            question_id: String::new(),
            question_text,
            database_name: self.spec.name.clone(),
            gold_sql: sql.text.clone(),
            gold_answer: accepted.answer.clone(),
            answer_type: accepted.answer_type,
            difficulty: format!("level-{}", template.level),
            tables_involved: accepted.tables.clone(),
            split: split.to_owned(),
        };
        let wordings = self.wordings(template, binding, &normal, &seen.texts)?;
        seen.queries.insert(normal);
        seen.texts.extend(wordings.iter().cloned());
        Some(wordings.into_iter().map(question).collect())
    }

    /// Draws wordings that ask for no other query, if there are enough.
    fn wordings(
        &self,
        template: &QueryTemplate,
        binding: &Binding,
        normal: &str,
        taken: &BTreeSet<String>,
    ) -> Option<Vec<String>> {
        let mut rng = self.rng(&["words", normal]);
        let wordings = render::wordings(template, binding, self.schema, &mut rng);
        let wordings: BTreeSet<String> = wordings.into_iter().collect();
        let mut wordings: Vec<String> = wordings.difference(taken).cloned().collect();
        rng.shuffle(&mut wordings);
        wordings.truncate(FEWEST_WORDINGS + rng.below(MOST_WORDINGS - FEWEST_WORDINGS + 1));
        (wordings.len() >= FEWEST_WORDINGS).then_some(wordings)
    }

    fn split(&self, normal: &str) -> &'static str {
        let is_eval = || hash::percentile(&["eval", &self.spec.name, normal]) < EVAL_PERCENT;
        match self.spec.role {
            DatabaseRole::UnseenDatabase => "eval-unseen/database",
            DatabaseRole::UnseenDomain => "eval-unseen/domain",
            DatabaseRole::UnseenWords => "eval-unseen/words",
            DatabaseRole::Training => "train",
            DatabaseRole::Known if is_eval() => "eval",
            DatabaseRole::Known => "train",
        }
    }

    fn rng(&self, name: &[&str]) -> RngStream {
        RngStream::new(self.inputs.seed, &[&[&*self.spec.name], name].concat())
    }
}

/// Gives each question its id: the database, the split in short, and the index among the database's
/// questions of that split.
pub(crate) fn assign_ids(questions: &mut [Question]) {
    let mut next = BTreeMap::<&str, usize>::new();
    for question in questions {
        let short = match question.split.as_str() {
            "train" => "train",
            "eval" => "eval",
            _ => "unseen",
        };
        let index = next.entry(short).or_default();
        question.question_id = format!("{}_{short}_{index:04}", question.database_name);
        *index += 1;
    }
}
