//! What the columns of a procedural database are declared as.

use super::super::rng::RngStream;
use super::super::schema::TypeNames;
use super::lexicon::draw;
use super::naming::Tidiness;

const INTEGERS: [&str; 5] = ["INTEGER", "INTEGER", "INT", "INT", "BIGINT"];
const DECIMALS: [&str; 5] = ["REAL", "REAL", "FLOAT", "DOUBLE", "DECIMAL(10,2)"];
const TEXTS: [&str; 6] = [
    "TEXT",
    "TEXT",
    "VARCHAR(255)",
    "VARCHAR(40)",
    "varchar(20)",
    "CHAR(30)",
];
const DATES: [&str; 4] = ["TEXT", "DATE", "DATE", "DATETIME"];

/// Draws the types of a database. Messy schemas have those that other systems know.
pub(super) fn draw_types(tidiness: Tidiness, rng: &mut RngStream) -> TypeNames {
    match tidiness {
        Tidiness::Tidy => TypeNames::SQLITE,
        Tidiness::Messy => TypeNames {
            integer: draw(&INTEGERS, rng),
            decimal: draw(&DECIMALS, rng),
            text: draw(&TEXTS, rng),
            date: draw(&DATES, rng),
        },
    }
}
