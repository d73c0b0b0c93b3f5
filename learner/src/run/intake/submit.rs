//! Judges submitted groups and writes them into the journal.

use std::{
    collections::BTreeSet,
    sync::mpsc::{SyncSender, sync_channel},
    time::Duration,
};

use super::Intake;
use crate::{
    group::{Group, SubmissionHead},
    journal::Journal,
    metrics,
    scheduler::Admission,
};

/// A checked group on its way into the journal.
pub(super) struct WaitingGroup {
    group: Group,
    answer: SyncSender<Result<Admission, String>>,
}

impl Intake {
    /// Judges a checked group before the work of verifying it. [`Self::submit`] judges it again.
    ///
    /// # Errors
    /// It is needed, but its episodes are of another question than the one that was handed out.
    pub(crate) fn judge(&self, group: &Group) -> Result<Admission, String> {
        let mut state = self.state.lock();
        let admission = state.judge(group);
        if admission == Admission::Accept
            && let Some(question_id) = state.questions.question(group.head.number)
        {
            group.check_question(question_id)?;
        }
        drop(state);
        if admission == Admission::Stale {
            // Its lease has ended, so a waiting claim may get the group.
            self.notify();
        }
        Ok(admission)
    }

    /// Ends the lease of a group that is refused, so that another actor gets the group at once.
    /// Returns whether the actor was given the group.
    pub(crate) fn refuse(&self, now: Duration, head: &SubmissionHead) -> bool {
        let was_given = self.state.lock().scheduler.refuse(now, head);
        self.notify();
        was_given
    }

    /// Journals a checked group if it is needed; blocks on the disk and on the object store.
    ///
    /// Groups that wait for the journal at the same time are journaled together, by the first that
    /// gets it: waiting for a disk or a store takes as long for many as for one.
    ///
    /// # Errors
    /// Why it could not be journaled. The run stops.
    pub(crate) fn submit(&self, group: Group) -> Result<Admission, String> {
        let (answer, answered) = sync_channel(1);
        self.waiting.lock().push(WaitingGroup { group, answer });
        // Two submissions of one group must not both be judged as new, so the journal stays locked
        // until the groups are recorded. Claims only need the state's lock and continue meanwhile.
        let mut journal = self.journal.lock();
        let waiting = first_of_each_group(&mut self.waiting.lock());
        self.journal_groups(&mut journal, waiting);
        drop(journal);
        self.notify();
        let unanswered = |_| "the journal's thread panicked".to_owned();
        answered.recv().map_err(unanswered)?
    }

    /// Journals and records those of the groups that are needed, and answers all.
    fn journal_groups(&self, journal: &mut Journal, waiting: Vec<WaitingGroup>) {
        let mut needed = Vec::new();
        for waiting in waiting {
            match self.state.lock().judge(&waiting.group) {
                Admission::Accept => needed.push(waiting),
                // The lease of a stale group has ended, so a waiting claim may get the group.
                refused => waiting.answer(Ok(refused)),
            }
        }
        if needed.is_empty() {
            return;
        }
        let encoded: Vec<_> = needed.iter().map(|it| it.group.encoded.clone()).collect();
        let appended = journal.append(&encoded);
        let mut state = self.state.lock();
        match appended {
            Ok(offsets) => {
                for (WaitingGroup { group, answer }, offset) in needed.into_iter().zip(offsets) {
                    metrics::group_journaled(group.encoded.bytes().len());
                    let (actor_id, index) = (group.head.actor_id.as_str(), group.head.number);
                    let admission = if state.scheduler.record_of(actor_id, index, group.summary) {
                        *state.records.entry(index).or_insert(0) += 1;
                        state.hold(group, offset);
                        Admission::Accept
                    } else {
                        // Its step was made without it while it was journaled.
                        Admission::Duplicate
                    };
                    // A submission whose caller is gone is recorded all the same.
                    let _ = answer.send(Ok(admission));
                }
            }
            Err(fault) => {
                let reason = fault.to_string();
                state.stopping = true;
                state.fault.get_or_insert(fault);
                for waiting in needed {
                    waiting.answer(Err(reason.clone()));
                }
            }
        }
    }
}

impl WaitingGroup {
    fn answer(self, answer: Result<Admission, String>) {
        // The caller may be gone.
        let _ = self.answer.send(answer);
    }
}

/// Takes the first of each group's submissions; the others wait for its verdict.
fn first_of_each_group(waiting: &mut Vec<WaitingGroup>) -> Vec<WaitingGroup> {
    let mut indices = BTreeSet::new();
    let all = std::mem::take(waiting);
    let is_first = |it: &WaitingGroup| indices.insert(it.group.head.number);
    let (first, others) = all.into_iter().partition(is_first);
    *waiting = others;
    first
}
