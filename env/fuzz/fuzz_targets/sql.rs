//! Runs any text as a QUERY, through the allow-lists and SQLite. The text must be answered, and
//! twice in the same way.

#![no_main]

use env_fuzz::Fixture;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static FIXTURE: Fixture = Fixture::open();
}

fuzz_target!(|sql: &str| {
    FIXTURE.with(|fixture| {
        let first = fixture.query(sql);
        assert!(first.result.is_empty() != first.error.is_empty());
        assert_eq!(first, fixture.query(sql));
    });
});
