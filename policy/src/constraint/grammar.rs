//! The grammars of constrained completions, in the notation of Lark as `llguidance` reads it.
//!
//! Texts stand inside JSON strings, so a quotation mark of SQL is a backslash and a quotation mark.
//! SQL has one spelling of blanks, because the policy need not choose between several. Keywords may
//! have any case. Names are spelled as they were shown.

use std::fmt::Write as _;

use super::shown_names::ShownTable;

/// The tools, their arguments, and the rules of these. `proto::TOOLS` describes the tools; a test
/// of the actor compares the names.
pub(super) const TOOLS: [(&str, &str, &str); 4] = [
    ("describe", "table_name", "TABLE_NAME"),
    ("sample", "table_name", "TABLE_NAME"),
    ("query", "sql", "query"),
    ("answer", "value", "JSON_TEXT"),
];

/// The keywords that SQLite does not take as the name of a table or a column without quotation
/// marks, tried with SQLite 3.40.1. Bare, `current_date` and its like are functions.
const RESERVED: &str = "
    current_date current_time current_timestamp
    add all alter and as autoincrement between case cast check collate commit constraint create
    default deferrable delete distinct drop else escape except exists foreign from group having
    in index insert intersect into is isnull join limit not nothing notnull null on or order
    primary raise references returning select set table then to transaction union unique update
    using values when where
";

/// What can stand inside a JSON string. Characters stand for themselves: an escape by number could
/// be half of a character, or the quotation mark that ends a text of SQL.
const JSON_TEXT: &str = r#"/([^"\\\x00-\x1f\x7f]|\\["\\\/bfnrt])*/"#;

/// The parts of a query that do not depend on the database.
const SQL: &str = r#"
query: select (SET_OPERATION select)* (" ORDER BY "i order (COMMA order)*)? (" LIMIT "i INTEGER (" OFFSET "i INTEGER)?)?
select: "SELECT "i "DISTINCT "i? item (COMMA item)* (" FROM "i source)? (" WHERE "i expression)? (" GROUP BY "i expressions (" HAVING "i expression)?)?
item: "*" | all_of_table | expression (" AS "i RESULT_NAME)?
order: (expression | RESULT_NAME) (" ASC"i | " DESC"i)?
source: relation join*
relation: (table | "(" query ")") (" AS "i ALIAS | BARE_ALIAS)?
join: COMMA relation | JOIN relation (" ON "i expression | USING columns ")")?
expressions: expression (COMMA expression)*
expression: operand (OPERATOR operand)*
operand: "NOT "i? primary postfix?
postfix: " IS NULL"i | " IS NOT NULL"i | " NOT"i? IN (query | expressions) ")" | " NOT"i? " LIKE "i primary | " NOT"i? " BETWEEN "i primary " AND "i primary
primary: NUMBER | STRING | "NULL"i | column | FUNCTION "(" "DISTINCT "i? ("*" | expressions)? ")" | "(" (query | expressions) ")" | "CAST("i expression " AS "i TYPE ")" | EXISTS query ")" | case | "-" positive
positive: NUMBER | column | FUNCTION "(" expressions ")" | "(" (query | expressions) ")"
case: "CASE "i (expression " ")? "WHEN "i expression " THEN "i expression (" WHEN "i expression " THEN "i expression)* (" ELSE "i expression)? " END"i
SET_OPERATION: " UNION ALL "i | " UNION "i | " INTERSECT "i | " EXCEPT "i
JOIN: " JOIN "i | " INNER JOIN "i | " LEFT JOIN "i | " LEFT OUTER JOIN "i | " CROSS JOIN "i | " NATURAL JOIN "i
USING: / USING ?\(/i
IN: / IN ?\(/i
EXISTS: /EXISTS ?\(/i
FUNCTION: "count"i | "avg"i | "sum"i | "min"i | "max"i | "total"i | "group_concat"i | "abs"i | "round"i | "length"i | "lower"i | "upper"i | "substr"i | "trim"i | "replace"i | "instr"i | "coalesce"i | "ifnull"i | "nullif"i | "iif"i | "strftime"i | "date"i | "julianday"i | "printf"i
TYPE: "INTEGER"i | "INT"i | "REAL"i | "FLOAT"i | "TEXT"i | "NUMERIC"i
OPERATOR: / ?(=|==|!=|<>|<=|>=|<|>|\|\||[-+*\/%]) ?/ | " AND "i | " OR "i
COMMA: /, ?/
ALIAS: /[A-Za-z][0-9]?/
BARE_ALIAS: / [A-Za-z][0-9]?/
RESULT_NAME: /[A-Za-z_][A-Za-z0-9_]{0,30}/
INTEGER: /[0-9]{1,18}/
NUMBER: /[0-9]{1,18}(\.[0-9]{1,18})?/
STRING: /'([^'"\\\x00-\x1f\x7f]|''|\\["\\\/bfnrt])*'/
"#;

/// Returns the grammar of a turn: one tool call, and what may follow it, as tokens that are more
/// than the end of a turn spell that end. With `tables`, names of tables and queries are those of
/// the tables.
pub(super) fn grammar(tables: Option<&[ShownTable]>, turn_end: &str) -> String {
    let mut text = format!(
        "start: \"<tool_call>\\n\" call \"\\n</tool_call>\" {}?\n",
        literal(turn_end)
    );
    let call = |(name, parameter, rule): (&str, &str, &'static str)| {
        let opening = format!("{{\"name\": \"{name}\", \"arguments\": {{\"{parameter}\": \"");
        let argument = tables.map_or("JSON_TEXT", |_| rule);
        format!("{} {argument} \"\\\"}}}}\"", literal(&opening))
    };
    let calls: Vec<String> = TOOLS.into_iter().map(call).collect();
    let _ = writeln!(text, "call: {}", calls.join(" | "));
    let _ = writeln!(text, "JSON_TEXT: {JSON_TEXT}");
    if let Some(tables) = tables {
        text += SQL;
        add_names(&mut text, tables);
    }
    text
}

/// Adds the rules that name tables and columns.
fn add_names(text: &mut String, tables: &[ShownTable]) {
    let names: Vec<String> = tables
        .iter()
        .map(|it| literal(&in_json(&it.name)))
        .collect();
    let _ = writeln!(text, "TABLE_NAME: {}", names.join(" | "));
    let mut of_table = vec!["ALIAS \".*\"".to_owned()];
    let mut columns = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        let _ = writeln!(text, "TABLE_{number}: {}", spellings([&table.name]));
        of_table.push(format!("TABLE_{number} \".*\""));
        if !table.columns.is_empty() {
            let _ = writeln!(text, "COLUMN_{number}: {}", spellings(&table.columns));
            columns.push(format!("COLUMN_{number}"));
            columns.push(format!("TABLE_{number} \".\" COLUMN_{number}"));
            columns.push(format!("ALIAS \".\" COLUMN_{number}"));
        }
    }
    let all = (0..tables.len()).map(|number| format!("TABLE_{number}"));
    let _ = writeln!(text, "table: {}", all.collect::<Vec<_>>().join(" | "));
    let _ = writeln!(text, "all_of_table: {}", of_table.join(" | "));
    // Without a described table there are only queries that name no column.
    let column = match columns.is_empty() {
        true => "\"rowid\"i".to_owned(),
        false => columns.join(" | "),
    };
    let _ = writeln!(text, "column: {column}");
    let _ = writeln!(text, "columns: column (COMMA column)*");
}

/// Returns the alternatives of names in SQL: as they are where SQL reads them so, and always in
/// quotation marks.
fn spellings<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let mut spellings = Vec::new();
    for name in names {
        if is_plain(name) {
            spellings.push(literal(name));
        }
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        spellings.push(literal(&in_json(&quoted)));
    }
    spellings.join(" | ")
}

/// Returns whether SQL reads a name without quotation marks.
fn is_plain(name: &str) -> bool {
    let is_reserved = |word: &str| word.eq_ignore_ascii_case(name);
    let mut letters = name.chars();
    letters
        .next()
        .is_some_and(|it| it.is_ascii_alphabetic() || it == '_')
        && letters.all(|it| it.is_ascii_alphanumeric() || it == '_')
        && !RESERVED.split_ascii_whitespace().any(is_reserved)
}

/// Returns a text as it stands inside of a JSON string.
fn in_json(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// Returns a text as a literal of a grammar, which is a JSON string.
fn literal(text: &str) -> String {
    // The notation excludes this control character, which JSON allows.
    let json = serde_json::Value::from(text).to_string();
    json.replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_sql_cannot_read_stand_in_quotation_marks_only() {
        let names = ["plain", "Net \"x\" Price", "Order"].map(str::to_owned);
        assert_eq!(
            spellings(&names),
            r#""plain" | "\\\"plain\\\"" | "\\\"Net \\\"\\\"x\\\"\\\" Price\\\"" | "\\\"Order\\\"""#
        );
    }
}
