//! Reads `hostile_corpus.txt`, whose head describes its format.

#![allow(dead_code, reason = "each test uses a part")]

/// What must come of a statement.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) class: &'static str,
    pub(crate) part: &'static str,
    pub(crate) sql: String,
}

/// All cases, in order.
pub(crate) fn cases() -> Vec<Case> {
    let text = include_str!("../hostile_corpus.txt");
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut fields = line.splitn(3, " | ");
            let mut field = || {
                fields
                    .next()
                    .unwrap_or_else(|| panic!("three fields in {line:?}"))
            };
            Case {
                class: field(),
                part: field(),
                sql: expanded(field()),
            }
        })
        .collect()
}

/// A statement with its abbreviations written out.
pub(crate) fn expanded(sql: &str) -> String {
    let mut sql = sql.to_owned();
    while let Some(start) = sql.find("{n ") {
        let end = start + sql[start..].find('}').unwrap();
        let count = &sql[start + 3..end];
        let cte = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        );
        sql.replace_range(start..=end, &cte);
    }
    while let Some(start) = sql.find("<<") {
        let end = start + sql[start..].find(">>").unwrap();
        let (count, text) = sql[start + 2..end].split_once('*').unwrap();
        let count: usize = count.parse().unwrap();
        let repeated: String = (1..=count)
            .map(|number| {
                let before = (number - 1).to_string();
                text.replace('#', &number.to_string()).replace('@', &before)
            })
            .collect();
        sql.replace_range(start..end + 2, &repeated);
    }
    sql
}
