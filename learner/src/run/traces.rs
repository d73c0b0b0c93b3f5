//! The traces of accepted groups, so that the step that trains on a group is part of its trace.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use proto::{TRACES, TraceContext};
use tracing::Span;

use crate::group::StepGroups;

/// Where the submissions of the accepted groups are in their traces, by group.
#[derive(Debug, Default)]
pub(crate) struct GroupTraces(Mutex<BTreeMap<u64, TraceContext>>);

impl GroupTraces {
    /// Remembers the submission of an accepted group.
    pub(crate) fn accepted(&self, group_index: u64, submission: TraceContext) {
        self.0.lock().insert(group_index, submission);
    }

    /// Begins a span in the trace of each group of a step, which ends when it is dropped. Groups
    /// that were submitted before a restart have none.
    pub(crate) fn train(&self, groups: &StepGroups, step: u64) -> Vec<Span> {
        let mut submissions = self.0.lock();
        let mut begin = |group_index: u64, kept: bool| {
            let submission = submissions.remove(&group_index)?;
            let span =
                tracing::trace_span!(target: TRACES, "train", step, group = group_index, kept);
            submission.adopt(&span);
            // Entered once, since a span begins then.
            span.in_scope(|| ());
            Some(span)
        };
        let kept = groups.kept.iter().map(|it| (it.head.number, true));
        let left_out = groups.left_out.iter().map(|it| (it.head.number, false));
        let all: Vec<(u64, bool)> = kept.chain(left_out).collect();
        let spans = all
            .iter()
            .filter_map(|&(index, kept)| begin(index, kept))
            .collect();
        // A group may have been trained on before its submission was noted here.
        if let Some(first) = all.iter().map(|(index, _)| *index).min() {
            *submissions = submissions.split_off(&first);
        }
        spans
    }
}
