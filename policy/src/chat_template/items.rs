//! Items of values: `x[i]`, `x[a:b:c]`, and lists in place of iterators.
//!
//! Invariant: each costs the time that it is charged. minijinja slices and reverses lists lazily,
//! so that a slice of a slice of a slice costs their number at each of its items. Slices have
//! Python's bounds.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::meter::{VALUE_BYTES, WORK, charge, charge_for};

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
    // One more than any rendering may look at.
    let items: Vec<Value> = value.try_iter()?.take(1 + WORK / VALUE_BYTES).collect();
    charge(state, items.len().saturating_mul(VALUE_BYTES))?;
    Ok(items)
}

/// `value[key]`.
pub(super) fn item(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, key) = (&args[0], &args[1]);
    // A map hashes the whole key.
    charge_for(state, key)?;
    // Both count up to the item. Lists and maps find it at once.
    if matches!(value.kind(), ValueKind::String | ValueKind::Iterable) {
        charge_for_items(state, value)?;
    }
    value.get_item(key)
}

/// `value[start:stop:step]`.
pub(super) fn slice(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = &args[0];
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
            charge_for_items(state, value)?;
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
    // The length of a list in memory is below 2^63, and so is every sum here.
    let count = count as i64;
    let (lowest, highest) = if step > 0 {
        (0, count)
    } else {
        (-1, count - 1)
    };
    let place = |bound: Option<i64>, default| match bound {
        None => default,
        Some(bound) if bound < 0 => (bound + count).max(lowest),
        Some(bound) => bound.min(highest),
    };
    let (first, last) = if step > 0 {
        (lowest, highest)
    } else {
        (highest, lowest)
    };
    let (mut next, stop) = (place(start, first), place(stop, last));
    std::iter::from_fn(move || {
        let at = next;
        next = next.saturating_add(step);
        let is_inside = if step > 0 { at < stop } else { at > stop };
        is_inside.then_some(at as usize)
    })
}

/// minijinja's objects that hold whatever a template has named.
const HOLDERS: [&str; 5] = ["Namespace", "Macro", "Closure", "Loop", "Module"];

/// The value that a namespace takes: not another namespace, nor a macro, which may refer to one.
/// Values would nest without end through them, or hold themselves and never be freed.
pub(super) fn assigned(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    charge_for(state, &args[0])?;
    if refers_to_namespace(&args[0])? {
        let detail = "assigns a namespace or a macro to a namespace, which is not supported";
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    Ok(args[0].clone())
}

/// The value was measured, so it is finite and shallow.
fn refers_to_namespace(value: &Value) -> Result<bool, Error> {
    let Some(object) = value.as_object() else {
        return Ok(false);
    };
    let is_map = value.kind() == ValueKind::Map;
    let is_plain = !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let name = object.type_name();
    if is_plain || HOLDERS.iter().any(|holder| name.ends_with(holder)) {
        return Ok(true);
    }
    for item in value.try_iter()? {
        if refers_to_namespace(&item)? || is_map && refers_to_namespace(&value.get_item(&item)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}
