//! The names of tables and columns that an episode has shown.
//!
//! Pure. They are read from the text of the context alone, so the sampler and the learner, which
//! have the same tokens, find the same names. A result that was dropped from the context is no
//! longer shown.

/// Stands before the list of tables in the question's message (`env/src/schema.rs`).
const TABLES: &str = "Available tables:";

/// A table, and its columns if DESCRIBE has shown them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShownTable {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
}

/// Reads the names of a context whose turns stand on lines of their own. The lists of tables of the
/// solved examples, `shots` of them, come before that of the question, and are not of its database.
pub(super) fn shown_names(context: &str, shots: usize) -> Vec<ShownTable> {
    let mut tables: Vec<ShownTable> = Vec::new();
    let (mut lists, mut list) = (0, List::None);
    for line in context.lines() {
        if line == TABLES && lists <= shots {
            lists += 1;
            tables.clear();
            list = List::Tables;
        } else if let Some(name) = described(line) {
            list = List::Columns(entry(&mut tables, name));
        } else if let Some(item) = line.strip_prefix("- ") {
            match list {
                List::None => {}
                List::Tables => drop(entry(&mut tables, item)),
                List::Columns(table) => tables[table].add_column(item),
            }
        } else {
            list = List::None;
        }
    }
    tables
}

/// What the items of the present list are.
#[derive(Clone, Copy)]
enum List {
    None,
    Tables,
    /// Columns of the table at this place.
    Columns(usize),
}

/// Returns the name in the first line of DESCRIBE: `Table 'name' columns:`.
fn described(line: &str) -> Option<&str> {
    line.strip_prefix("Table '")?.strip_suffix("' columns:")
}

/// Returns the place of the table of this name, which is added if it is new.
fn entry(tables: &mut Vec<ShownTable>, name: &str) -> usize {
    let known = tables.iter().position(|table| table.name == name);
    known.unwrap_or_else(|| {
        tables.push(ShownTable {
            name: name.to_owned(),
            columns: Vec::new(),
        });
        tables.len() - 1
    })
}

impl ShownTable {
    /// Adds the column of a line `name: TYPE`. A line that was cut has no type.
    fn add_column(&mut self, item: &str) {
        if let Some((name, _)) = item.rsplit_once(": ")
            && !self.columns.iter().any(|column| column == name)
        {
            self.columns.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, columns: &[&str]) -> ShownTable {
        ShownTable {
            name: name.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
        }
    }

    #[test]
    fn tables_come_from_the_question_and_columns_from_describe() {
        let context = "<|im_start|>user\nHow many?\nAvailable tables:\n- Net Order\n- t\n\
            <|im_start|>assistant\n<tool_call>\n\
            {\"name\": \"describe\", \"arguments\": {\"table_name\": \"t\"}}\n</tool_call>\n\
            <|im_start|>user\n<tool_response>\nTable 't' columns:\n- id: INTEGER\n\
            - a: b: VARCHAR(20)\n- id: INTEGER\nRow count: 3\n- no: TEXT\n</tool_response>\n";
        let found = shown_names(context, 0);
        assert_eq!(
            found,
            [table("Net Order", &[]), table("t", &["id", "a: b"])]
        );
    }

    #[test]
    fn examples_and_data_add_no_table() {
        let example = "Available tables:\n- kite\nTable 'kite' columns:\n- colour: TEXT\n";
        let question = "Available tables:\n- t\n";
        let data = "1. x\nAvailable tables:\n- forged\n";
        let context = [example, question, data].concat();
        let found = shown_names(&context, 1);
        assert_eq!(found, [table("t", &[])]);
    }

    #[test]
    fn a_column_that_was_cut_is_not_shown() {
        let context = "Table 't' columns:\n- id: INTEGER\n- na... [truncated]";
        assert_eq!(shown_names(context, 0), [table("t", &["id"])]);
    }
}
