//! Renders a filled template as SQL and as English. Pure.
//!
//! `{c}` stands for what fills slot c, and `{c.attribute}` for a property of it. SQL qualifies a
//! column only if another table of the query has a column of the same name. A wording that needs a
//! phrase which the domain does not declare is dropped.

mod drafted;
mod english;
mod nouns;
mod phrases;
mod sql;

pub(crate) use drafted::UNITS;
pub(crate) use english::{capitalized, wordings};
pub(crate) use nouns::{irregular_singular, is_plural_only, plural, plural_of_any, with_article};
pub(crate) use sql::{RenderedSql, plain, sql};

/// Replaces the slots of a text by what `slot` returns for a letter and an attribute.
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

#[cfg(test)]
mod tests {
    use super::super::binding::bindings;
    use super::super::rng::RngStream;
    use super::super::schema::GrammarSchema;
    use super::super::template::templates;
    use super::super::{domain, rows};
    use super::*;
    use std::collections::BTreeSet;

    /// Enough to draw every alternative.
    const DRAWS: u64 = 400;

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
          { name = "vet_id", noun = "vet", parent = "owners", says = "seen by" },
          { name = "weight", text_integer = [1, 60], nulls = 50, most = "heaviest" },
          { name = "age", integer = [1, 15], above = "older than {}" },
          { name = "color", one_of = ["red"] },
        ]
    "#;

    /// The SQL and many draws of the wordings of every filling of a template, sorted.
    fn rendered(name: &str) -> Vec<(String, Vec<String>)> {
        let domain: domain::Domain = toml::from_str(DOMAIN).unwrap();
        let list = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let words = domain::WordLists::from([
            (
                "names".to_owned(),
                list(&["Ann", "Bo", "Cy", "Di", "Ed", "Flo"]),
            ),
            ("marks".to_owned(), list(&["One", "Two"])),
        ]);
        let schema = GrammarSchema::draw(&domain, &mut RngStream::new(1, &["schema"]), false);
        let rows = rows::fill(&schema, &words, "kennel", 1);
        let templates = templates();
        let template = templates
            .iter()
            .find(|template| template.name == name)
            .unwrap();
        let bindings = bindings(template, &schema, &rows, &mut RngStream::new(1, &["bind"]));
        let mut rendered: Vec<_> = bindings
            .iter()
            .map(|binding| {
                let draw = |seed| {
                    let mut rng = RngStream::new(seed, &["words"]);
                    wordings(template, binding, &schema, &mut rng)
                };
                let drawn: BTreeSet<String> = (0..DRAWS).flat_map(draw).collect();
                let drawn = drawn.into_iter().collect();
                (sql(template, binding, &schema).text, drawn)
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
                "How many owners are from O'Hara?",
                "What is the number of owners whose city is O'Hara?",
            ],
        );
        assert_renders(
            "count-where",
            "SELECT count(*) FROM dogs WHERE color = 'red'",
            &[
                "Count the dogs with the color 'red'.",
                "How many dogs have the color red?",
            ],
        );
    }

    #[test]
    fn numbers_kept_as_text_are_cast_and_unknown_ones_skipped() {
        assert_renders(
            "name-of-lowest",
            "SELECT name FROM dogs WHERE weight IS NOT NULL ORDER BY CAST(weight AS INTEGER) LIMIT 1",
            &["Which dog has the lowest weight?"],
        );
        assert_renders(
            "name-of-lowest",
            "SELECT name FROM dogs WHERE age IS NOT NULL ORDER BY age LIMIT 1",
            &["Find the name of the dog with the smallest age."],
        );
    }

    #[test]
    fn a_wording_without_its_phrase_is_dropped() {
        let phrase = "What is the name of the heaviest dog?";
        assert_renders(
            "name-of-highest",
            "SELECT name FROM dogs ORDER BY CAST(weight AS INTEGER) DESC LIMIT 1",
            &[phrase],
        );
        let all = rendered("name-of-highest");
        let age = all
            .iter()
            .find(|(sql, _)| sql.contains("ORDER BY age"))
            .unwrap();
        let has_noun = |wording: &String| wording.contains(" age");
        assert!(
            age.1.iter().all(has_noun),
            "no word for the highest age: {:?}",
            age.1
        );
        assert_renders(
            "average",
            "SELECT avg(age) FROM dogs",
            &["On average, what is the age of a dog?"],
        );
        assert_renders(
            "count-above-average",
            "SELECT count(*) FROM dogs WHERE age > (SELECT avg(age) FROM dogs)",
            &["How many dogs have an age above the average?"],
        );
    }

    #[test]
    fn joins_use_the_shared_name_and_qualify_only_what_is_ambiguous() {
        assert_renders(
            "parent-of-highest",
            "SELECT owners.name FROM dogs JOIN owners USING (owner_id) ORDER BY age DESC LIMIT 1",
            &["What is the name of the owner of the dog with the highest age?"],
        );
        assert_renders(
            "count-by-parent-category",
            "SELECT count(*) FROM dogs JOIN owners ON dogs.vet_id = owners.owner_id WHERE city = 'Rome'",
            &[
                "How many dogs seen by owners from Rome are there?",
                "For how many dogs is the vet's city Rome?",
            ],
        );
        assert_renders(
            "count-without-children",
            "SELECT count(*) FROM owners WHERE owner_id NOT IN (SELECT owner_id FROM dogs)",
            &["How many owners have no dogs?"],
        );
    }

    /// Dogs have a town and an owner, who has a town as well.
    const DIAMOND: &str = r#"
        name = "diamond"
        [[tables]]
        name = "towns"
        one = "town"
        rows = [2, 2]
        columns = [{ name = "name", label = ["names"] }]
        [[tables]]
        name = "owners"
        one = "owner"
        rows = [2, 2]
        columns = [{ name = "town_id", parent = "towns" }]
        [[tables]]
        name = "dogs"
        one = "dog"
        rows = [3, 3]
        columns = [
          { name = "owner_id", parent = "owners" },
          { name = "town_id", parent = "towns" },
        ]
    "#;

    /// Both dogs of Rome have owners in Oslo.
    const DIAMOND_ROWS: &str = "
        CREATE TABLE towns (town_id INTEGER, name TEXT);
        CREATE TABLE owners (owner_id INTEGER, town_id INTEGER);
        CREATE TABLE dogs (dog_id INTEGER, owner_id INTEGER, town_id INTEGER);
        INSERT INTO towns VALUES (1, 'Rome'), (2, 'Oslo');
        INSERT INTO owners VALUES (1, 2), (2, 1);
        INSERT INTO dogs VALUES (1, 1, 1), (2, 1, 1), (3, 2, 2);";

    #[test]
    fn a_join_compares_the_key_of_the_parent_that_the_question_names() {
        let domain: domain::Domain = toml::from_str(DIAMOND).unwrap();
        let mut schema = GrammarSchema::draw(&domain, &mut RngStream::new(1, &["schema"]), false);
        let rows = vec![Vec::new(); schema.tables.len()];
        let templates = templates();
        let find = |name: &str| templates.iter().find(|it| it.name == name).unwrap();
        let all = |name: &str, schema: &GrammarSchema| -> Vec<String> {
            let mut rng = RngStream::new(1, &["bind"]);
            let bindings = bindings(find(name), schema, &rows, &mut rng);
            let texts = bindings.iter().map(|it| sql(find(name), it, schema).text);
            texts.collect()
        };
        let two_hops = |join: &str| {
            format!(
                "SELECT name FROM dogs JOIN owners USING (owner_id) JOIN towns {join} \
                 GROUP BY name ORDER BY count(*) DESC LIMIT 1"
            )
        };
        let on = two_hops("ON owners.town_id = towns.town_id");
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(DIAMOND_ROWS).unwrap();
        let found = all("two-hops-top", &schema);
        let run = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0));
        assert_eq!(run(&found[0]).unwrap(), "Oslo", "{found:?}");
        assert_eq!(found, [on.as_str()]);
        // SQLite folds the case of names.
        schema.tables[2].columns[2].name = "Town_ID".to_owned();
        assert_eq!(all("two-hops-top", &schema), [on]);
        schema.tables[2].columns.remove(2);
        let using = two_hops("USING (town_id)");
        assert_eq!(all("two-hops-top", &schema), [using], "no dog has a town");
    }

    #[test]
    fn parts_ranges_and_alternatives_are_rendered() {
        assert_renders(
            "count-containing",
            "SELECT count(*) FROM owners WHERE name LIKE '%Ann%'",
            &["How many owners have Ann in their name?"],
        );
        assert_renders(
            "count-starting",
            "SELECT count(*) FROM owners WHERE name LIKE 'F%'",
            &["What is the number of owners whose name starts with the letter F?"],
        );
        for (_, wordings) in rendered("count-between") {
            assert!(
                wordings.iter().all(|wording| wording.contains(" between ")),
                "{wordings:?}"
            );
        }
        let either: Vec<_> = rendered("count-either")
            .into_iter()
            .filter(|(sql, _)| sql.contains("FROM owners"))
            .collect();
        assert_eq!(
            either.len(),
            1,
            "the two values stand in one order only: {either:#?}"
        );
    }

    #[test]
    fn a_row_without_a_label_is_named_by_its_key() {
        assert_renders(
            "lookup-by-id",
            "SELECT name FROM owners WHERE owner_id = 3",
            &["What is the name of the owner with the id 3?"],
        );
    }

    #[test]
    fn ties_are_sought_in_the_sort_key_without_the_limit() {
        let domain: domain::Domain = toml::from_str(DOMAIN).unwrap();
        let schema = GrammarSchema::draw(&domain, &mut RngStream::new(1, &["schema"]), false);
        let rows = vec![Vec::new(); schema.tables.len()];
        let templates = templates();
        let template = templates
            .iter()
            .find(|template| template.name == "top-group")
            .unwrap();
        let binding =
            bindings(template, &schema, &rows, &mut RngStream::new(1, &["bind"])).remove(0);
        let keys = sql(template, &binding, &schema).sort_keys.unwrap();
        assert!(
            keys.starts_with("SELECT count(*) FROM ") && keys.ends_with(" ORDER BY count(*) DESC"),
            "{keys}"
        );
    }
}
