//! Parses observations: table names, columns and rows, and the answer that a result gives.

use actor::proto::v1::Observation;

/// Returns the table names that an observation lists.
pub(crate) fn table_names(observation: &Observation) -> Vec<&str> {
    let listed = observation.schema_info.lines().skip(1);
    listed.map_while(|line| line.strip_prefix("- ")).collect()
}

/// Returns whether an observation shows the columns of a table.
pub(crate) fn is_described(observation: &Observation, table: &str) -> bool {
    let mut lines = observation.schema_info.lines();
    lines.any(|line| {
        let name = line
            .strip_prefix("Table '")
            .and_then(|it| it.split('\'').next());
        name.is_some_and(|name| name.eq_ignore_ascii_case(table))
    })
}

/// Returns the described table that has a column of this name.
pub(crate) fn table_with_column<'a>(observation: &'a Observation, column: &str) -> Option<&'a str> {
    let mut table = None;
    for line in observation.schema_info.lines() {
        if let Some(rest) = line.strip_prefix("Table '") {
            table = rest.split('\'').next();
        } else if let Some((name, _)) = line.strip_prefix("- ").and_then(|it| it.rsplit_once(": "))
            && name.eq_ignore_ascii_case(column)
        {
            return table;
        }
    }
    None
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
pub(crate) fn result_rows(result: &str) -> Vec<&str> {
    let numbered = result.lines().enumerate();
    numbered
        .filter_map(|(index, line)| line.strip_prefix(&format!("{}. ", index + 1)))
        .collect()
}

/// Returns a result as an answer: a value, a comma-separated list, or rows.
pub(crate) fn answer_from_result(result: &str) -> String {
    let rows = result_rows(result);
    match rows[..] {
        [] => "[]".to_owned(),
        [row] => shorten_decimals(row).to_owned(),
        _ if rows.iter().any(|row| row.contains(" | ")) => rows.join("\n"),
        _ => rows.join(", "),
    }
}

/// Cuts a long decimal after two decimals, or after three significant ones if it is below 1.
fn shorten_decimals(cell: &str) -> &str {
    let Some((whole, decimals)) = cell.split_once('.') else {
        return cell;
    };
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(digits) || !is_number(decimals) {
        return cell;
    }
    let leading_zeros = decimals.len() - decimals.trim_start_matches('0').len();
    let length = if digits == "0" { leading_zeros + 3 } else { 2 };
    &cell[..cell.len().min(whole.len() + 1 + length)]
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
            ("(no rows)", "[]"),
        ] {
            assert_eq!(answer_from_result(result), answer);
        }
    }

    #[test]
    fn the_schema_is_parsed() {
        let observation = Observation {
            schema_info: "Available tables:\n- book\n- two words\nTable 'book' columns:\n\
                          - title: TEXT\n- a: b: INTEGER"
                .to_owned(),
            ..Observation::default()
        };
        assert_eq!(table_names(&observation), ["book", "two words"]);
        assert_eq!(described_columns(&observation), [["title", "a: b"]]);
        assert_eq!(table_names(&Observation::default()), Vec::<&str>::new());
    }
}
