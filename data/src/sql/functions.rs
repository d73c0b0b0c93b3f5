//! What SQL may name: the functions that it may call, and the tables that SQLite reserves.

/// Functions that SQL may call: pure under the fixed clock (`clock.rs`), the same on every machine,
/// and with a cost that the budget of the environment counts. The modifiers `localtime` and `utc`
/// are the exception: here they follow the machine's time zone, and the sandbox drops them.
const FUNCTIONS: &str = "
    abs avg ceil ceiling char coalesce concat concat_ws count cume_dist current_date
    current_time current_timestamp date datetime dense_rank first_value floor format glob
    group_concat hex if ifnull iif instr julianday lag last_value lead length like likelihood
    likely lower ltrim max min mod nth_value ntile nullif octet_length percent_rank printf quote
    rank replace round row_number rtrim sign sqrt strftime string_agg substr substring sum time
    timediff total trim trunc typeof unicode unixepoch unlikely upper
";

/// Whether gold SQL and the agents' queries may call the SQL function `name`, in any case.
pub fn is_sql_function(name: &str) -> bool {
    FUNCTIONS
        .split_ascii_whitespace()
        .any(|listed| listed.eq_ignore_ascii_case(name))
}

/// Returns whether SQLite reserves the name of a table, as it does for its own.
pub fn is_reserved_table(name: &str) -> bool {
    let prefix = name.get(..7);
    prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case("sqlite_"))
}
