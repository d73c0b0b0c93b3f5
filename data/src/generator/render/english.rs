//! The English side of a filled template.

use super::super::binding::{Binding, Filler, find, table_of};
use super::super::rng::RngStream;
use super::super::schema::{ColumnId, GrammarSchema, Phrasing};
use super::super::template::QueryTemplate;
use super::nouns::{is_plural_only, plural, plural_of_any, with_article};
use super::{drafted, fill, phrases, sql};

/// Nouns of labels that need not be named.
const UNNAMED_LABELS: &[&str] = &["name", "full name", "title"];
/// The percentage of wordings that have their values in quotation marks.
const QUOTED_PERCENT: u32 = 25;

/// Draws the wordings of a filled template for which the domain has the necessary phrases.
pub(crate) fn wordings(
    template: &QueryTemplate,
    binding: &Binding,
    schema: &GrammarSchema,
    rng: &mut RngStream,
) -> Vec<String> {
    let draw = |group: &Vec<String>| {
        let text = &group[rng.below(group.len())];
        let is_quoted = rng.chance(QUOTED_PERCENT);
        fill(text, |letter, attribute| {
            let filler = find(binding, letter);
            let is_linked = text.contains(&format!("{{{letter}.link}}"));
            let mut words = match shared_role(filler, attribute, schema) {
                Some(role) if !is_linked => vec![role],
                _ => words(filler, attribute, schema, is_quoted),
            };
            (!words.is_empty()).then(|| words.swap_remove(rng.below(words.len())))
        })
    };
    let texts = template.wordings.iter().filter_map(draw);
    texts
        .map(|text| agreeing(capitalized(&text), schema.phrasing))
        .collect()
}

/// Returns a text with the verb that a plural needs: "What are the details of the order?"
fn agreeing(text: String, phrasing: Phrasing) -> String {
    let thing = text.strip_prefix("What is the ");
    let is_plural = thing
        .and_then(|thing| thing.split(" of ").next())
        .is_some_and(is_plural_only);
    match is_plural && phrasing == Phrasing::Drafted {
        true => text.replacen("What is the ", "What are the ", 1),
        false => text,
    }
}

/// Returns alternative words for an attribute of a filler, or none if the domain declares none.
fn words(filler: &Filler, attribute: &str, schema: &GrammarSchema, is_quoted: bool) -> Vec<String> {
    let phrasing = schema.phrasing;
    let said = |value| {
        let text = sql::plain(value);
        match phrasing {
            Phrasing::Generated => phrases::value(&text, is_quoted),
            Phrasing::Drafted => quoted_as_needed(&text, is_quoted),
        }
    };
    match (filler, attribute) {
        (Filler::Parent { foreign_key, .. }, "link") => {
            let says = schema.column(*foreign_key).spec.says.as_deref();
            vec![says.unwrap_or("of").to_owned()]
        }
        (Filler::Parent { foreign_key, .. }, "role") => vec![role(*foreign_key, schema)],
        (Filler::Parent { foreign_key, .. }, "role_a") => {
            vec![with_article(&role(*foreign_key, schema))]
        }
        (Filler::Table(_) | Filler::Parent { .. }, _) => {
            let table = &schema.tables[table_of(filler)];
            match attribute {
                "" => vec![table.many.clone()],
                "one" => vec![table.one.clone()],
                "a" => vec![with_article(&table.one)],
                "if_link" if table.is_link() => vec![String::new()],
                "if_plain" if !table.is_link() => vec![String::new()],
                _ => Vec::new(),
            }
        }
        (Filler::Column(id), _) => of_column(*id, attribute, schema),
        // A flag has no value that a person would say.
        (Filler::Value(id, _), "") if schema.column(*id).spec.is_flag() => Vec::new(),
        (Filler::Value(_, value), "") => vec![said(value)],
        (Filler::Value(_, value), "text") => vec![sql::plain(value)],
        (Filler::Value(id, value), "it") => {
            let one = &schema.tables[id.table].one;
            phrases::row(one, schema.column(*id), &said(value), phrasing)
        }
        (Filler::Value(id, value), _) => {
            phrases::of_value(schema.column(*id), &said(value), attribute, phrasing)
        }
        (Filler::Range(id, low, high), _) => {
            let (low, high) = (sql::plain(low), sql::plain(high));
            phrases::of_range(schema.column(*id), &low, &high, attribute, phrasing)
        }
        (Filler::Count(count), "") => of_count(*count),
        (Filler::Count(_), _) => Vec::new(),
    }
}

/// Returns the noun for the parent that a foreign key refers to: "home team" for `home_team_id`.
fn role(foreign_key: ColumnId, schema: &GrammarSchema) -> String {
    let noun = &schema.column(foreign_key).noun;
    noun.strip_suffix(" id").unwrap_or(noun).to_owned()
}

/// Returns the noun of a foreign key ("sender") that shares its parent with another one
/// ("receiver"). Without a phrase that links the two tables, only this noun tells them apart.
fn shared_role(filler: &Filler, attribute: &str, schema: &GrammarSchema) -> Option<String> {
    let Filler::Parent { foreign_key, table } = filler else {
        return None;
    };
    let columns = schema.tables[foreign_key.table].columns.iter();
    let is_shared = columns.filter(|it| it.parent == Some(*table)).count() > 1;
    match attribute {
        "" if is_shared && schema.phrasing == Phrasing::Drafted => {
            Some(plural_of_any(&role(*foreign_key, schema)))
        }
        "" if is_shared => Some(plural(&role(*foreign_key, schema))),
        "one" if is_shared => Some(role(*foreign_key, schema)),
        _ => None,
    }
}

fn of_column(id: ColumnId, attribute: &str, schema: &GrammarSchema) -> Vec<String> {
    let (table, column) = (&schema.tables[id.table], schema.column(id));
    let is_label = column.spec.kind.is_label();
    let is_time = column.spec.kind.is_time();
    let is_drafted = schema.phrasing == Phrasing::Drafted;
    let owned = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    // "Which match" does not ask for the name of a team.
    let is_name = is_label && (!is_drafted || UNNAMED_LABELS.contains(&column.noun.as_str()));
    match attribute {
        "" => vec![column.noun.clone()],
        "a" if is_drafted => vec![drafted::article(&column.noun)],
        "a" => vec![with_article(&column.noun)],
        "many" if is_drafted => vec![drafted::plural(&column.noun)],
        "many" => vec![plural(&column.noun)],
        "beyond" if is_time => owned(&["after"]),
        "beyond" => owned(&["above"]),
        "short_of" if is_time => owned(&["before"]),
        "short_of" => owned(&["below"]),
        "most" => column.spec.most.iter().cloned().collect(),
        "least" => column.spec.least.iter().cloned().collect(),
        "top" | "bottom" if is_drafted && drafted::has_no_end(column) => Vec::new(),
        "top" if is_time => owned(&["latest", "most recent"]),
        "bottom" if is_time => owned(&["earliest"]),
        "top" if is_drafted => owned(&["highest"]),
        "bottom" if is_drafted => owned(&["lowest"]),
        "top" => owned(&["highest", "highest", "largest", "maximum", "greatest"]),
        "bottom" => owned(&["lowest", "lowest", "smallest", "minimum"]),
        "done" | "when" => drafted::moment(column, attribute),
        "with_top" | "with_tops" | "has_top" | "have_top" | "have_tops" | "with_bottom"
        | "with_bottoms" | "has_bottom" | "have_bottoms" => drafted::superlative(column, attribute),
        "which" if is_name => vec![format!("which {}", table.one)],
        "which_many" if is_name => vec![format!("which {}", table.many)],
        _ => Vec::new(),
    }
}

/// Returns a value in quotation marks if it could be read as a part of the sentence: it is no
/// number or date, and no words that begin with a capital.
fn quoted_as_needed(text: &str, is_quoted: bool) -> String {
    let is_date = || text.chars().all(|it| it.is_ascii_digit() || it == '-');
    let is_number = text.parse::<f64>().is_ok() || is_date();
    let is_name = text.starts_with(char::is_uppercase)
        && text
            .chars()
            .all(|it| it.is_alphanumeric() || " -".contains(it));
    match is_number || (is_name && !is_quoted) {
        true => text.to_owned(),
        false if text.contains('\'') => format!("\"{text}\""),
        false => format!("'{text}'"),
    }
}

fn of_count(count: i64) -> Vec<String> {
    let word = match count {
        2 => Some("two"),
        3 => Some("three"),
        4 => Some("four"),
        5 => Some("five"),
        _ => None,
    };
    std::iter::once(count.to_string())
        .chain(word.map(str::to_owned))
        .collect()
}

/// Returns a text with a capital first letter.
pub(crate) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}
