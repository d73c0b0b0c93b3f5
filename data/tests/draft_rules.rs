//! Tests what drafted questions ask about, on small databases that are made for it.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

#[path = "common/drafting.rs"]
mod drafting;

use data::Question;
use drafting::{drafted, drafted_in_words, rows};

/// The first event is on the first day of 2020, and no event is earlier.
#[test]
fn a_day_in_a_condition_has_earlier_and_later_ones() {
    let (_, questions) = drafted(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, title TEXT, held_on TEXT, guests INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO events SELECT i, 'Fair ' || char(65 + i % 26) || i,
            printf('20%d-%02d-%02d', 20 + i % 4, 1 + i * 7 % 12, 1 + i * 11 % 28),
            5 + i * 17 % 75 FROM n",
        150,
    );
    let has = |day: &str| questions.iter().any(|it| it.gold_sql.contains(day));
    assert!(has("'2021-01-01'") || has("'2022-01-01'"));
    assert!(!has("'2020-01-01'"), "it excludes nothing");
}

/// All prices are within one per cent, so the verifier takes the average of all rooms for that of
/// some.
#[test]
fn an_answer_depends_on_the_condition() {
    let (database, questions) = drafted(
        "CREATE TABLE rooms (id INTEGER PRIMARY KEY, name TEXT, kind TEXT, price REAL,
            beds INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO rooms SELECT i, 'Room ' || char(65 + i % 26) || i,
            trim(substr('single double suite  ', i % 3 * 7 + 1, 7)), 100 + i % 2 / 2.0,
            1 + i * 37 % 80 FROM n",
        200,
    );
    let most_beds = (0..60).map(|i| 1 + i * 37 % 80).max().unwrap();
    for question in &questions {
        let sql = &question.gold_sql;
        assert!(
            !sql.starts_with("SELECT avg(price) FROM rooms WHERE"),
            "{sql}"
        );
        if sql.starts_with("SELECT max(beds) FROM rooms WHERE") {
            assert!(question.gold_answer != most_beds, "{sql}");
        }
    }
    let dropped = &database.dropped;
    assert!(
        dropped.contains_key("does not need its condition"),
        "{dropped:?}"
    );
}

/// Positions decide feet, and most clubs have many players.
const LEAGUE: &str = "
    CREATE TABLE clubs (club_id INTEGER PRIMARY KEY, name TEXT, town TEXT);
    CREATE TABLE players (id INTEGER PRIMARY KEY, name TEXT, club_id INTEGER REFERENCES clubs,
        position TEXT, foot TEXT, goals INTEGER);
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 8)
    INSERT INTO clubs SELECT i, 'Club ' || char(65 + i), 'Town ' || char(65 + i % 3) FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 48)
    INSERT INTO players SELECT i, 'Player ' || char(65 + i % 26) || i, i * i % 7,
        trim(substr('wing back goal half wing back wing ', i / 3 % 7 * 5 + 1, 5)),
        iif(i / 3 % 7 IN (2, 3), 'right', 'left'), i * 37 % 41 FROM n;";

/// Returns the queries without HAVING, with one half of a set operation, and without one of two
/// conditions.
fn without_a_part(sql: &str) -> Vec<String> {
    if let Some((all_groups, _)) = sql.split_once(" HAVING ") {
        return vec![all_groups.to_owned()];
    }
    for operation in [" INTERSECT ", " EXCEPT ", " UNION "] {
        if let Some((one, other)) = sql.split_once(operation) {
            let half = |half: &str| half.replacen("SELECT ", "SELECT DISTINCT ", 1);
            return vec![half(one), half(other)];
        }
    }
    let is_plain = !sql.contains(" BETWEEN ") && !sql.contains("(SELECT") && !sql.contains(" BY ");
    let Some((start, conditions)) = sql.split_once(" WHERE ").filter(|_| is_plain) else {
        return Vec::new();
    };
    match conditions.split_once(" AND ") {
        Some((one, other)) => [one, other]
            .map(|it| format!("{start} WHERE {it}"))
            .to_vec(),
        None => Vec::new(),
    }
}

/// An agent that overlooks a condition, HAVING or one half of a set operation is not right.
#[test]
fn an_answer_depends_on_each_part_of_the_question() {
    let (database, questions) = drafted(LEAGUE, 200);
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch(LEAGUE).unwrap();
    let mut parts = 0;
    for question in &questions {
        let sql = &question.gold_sql;
        let gold = rows(&connection, sql);
        for other in without_a_part(sql) {
            parts += 1;
            assert_ne!(rows(&connection, &other), gold, "{sql}\n{other}");
        }
    }
    assert!(parts > 20, "only {parts} parts");
    let has = |part: &str| questions.iter().any(|it| it.gold_sql.contains(part));
    assert!(has(" HAVING ") && has(" EXCEPT ") && has(" AND "));
    assert!(database.questions() > 150, "{database:?}");
}

/// The oldest rows have no channel, and the last one is neither paid nor not.
#[test]
fn a_large_table_is_described_by_old_and_new_rows() {
    let (database, questions) = drafted(
        "CREATE TABLE sales (id INTEGER PRIMARY KEY, channel TEXT, voucher TEXT, amount INTEGER,
            is_paid INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 25000)
         INSERT INTO sales SELECT i,
            iif(i < 22000, NULL, trim(substr('web  shop phone', i % 3 * 5 + 1, 5))), NULL,
            5 + i * 37 % 400, iif(i = 24999, 2, i % 2) FROM n",
        40,
    );
    let notes = &database.notes;
    let note = "sales.voucher has no value in the rows that were read (20000 of 25000)";
    assert!(notes.iter().any(|it| it == note), "{notes:#?}");
    assert!(!notes.iter().any(|it| it.contains("channel")), "{notes:#?}");
    let has = |column: &str| questions.iter().any(|it| it.gold_sql.contains(column));
    assert!(has("channel") && !has("is_paid"));
}

/// One of the rows that are not read has no size, and is neither open nor not open.
#[test]
fn gaps_of_a_large_table_are_found_in_all_rows() {
    let (_, questions) = drafted(
        "CREATE TABLE shops (id INTEGER PRIMARY KEY, size TEXT, is_open INTEGER, staff INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 25000)
         INSERT INTO shops SELECT i,
            iif(i = 24999, 'unknown', trim(substr('small largewide ', i % 3 * 5 + 1, 5))),
            iif(i = 24999, NULL, i % 7 > 2), 5 + i * 37 % 400 FROM n",
        60,
    );
    let mut queries = questions.iter().map(|it| &it.gold_sql);
    let listed = [
        "GROUP BY size",
        "DISTINCT size",
        "size <>",
        "size !=",
        "is_open = 0",
    ];
    for sql in queries.clone() {
        assert!(!listed.iter().any(|it| sql.contains(it)), "{sql}");
    }
    assert!(queries.clone().any(|sql| sql.contains("size = ")));
    assert!(queries.any(|sql| sql.contains("is_open = 1")));
}

/// MySQL writes 0000-00-00 for a day that is missing. SQL takes it for the earliest one.
#[test]
fn a_missing_day_is_not_compared() {
    let (database, questions) = drafted(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, title TEXT, held_on TEXT, start_date TEXT,
            guests INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO events SELECT i, 'Fair ' || char(65 + i % 26) || i, NULL,
            iif(i % 9, printf('20%d-%02d-%02d', 20 + i % 4, 1 + i * 7 % 12, 1 + i * 11 % 28),
                '0000-00-00 00:00:00'), 5 + i * 17 % 75 FROM n;
         UPDATE events SET held_on = start_date",
        150,
    );
    let queries = questions.iter().map(|it| &it.gold_sql);
    let about_start: Vec<&String> = queries.filter(|it| it.contains("start_date")).collect();
    for sql in &about_start {
        let day = [
            "date >",
            "date <",
            "date BETWEEN",
            "(start_date)",
            "BY start_date",
        ];
        assert!(!day.iter().any(|it| sql.contains(it)), "{sql}");
    }
    assert!(about_start.len() > 5, "{questions:#?}");
    let answers = questions.iter().map(|it| it.gold_answer.to_string());
    assert!(!answers.into_iter().any(|it| it.contains("0000-00-00")));
    let note = "events.held_on has a name that is no noun; give it words";
    assert!(database.notes.iter().any(|it| it == note), "{database:?}");
}

/// A lot that is neither sold nor not sold has a blank.
#[test]
fn a_flag_with_blanks_is_one() {
    let (_, questions) = drafted(
        "CREATE TABLE lots (id INTEGER PRIMARY KEY, title TEXT, is_sold TEXT, price INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO lots SELECT i, 'Lot ' || char(65 + i % 26) || i,
            CASE i * i % 7 WHEN 1 THEN '' WHEN 2 THEN 'N' ELSE 'Y' END, 5 + i * 37 % 400 FROM n",
        100,
    );
    let about_sold = questions
        .iter()
        .filter(|it| it.gold_sql.contains("is_sold"));
    let about_sold: Vec<&Question> = about_sold.collect();
    for Question {
        question_text,
        gold_sql,
        ..
    } in &about_sold
    {
        assert!(gold_sql.contains("is_sold = 'Y'"), "{gold_sql}");
        assert!(!question_text.contains("is sold is"), "{question_text}");
    }
    assert!(about_sold.len() > 5, "{questions:#?}");
}

/// A virtual generated column is evaluated at each reading, and may take any time. A stored one is
/// a column like others.
#[test]
fn computed_columns_are_not_asked_about() {
    let (database, questions) = drafted(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER,
            price INTEGER AS (amount * 3) STORED, weight INTEGER AS (amount * 2));
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO orders (id, amount) SELECT i, 5 + i * 37 % 400 FROM n",
        60,
    );
    let note = "orders.weight is computed; it is not asked about";
    let notes = &database.notes;
    assert!(notes.iter().any(|it| it == note), "{notes:#?}");
    let has = |column: &str| questions.iter().any(|it| it.gold_sql.contains(column));
    assert!(has("price") && !has("weight"));
}

/// `likes` are numbers. `user`, `zorb` and `reviewer` are ids: of a table without a key, of one
/// that only the schema knows, and of nothing that the database has.
#[test]
fn ids_are_no_numbers() {
    let (database, questions) = drafted(
        "PRAGMA foreign_keys = OFF;
         CREATE TABLE users (name TEXT, city TEXT, number INTEGER);
         CREATE TABLE zorbs (a TEXT, b TEXT, PRIMARY KEY (a, b));
         CREATE TABLE posts (id INTEGER PRIMARY KEY, title TEXT, user INTEGER, zorb INTEGER,
            reviewer INTEGER, likes INTEGER, writer INTEGER REFERENCES users);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO posts SELECT i, 'Post ' || char(65 + i % 26) || i, 100 + i * 7 % 29,
            i * 11 % 23, i * 5 % 31, i * 37 % 41, i * 3 % 17 FROM n;
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 30)
         INSERT INTO users SELECT 'User ' || char(65 + i % 26) || i, 'Town ' || i % 4, 7 FROM n;
         INSERT INTO zorbs VALUES ('x', 'y')",
        200,
    );
    let mut texts = questions.iter().map(|it| &it.question_text);
    assert!(texts.any(|it| it.contains("likes")));
    let notes = &database.notes;
    for id in ["user", "zorb", "reviewer", "writer"] {
        for question in &questions {
            let sql = question.gold_sql.replace("FROM users", "");
            assert!(!sql.contains(id), "{sql}");
        }
        let note = format!("posts.{id} seems to have ids");
        assert!(notes.iter().any(|it| it.starts_with(&note)), "{notes:#?}");
    }
}

#[test]
fn two_references_to_a_table_are_told_apart() {
    let (_, questions) = drafted(
        "CREATE TABLE clubs (club_id INTEGER PRIMARY KEY, name TEXT);
         CREATE TABLE results (id INTEGER PRIMARY KEY, points INTEGER,
            club_id_1 INTEGER REFERENCES clubs, club_id_2 INTEGER REFERENCES clubs);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 12)
         INSERT INTO clubs SELECT i, 'Club ' || char(65 + i) FROM n;
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO results SELECT i, i * 7 % 23, i * 5 % 11, i * 3 % 10 FROM n",
        100,
    );
    let texts: Vec<&String> = questions.iter().map(|it| &it.question_text).collect();
    let find = |part: &str| texts.iter().any(|text| text.contains(part));
    assert!(find("first club") && find("second club"), "{texts:#?}");
    assert!(!find("club id") && !find("1s"), "{texts:#?}");
}

/// The names of three columns say too little. One of them has no value, and one names a secret.
#[test]
fn words_open_the_columns_whose_notes_ask_for_words() {
    let sql = "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, total INTEGER,
            is_vip INTEGER, enr TEXT, pw_hash INTEGER, replaces_id INTEGER REFERENCES orders,
            city TEXT);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO orders SELECT i, 'Order ' || char(65 + i % 26) || i, 5 + i * 37 % 400,
            i * i % 7 < 3, NULL, i * 31 % 50, i / 2, 'Town ' || char(65 + i % 4) FROM n";
    let words = "[tables.orders.columns]
         total = { noun = \"order value\" }
         is_vip = { noun = \"VIP status\" }
         enr = { noun = \"enrollment\" }
         pw_hash = { noun = \"login number\" }";
    let has = |notes: &[String], note: &str| notes.iter().any(|it| it == note);
    let (without, questions) = drafted(sql, 40);
    for note in [
        "orders.total has no noun in its name; give it words",
        "orders.is_vip has a name that few readers would understand; give it words",
        "orders.enr has a name that few readers would understand; give it words",
        "key not used: orders.replaces_id refers to its own table",
        "orders.replaces_id is an id whose key is not used",
    ] {
        assert!(has(&without.notes, note), "{note}: {:#?}", without.notes);
    }
    assert!(!questions.iter().any(|it| it.gold_sql.contains("total")));

    let (worded, questions) = drafted_in_words(sql, words, 100);
    let notes = &worded.notes;
    assert!(!notes.iter().any(|it| it.contains("words")), "{notes:#?}");
    for note in ["orders.enr has no value", "orders.pw_hash is a secret"] {
        assert!(has(notes, note), "{note}: {notes:#?}");
    }
    for (column, noun) in [("total", "order value"), ("is_vip", "VIP status")] {
        let about = questions.iter().filter(|it| it.gold_sql.contains(column));
        let texts: Vec<&String> = about.map(|it| &it.question_text).collect();
        assert!(!texts.is_empty(), "{column}: {questions:#?}");
        assert!(texts.iter().all(|it| it.contains(noun)), "{texts:#?}");
    }
}

/// Users are in teams, and a team has a lead user.
#[test]
fn tables_that_refer_to_each_other_are_told_apart() {
    let (_, questions) = drafted(
        "PRAGMA foreign_keys = OFF;
         CREATE TABLE users (user_id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER,
            team_id INTEGER REFERENCES teams);
         CREATE TABLE teams (team_id INTEGER PRIMARY KEY, name TEXT, budget INTEGER,
            lead_user_id INTEGER REFERENCES users);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 60)
         INSERT INTO users SELECT i, 'User ' || char(65 + i % 26) || i, 'Town ' || char(65 + i % 4),
            18 + i * 37 % 50, i * i % 13 FROM n;
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 14)
         INSERT INTO teams SELECT i, 'Team ' || char(65 + i), 100 + i * 53 % 90, i * 5 % 9 FROM n",
        200,
    );
    let sent = |part: &str| {
        let about = questions.iter().filter(|it| it.gold_sql.contains(part));
        about.map(|it| &it.question_text).collect::<Vec<_>>()
    };
    let of_leads = sent("lead_user_id");
    assert!(!of_leads.is_empty(), "{questions:#?}");
    for text in of_leads {
        assert!(text.contains("lead user"), "{text}");
        assert!(!text.contains("users that"), "{text}");
    }
    let of_teams = sent("team_id");
    let have = |it: &&String| it.contains("have") && it.contains("eams");
    assert!(of_teams.iter().any(have), "{of_teams:#?}");
}
