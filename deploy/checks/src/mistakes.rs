//! Makes mistakes in documents, and expects that the checks find them.

use serde_json::Value;

use crate::policy::violations;

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
