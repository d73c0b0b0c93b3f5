//! The collations NOCASE and RTRIM, with each comparison charged to the meter.
//!
//! Invariant: they order as SQLite's own collations. A collation cannot end a statement. Once the
//! budget is spent, all texts compare equal, so that a sort, which is a single step, ends quickly.
//! Rows are read only after another check of the meter.

use std::{
    cmp::Ordering,
    ffi::{CStr, c_int, c_void},
    slice,
    sync::Arc,
};

use rusqlite::{Connection, ffi};

use super::{functions::EXAMINED_BYTES, meter::Meter};

/// An order of texts.
trait Collation {
    const NAME: &'static CStr;

    /// Returns the order of two texts and the number of bytes examined.
    fn order(left: &[u8], right: &[u8]) -> (Ordering, usize);
}

/// Ignores the case of ASCII letters, up to a NUL in both texts. Then the shorter text is first.
struct NoCase;

/// Compares bytes and ignores blanks at the ends.
struct RightTrim;

/// Installs the metered collations on `connection`.
pub(super) fn install(connection: &Connection, meter: &Arc<Meter>) -> rusqlite::Result<()> {
    install_one::<NoCase>(connection, meter)?;
    install_one::<RightTrim>(connection, meter)
}

fn install_one<C: Collation>(connection: &Connection, meter: &Arc<Meter>) -> rusqlite::Result<()> {
    let meter = Arc::into_raw(Arc::clone(meter)).cast_mut().cast();
    // SAFETY: the handle is open. SQLite copies the name, and calls `release` when it drops the
    // meter, unless it refuses the collation.
    let code = unsafe {
        ffi::sqlite3_create_collation_v2(
            connection.handle(),
            C::NAME.as_ptr(),
            ffi::SQLITE_UTF8,
            meter,
            Some(compare::<C>),
            Some(release),
        )
    };
    if code == ffi::SQLITE_OK {
        return Ok(());
    }
    // SAFETY: SQLite has not taken the meter.
    unsafe { release(meter) };
    Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
}

unsafe extern "C" fn release(meter: *mut c_void) {
    // SAFETY: made by `Arc::into_raw` in `install`, and given back once.
    drop(unsafe { Arc::from_raw(meter.cast::<Meter>()) });
}

unsafe extern "C" fn compare<C: Collation>(
    meter: *mut c_void,
    left_bytes: c_int,
    left: *const c_void,
    right_bytes: c_int,
    right: *const c_void,
) -> c_int {
    // SAFETY: the meter is that of `install_one`, which SQLite holds until `release`; the texts are
    // as long as SQLite says.
    let (meter, left, right) = unsafe {
        let meter = &*meter.cast::<Meter>();
        (meter, text(left, left_bytes), text(right, right_bytes))
    };
    let (ordering, examined) = C::order(left, right);
    match meter.spend_bytes(examined as u64 * EXAMINED_BYTES) {
        Ok(()) => ordering as c_int,
        Err(_) => 0,
    }
}

/// # Safety
/// The text has that many bytes and lives as long as the slice.
unsafe fn text<'a>(start: *const c_void, bytes: c_int) -> &'a [u8] {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes > 0 => {
            // SAFETY: by the caller.
            unsafe { slice::from_raw_parts(start.cast(), bytes) }
        }
        _ => &[],
    }
}

impl Collation for NoCase {
    const NAME: &'static CStr = c"NOCASE";

    fn order(left: &[u8], right: &[u8]) -> (Ordering, usize) {
        for (index, (one, other)) in left.iter().zip(right).enumerate() {
            let ordering = one.to_ascii_lowercase().cmp(&other.to_ascii_lowercase());
            if ordering.is_ne() {
                return (ordering, index + 1);
            }
            if *one == 0 {
                return (left.len().cmp(&right.len()), index + 1);
            }
        }
        (left.len().cmp(&right.len()), left.len().min(right.len()))
    }
}

impl Collation for RightTrim {
    const NAME: &'static CStr = c"RTRIM";

    fn order(left: &[u8], right: &[u8]) -> (Ordering, usize) {
        fn trimmed(text: &[u8]) -> &[u8] {
            let end = text.iter().rposition(|byte| *byte != b' ');
            end.map_or(&[], |end| &text[..=end])
        }
        let (short_left, short_right) = (trimmed(left), trimmed(right));
        let blanks = left.len() - short_left.len() + right.len() - short_right.len();
        // Comparing is about eight times faster per byte than our loop over blanks.
        let compared = short_left.len().min(short_right.len()) / 8;
        (short_left.cmp(short_right), blanks + compared)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sandbox::process;

    fn text_of_few() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            Just(b'A'),
            Just(b'Z'),
            Just(b'_'),
            Just(b' '),
            Just(0),
            Just(0xc3),
            any::<u8>()
        ];
        proptest::collection::vec(byte, 0..5)
    }

    proptest! {
        #[test]
        fn they_order_as_sqlites_own_collations(left in text_of_few(), right in text_of_few()) {
            process::prepare().unwrap();
            let (theirs, ours) = (
                Connection::open_in_memory().unwrap(),
                Connection::open_in_memory().unwrap(),
            );
            install(&ours, &Arc::new(Meter::new(u64::MAX))).unwrap();
            for collation in ["NOCASE", "RTRIM"] {
                let sql = format!(
                    "SELECT (a < b COLLATE {collation}) - (a > b COLLATE {collation}) \
                     FROM (SELECT CAST(?1 AS TEXT) a, CAST(?2 AS TEXT) b)"
                );
                let order = |connection: &Connection| -> i64 {
                    connection.query_row(&sql, (&left, &right), |row| row.get(0)).unwrap()
                };
                prop_assert_eq!(order(&ours), order(&theirs), "{}", collation);
            }
        }
    }

    #[test]
    fn all_texts_are_equal_once_the_budget_is_spent() {
        let connection = Connection::open_in_memory().unwrap();
        let meter = Arc::new(Meter::new(10));
        install(&connection, &meter).unwrap();
        let less = || -> bool {
            connection
                .query_row("SELECT 'a' < 'B' COLLATE NOCASE", [], |row| row.get(0))
                .unwrap()
        };
        assert!(less());
        meter.spend_bytes(10_000).unwrap_err();
        assert!(!less());
    }
}
