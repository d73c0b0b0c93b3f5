//! The queries of an agent that overlooks something that a question states. Pure.

use crate::generator::template::QueryTemplate;

/// Returns a template for each part of a question that may be overlooked: all conditions, one of
/// them, one side of an `OR`, the condition of a nested query, HAVING, and each half of a set
/// operation. An answer that is right without a part does not show that the part was understood.
pub(super) fn overlooking(template: &QueryTemplate) -> Vec<QueryTemplate> {
    let mut queries: Vec<QueryTemplate> = fewer_conditions(&template.conditions)
        .into_iter()
        .map(|conditions| {
            let mut query = template.clone();
            query.conditions = conditions;
            query
        })
        .collect();
    if template.having.is_some() {
        let mut query = template.clone();
        query.having = None;
        queries.push(query);
    }
    queries.extend(halves(template));
    queries
}

/// Returns the lists of conditions without all, without each, and with a part of each condition
/// that is stated. That a value is known is not stated.
fn fewer_conditions(conditions: &[String]) -> Vec<Vec<String>> {
    let is_unstated = |condition: &String| condition.contains(".known}");
    let unstated = conditions.iter().filter(|it| is_unstated(it)).cloned();
    let mut fewer: Vec<Vec<String>> = vec![unstated.collect()];
    for (index, condition) in conditions.iter().enumerate() {
        if is_unstated(condition) {
            continue;
        }
        // A nested query repeats a condition that the question states once.
        let repeated = format!(" WHERE {condition}");
        let others = conditions.iter().map(|it| it.replace(&repeated, ""));
        let mut others: Vec<String> = others.collect();
        others.remove(index);
        fewer.push(others);
        for part in parts(condition) {
            let mut changed = conditions.to_vec();
            changed[index] = part;
            fewer.push(changed);
        }
    }
    fewer.dedup();
    fewer.retain(|it| it != conditions);
    fewer
}

/// Returns each side of an `OR`, and what is left of a condition if that of its nested query is
/// overlooked. Only for a set of rows the nested query has a meaning without one.
fn parts(condition: &str) -> Vec<String> {
    let sides = condition.split_once(" OR ");
    let mut parts: Vec<String> = sides.map_or_else(Vec::new, |(one, other)| {
        vec![one.to_owned(), other.to_owned()]
    });
    if let Some((set, _)) = condition.split_once(" WHERE ")
        && set.contains(" IN (")
    {
        parts.push(format!("{set})"));
    }
    parts
}

/// Returns both halves of a set operation as queries of their own, and the operation without the
/// condition of its second half.
fn halves(template: &QueryTemplate) -> Vec<QueryTemplate> {
    let then = template.then.as_deref().unwrap_or_default();
    let second = then.split_once("SELECT ").map(|(_, query)| query);
    let Some((select, from)) = second.and_then(|query| query.split_once(" FROM ")) else {
        return Vec::new();
    };
    // A set operation returns each row once.
    let mut first = template.clone();
    first.select = format!("DISTINCT {}", template.select);
    first.then = None;
    let mut second = first.clone();
    second.select = format!("DISTINCT {select}");
    second.from = from.to_owned();
    second.conditions.clear();
    let mut halves = vec![first, second];
    if let Some((then, _)) = then.split_once(" WHERE ") {
        let mut query = template.clone();
        query.then = Some(then.to_owned());
        halves.push(query);
    }
    halves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::template::templates;

    /// Returns what is asked without each part: `select; from; conditions; having; then`.
    fn overlooked(name: &str) -> Vec<String> {
        let templates = templates();
        let template = templates.iter().find(|it| it.name == name).unwrap();
        let text = |query: QueryTemplate| {
            let conditions = query.conditions.join(" AND ");
            let having = query.having.unwrap_or_default();
            let then = query.then.unwrap_or_default();
            format!(
                "{}; {}; {conditions}; {having}; {then}",
                query.select, query.from
            )
        };
        overlooking(template).into_iter().map(text).collect()
    }

    #[test]
    fn each_condition_is_overlooked_once() {
        assert_eq!(overlooked("count"), [""; 0]);
        assert_eq!(overlooked("name-of-lowest"), [""; 0], "not stated");
        assert_eq!(overlooked("count-where"), ["count(*); {t}; ; ; "]);
        assert_eq!(
            overlooked("count-two"),
            [
                "count(*); {t}; ; ; ",
                "count(*); {t}; {d} = {w}; ; ",
                "count(*); {t}; {c} = {v}; ; ",
            ]
        );
        assert_eq!(
            overlooked("name-of-lowest-where"),
            ["{l}; {t}; {n.known}; ; "]
        );
        assert_eq!(
            overlooked("equal-highest-where"),
            [
                "{l}; {t}; ; ; ",
                "{l}; {t}; {n} = (SELECT max({n}) FROM {t}); ; ",
                "{l}; {t}; {c} = {v}; ; ",
            ]
        );
        assert_eq!(
            overlooked("count-either"),
            [
                "count(*); {t}; ; ; ",
                "count(*); {t}; {c} = {v}; ; ",
                "count(*); {t}; {c} = {w}; ; ",
            ]
        );
        assert_eq!(
            overlooked("without-such-children"),
            [
                "{l}; {p}; ; ; ",
                "{l}; {p}; {p.key} NOT IN (SELECT {p.fk} FROM {t}); ; ",
            ]
        );
    }

    #[test]
    fn having_and_each_half_are_overlooked() {
        assert_eq!(
            overlooked("groups-with-more-where"),
            ["{c}; {t}; ; count(*) >= {m}; ", "{c}; {t}; {n} > {k}; ; ",]
        );
        let other = "SELECT {c} FROM {t} WHERE {n} < {j}";
        assert_eq!(
            overlooked("both-sides"),
            [
                format!("{{c}}; {{t}}; ; ; INTERSECT {other}"),
                "DISTINCT {c}; {t}; {n} > {k}; ; ".to_owned(),
                "DISTINCT {c}; {t} WHERE {n} < {j}; ; ; ".to_owned(),
                "{c}; {t}; {n} > {k}; ; INTERSECT SELECT {c} FROM {t}".to_owned(),
            ]
        );
        assert_eq!(
            overlooked("label-except"),
            [
                "DISTINCT {l}; {p}; ; ; ",
                "DISTINCT {l}; {t} {p.join}; ; ; ",
            ]
        );
    }
}
