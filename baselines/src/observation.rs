//! Parses observations: table names, columns and rows, and the answer that a result gives.

use proto::v1::Observation;

/// Returns the table names that an observation lists.
pub(crate) fn table_names(observation: &Observation) -> Vec<&str> {
    let listed = observation.schema_info.lines().skip(1);
    listed.map_while(|line| line.strip_prefix("- ")).collect()
}

/// Returns whether an observation shows the columns of a table.
pub(crate) fn is_described(observation: &Observation, table: &str) -> bool {
    let mut tables = described_tables(observation).into_iter();
    tables.any(|described| described.name.eq_ignore_ascii_case(table))
}

/// Returns the described table that has a column of this name.
pub(crate) fn table_with_column(observation: &Observation, column: &str) -> Option<String> {
    let has_column = |table: &DescribedTable| {
        let mut columns = table.columns.iter();
        columns.any(|name| name.eq_ignore_ascii_case(column))
    };
    let mut tables = described_tables(observation).into_iter();
    tables.find(has_column).map(|table| table.name)
}

/// A table whose columns an observation shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DescribedTable {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
}

/// Returns the tables described so far.
pub(crate) fn described_tables(observation: &Observation) -> Vec<DescribedTable> {
    let mut tables: Vec<DescribedTable> = Vec::new();
    for line in observation.schema_info.lines().skip(1) {
        if let Some(name) = line.strip_prefix("Table '") {
            tables.push(DescribedTable {
                name: name.strip_suffix("' columns:").unwrap_or(name).to_owned(),
                columns: Vec::new(),
            });
        } else if let (Some(table), Some(column)) = (tables.last_mut(), line.strip_prefix("- ")) {
            let name = column.rsplit_once(": ").map_or(column, |(name, _)| name);
            table.columns.push(name.to_owned());
        }
    }
    tables
}

/// Returns the column names of each table described so far.
pub(crate) fn described_columns(observation: &Observation) -> Vec<Vec<String>> {
    let tables = described_tables(observation).into_iter();
    tables.map(|table| table.columns).collect()
}

/// Returns the rows of a result without their numbers. A result that is no list of rows has none.
/// A row whose texts have line breaks has several lines, of which none may begin as the next row.
pub(crate) fn result_rows(result: &str) -> Vec<String> {
    // The last line may say that there are more rows.
    let shown = match result.rsplit_once("\n... (first ") {
        Some((shown, rest)) if rest.ends_with(" shown, there are more)") => shown,
        _ => result,
    };
    let mut rows: Vec<String> = Vec::new();
    for line in shown.lines() {
        match line.strip_prefix(&format!("{}. ", rows.len() + 1)) {
            Some(row) => rows.push(row.to_owned()),
            None => {
                if let Some(row) = rows.last_mut() {
                    row.push('\n');
                    row.push_str(line);
                }
            }
        }
    }
    rows
}

/// Returns a result as an answer: a value, a comma-separated list, or rows.
pub(crate) fn answer_from_result(result: &str) -> String {
    let rows = result_rows(result);
    match &rows[..] {
        [] => "[]".to_owned(),
        [row] => data::cut_decimals(row).to_owned(),
        _ if rows.iter().any(|row| row.contains(" | ")) => rows.join("\n"),
        _ => rows.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_answers() {
        for (result, answer) in [
            ("1. 42", "42"),
            ("1. 3.14159", "3.14"),
            ("1. -0.0001234567", "-0.000123"),
            ("1. 1.2.3", "1.2.3"),
            ("1. a\n2. b", "a, b"),
            ("1. a | 1\n2. b | 2", "a | 1\nb | 2"),
            ("1. a\nb\n2. c", "a\nb, c"),
            (
                "1. a\n2. b\n... (first 2 rows shown, there are more)",
                "a, b",
            ),
            ("(no rows)", "[]"),
        ] {
            assert_eq!(answer_from_result(result), answer);
        }
    }

    #[test]
    fn the_schema_is_parsed() {
        let observation = Observation {
            schema_info: "Available tables:\n- book\n- two words\n- it's\nTable 'book' columns:\n\
                          - title: TEXT\n- a: b: INTEGER\nTable 'it's' columns:\n- id: INTEGER"
                .to_owned(),
            ..Observation::default()
        };
        assert_eq!(table_names(&observation), ["book", "two words", "it's"]);
        assert_eq!(
            described_columns(&observation),
            [vec!["title", "a: b"], vec!["id"]]
        );
        for (table, expected) in [("Book", true), ("it's", true), ("it", false)] {
            assert_eq!(is_described(&observation, table), expected, "{table}");
        }
        for (column, table) in [("A: B", Some("book")), ("id", Some("it's")), ("x", None)] {
            assert_eq!(table_with_column(&observation, column).as_deref(), table);
        }
        assert_eq!(table_names(&Observation::default()), Vec::<&str>::new());
    }
}
