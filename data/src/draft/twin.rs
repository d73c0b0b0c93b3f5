//! Resampled copies of a database. A question whose answer is the same on all of them does not
//! depend on the data.

use rusqlite::{Connection, params_from_iter};

use super::links::Links;
use super::source::{SourceDatabase, SourceTable};
use crate::generator::rng::RngStream;
use crate::sql_text::quoted;

/// The percentages of the rows of a table that a copy lacks.
const FEWEST_MISSING: i64 = 15;
const MOST_MISSING: i64 = 45;

/// Returns a copy in memory whose rows have other values: each column is drawn from its own
/// values. Keys stay, and columns without repetitions keep their values in another order.
pub(super) fn resampled(
    database: &SourceDatabase,
    links: &Links,
    rng: &mut RngStream,
) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    let transaction = connection.transaction()?;
    for (index, table) in database.tables.iter().enumerate() {
        let columns = table.columns.iter();
        let columns: Vec<String> = columns
            .map(|column| format!("{} {}", quoted(&column.name), column.affinity))
            .collect();
        let name = quoted(&table.name);
        transaction.execute_batch(&format!("CREATE TABLE {name} ({})", columns.join(", ")))?;
        let marks = vec!["?"; table.columns.len()].join(", ");
        let mut insert = transaction.prepare(&format!("INSERT INTO {name} VALUES ({marks})"))?;
        for places in rows(table, links.keys[index], rng) {
            let cells = places.iter().enumerate();
            let cells = cells.map(|(column, row)| &table.rows[*row][column]);
            insert.execute(params_from_iter(cells))?;
        }
        let linked = links.links.iter().filter(|link| link.table == index);
        let indexed = links.keys[index]
            .into_iter()
            .chain(linked.map(|link| link.column));
        for column in indexed {
            let column_name = quoted(&table.columns[column].name);
            transaction.execute_batch(&format!(
                "CREATE INDEX IF NOT EXISTS \"drafting {index} {column}\" ON {name} ({column_name})"
            ))?;
        }
    }
    transaction.commit()?;
    Ok(connection)
}

/// Returns the rows of a copy. Each cell is the place of the row whose value it has.
fn rows(table: &SourceTable, key: Option<usize>, rng: &mut RngStream) -> Vec<Vec<usize>> {
    let count = table.rows.len();
    if count == 0 {
        return Vec::new();
    }
    let missing = count as i64 * rng.between(FEWEST_MISSING, MOST_MISSING) / 100;
    let mut kept: Vec<usize> = (0..count).collect();
    rng.shuffle(&mut kept);
    kept.truncate(count - (missing.max(1) as usize).min(count - 1));
    let columns: Vec<Vec<usize>> = (0..table.columns.len())
        .map(|column| {
            if key == Some(column) {
                kept.clone()
            } else if table.columns[column].is_unique {
                let mut order = kept.clone();
                rng.shuffle(&mut order);
                order
            } else {
                kept.iter().map(|_| rng.below(count)).collect()
            }
        })
        .collect();
    let row = |row: usize| columns.iter().map(|column| column[row]).collect();
    (0..kept.len()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::dictionary::Dictionary;
    use super::super::word_file::WordFile;
    use super::super::{links, source};
    use super::*;

    #[test]
    fn a_copy_has_fewer_rows_with_values_of_the_same_columns() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE \"t x\" (id INTEGER PRIMARY KEY, name TEXT, n INTEGER);
                 WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 50)
                 INSERT INTO \"t x\" SELECT i, 'row ' || i, i % 5 FROM c;
                 CREATE TABLE empty (a)",
            )
            .unwrap();
        let database = source::read(&connection).unwrap();
        let file = WordFile::default();
        let links = links::find(&connection, &database, &file, &Dictionary::read()).unwrap();
        let copy =
            |seed| resampled(&database, &links, &mut RngStream::new(seed, &["twin"])).unwrap();
        let text = |copy: &Connection, sql: &str| {
            copy.query_row(sql, [], |row| row.get::<_, String>(0))
                .unwrap()
        };
        let all = "SELECT group_concat(id || name || n) FROM \"t x\"";
        assert_eq!(text(&copy(1), all), text(&copy(1), all));
        assert_ne!(text(&copy(1), all), text(&copy(2), all));
        let counts = "SELECT count(*) || ' ' || count(DISTINCT id) || ' ' || count(DISTINCT name) \
                      || ' ' || (min(n) >= 0 AND max(n) <= 4) || ' ' || sum(name != 'row ' || id) \
                      FROM \"t x\"";
        let counted = text(&copy(1), counts);
        let counted: Vec<i64> = counted.split(' ').map(|it| it.parse().unwrap()).collect();
        let [rows, ids, names, is_inside, moved] = counted.as_slice() else {
            panic!("{counted:?}");
        };
        assert!((27..=42).contains(rows), "{rows}");
        assert_eq!((ids, names, *is_inside), (rows, rows, 1));
        assert!(*moved > 0, "names are in another order");
    }
}
