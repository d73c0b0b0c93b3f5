//! NOCASE and RTRIM, each comparison charged to the meter.
//!
//! Invariant: they order as SQLite's own do. A collation cannot end a statement: once the meter wants it ended, all texts
//! are equal, so that a sort, which is a single step, ends at once; rows are read only after the meter was asked again.

use std::{
    cmp::Ordering,
    ffi::{CStr, c_int, c_void},
    slice,
    sync::Arc,
};

use rusqlite::{Connection, ffi};

use super::{functions::LOOK_BYTES, meter::Meter};

/// How two texts are ordered, and how many bytes it took to see.
trait Collation {
    const NAME: &'static CStr;

    fn order(left: &[u8], right: &[u8]) -> (Ordering, usize);
}

/// ASCII letters in any case, up to the first NUL of both; then the shorter text first.
struct NoCase;

/// By bytes, without the blanks at the ends.
struct RightTrim;

/// Gives `connection` the metered collations.
pub(super) fn install(connection: &Connection, meter: &Arc<Meter>) -> rusqlite::Result<()> {
    install_one::<NoCase>(connection, meter)?;
    install_one::<RightTrim>(connection, meter)
}

fn install_one<C: Collation>(connection: &Connection, meter: &Arc<Meter>) -> rusqlite::Result<()> {
    let meter = Arc::into_raw(Arc::clone(meter)).cast_mut().cast();
    // SAFETY: the handle is open; SQLite copies the name, and calls `release` when it lets go of the meter, save where it
    // refuses.
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
    // SAFETY: SQLite has not taken it.
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
    // SAFETY: the meter is that of `install_one`, which SQLite holds until `release`; the texts are as long as SQLite says.
    let (meter, left, right) = unsafe {
        let meter = &*meter.cast::<Meter>();
        (meter, text(left, left_bytes), text(right, right_bytes))
    };
    let (ordering, looked_at) = C::order(left, right);
    match meter.spend_bytes(looked_at as u64 * LOOK_BYTES) {
        Ok(()) => ordering as c_int,
        Err(_) => 0,
    }
}

/// # Safety
/// The text is that many bytes long, and lives as long as it is looked at.
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
        // Many bytes are compared in the time that one is looked at.
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
        fn they_order_as_sqlites_own(left in text_of_few(), right in text_of_few()) {
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
    fn who_may_not_go_on_sees_all_texts_equal() {
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
