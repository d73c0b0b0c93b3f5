//! The English side of a filled template.

use super::super::binding::{Binding, Filler, find, table_of};
use super::super::schema::{GeneratedColumn, GeneratedSchema};
use super::super::template::QueryTemplate;
use super::{fill, sql};

/// Renders the wordings of a filled template for which the domain has the necessary phrases.
pub(crate) fn wordings(
    template: &QueryTemplate,
    binding: &Binding,
    schema: &GeneratedSchema,
) -> Vec<String> {
    let render = |text: &String| {
        let linked = |letter| text.contains(&format!("{{{letter}.link}}"));
        fill(text, |letter, attribute| {
            let filler = find(binding, letter);
            role(filler, attribute, schema)
                .filter(|_| !linked(letter))
                .or_else(|| words(filler, attribute, schema))
        })
    };
    let texts = template.words.iter().filter_map(render);
    texts.map(|text| capitalized(&text)).collect()
}

/// Returns the words for an attribute of a filler, if the domain declares them.
fn words(filler: &Filler, attribute: &str, schema: &GeneratedSchema) -> Option<String> {
    match (filler, attribute) {
        (Filler::Parent { foreign_key, .. }, "link") => {
            let says = schema.column(*foreign_key).spec.says.as_deref();
            Some(says.unwrap_or("of").to_owned())
        }
        (Filler::Table(_) | Filler::Parent { .. }, _) => {
            let table = &schema.tables[table_of(filler)];
            match attribute {
                "" => Some(table.many.clone()),
                "one" => Some(table.one.clone()),
                "a" => Some(with_article(&table.one)),
                _ => None,
            }
        }
        (Filler::Column(id), _) => {
            let column = schema.column(*id);
            match attribute {
                "" => Some(column.noun.clone()),
                "a" => Some(with_article(&column.noun)),
                "many" => Some(plural(&column.noun)),
                "most" => column.spec.most.clone(),
                "least" => column.spec.least.clone(),
                _ => None,
            }
        }
        (Filler::Value(id, value), _) => {
            value_phrase(schema.column(*id), &sql::plain(value), attribute)
        }
        (Filler::Count(count), "") => Some(count.to_string()),
        (Filler::Count(_), _) => None,
    }
}

/// Returns the noun of a foreign key ("sender") that shares its parent with another one
/// ("receiver"). Without a phrase that links the two tables, only this noun tells them apart.
fn role(filler: &Filler, attribute: &str, schema: &GeneratedSchema) -> Option<String> {
    let Filler::Parent { foreign_key, table } = filler else {
        return None;
    };
    let columns = schema.tables[foreign_key.table].columns.iter();
    let shared = columns.filter(|it| it.parent == Some(*table)).count() > 1;
    let noun = &schema.column(*foreign_key).noun;
    match attribute {
        "" if shared => Some(plural(noun)),
        "one" if shared => Some(noun.clone()),
        _ => None,
    }
}

fn value_phrase(column: &GeneratedColumn, value: &str, attribute: &str) -> Option<String> {
    let noun = &column.noun;
    let (declared, default) = match attribute {
        "" => return Some(value.to_owned()),
        "says" => (&column.spec.says, format!("with {noun} {{}}")),
        "above" => (
            &column.spec.above,
            format!("with {} above {{}}", with_article(noun)),
        ),
        "below" => (
            &column.spec.below,
            format!("with {} below {{}}", with_article(noun)),
        ),
        _ => return None,
    };
    Some(declared.as_ref().unwrap_or(&default).replace("{}", value))
}

/// Returns a noun with its indefinite article.
pub(crate) fn with_article(noun: &str) -> String {
    match noun.starts_with(['a', 'e', 'i', 'o']) {
        true => format!("an {noun}"),
        false => format!("a {noun}"),
    }
}

/// Returns the plural of a noun. "type of room" becomes "types of room".
pub(crate) fn plural(noun: &str) -> String {
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
    use super::*;

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
