//! The environment's actions as tools: the one table from which prompts, parsers of completions and
//! OpenEnv's listings are made.
//!
//! Invariant: a tool is one action with one argument, a required string.

/// One action, as a tool that a model calls.
#[derive(Debug)]
pub struct Tool {
    /// Name of the tool.
    pub name: &'static str,
    /// Type of the [`Action`](crate::v1::Action) that a call stands for.
    pub action_type: &'static str,
    /// Name of the argument.
    pub parameter: &'static str,
    /// Descriptions in prompts. Policies are trained with these words, and the Python package gives
    /// the same to TRL; the golden renderings hold them fixed.
    pub prompt: ToolTexts,
    /// What a call returns, for prompts.
    pub returns: &'static str,
    /// Descriptions in OpenEnv's listings. They name no limits, since a node's settings change
    /// them.
    pub listing: ToolTexts,
}

/// What a tool and its argument mean.
#[derive(Debug)]
pub struct ToolTexts {
    /// What the tool does.
    pub description: &'static str,
    /// What the argument is.
    pub parameter: &'static str,
}

/// Every tool, in the order in which an agent needs them.
pub const TOOLS: [Tool; 4] = [
    Tool {
        name: "describe",
        action_type: "DESCRIBE",
        parameter: "table_name",
        prompt: ToolTexts {
            description: "Show the columns, their types and the row count of one table.",
            parameter: "Name of the table to describe.",
        },
        returns: "One line per column, then the row count.",
        listing: ToolTexts {
            description: "Show a table's columns with their types, and how many rows it has.",
            parameter: "Name of the table.",
        },
    },
    Tool {
        name: "sample",
        action_type: "SAMPLE",
        parameter: "table_name",
        prompt: ToolTexts {
            description: "Show up to five rows of one table.",
            parameter: "Name of the table to sample.",
        },
        returns: "The rows, one per line.",
        listing: ToolTexts {
            description: "Show the first rows of a table.",
            parameter: "Name of the table.",
        },
    },
    Tool {
        name: "query",
        action_type: "QUERY",
        parameter: "sql",
        prompt: ToolTexts {
            description: "Run one read-only SQL query and show at most 20 rows.",
            parameter: "A single SELECT statement.",
        },
        returns: "The rows, one per line, or an error message.",
        listing: ToolTexts {
            description: "Run one SELECT statement and show its rows.",
            parameter: "The SELECT statement, in SQLite's dialect.",
        },
    },
    Tool {
        name: "answer",
        action_type: "ANSWER",
        parameter: "value",
        prompt: ToolTexts {
            description: "Submit the final answer and end the episode.",
            parameter: "The answer: a single value, a comma-separated list, or rows written as col1 | col2.",
        },
        returns: "The result of the check.",
        listing: ToolTexts {
            description: "Give the final answer to the question. This ends the episode.",
            parameter: "The answer: one value, a comma-separated list, or one row per line with cells joined by ' | '.",
        },
    },
];
