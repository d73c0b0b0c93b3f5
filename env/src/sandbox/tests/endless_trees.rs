//! Files of a few pages whose reading never ends, and what must end it.

use data::DatabaseFile;

use super::corpus::{limits, open, result_of};
use crate::{
    database::Database,
    rows::ResultLimits,
    sandbox::{Sandbox, WorkBudget},
    settings::SqlLimits,
};

#[path = "../../../../data/tests/common/endless_tree.rs"]
mod endless_tree;

/// SQLite counts a whole table in one step, within which it calls no progress handler.
#[test]
fn counting_a_table_ends_at_the_budget_of_its_pages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cars.sqlite");
    // By these statistics the index is shorter than the table, so nothing else reads the table.
    let schema = "CREATE TABLE t (a); CREATE INDEX i ON t (a); INSERT INTO t VALUES (1), (3);
        ANALYZE; INSERT INTO sqlite_stat1 VALUES ('t', NULL, '2 sz=100')";
    endless_tree::make(&path, schema, "t");
    let database = open(&path, "").unwrap();
    let sandbox = |limits: &SqlLimits, budget| Sandbox::open(&database, limits, budget).unwrap();
    let sql = "SELECT count(*) FROM t NOT INDEXED";

    let limits = SqlLimits {
        work_units: 1_000_000,
        ..limits()
    };
    let (here, there) = (
        sandbox(&limits, WorkBudget::Full),
        sandbox(&limits, WorkBudget::Full),
    );
    let ends = [&here, &here, &there].map(|sandbox| {
        let result = result_of(sandbox, sql);
        assert_eq!(result.class, "work_units", "{result:?}");
        assert_eq!(result_of(sandbox, "SELECT count(*) FROM t").text, "1. 2");
        result.work_units
    });
    assert_eq!(ends, [ends[0]; 3]);

    let hurried = SqlLimits {
        work_units: u64::MAX,
        wall_clock_seconds: 0.01,
        ..limits
    };
    let result = result_of(&sandbox(&hurried, WorkBudget::Full), sql);
    assert_eq!(result.class, "wall_clock", "{result:?}");
    let quick = sandbox(&SqlLimits::default(), WorkBudget::Quick);
    assert!(quick.query(sql).is_err(), "it runs again in the full lane");
}

#[test]
fn what_cannot_be_read_to_its_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let limits = SqlLimits {
        work_units: 1_000_000,
        ..limits()
    };
    for (schema, tree, part) in [
        (
            "CREATE TABLE t (a, b); CREATE INDEX i ON t (a); INSERT INTO t VALUES (1, 2), (3, 4)",
            "i",
            "units of work to count",
        ),
        (
            "CREATE TABLE t (a); PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = NULL",
            "sqlite_master",
            "units of work to read",
        ),
    ] {
        let path = folder.path().join(tree);
        endless_tree::make(&path, schema, tree);
        let file = DatabaseFile::open("cars", &path).unwrap();
        let opened = Database::open(&file, &ResultLimits::default(), &limits);
        let error = opened.unwrap_err().to_string();
        assert!(error.contains(part), "{tree}: {error}");
    }
}
