//! The work that a rendering has left, in bytes that it may look at.
//!
//! Invariant: measuring a value takes time in proportion to what it charges, and stops where the
//! work is used up.

use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Object, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Bytes that a rendering may look at. A prompt of 32,000 tokens has 0.1 MB.
pub(super) const WORK: usize = 64 << 20;
/// What a value costs besides its text, as in an array.
pub(super) const VALUE_BYTES: usize = 32;
/// Arrays and objects in each other.
pub(super) const MOST_NESTING: usize = 64;
const METER: &str = " work left";

/// Charges a rendering.
pub(super) fn charge(state: &State<'_, '_>, work: usize) -> Result<(), Error> {
    let meter = state.get_or_set_temp_object(METER, || Meter(AtomicUsize::new(WORK)));
    let spend = |left: usize| left.checked_sub(work);
    let spent = meter
        .0
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
    spent.map(drop).map_err(|_| too_much())
}

/// Charges a rendering for looking at a value, and returns its size.
pub(super) fn charge_for(state: &State<'_, '_>, value: &Value) -> Result<usize, Error> {
    let mut left = WORK;
    measure(value, 0, &mut left)?;
    charge(state, WORK - left)?;
    Ok(WORK - left)
}

/// The work that a rendering has left.
#[derive(Debug)]
struct Meter(AtomicUsize);

impl Object for Meter {}

fn measure(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    let size = VALUE_BYTES + value.as_str().map_or(0, str::len);
    *left = left.checked_sub(size).ok_or_else(too_much)?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    if depth == MOST_NESTING {
        let detail = format!("nests values deeper than {MOST_NESTING} levels");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    for item in value.try_iter()? {
        measure(&item, depth + 1, left)?;
        if kind == ValueKind::Map {
            measure(&value.get_item(&item)?, depth + 1, left)?;
        }
    }
    Ok(())
}

/// Returns the error of a rendering that has no work left.
pub(super) fn too_much() -> Error {
    let detail = "builds more text than any prompt needs; use the template of the model's own \
                  folder";
    Error::new(ErrorKind::InvalidOperation, detail)
}
