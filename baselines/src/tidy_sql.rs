//! Gold SQL written as a small model can learn it.
//!
//! People write the same query in many ways: `t2.clubname  =  "Chess"` for a column that DESCRIBE
//! shows as `ClubName`. A model that copies names must then also change their letters, keep aliases
//! in mind, and escape quotation marks within a tool call. So demonstrations have keywords in
//! capitals, names as DESCRIBE shows them, text in single quotes, single blanks, and the name of a
//! table in place of its alias.
//!
//! Invariant: the meaning stays the same. A query whose meaning is not plain from its words alone
//! stays as it is (`plain`).

mod aliases;
mod plain;
mod quotes;
mod words;

use data::{Question, sql_name::as_needed};
use proto::v1::Observation;

use crate::observation::{DescribedTable, described_tables, is_described};
use words::{Kind, Word, unquoted};

/// Comparisons have blanks around them.
const COMPARISONS: [&str; 8] = ["=", "<", ">", "<=", ">=", "<>", "!=", "=="];

/// Returns the gold SQL of a question in a tidy form, or as it is if a table of it has not been
/// described: a text in double quotes might be the name of its column.
pub(crate) fn tidy_gold_sql(question: &Question, observation: &Observation) -> String {
    let involved = &question.tables_involved;
    if !involved
        .iter()
        .all(|table| is_described(observation, table))
    {
        return question.gold_sql.clone();
    }
    let mut tables = described_tables(observation);
    let is_involved = |name: &str| involved.iter().any(|it| it.eq_ignore_ascii_case(name));
    tables.retain(|table| is_involved(&table.name));
    tidy_sql(&question.gold_sql, &tables)
}

/// Returns a query in a tidy form, or as it is if its meaning is not plain.
fn tidy_sql(sql: &str, tables: &[DescribedTable]) -> String {
    // SQLite does not take these for white space.
    let is_odd = |letter: char| letter == '\u{b}' || !letter.is_ascii() && letter.is_whitespace();
    let mut words = words::split(sql, tables);
    if sql.contains(is_odd) || !plain::is_plain(&words) {
        return sql.to_owned();
    }
    aliases::resolve(&mut words);
    quotes::resolve(&mut words, tables);
    spell_columns(&mut words, tables);
    joined(&words)
}

/// Spells each column that follows the name of its table as that table shows it.
fn spell_columns(words: &mut [Word], tables: &[DescribedTable]) {
    for at in 2..words.len() {
        if words[at].kind == Kind::Column
            && words[at - 1].is(".")
            && words[at - 2].kind == Kind::Table
            && let Some(table) = tables
                .iter()
                .find(|it| as_needed(&it.name) == words[at - 2].text)
        {
            let name = unquoted(&words[at].text);
            let mut columns = table.columns.iter();
            if let Some(column) = columns.find(|column| column.eq_ignore_ascii_case(&name)) {
                words[at].text = as_needed(column);
            }
        }
    }
}

fn joined(words: &[Word]) -> String {
    let mut sql = String::new();
    for (at, word) in words.iter().enumerate() {
        if at > 0 && has_blank(&words[at - 1], word) {
            sql.push(' ');
        }
        sql.push_str(&word.text);
    }
    sql
}

fn has_blank(before: &Word, word: &Word) -> bool {
    let is_comparison = |word: &Word| COMPARISONS.iter().any(|it| word.is(it));
    let is_letter =
        |letter: Option<char>| letter.is_some_and(|it| it.is_alphanumeric() || it == '_');
    if before.is("(") || [")", ","].iter().any(|it| word.is(it)) {
        false
    } else if before.is(",") || is_comparison(before) || is_comparison(word) {
        true
    } else if word.is("(") {
        before.kind != Kind::Function && word.gap
    } else {
        // A name that has lost its quotation marks must not grow together with another word.
        word.gap || is_letter(before.text.chars().last()) && is_letter(word.text.chars().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::tests::solutions;

    fn tables() -> Vec<DescribedTable> {
        let table = |name: &str, columns: &[&str]| DescribedTable {
            name: name.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
        };
        vec![
            table("Club", &["ClubID", "ClubName", "Net Price"]),
            table("member_of_club", &["StuID", "clubid", "position"]),
            table("Order", &["plan", "year"]),
        ]
    }

    #[test]
    fn queries_become_tidy() {
        for (sql, tidy) in [
            (
                "select  clubname from club where clubid  =  5 ;",
                "SELECT ClubName FROM Club WHERE ClubID = 5",
            ),
            (
                "SELECT t2.POSITION ,  COUNT( * ) FROM club AS t1 JOIN member_of_club AS t2 \
                 ON t1.clubid  =  t2.CLUBID GROUP BY t2.position",
                "SELECT member_of_club.position, count(*) FROM Club JOIN member_of_club \
                 ON Club.ClubID = member_of_club.clubid GROUP BY member_of_club.position",
            ),
            // Text in double quotes, with marks of both kinds, and a name that needs them.
            (
                "SELECT `net price` FROM club WHERE clubname = \"Bob's \"\"A\"\"\"",
                "SELECT \"Net Price\" FROM Club WHERE ClubName = 'Bob''s \"A\"'",
            ),
            ("SELECT \"clubname\" FROM club", "SELECT ClubName FROM Club"),
            ("SELECT 'clubname' FROM club", "SELECT 'clubname' FROM Club"),
            (
                "SELECT clubname FROM club WHERE clubname = 'a  ;''b' -- why\n",
                "SELECT ClubName FROM Club WHERE ClubName = 'a  ;''b'",
            ),
            // SQLite reads `plan` as a name, and the keyword of the table called Order stays one.
            (
                "select plan, -1.5 from \"order\" order by plan limit 3",
                "SELECT plan, -1.5 FROM \"Order\" order BY plan LIMIT 3",
            ),
            // An alias in each part of a compound query.
            (
                "SELECT t1.year FROM \"Order\" AS t1 EXCEPT SELECT t1.year FROM \"Order\" AS t1",
                "SELECT \"Order\".year FROM \"Order\" EXCEPT SELECT \"Order\".year FROM \"Order\"",
            ),
        ] {
            assert_eq!(tidy_sql(sql, &tables()), tidy);
            assert_eq!(tidy_sql(tidy, &tables()), tidy, "it is idempotent");
        }
    }

    #[test]
    fn what_is_not_plain_stays() {
        for sql in [
            // A table that is read twice, or whose alias stands elsewhere.
            "SELECT a.ClubName FROM Club AS a JOIN Club AS b ON a.ClubID = b.ClubID",
            "SELECT a.ClubName FROM Club AS a WHERE a.ClubID IN (SELECT ClubID FROM Club)",
            "SELECT count(*) AS a FROM Club AS a ORDER BY a",
            "SELECT s.c FROM (SELECT ClubID AS c FROM Club) AS s \
             JOIN member_of_club AS c ON s.c = c.ClubID",
            "SELECT \"c\".ClubName FROM Club AS \"c\" WHERE c.ClubID = 1",
            "SELECT \"c\".ClubName FROM Club c",
            "SELECT c.ClubName, Club.position FROM Club AS c \
             JOIN member_of_club AS Club ON c.ClubID = Club.ClubID",
            "SELECT c.ClubName, Club.position FROM Club AS c \
             JOIN member_of_club Club ON c.ClubID = Club.ClubID",
            "SELECT a.ClubID FROM Club AS a UNION SELECT ClubID FROM member_of_club ORDER BY a.ClubID",
            // Text in double quotes that may be a name.
            "SELECT position, count(*) AS \"how many\" FROM member_of_club HAVING \"how many\" > 3",
            "SELECT max(\"n\") FROM (SELECT count(*) AS n FROM Club)",
            "SELECT avg(\"count(*)\") FROM (SELECT count(*) FROM Club)",
            "SELECT \"rowid\" FROM Club",
            "SELECT ClubID FROM Club WHERE ClubID IN \
             (SELECT ClubID FROM member_of_club WHERE position = \"ClubName\")",
            "SELECT ClubID FROM Club WHERE ClubName = \"Club\"",
            "SELECT ClubID FROM Club WHERE ClubName = \"position\"",
            "SELECT ClubName nm FROM Club WHERE \"nm\" = 'Art'",
            "SELECT n FROM v WHERE \"ClubName\" > n",
            // Aliases and functions in quotation marks, and names that are no words.
            "select length(clubname) AS 'n' from club order by \"n\" desc",
            "select clubname \"initial\" from club group by \"initial\"",
            "select -clubid `neg` from club order by \"neg\"",
            "select a.clubname from club as 'a' join member_of_club as a on a.stuid = 10",
            "select max(\"count( * )\") from (select count( * ) from club)",
            "select \"max\"(clubid) from club",
            "select \"a\"'b' from club",
            "select x\"63\" from club",
            "select 4.\"clubname\" from club",
            "select clubid as total\u{a0}n from club",
            "select m.stuid from club \"c\" join member_of_club as m on m.clubid = c.clubid",
            "select clubid from club where clubname is distinct from \"club\"",
            // A table whose name a part of the query gives to something else.
            "SELECT a.ClubName FROM Club AS a WHERE a.ClubID < (SELECT max(Club.ClubID) \
             FROM (SELECT ClubID FROM member_of_club) Club WHERE Club.ClubID <> a.ClubID)",
            "select a.clubname from club as a where exists (select 1 from (club))",
            "SELECT a.ClubName FROM Club AS a WHERE a.ClubID IN member_of_club",
            // Tables that are not described, commas, WITH, functions as tables.
            "SELECT x.a  FROM other AS x WHERE x.b = \"c\"",
            "select clubname from club join other",
            "select c.clubname from club as c, member_of_club as m where c.clubid = m.clubid",
            "with c as (select clubid from club) select count(*) from c",
            "select \"value\" from club as c join json_each(c.clubname)",
            "select clubname from main.club",
            // Operators and literals.
            "SELECT ClubID << 1, ClubName || x'63', ClubName -> '$.a', ClubName ->> 'b' FROM Club",
            "SELECT ClubID FROM Club WHERE ClubID == 2 AND ClubID > 4. AND ClubID < .5 OR ClubID = 1e-5",
            "SELECT größe FROM (SELECT ClubID AS größe FROM Club) ORDER BY \"größe\" DESC",
        ] {
            assert_eq!(tidy_sql(sql, &tables()), sql);
        }
    }

    #[test]
    fn a_text_stays_a_text_although_an_unread_table_has_such_a_name() {
        let question = Question {
            gold_sql: "SELECT ClubID FROM Club WHERE ClubName = \"position\"".to_owned(),
            tables_involved: vec!["Club".to_owned()],
            ..solutions().get("q1").unwrap().clone()
        };
        let observation = Observation {
            schema_info: "Available tables:\n- Club\nTable 'Club' columns:\n- ClubID: INTEGER\n\
                          - ClubName: TEXT\nTable 'member_of_club' columns:\n- position: TEXT"
                .to_owned(),
            ..Observation::default()
        };
        let tidy = "SELECT ClubID FROM Club WHERE ClubName = 'position'";
        assert_eq!(tidy_gold_sql(&question, &observation), tidy);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken(sql in "[ -~\\né]{0,60}|(SELECT|FROM|club|AS|\\.|,|\"|'| ){0,20}") {
            tidy_sql(&sql, &tables());
        }
    }
}
