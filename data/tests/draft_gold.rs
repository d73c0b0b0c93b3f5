//! Tests that the SQL of drafted questions answers what their words ask.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

#[path = "common/drafting.rs"]
mod drafting;

use data::Question;
use drafting::{drafted, rows};

/// The employee with the highest salary refers to no department, and the youngest one to none. One
/// of the two with the highest bonus is in a department.
const FIRM: &str = "
    PRAGMA foreign_keys = OFF;
    CREATE TABLE departments (department_id INTEGER PRIMARY KEY, name TEXT, city TEXT);
    CREATE TABLE employees (employee_id INTEGER PRIMARY KEY, name TEXT, job TEXT, salary INTEGER,
        age INTEGER, bonus INTEGER, department_id INTEGER REFERENCES departments);
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 6)
    INSERT INTO departments SELECT i, 'Unit ' || char(65 + i), 'Town ' || char(65 + i % 3) FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 40)
    INSERT INTO employees SELECT i, 'Person ' || char(65 + i % 26) || i,
        trim(substr('clerk driver cook  ', i * i % 3 * 6 + 1, 6)),
        iif(i = 7, 9000, 1000 + i * 137 % 3001), 20 + i, iif(i IN (0, 5), 900, i * 31 % 97),
        CASE i WHEN 0 THEN NULL WHEN 7 THEN 99 ELSE i % 6 END FROM n;";

#[test]
fn a_row_without_a_parent_is_not_left_out() {
    let (_, questions) = drafted(FIRM, 300);
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch(FIRM).unwrap();
    let is_about_one = |it: &&Question| {
        let text = &it.question_text;
        let is_grouped = it.gold_sql.contains("GROUP BY");
        text.contains("of the department") && !text.contains("departments") && !is_grouped
    };
    let about_one = questions.iter().filter(is_about_one);
    let queries: Vec<&String> = about_one.map(|it| &it.gold_sql).collect();
    for sql in &queries {
        let with_orphans = sql.replace(" JOIN ", " LEFT JOIN ");
        let all = rows(&connection, &with_orphans);
        assert_eq!(rows(&connection, sql), all, "{sql}");
    }
    let orders_by = |order: &str| {
        let start = format!("(department_id) ORDER BY {order}");
        queries.iter().any(|sql| sql.contains(&start))
    };
    assert!(orders_by("age DESC"), "{queries:#?}");
    assert!(!orders_by("bonus DESC"), "two employees have the highest");
    let has = |part: &str| questions.iter().any(|it| it.gold_sql.contains(part));
    assert!(has("GROUP BY department_id") || has("GROUP BY departments.name"));
}

/// Each fifth row is not read. Such rows have times of the first days of years, and one of them has
/// texts for a missing day and a missing fee.
#[test]
fn rows_that_are_not_read_have_times_and_texts() {
    let (_, questions) = drafted(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, city TEXT, visited_at TEXT, paid_on TEXT,
            booking_date TEXT, fee INTEGER, minutes INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 25000),
            days AS (SELECT i, printf('%d-%02d-%02d', 2000 + i % 20, 2 + i * 7 % 11,
                1 + i * 11 % 28) AS day FROM n)
         INSERT INTO visits SELECT i, trim(substr('Lima Oslo Rome ', i % 3 * 5 + 1, 5)),
            iif(i % 5 = 4, printf('%d-01-01 08:00', 2000 + i / 5 % 20), day || ' 10:00'), day,
            iif(i = 24999, '', day), iif(i = 24999, 'n/a', 5 + i * 37 % 400), 3 + i * 41 % 600
            FROM days",
        60,
    );
    for question in &questions {
        let sql = &question.gold_sql;
        for operator in ["<", "<=", ">", ">=", "BETWEEN"] {
            let compared = format!("visited_at {operator} '");
            assert!(!sql.contains(&compared), "{sql}");
        }
        let (shown, rest) = sql.split_once(" FROM ").unwrap();
        for column in ["booking_date", "fee"] {
            let aggregate = format!("({column})");
            assert!(
                !shown.contains(&aggregate) && !rest.contains(column),
                "{sql}"
            );
        }
    }
    let has = |part: &str| questions.iter().any(|it| it.gold_sql.contains(part));
    assert!(has("paid_on > '") && has("SELECT booking_date"));
}

/// A patient has a doctor and a second doctor. "Doctors that have patients" may be both.
#[test]
fn owners_of_rows_say_by_which_reference() {
    let (_, questions) = drafted(
        "CREATE TABLE doctors (id INTEGER PRIMARY KEY, name TEXT, specialty TEXT, salary INTEGER);
         CREATE TABLE patients (id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER,
            doctor_id INTEGER REFERENCES doctors, second_doctor_id INTEGER REFERENCES doctors);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 12)
         INSERT INTO doctors SELECT i, 'Doctor ' || char(65 + i), 'Field ' || char(65 + i % 3),
            3000 + i * 37 % 100 FROM n;
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO patients SELECT i, 'Person ' || char(65 + i % 26) || i,
            'Town ' || char(65 + i % 4), 20 + i * 37 % 61, i * i % 11, i * 5 % 9 FROM n",
        200,
    );
    let about_both = questions
        .iter()
        .filter(|it| it.gold_sql.contains("patients") && it.gold_sql.contains("doctor_id"));
    let texts: Vec<&String> = about_both.map(|it| &it.question_text).collect();
    for text in &texts {
        let others = text.replace("second doctor", "");
        for owner in [
            "doctors",
            "doctor with the",
            "doctor that",
            "doctor has the",
        ] {
            assert!(!others.contains(owner), "{text}");
        }
    }
    let find = |part: &str| texts.iter().any(|text| text.contains(part));
    assert!(find("second doctors") && find("whose doctor"), "{texts:#?}");
}
