//! Items of values: `x[i]`, `x[a:b:c]`, and lists in place of iterators.
//!
//! Invariant: each costs the time that it is charged. minijinja slices and reverses lists lazily,
//! so that a slice of a slice of a slice costs their number at each of its items. Slices have
//! Python's bounds.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::bounds::{VALUE_BYTES, charge};

/// Charges for looking at each item of a value, but not into it.
pub(super) fn charge_for_items(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let size = match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(VALUE_BYTES),
    };
    charge(state, size.saturating_add(VALUE_BYTES))
}

/// Returns a list in place of an iterator, and other values as they are.
pub(super) fn settled(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Iterable => listed(state, &value).map(Value::from),
        _ => Ok(value),
    }
}

fn listed(state: &State<'_, '_>, value: &Value) -> Result<Vec<Value>, Error> {
    let charged = |item| charge(state, VALUE_BYTES).map(|()| item);
    value.try_iter()?.map(charged).collect()
}

/// `value[key]`.
pub(super) fn item(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, key) = (&args[0], &args[1]);
    charge_for_items(state, key)?;
    // Both count up to the item. Lists and maps find it at once.
    if matches!(value.kind(), ValueKind::String | ValueKind::Iterable) {
        charge_for_items(state, value)?;
    }
    value.get_item(key)
}

/// `value[start:stop:step]`.
pub(super) fn slice(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = &args[0];
    charge_for_items(state, value)?;
    let bound = |at: usize| match args[at].is_none() {
        true => Ok(None),
        false => i64::try_from(args[at].clone()).map(Some),
    };
    let bounds = [bound(1)?, bound(2)?];
    let step = bound(3)?.unwrap_or(1);
    if step == 0 {
        let detail = "cannot slice by step size of 0";
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    match value.kind() {
        ValueKind::String => {
            let chars: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            let sliced = indices(chars.len(), bounds, step).map(|at| chars[at]);
            Ok(sliced.collect::<String>().into())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = listed(state, value)?;
            let sliced = indices(items.len(), bounds, step).map(|at| items[at].clone());
            Ok(sliced.collect::<Vec<_>>().into())
        }
        ValueKind::Undefined | ValueKind::None => Ok(Vec::<Value>::new().into()),
        kind => {
            let detail = format!("value of type {kind} cannot be sliced");
            Err(Error::new(ErrorKind::InvalidOperation, detail))
        }
    }
}

/// Returns the places that a slice of `count` items has, as Python's `slice.indices` counts them.
fn indices(
    count: usize,
    [start, stop]: [Option<i64>; 2],
    step: i64,
) -> impl Iterator<Item = usize> {
    let (count, step) = (count as i128, i128::from(step));
    let (lowest, highest) = if step > 0 {
        (0, count)
    } else {
        (-1, count - 1)
    };
    let place = |bound: Option<i64>, default| match bound.map(i128::from) {
        None => default,
        Some(bound) if bound < 0 => (bound + count).max(lowest),
        Some(bound) => bound.min(highest),
    };
    let (first, last) = if step > 0 {
        (lowest, highest)
    } else {
        (highest, lowest)
    };
    let (start, stop) = (place(start, first), place(stop, last));
    let is_inside = move |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| Some(at + step))
        .take_while(is_inside)
        .map(|at| at as usize)
}
