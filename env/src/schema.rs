//! What DESCRIBE and SAMPLE show of a database: names, columns, row counts, sample rows.
//!
//! Invariant: the schema is read once, when the database is opened. DESCRIBE and SAMPLE never touch
//! SQLite.

/// The tables and views of a database, in order of creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// The tables.
    pub tables: Vec<Table>,
}

/// One table or view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name as declared.
    pub name: String,
    /// The line `Table 'x' columns:`, then one line `- Name: TYPE` per column.
    pub columns_text: String,
    /// Text of DESCRIBE: the columns and the row count.
    pub description: String,
    /// Text of SAMPLE: the first rows, numbered.
    pub sample: String,
}

impl Table {
    /// Writes the texts of a table. `columns` are pairs of name and declared type. A column without
    /// a declared type shows as ANY.
    pub fn new(name: &str, columns: &[(String, String)], row_count: u64, sample: String) -> Self {
        let mut columns_text = format!("Table '{name}' columns:");
        for (column, declared_type) in columns {
            let shown_type = if declared_type.is_empty() {
                "ANY"
            } else {
                declared_type
            };
            columns_text.push_str(&format!("\n- {column}: {shown_type}"));
        }
        Self {
            name: name.to_owned(),
            description: format!("{columns_text}\nRow count: {row_count}"),
            columns_text,
            sample,
        }
    }
}

impl Schema {
    /// Returns the index of the table of this name. The exact spelling wins over another case, and
    /// both win over a name that differs in white space at its ends.
    pub fn find(&self, name: &str) -> Option<usize> {
        let position = |matches: &dyn Fn(&str) -> bool| {
            let mut tables = self.tables.iter();
            tables.position(|table| matches(&table.name))
        };
        let trimmed = name.trim();
        let spelled = |name: &str| {
            position(&|own| own == name).or_else(|| position(&|own| own.eq_ignore_ascii_case(name)))
        };
        spelled(name)
            .or_else(|| spelled(trimmed))
            .or_else(|| position(&|own| own.trim() == trimmed))
            .or_else(|| position(&|own| own.trim().eq_ignore_ascii_case(trimmed)))
    }

    /// Returns all table names in one line.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self
            .tables
            .iter()
            .map(|table| table.name.as_str())
            .collect();
        names.join(", ")
    }

    /// Returns the observation's `schema_info`: all table names, then the columns of the described
    /// tables, oldest first.
    pub fn info(&self, described: &[u32]) -> String {
        let mut info = "Available tables:".to_owned();
        for table in &self.tables {
            info.push_str("\n- ");
            info.push_str(&table.name);
        }
        for table in described
            .iter()
            .filter_map(|&index| self.tables.get(index as usize))
        {
            info.push('\n');
            info.push_str(&table.columns_text);
        }
        info
    }
}
