//! Draws questions about a described database, and keeps those with one clear answer. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::overlooked::overlooking;
use super::same_answer::is_same_answer;
use super::schema::DescribedDatabase;
use super::splits;
use super::statistics::is_missing;
use crate::generator::binding::{Binding, draw_binding};
use crate::generator::filter::{AcceptedQuery, UNCLEAR, judge};
use crate::generator::questions::{Seen, assign_ids};
use crate::generator::render::{self, RenderedSql};
use crate::generator::rng::RngStream;
use crate::generator::schema::GrammarSchema;
use crate::generator::template::QueryTemplate;
use crate::sql::GoldDatabase;
use crate::sql_text::case_folded_form;
use crate::{AnswerType, Question};

/// The share of each level in the questions of a database, per mille.
const LEVEL_SHARES: [usize; 5] = [15, 255, 290, 270, 170];
/// The largest share of an answer type in a level, per cent. Counts are the easiest to draft.
const TYPE_SHARES: [(AnswerType, usize); 5] = [
    (AnswerType::Integer, 34),
    (AnswerType::Float, 18),
    (AnswerType::String, 40),
    (AnswerType::List, 34),
    (AnswerType::Table, 30),
];
/// The number of draws for each wanted question after which a level has no more.
const DRAWS_PER_QUESTION: usize = 60;
const FEWEST_DRAWS: usize = 300;
/// The number of draws in a row without a new query after which a level has no more.
const MOST_DRAWS_IN_VAIN: usize = 2000;
/// The number of ways to call tables and columns by their synonyms.
const VARIANTS: usize = 4;

/// What questions are drawn from.
pub(super) struct Drafter<'a> {
    pub(super) name: &'a str,
    pub(super) described: &'a DescribedDatabase,
    pub(super) templates: &'a [QueryTemplate],
    pub(super) database: &'a GoldDatabase,
    pub(super) twins: &'a [GoldDatabase],
    pub(super) seed: u64,
}

/// The questions of a database, and how many queries were tried and dropped.
#[derive(Default)]
pub(super) struct DraftedQuestions {
    pub(super) questions: Vec<Question>,
    /// The number of questions by level and answer type.
    pub(super) kept: BTreeMap<(usize, AnswerType), usize>,
    pub(super) drafted: usize,
    pub(super) dropped: BTreeMap<&'static str, usize>,
}

impl Drafter<'_> {
    /// Drafts about `count` questions, or as many as there are. `progress` is called with the
    /// number of questions so far after each query that was tried.
    pub(super) fn draft(&self, count: usize, progress: &mut dyn FnMut(usize)) -> DraftedQuestions {
        let mut drafted = DraftedQuestions::default();
        let mut seen = Seen::default();
        let variants = self.variants();
        for (level, share) in LEVEL_SHARES.iter().enumerate() {
            let wanted = count.saturating_mul(*share).div_ceil(1000);
            let before = drafted.questions.len();
            let mut progress = |kept| progress(before + kept);
            let state = (&mut seen, &mut drafted);
            let kept = self.level(level, wanted, &variants, state, &mut progress);
            for question in &kept {
                *drafted
                    .kept
                    .entry((level, question.answer_type))
                    .or_default() += 1;
            }
            drafted.questions.extend(kept);
        }
        splits::assign(&mut drafted.questions, self.name);
        assign_ids(&mut drafted.questions);
        drafted
    }

    /// Returns the schema under several choices of nouns. The first has none but the first nouns.
    fn variants(&self) -> Vec<GrammarSchema> {
        let described = self.described;
        let pick = |synonyms: &[String], variant: usize| {
            let count = synonyms.len() + 1;
            variant
                .checked_rem(count)?
                .checked_sub(1)
                .map(|it| synonyms[it].clone())
        };
        let variant = |variant: usize| {
            let mut schema = described.schema.clone();
            let nouns: Vec<String> = schema.tables.iter().map(|it| it.one.clone()).collect();
            for (table, own) in schema.tables.iter_mut().zip(&described.tables) {
                if let Some(one) = pick(&own.synonyms, variant) {
                    table.many = render::plural_of_any(&one);
                    table.one = one;
                }
                for (column, own) in table.columns.iter_mut().zip(&own.columns) {
                    if let Some(noun) = pick(&own.synonyms, variant) {
                        column.noun = noun;
                    }
                }
            }
            let ones: Vec<String> = schema.tables.iter().map(|it| it.one.clone()).collect();
            let columns = schema.tables.iter_mut().flat_map(|it| &mut it.columns);
            for column in columns {
                // A column that is called like the rows it refers to follows them.
                if let Some(parent) = column.parent.filter(|it| nouns[*it] == column.noun) {
                    column.noun.clone_from(&ones[parent]);
                }
            }
            schema
        };
        (0..VARIANTS).map(variant).collect()
    }

    fn level(
        &self,
        level: usize,
        wanted: usize,
        variants: &[GrammarSchema],
        (seen, drafted): (&mut Seen, &mut DraftedQuestions),
        progress: &mut dyn FnMut(usize),
    ) -> Vec<Question> {
        let templates: Vec<&QueryTemplate> = self
            .templates
            .iter()
            .filter(|it| it.level == level)
            .collect();
        let weights: Vec<usize> = templates.iter().map(|it| it.weight).collect();
        let mut rng = self.rng(&["draw", &level.to_string()]);
        let (mut kept, mut spare): (Vec<Question>, Vec<Question>) = (Vec::new(), Vec::new());
        let mut counts: BTreeMap<AnswerType, usize> = BTreeMap::new();
        let mut draws_in_vain = 0;
        for _ in 0..(wanted.saturating_mul(DRAWS_PER_QUESTION)).max(FEWEST_DRAWS) {
            if kept.len() >= wanted || draws_in_vain == MOST_DRAWS_IN_VAIN {
                break;
            }
            draws_in_vain += 1;
            let template = templates[rng.weighted(&weights)];
            let schema = &variants[rng.below(variants.len())];
            let binding = draw_binding(template, schema, &self.described.rows, &mut rng);
            let Some(binding) = binding.filter(|it| self.is_faithful(template, it)) else {
                continue;
            };
            let tried = drafted.drafted;
            let question = self.question(template, &binding, schema, seen, drafted);
            if drafted.drafted > tried {
                draws_in_vain = 0;
                progress(kept.len());
            }
            let Some(question) = question else { continue };
            let answer_type = question.answer_type;
            let same = counts.entry(answer_type).or_default();
            match level == 0 || *same < most_of(answer_type, wanted) {
                true => {
                    *same += 1;
                    kept.push(question);
                }
                false => spare.push(question),
            }
        }
        // Rather more of one answer type than too few questions.
        let missing = wanted - kept.len();
        let unused = spare.len().saturating_sub(missing);
        if unused > 0 {
            *drafted
                .dropped
                .entry("enough of its answer type")
                .or_default() += unused;
        }
        kept.extend(spare.into_iter().take(missing));
        kept
    }

    /// Returns the question of a filled template if its query is new and has one clear answer. It
    /// has no id and no split yet.
    fn question(
        &self,
        template: &QueryTemplate,
        binding: &Binding,
        schema: &GrammarSchema,
        seen: &mut Seen,
        drafted: &mut DraftedQuestions,
    ) -> Option<Question> {
        let sql = render::sql(template, binding, schema);
        let normal = case_folded_form(&sql.text);
        if !seen.queries.insert(normal.clone()) {
            return None;
        }
        drafted.drafted += 1;
        let accepted = match self.accepted(template, binding, schema, &sql) {
            Ok(accepted) => accepted,
            Err(why) => {
                *drafted.dropped.entry(why).or_default() += 1;
                return None;
            }
        };
        let mut rng = self.rng(&["words", &normal]);
        let mut wordings = render::wordings(template, binding, schema, &mut rng);
        wordings.retain(|wording| !seen.texts.contains(wording));
        if wordings.is_empty() {
            *drafted
                .dropped
                .entry("asks like another question")
                .or_default() += 1;
            return None;
        }
        let question_text = wordings.swap_remove(rng.below(wordings.len()));
        seen.texts.insert(question_text.clone());
        Some(Question {
            question_id: String::new(),
            question_text,
            database_name: self.name.to_owned(),
            gold_sql: sql.text,
            gold_answer: accepted.answer,
            answer_type: accepted.answer_type,
            difficulty: format!("level-{}", template.level),
            tables_involved: accepted.tables,
            split: String::new(),
        })
    }

    /// Returns the result of the query of a filled template, or why it makes no question.
    fn accepted(
        &self,
        template: &QueryTemplate,
        binding: &Binding,
        schema: &GrammarSchema,
        sql: &RenderedSql,
    ) -> Result<AcceptedQuery, &'static str> {
        let accepted = judge(sql, template.limit, self.database, self.twins)?;
        let accepted = fitting(template, accepted)?;
        let leaves_out_rows = self.leaves_out_rows(template, binding, schema, &accepted);
        if leaves_out_rows || self.has_unread_times(binding) {
            return Err(UNCLEAR);
        }
        match self.needs_all(template, binding, schema, &accepted) {
            true => Ok(accepted),
            false => Err("does not need its condition"),
        }
    }

    /// Whether the answer needs each part that the question states. An agent that overlooks one
    /// must not be right.
    fn needs_all(
        &self,
        template: &QueryTemplate,
        binding: &Binding,
        schema: &GrammarSchema,
        accepted: &AcceptedQuery,
    ) -> bool {
        let mut queries = overlooking(template).into_iter();
        queries.all(|query| {
            let sql = render::sql(&query, binding, schema);
            let other = self.database.run(&sql.text);
            !other.is_ok_and(|other| is_same_answer(&accepted.rows, &other.rows))
        })
    }

    fn rng(&self, name: &[&str]) -> RngStream {
        RngStream::new(self.seed, &[&["draft", self.name], name].concat())
    }
}

/// Refuses an answer that the words do not describe: fewer rows than asked for, or a row that
/// occurs twice.
fn fitting(
    template: &QueryTemplate,
    accepted: AcceptedQuery,
) -> Result<AcceptedQuery, &'static str> {
    let rows = match &accepted.answer {
        Value::Array(rows) => rows.as_slice(),
        answer => std::slice::from_ref(answer),
    };
    let is_short = template.limit.is_some_and(|limit| rows.len() < limit);
    let repeats = accepted.answer_type == AnswerType::Table
        && (1..rows.len()).any(|index| rows[..index].contains(&rows[index]));
    let missing = rows.iter().any(has_missing);
    match is_short || repeats || missing {
        true => Err(UNCLEAR),
        false => Ok(accepted),
    }
}

/// Whether an answer has a text that stands for a missing value.
fn has_missing(answer: &Value) -> bool {
    match answer {
        Value::String(text) => is_missing(text),
        Value::Array(cells) => cells.iter().any(has_missing),
        _ => false,
    }
}

/// Returns the largest number of questions of an answer type among the `wanted` ones of a level.
fn most_of(answer_type: AnswerType, wanted: usize) -> usize {
    let share = TYPE_SHARES.iter().find(|(it, _)| *it == answer_type);
    share.map_or(wanted, |(_, share)| {
        wanted.saturating_mul(*share).div_ceil(100)
    })
}
