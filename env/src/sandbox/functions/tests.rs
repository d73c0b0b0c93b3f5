//! Our functions beside SQLite's own, on random arguments.

use proptest::prelude::*;

use super::*;
use crate::sandbox::{limits, process};

/// A connection with SQLite's functions, and one with ours.
fn pair() -> (Connection, Connection) {
    process::prepare().unwrap();
    let limits_of_both = SqlLimits {
        work_units: u64::MAX,
        ..SqlLimits::default()
    };
    let open = || {
        let connection = Connection::open_in_memory().unwrap();
        limits::set(&connection, &limits_of_both).unwrap();
        connection
            .set_limit(Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 32)
            .unwrap();
        connection
    };
    let ours = open();
    let meter = Arc::new(Meter::new(u64::MAX));
    install(&ours, &meter, &limits_of_both).unwrap();
    (open(), ours)
}

fn call(connection: &Connection, sql: &str, values: &[SqlOutput]) -> Result<SqlOutput, String> {
    let run = || {
        let mut statement = connection.prepare_cached(sql)?;
        for (index, value) in values.iter().enumerate() {
            statement.raw_bind_parameter(index + 1, value)?;
        }
        let mut rows = statement.raw_query();
        let row = rows.next()?.ok_or(Error::QueryReturnedNoRows)?;
        row.get_ref(0).map(SqlOutput::from)
    };
    run().map_err(|error: Error| error.to_string())
}

fn value() -> impl Strategy<Value = SqlOutput> {
    let text = prop_oneof![
        "[ab%_]{0,12}",
        "[aAbBéÉß€%_*?]{0,8}",
        "[-ab\\[\\]^*?]{0,10}",
        "[ \\t\\x00ab]{0,6}",
        "a{0,40}",
        ".{0,6}",
    ];
    let bytes = || {
        let byte = prop_oneof![
            Just(b'a'),
            Just(b'%'),
            Just(0xc3),
            Just(0xa9),
            Just(0xff),
            any::<u8>()
        ];
        proptest::collection::vec(byte, 0..8)
    };
    prop_oneof![
        1 => Just(SqlOutput::Null),
        1 => (-20_i64..20).prop_map(SqlOutput::Integer),
        1 => any::<i64>().prop_map(SqlOutput::Integer),
        1 => prop_oneof![Just(0.5), Just(-1.0), Just(1e300), Just(11.1)].prop_map(SqlOutput::Real),
        12 => text.prop_map(|text| SqlOutput::Text(text.into_bytes())),
        2 => bytes().prop_map(SqlOutput::Text),
        2 => bytes().prop_map(SqlOutput::Blob),
    ]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -9_i64..9, 1 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

fn same(sql: &str, values: &[SqlOutput]) -> Result<(), TestCaseError> {
    thread_local! {
        static PAIR: (Connection, Connection) = pair();
    }
    PAIR.with(|(theirs, ours)| {
        let theirs = call(theirs, sql, values);
        prop_assert_eq!(call(ours, sql, values), theirs, "{} {:?}", sql, values);
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn our_functions_are_theirs(a in value(), b in value(), c in value()) {
        let (one, two) = ([a], [b]);
        for name in ["length", "upper", "lower", "hex", "quote", "trim", "ltrim", "rtrim"] {
            same(&format!("SELECT {name}(?1)"), &one)?;
        }
        let [a] = one;
        let [b] = two;
        let both = [a, b];
        let names = [
            "instr", "like", "glob", "trim", "ltrim", "rtrim", "substr", "concat_ws", "printf", "date",
        ];
        for name in names {
            same(&format!("SELECT {name}(?1, ?2)"), &both)?;
        }
        same("SELECT ?2 LIKE ?1", &both)?;
        same("SELECT ?2 GLOB ?1", &both)?;
        let [a, b] = both;
        let all = [a, b, c];
        for name in ["replace", "like", "substr", "concat"] {
            same(&format!("SELECT {name}(?1, ?2, ?3)"), &all)?;
        }
    }

    #[test]
    fn any_part_is_theirs(text in "[aé€😀]{0,6}", start in number(), length in number()) {
        let text = SqlOutput::Text(text.into_bytes());
        let values = [text, SqlOutput::Integer(start), SqlOutput::Integer(length)];
        same("SELECT substr(?1, ?2, ?3)", &values)?;
        same("SELECT substring(?1, ?2)", &values[..2])?;
    }

    #[test]
    fn any_pattern_is_theirs(
        pattern in "[ab%_\\\\é]{0,9}", glob in "[-ab*?\\[\\]^]{0,12}", text in "[-abABéÉ%_\\\\\\]]{0,12}"
    ) {
        let [pattern, glob, text] =
            [pattern, glob, text].map(|text| SqlOutput::Text(text.into_bytes()));
        let values = [pattern, text, glob];
        for escape in ["\\", "%", "_", "a"] {
            same(&format!("SELECT ?2 LIKE ?1 ESCAPE '{escape}'"), &values[..2])?;
        }
        same("SELECT ?1 GLOB ?2", &values[1..])?;
    }
}

#[test]
fn long_texts_are_theirs() {
    let (theirs, ours) = pair();
    let text = |text: &str, times: usize| SqlOutput::Text(text.repeat(times).into_bytes());
    for (sql, values) in [
        (
            "SELECT instr(?1, ?2)",
            vec![text("ab", 3_000), text("ba", 1_000)],
        ),
        (
            "SELECT instr(?1, ?2)",
            vec![text("é", 3_000), text("é", 2_999)],
        ),
        (
            "SELECT replace(?1, ?2, ?3)",
            vec![text("aab", 1_000), text("ab", 1), text("é", 3)],
        ),
        (
            "SELECT replace(?1, ?2, ?3)",
            vec![text("a", 9_000), text("a", 1), text("bb", 1)],
        ),
        (
            "SELECT trim(?1, ?2)",
            vec![text("éa", 3_000), text("aéü", 2)],
        ),
        ("SELECT ?1 LIKE ?2", vec![text("ab", 4_000), text("%b", 30)]),
        ("SELECT ?1 LIKE ?2", vec![text("a", 10), text("a", 65)]),
    ] {
        assert_eq!(
            call(&ours, sql, &values),
            call(&theirs, sql, &values),
            "{sql}"
        );
    }
}

/// Without the bound, trim examines 70 GB here before it is charged.
#[test]
fn trim_examines_no_more_than_the_budget_allows() {
    process::prepare().unwrap();
    let connection = Connection::open_in_memory().unwrap();
    let meter = Arc::new(Meter::new(1_000_000));
    install(&connection, &meter, &SqlLimits::default()).unwrap();
    let values = [
        SqlOutput::Text(vec![0xc0; 1 << 20]),
        SqlOutput::Text(text::tests::broken_characters()),
    ];
    for name in ["trim", "ltrim", "rtrim"] {
        meter.restart();
        let error = call(&connection, &format!("SELECT {name}(?1, ?2)"), &values).unwrap_err();
        assert!(error.contains("the statement is ended"), "{name}: {error}");
        let spent = meter.work_units();
        assert!(
            (1_000_000..1_020_000).contains(&spent),
            "{name}: {spent} units"
        );
    }
}
