//! From a filled template to SQL and to English.
//!
//! `{c}` stands for what fills slot c, `{c.attribute}` for something about it. In SQL a column is qualified only where
//! another table of the query has a column of that name. A wording that needs a phrase which the domain does not
//! declare is dropped.

use rusqlite::types::Value as Cell;

use super::domain::Holds;
use super::schema::{Column, Schema};
use super::template::{Binding, Filler, Template, find, table_of};
use crate::real_text;

/// The SQL of a filled template.
pub(crate) struct Sql {
    pub(crate) text: String,
    /// The sort keys without the limit: a tie is two equal ones in a row at the limit.
    pub(crate) sort_keys: Option<String>,
}

/// Renders the SQL of a filled template.
pub(crate) fn sql(template: &Template, binding: &Binding, schema: &Schema) -> Sql {
    let render = |text: &String| {
        fill(text, |letter, attribute| {
            Some(sql_slot(binding, letter, attribute, schema))
        })
        .unwrap_or_default()
    };
    let mut body = format!(" FROM {}", render(&template.from));
    let conditions: Vec<String> = template
        .conditions
        .iter()
        .map(render)
        .filter(|text| !text.is_empty())
        .collect();
    if !conditions.is_empty() {
        body.push_str(&format!(" WHERE {}", conditions.join(" AND ")));
    }
    if let Some(group) = &template.group {
        body.push_str(&format!(" GROUP BY {}", render(group)));
    }
    if let Some(having) = &template.having {
        body.push_str(&format!(" HAVING {}", render(having)));
    }
    let key = template.order.as_ref().map(render);
    if let Some(key) = &key {
        body.push_str(&format!(
            " ORDER BY {key}{}",
            if template.descending { " DESC" } else { "" }
        ));
    }
    let mut text = format!("SELECT {}{body}", render(&template.select));
    if let Some(limit) = template.limit {
        text.push_str(&format!(" LIMIT {limit}"));
    }
    if let Some(then) = &template.then {
        text.push_str(&format!(" {}", render(then)));
    }
    Sql {
        text,
        sort_keys: key
            .filter(|_| template.limit.is_some())
            .map(|key| format!("SELECT {key}{body}")),
    }
}

/// Renders the wordings of a filled template that the domain has words for.
pub(crate) fn wordings(template: &Template, binding: &Binding, schema: &Schema) -> Vec<String> {
    let render = |text: &String| {
        fill(text, |letter, attribute| {
            word_slot(binding, letter, attribute, schema)
        })
    };
    template
        .words
        .iter()
        .filter_map(render)
        .map(|text| capitalized(&text))
        .collect()
}

fn fill(text: &str, mut slot: impl FnMut(char, &str) -> Option<String>) -> Option<String> {
    let mut filled = String::with_capacity(2 * text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        let (letter, attribute) = name.split_once('.').unwrap_or((name, ""));
        filled.push_str(before);
        filled.push_str(&slot(letter.chars().next()?, attribute)?);
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

fn sql_slot(binding: &Binding, letter: char, attribute: &str, schema: &Schema) -> String {
    let filler = find(binding, letter);
    match (filler, attribute) {
        (Filler::Table(table) | Filler::Parent { table, .. }, "") => {
            schema.tables[*table].name.clone()
        }
        (Filler::Table(table) | Filler::Parent { table, .. }, "key") => {
            qualified(binding, *table, schema.tables[*table].key[0], schema)
        }
        (Filler::Parent { child, column, .. }, "fk") => qualified(binding, *child, *column, schema),
        (
            Filler::Parent {
                child,
                column,
                table,
            },
            "join",
        ) => join(*child, *column, *table, schema),
        (Filler::Column { table, column }, "") => expression(binding, *table, *column, schema),
        (Filler::Column { table, column }, "raw") => qualified(binding, *table, *column, schema),
        (Filler::Column { table, column }, "known") => {
            match schema.tables[*table].columns[*column].spec.nulls {
                0 => String::new(),
                _ => format!(
                    "{} IS NOT NULL",
                    qualified(binding, *table, *column, schema)
                ),
            }
        }
        (Filler::Value { cell, .. }, "") => literal(cell),
        (Filler::Count(count), "") => count.to_string(),
        _ => panic!("{{{letter}.{attribute}}} has no SQL: this is a bug in the grammar"),
    }
}

fn join(child: usize, column: usize, table: usize, schema: &Schema) -> String {
    let (child, parent) = (&schema.tables[child], &schema.tables[table]);
    let (foreign, key) = (
        &child.columns[column].name,
        &parent.columns[parent.key[0]].name,
    );
    if foreign == key {
        return format!("JOIN {} USING ({key})", parent.name);
    }
    format!(
        "JOIN {0} ON {1}.{foreign} = {0}.{key}",
        parent.name, child.name
    )
}

/// A column as a number where it keeps numbers as text.
fn expression(binding: &Binding, table: usize, column: usize, schema: &Schema) -> String {
    let name = qualified(binding, table, column, schema);
    match schema.tables[table].columns[column].spec.holds {
        Holds::TextInteger(_) => format!("CAST({name} AS INTEGER)"),
        _ => name,
    }
}

fn qualified(binding: &Binding, table: usize, column: usize, schema: &Schema) -> String {
    let name = &schema.tables[table].columns[column].name;
    let has_same = |(_, filler): &(char, Filler)| {
        let other = match filler {
            Filler::Table(other) | Filler::Parent { table: other, .. } => *other,
            _ => return false,
        };
        other != table
            && schema.tables[other]
                .columns
                .iter()
                .any(|column| column.name == *name)
    };
    // USING folds the two key columns into one.
    let is_joined = |(_, filler): &(char, Filler)| {
        let Filler::Parent {
            child,
            column,
            table: parent,
        } = filler
        else {
            return false;
        };
        let key = &schema.tables[*parent].columns[schema.tables[*parent].key[0]].name;
        schema.tables[*child].columns[*column].name == *key
            && key == name
            && (*child == table || *parent == table)
    };
    if binding.iter().any(has_same) && !binding.iter().any(is_joined) {
        format!("{}.{name}", schema.tables[table].name)
    } else {
        name.clone()
    }
}

fn literal(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => format!("'{}'", text.replace('\'', "''")),
        cell => plain(cell),
    }
}

fn plain(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Integer(number) => number.to_string(),
        Cell::Real(number) => real_text(*number),
        other => panic!("{other:?} cannot be asked about: this is a bug"),
    }
}

fn word_slot(binding: &Binding, letter: char, attribute: &str, schema: &Schema) -> Option<String> {
    let filler = find(binding, letter);
    let column = |table: usize, column: usize| &schema.tables[table].columns[column];
    match (filler, attribute) {
        (
            Filler::Parent {
                child,
                column: edge,
                ..
            },
            "link",
        ) => Some(
            column(*child, *edge)
                .spec
                .says
                .clone()
                .unwrap_or_else(|| "of".to_owned()),
        ),
        (Filler::Table(_) | Filler::Parent { .. }, _) => {
            let table = &schema.tables[table_of(filler)];
            match attribute {
                "" => Some(table.name.replace('_', " ")),
                "one" => Some(table.one.clone()),
                "a" => Some(with_article(&table.one)),
                _ => None,
            }
        }
        (
            Filler::Column {
                table,
                column: index,
            },
            _,
        ) => {
            let column = column(*table, *index);
            match attribute {
                "" => Some(column.noun.clone()),
                "a" => Some(with_article(&column.noun)),
                "many" => Some(plural(&column.noun)),
                "most" => column.spec.most.clone(),
                "least" => column.spec.least.clone(),
                _ => None,
            }
        }
        (
            Filler::Value {
                table,
                column: index,
                cell,
            },
            _,
        ) => value_phrase(column(*table, *index), &plain(cell), attribute),
        (Filler::Count(count), "") => Some(count.to_string()),
        (Filler::Count(_), _) => None,
    }
}

fn value_phrase(column: &Column, value: &str, attribute: &str) -> Option<String> {
    let noun = &column.noun;
    let phrase = |declared: &Option<String>, default: String| {
        Some(
            declared
                .as_ref()
                .map_or(default, |phrase| phrase.replace("{}", value)),
        )
    };
    match attribute {
        "" => Some(value.to_owned()),
        "says" => phrase(&column.spec.says, format!("with {noun} {value}")),
        "above" => phrase(
            &column.spec.above,
            format!("with {} above {value}", with_article(noun)),
        ),
        "below" => phrase(
            &column.spec.below,
            format!("with {} below {value}", with_article(noun)),
        ),
        _ => None,
    }
}

fn with_article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {noun}")
}

/// The plural of a noun; of "type of room" that of its head.
fn plural(noun: &str) -> String {
    if let Some((head, tail)) = noun.split_once(" of ") {
        return format!("{} of {tail}", plural(head));
    }
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ if noun.ends_with(['s', 'x', 'z']) || noun.ends_with("ch") || noun.ends_with("sh") => {
            format!("{noun}es")
        }
        _ => format!("{noun}s"),
    }
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::template::{bindings, templates};
    use super::super::{domain, rows, stream::Stream};
    use super::*;

    const DOMAIN: &str = r#"
        name = "kennel"
        [[tables]]
        name = "owners"
        one = "owner"
        rows = [6, 6]
        columns = [
          { name = "name", label = ["names"] },
          { name = "city", one_of = ["Rome", "O'Hara"], says = "from {}" },
        ]
        [[tables]]
        name = "dogs"
        one = "dog"
        rows = [12, 12]
        columns = [
          { name = "name", label = ["names", "marks"] },
          { name = "owner_id", parent = "owners" },
          { name = "vet_id", parent = "owners", says = "seen by" },
          { name = "weight", text_integer = [1, 60], nulls = 50, most = "heaviest" },
          { name = "age", integer = [1, 15], above = "older than {}" },
          { name = "color", one_of = ["red"] },
        ]
    "#;

    /// The SQL and the wordings of every filling of a template, sorted.
    fn rendered(name: &str) -> Vec<(String, Vec<String>)> {
        let domain: domain::Domain = toml::from_str(DOMAIN).unwrap();
        let list = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let words = domain::Words::from([
            (
                "names".to_owned(),
                list(&["Ann", "Bo", "Cy", "Di", "Ed", "Flo"]),
            ),
            ("marks".to_owned(), list(&["One", "Two"])),
        ]);
        let schema = Schema::draw(&domain, &mut Stream::new(1, &["schema"]), false);
        let rows = rows::fill(&schema, &words, "kennel", 1);
        let templates = templates();
        let template = templates
            .iter()
            .find(|template| template.name == name)
            .unwrap();
        let bindings = bindings(template, &schema, &rows, &mut Stream::new(1, &["bind"]));
        let mut rendered: Vec<_> = bindings
            .iter()
            .map(|binding| {
                (
                    sql(template, binding, &schema).text,
                    wordings(template, binding, &schema),
                )
            })
            .collect();
        rendered.sort();
        rendered
    }

    fn assert_renders(template: &str, sql: &str, wordings: &[&str]) {
        let rendered = rendered(template);
        let found = rendered.iter().find(|(found, _)| found == sql);
        let found = found.unwrap_or_else(|| panic!("{sql} is not among {rendered:#?}"));
        for wording in wordings {
            assert!(
                found.1.iter().any(|found| found == wording),
                "{wording} is not among {:#?}",
                found.1
            );
        }
    }

    #[test]
    fn literals_are_quoted_in_sql_and_plain_in_english() {
        assert_renders(
            "count-where",
            "SELECT count(*) FROM owners WHERE city = 'O''Hara'",
            &[
                "How many owners from O'Hara are there?",
                "What is the number of owners whose city is O'Hara?",
            ],
        );
        assert_renders(
            "count-where",
            "SELECT count(*) FROM dogs WHERE color = 'red'",
            &[
                "Count the dogs with color red.",
                "How many dogs have the color red?",
            ],
        );
    }

    #[test]
    fn numbers_kept_as_text_are_cast_and_unknown_ones_skipped() {
        assert_renders(
            "label-of-lowest",
            "SELECT name FROM dogs WHERE weight IS NOT NULL ORDER BY CAST(weight AS INTEGER) LIMIT 1",
            &["Which dog has the lowest weight?"],
        );
        assert_renders(
            "label-of-lowest",
            "SELECT name FROM dogs ORDER BY age LIMIT 1",
            &["Name the dog with the smallest age."],
        );
    }

    #[test]
    fn a_wording_without_its_phrase_is_dropped() {
        let phrase = "What is the name of the heaviest dog?";
        assert_renders(
            "label-of-highest",
            "SELECT name FROM dogs ORDER BY CAST(weight AS INTEGER) DESC LIMIT 1",
            &[phrase],
        );
        let all = rendered("label-of-highest");
        let age = all
            .iter()
            .find(|(sql, _)| sql.contains("ORDER BY age"))
            .unwrap();
        assert_eq!(age.1.len(), 3, "no word for the highest age: {:?}", age.1);
        assert_renders(
            "average",
            "SELECT avg(age) FROM dogs",
            &["On average, what is the age of a dog?"],
        );
        assert_renders(
            "above-average",
            "SELECT count(*) FROM dogs WHERE age > (SELECT avg(age) FROM dogs)",
            &["How many dogs have an age above the average?"],
        );
    }

    #[test]
    fn joins_use_the_shared_name_and_qualify_only_what_is_ambiguous() {
        assert_renders(
            "parent-of-highest",
            "SELECT owners.name FROM dogs JOIN owners USING (owner_id) ORDER BY age DESC LIMIT 1",
            &["Which owner has the dog with the highest age?"],
        );
        assert_renders(
            "count-by-parent-category",
            "SELECT count(*) FROM dogs JOIN owners ON dogs.vet_id = owners.owner_id WHERE city = 'Rome'",
            &["How many dogs seen by owners from Rome are there?"],
        );
        assert_renders(
            "without-children",
            "SELECT count(*) FROM owners WHERE owner_id NOT IN (SELECT owner_id FROM dogs)",
            &["How many owners have no dogs?"],
        );
    }

    #[test]
    fn ties_are_sought_in_the_sort_key_without_the_limit() {
        let domain: domain::Domain = toml::from_str(DOMAIN).unwrap();
        let schema = Schema::draw(&domain, &mut Stream::new(1, &["schema"]), false);
        let rows = vec![Vec::new(); schema.tables.len()];
        let templates = templates();
        let template = templates
            .iter()
            .find(|template| template.name == "top-group")
            .unwrap();
        let binding = bindings(template, &schema, &rows, &mut Stream::new(1, &["bind"])).remove(0);
        let keys = sql(template, &binding, &schema).sort_keys.unwrap();
        assert!(
            keys.starts_with("SELECT count(*) FROM ") && keys.ends_with(" ORDER BY count(*) DESC"),
            "{keys}"
        );
    }

    #[test]
    fn plurals_follow_the_head_of_a_noun() {
        let cases = [
            ("city", "cities"),
            ("day", "days"),
            ("class", "classes"),
            ("type of room", "types of room"),
            ("price", "prices"),
        ];
        for (noun, expected) in cases {
            assert_eq!(plural(noun), expected);
        }
    }
}
