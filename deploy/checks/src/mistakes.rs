//! Makes mistakes in documents, and expects that the checks find them.

use serde_json::Value;

use crate::{faults, policy::violations};

/// Changes a value of all documents of a kind that have it, and expects a violation.
///
/// # Panics
/// No document has the value, or the violation is not found.
#[track_caller]
pub fn is_noticed(documents: &[Value], kind: &str, pointer: &str, to: &Value, violation: &str) {
    let mut documents = documents.to_vec();
    let of_kind = documents.iter_mut().filter(|it| it["kind"] == kind);
    let mut changed = 0;
    for value in of_kind.filter_map(|it| it.pointer_mut(pointer)) {
        *value = to.clone();
        changed += 1;
    }
    assert!(changed > 0, "no {kind} has {pointer}");
    let found = violations(&documents).join("\n");
    assert!(
        found.contains(violation),
        "{found:?} instead of {violation:?}"
    );
}

/// Changes the first document of a kind, and expects a fault by its schema.
///
/// # Panics
/// There is no such document, or the fault is not found.
#[track_caller]
pub fn is_caught(documents: &[Value], kind: &str, change: impl Fn(&mut Value), fault: &str) {
    let document = documents.iter().find(|it| it["kind"] == kind);
    let mut document = document
        .unwrap_or_else(|| panic!("there is no {kind}"))
        .clone();
    change(&mut document);
    let found = faults(&document).join("\n");
    assert!(found.contains(fault), "{found:?} instead of {fault:?}");
}

/// Returns a change of the name of a key in the object at `pointer`.
///
/// # Panics
/// The change panics if the document has no such key.
pub fn rename(pointer: &'static str, from: &'static str, to: &'static str) -> impl Fn(&mut Value) {
    move |document: &mut Value| {
        let object = document.pointer_mut(pointer).and_then(Value::as_object_mut);
        let object = object.unwrap_or_else(|| panic!("no object at {pointer}"));
        let value = object.remove(from);
        let value = value.unwrap_or_else(|| panic!("no {from} in {pointer}"));
        object.insert(to.to_owned(), value);
    }
}
