//! Divides questions into `train`, `eval` and `eval-unseen/database`. Pure.
//!
//! Invariant: all wordings and spellings of a query on a database are in the same split, as are all
//! queries with one wording, and a database of `eval-unseen/database` has no question in another
//! split. What a record says about its split counts. The rest depends on the seed, the names of the
//! databases and the queries alone, so that a question that is added at the end does not move the
//! others, unless it joins two queries.

use std::collections::{BTreeMap, BTreeSet};

use crate::hash;

pub(crate) const TRAIN: &str = "train";
pub(crate) const EVAL: &str = "eval";
pub(crate) const UNSEEN: &str = "eval-unseen/database";

const EVAL_PERCENT: u64 = 30;
/// The fewest databases of which one is held out.
const FEWEST_FOR_UNSEEN: usize = 3;
const DATABASES_PER_UNSEEN: usize = 5;

/// What decides the split of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SplitQuery {
    pub(crate) database: String,
    /// What all spellings of the SQL have in common.
    pub(crate) query: String,
    /// What all spellings of the question have in common.
    pub(crate) text: String,
    /// The SQL in the spelling of the record. The first spelling of a query draws its split.
    pub(crate) spelling: String,
    /// The split that the record names: [`TRAIN`], [`EVAL`] or [`UNSEEN`].
    pub(crate) given: Option<&'static str>,
}

/// Returns the split of each query, or why it contradicts an earlier one. The databases `held_out`
/// are those of [`UNSEEN`]; `None`: one in five, at least one, from three databases on.
pub(crate) fn assign(
    queries: &[SplitQuery],
    seed: u64,
    held_out: Option<&BTreeSet<String>>,
) -> Vec<Result<&'static str, String>> {
    let seed = seed.to_string();
    let queries = &one_query_per_text(queries)[..];
    let unseen = unseen_databases(queries, &seed, held_out);
    // The first record of a query that names a split decides for its other wordings.
    let mut named: BTreeMap<(&str, &str), &'static str> = BTreeMap::new();
    let mut contradictions = BTreeMap::new();
    for (index, it) in queries.iter().enumerate() {
        let Some(given) = it.given else {
            continue;
        };
        let is_unseen = unseen.contains(it.database.as_str());
        if is_unseen != (given == UNSEEN) {
            let problem = match is_unseen {
                true => "is held out, so its questions belong in eval-unseen",
                false => "is not held out: other records put it in train or eval",
            };
            let database = &it.database;
            contradictions.insert(
                index,
                format!("the field split is `{given}`, but the database `{database}` {problem}"),
            );
            continue;
        }
        let first = *named.entry((&it.database, &it.query)).or_insert(given);
        if first != given {
            let problem = format!(
                "the field split is `{given}`, but another record has the same query or question \
                 in `{first}`"
            );
            contradictions.insert(index, problem);
        }
    }
    let drawn = drawn(queries, &seed, &unseen, &named);
    let split = |(index, it): (usize, &SplitQuery)| match contradictions.get(&index) {
        Some(problem) => Err(format!("{problem}; correct one of them")),
        None if unseen.contains(it.database.as_str()) => Ok(UNSEEN),
        None => {
            let key = (it.database.as_str(), it.query.as_str());
            Ok(named
                .get(&key)
                .or(drawn.get(&key))
                .copied()
                .unwrap_or(TRAIN))
        }
    };
    queries.iter().enumerate().map(split).collect()
}

/// Returns the records with the query of the first record that has their query, their text, or what
/// joins them to it. The text of a record that names its split joins only records that name none.
fn one_query_per_text(queries: &[SplitQuery]) -> Vec<SplitQuery> {
    let mut first_of = BTreeMap::new();
    let (named, free): (Vec<_>, Vec<_>) =
        (queries.iter().enumerate()).partition(|(_, it): &(usize, &SplitQuery)| it.given.is_some());
    for (index, it) in &named {
        let text = (&it.database, &it.text);
        first_of.entry((text, false)).or_insert(*index);
    }
    let mut earlier: Vec<usize> = (0..queries.len()).collect();
    let mut join = |key, index| {
        let other = *first_of.entry(key).or_insert(index);
        let [one, other] = [index, other].map(|it| first(&mut earlier, it));
        earlier[one.max(other)] = one.min(other);
    };
    for (index, it) in queries.iter().enumerate() {
        join(((&it.database, &it.query), true), index);
    }
    for (index, it) in free {
        join(((&it.database, &it.text), false), index);
    }
    let joined = |(index, it): (usize, &SplitQuery)| {
        let first = &queries[first(&mut earlier, index)];
        SplitQuery {
            query: first.query.clone(),
            spelling: first.spelling.clone(),
            ..it.clone()
        }
    };
    queries.iter().enumerate().map(joined).collect()
}

/// Returns the first record of those that are joined with one.
fn first(earlier: &mut [usize], mut index: usize) -> usize {
    while earlier[index] != index {
        earlier[index] = earlier[earlier[index]];
        index = earlier[index];
    }
    index
}

/// Returns the databases that are held out. Where records name splits, the first decides.
fn unseen_databases<'a>(
    queries: &'a [SplitQuery],
    seed: &str,
    held_out: Option<&BTreeSet<String>>,
) -> BTreeSet<&'a str> {
    let names: BTreeSet<&str> = queries.iter().map(|it| it.database.as_str()).collect();
    if let Some(wanted) = held_out {
        return names
            .into_iter()
            .filter(|it| wanted.contains(*it))
            .collect();
    }
    let mut given: BTreeMap<&str, bool> = BTreeMap::new();
    for it in queries {
        if let Some(split) = it.given {
            given.entry(&it.database).or_insert(split == UNSEEN);
        }
    }
    let mut unseen: BTreeSet<&str> = given
        .iter()
        .filter(|(_, is_unseen)| **is_unseen)
        .map(|(name, _)| *name)
        .collect();
    let has_named_unseen = !unseen.is_empty();
    if names.len() >= FEWEST_FOR_UNSEEN && !has_named_unseen {
        let mut free: Vec<&str> = names
            .iter()
            .filter(|it| !given.contains_key(**it))
            .copied()
            .collect();
        free.sort_by_key(|name| hash::name_hash(&["import-unseen", seed, name]));
        // A database remains whose questions are trained on.
        let most = free.len().min(names.len() - 1);
        unseen.extend(
            free.into_iter()
                .take((names.len() / DATABASES_PER_UNSEEN).max(1).min(most)),
        );
    }
    unseen
}

/// Draws splits for queries whose records name none. If several queries are drawn and all would get
/// the same split, the one with the smallest hash gets the other.
fn drawn<'a>(
    queries: &'a [SplitQuery],
    seed: &str,
    unseen: &BTreeSet<&str>,
    named: &BTreeMap<(&str, &str), &'static str>,
) -> BTreeMap<(&'a str, &'a str), &'static str> {
    let mut spellings: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for it in queries {
        let key = (it.database.as_str(), it.query.as_str());
        if !unseen.contains(key.0) && !named.contains_key(&key) {
            spellings.entry(key).or_insert(&it.spelling);
        }
    }
    let drawn_split = |(key, spelling): (&(&'a str, &'a str), &&str)| {
        let percentile = hash::percentile(&["import-eval", seed, key.0, spelling]);
        let split = if percentile < EVAL_PERCENT {
            EVAL
        } else {
            TRAIN
        };
        (*key, split)
    };
    let mut drawn: BTreeMap<_, _> = spellings.iter().map(drawn_split).collect();
    for (wanted, other) in [(EVAL, TRAIN), (TRAIN, EVAL)] {
        let has_wanted = drawn.values().chain(named.values()).any(|it| *it == wanted);
        let others = drawn.values().filter(|it| **it == other).count();
        if !has_wanted && others > 1 {
            let smallest = spellings.iter().min_by_key(|(key, spelling)| {
                hash::name_hash(&["import-eval", seed, key.0, spelling])
            });
            drawn.extend(smallest.map(|(key, _)| (*key, wanted)));
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(database: &str, query: &str, given: Option<&'static str>) -> SplitQuery {
        SplitQuery {
            database: database.to_owned(),
            query: query.to_owned(),
            spelling: query.to_owned(),
            text: query.to_owned(),
            given,
        }
    }

    fn splits(queries: &[SplitQuery], seed: u64) -> Vec<&'static str> {
        let assigned = assign(queries, seed, None).into_iter();
        assigned.map(|it| it.unwrap()).collect()
    }

    fn many(databases: usize) -> Vec<SplitQuery> {
        (0..200 * databases)
            .map(|index| {
                query(
                    &format!("d{}", index % databases),
                    &format!("q{}", index / databases / 2),
                    None,
                )
            })
            .collect()
    }

    #[test]
    fn wordings_stay_together_and_the_seed_counts() {
        let queries = many(1);
        let first = splits(&queries, 1);
        assert!(first.chunks(2).all(|pair| pair[0] == pair[1]));
        let eval = first.iter().filter(|it| **it == EVAL).count();
        assert!((30..=90).contains(&eval), "near 60 of 200: {eval}");
        assert_eq!(first, splits(&queries, 1));
        assert_ne!(first, splits(&queries, 2));
        let mut more = queries.clone();
        more.push(query("d0", "another", None));
        assert_eq!(splits(&more, 1)[..200], first, "a new query moves no other");
    }

    #[test]
    fn the_first_spelling_of_a_query_draws_for_all() {
        for number in 0..20 {
            let first = query("d", &format!("q{number}"), None);
            let other = SplitQuery {
                spelling: format!("q {number}"),
                ..first.clone()
            };
            let mut queries = vec![
                query("d", "more", None),
                query("d", "even more", None),
                first,
            ];
            let one = splits(&queries, 1);
            queries.push(other);
            let two = splits(&queries, 1);
            assert_eq!(two[..3], one, "q{number}");
            assert_eq!(two[3], two[2], "q{number}");
        }
    }

    #[test]
    fn queries_with_one_wording_stay_together() {
        let worded = |database: &str, number: u32, text: u32, given| SplitQuery {
            text: format!("t{text}"),
            ..query(database, &format!("q{number}"), given)
        };
        // Pairs of queries have a text in common, and each query has a second text.
        let queries: Vec<SplitQuery> = (0..100)
            .flat_map(|number| {
                [number / 2, 1_000 + number].map(|text| worded("d", number, text, None))
            })
            .collect();
        let drawn = splits(&queries, 1);
        assert!(
            drawn
                .chunks(4)
                .all(|four| four.iter().all(|it| *it == four[0]))
        );
        assert!(drawn.contains(&EVAL) && drawn.contains(&TRAIN));
        // Another database is another question, and what records say of themselves counts.
        let queries = [
            worded("d", 0, 7, Some(TRAIN)),
            worded("d", 1, 7, Some(EVAL)),
            worded("d", 2, 7, None),
            worded("e", 3, 7, Some(EVAL)),
            worded("e", 4, 7, None),
        ];
        assert_eq!(splits(&queries, 1), [TRAIN, EVAL, TRAIN, EVAL, EVAL]);
    }

    #[test]
    fn whole_databases_are_held_out_of_several() {
        for (databases, expected) in [(1, 0), (2, 0), (3, 1), (9, 1), (10, 2)] {
            let queries = many(databases);
            let of_splits = splits(&queries, 7).into_iter().zip(&queries);
            let unseen: BTreeSet<&str> = of_splits
                .clone()
                .filter(|(split, _)| *split == UNSEEN)
                .map(|(_, it)| it.database.as_str())
                .collect();
            assert_eq!(unseen.len(), expected, "of {databases}");
            assert!(
                of_splits
                    .filter(|(_, it)| unseen.contains(it.database.as_str()))
                    .all(|(split, _)| split == UNSEEN)
            );
        }
        let named = BTreeSet::from(["d1".to_owned()]);
        let assigned = assign(&many(2), 1, Some(&named));
        assert!(
            assigned
                .iter()
                .skip(1)
                .step_by(2)
                .all(|it| it == &Ok(UNSEEN))
        );
        let none = BTreeSet::new();
        assert!(
            assign(&many(9), 1, Some(&none))
                .iter()
                .all(|it| it != &Ok(UNSEEN))
        );
    }

    #[test]
    fn few_queries_fill_both_splits() {
        for seed in 0..40 {
            let two = [query("d", "a", None), query("d", "b", None)];
            let two: BTreeSet<_> = splits(&two, seed).into_iter().collect();
            assert_eq!(two, BTreeSet::from([EVAL, TRAIN]));
        }
    }

    #[test]
    fn records_that_name_splits_are_followed_or_contradicted() {
        let queries = [
            query("d", "a", None),
            query("d", "a", Some(EVAL)),
            query("d", "a", Some(TRAIN)),
            query("d", "b", Some(UNSEEN)),
            query("e", "c", Some(UNSEEN)),
            query("e", "d", None),
            query("e", "e", Some(TRAIN)),
        ];
        let assigned = assign(&queries, 1, None);
        assert_eq!(assigned[0], Ok(EVAL), "as its other wording says");
        assert_eq!(assigned[1], Ok(EVAL));
        assert_eq!((&assigned[4], &assigned[5]), (&Ok(UNSEEN), &Ok(UNSEEN)));
        for (index, part) in [
            (2, "same query or question in `eval`"),
            (3, "is not held out"),
            (6, "is held out"),
        ] {
            let problem = assigned[index].as_ref().unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
