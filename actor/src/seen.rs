//! What scripted policies read from an observation: tables, columns, rows, and a result copied into an answer.

use proto::v1::Observation;

use crate::sql_slips::Columns;

/// Table names that an observation lists.
pub(crate) fn tables(observation: &Observation) -> Vec<&str> {
    let listed = observation.schema_info.lines().skip(1);
    listed.map_while(|line| line.strip_prefix("- ")).collect()
}

/// Columns of the tables described so far.
pub(crate) fn described_columns(observation: &Observation) -> Vec<Columns> {
    let mut tables: Vec<Columns> = Vec::new();
    for line in observation.schema_info.lines().skip(1) {
        if line.starts_with("Table '") {
            tables.push(Columns::default());
        } else if let (Some(Columns(columns)), Some(column)) =
            (tables.last_mut(), line.strip_prefix("- "))
        {
            let name = column.rsplit_once(": ").map_or(column, |(name, _)| name);
            columns.push(name.to_owned());
        }
    }
    tables
}

/// The rows of a result without their numbers; none where it is no list of rows.
pub(crate) fn rows(result: &str) -> Vec<&str> {
    let numbered = result.lines().enumerate();
    numbered
        .filter_map(|(index, line)| line.strip_prefix(&format!("{}. ", index + 1)))
        .collect()
}

/// A result as one copies it into an answer: a value, a comma-separated list, or rows.
pub(crate) fn copied(result: &str) -> String {
    let rows = rows(result);
    match rows[..] {
        [] => "[]".to_owned(),
        [row] => cut_decimals(row).to_owned(),
        _ if rows.iter().any(|row| row.contains(" | ")) => rows.join("\n"),
        _ => rows.join(", "),
    }
}

/// A long decimal without the digits that do not matter: two after the point, three significant ones below 1.
fn cut_decimals(cell: &str) -> &str {
    let Some((whole, decimals)) = cell.split_once('.') else {
        return cell;
    };
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(digits) || !is_number(decimals) {
        return cell;
    }
    let leading_zeros = decimals.len() - decimals.trim_start_matches('0').len();
    let kept = if digits == "0" { leading_zeros + 3 } else { 2 };
    &cell[..cell.len().min(whole.len() + 1 + kept)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_copied_as_answers() {
        for (result, answer) in [
            ("1. 42", "42"),
            ("1. 3.14159", "3.14"),
            ("1. -0.0001234567", "-0.000123"),
            ("1. 1.2.3", "1.2.3"),
            ("1. a\n2. b", "a, b"),
            ("1. a | 1\n2. b | 2", "a | 1\nb | 2"),
            ("(no rows)", "[]"),
        ] {
            assert_eq!(copied(result), answer);
        }
    }

    #[test]
    fn the_schema_is_read_back() {
        let observation = Observation {
            schema_info: "Available tables:\n- book\n- two words\nTable 'book' columns:\n- title: TEXT\n- a: b: INTEGER".to_owned(),
            ..Observation::default()
        };
        assert_eq!(tables(&observation), ["book", "two words"]);
        let columns = Columns(vec!["title".to_owned(), "a: b".to_owned()]);
        assert_eq!(described_columns(&observation), [columns]);
        assert_eq!(tables(&Observation::default()), Vec::<&str>::new());
    }
}
