//! The groups of the journal whose step is still to be made, when a run is opened.
//!
//! Invariant: what is read back can be trained on. An earlier version of the program accepted
//! groups that break today's rules. They are left out and handed out again. The run then gets other
//! weights than those that the earlier process may have published after them, so the groups that
//! were sampled with these are left out as well. Both are said and counted.

use std::{collections::BTreeMap, path::Path};

use crate::{
    error::{LearnerError, Result},
    group::{Group, GroupHead, GroupRules},
    journal::JournalEntry,
    metrics,
    refusals::RefusalReason,
};

/// Groups in memory, and how often each was accepted.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    /// The last record of each group, with its position in the journal.
    pub(super) groups: Vec<(Group, u64)>,
    /// The number of records of each group at its last version. An earlier record was taken back by
    /// a step.
    pub(super) records: BTreeMap<u64, u32>,
}

/// Reads the records of groups from `start` on, for a run whose newest weights are of `version`.
///
/// # Errors
/// A record is no group at all.
pub(super) fn read_back(
    entries: Vec<JournalEntry>,
    rules: &GroupRules,
    (start, version): (u64, u64),
    is_synchronous: bool,
    run_dir: &Path,
) -> Result<ReadBack> {
    let mut last = BTreeMap::new();
    let mut read = ReadBack::default();
    for entry in entries {
        let head = GroupHead::of(&entry.group).ok_or_else(|| {
            let reason = format!(
                "the journal's record at byte {} is no group; restore the whole folder",
                entry.offset
            );
            LearnerError::broken(run_dir, reason)
        })?;
        if head.index < start {
            continue;
        }
        let is_repeated =
            |earlier: &JournalEntry| sampled_by(earlier, rules) == sampled_by(&entry, rules);
        // Only a synchronous run drops groups, which its next step samples with its own weights.
        let is_repeated = !is_synchronous || last.get(&head.index).is_some_and(is_repeated);
        let records = read.records.entry(head.index).or_insert(0);
        *records = if is_repeated { *records + 1 } else { 1 };
        last.insert(head.index, entry);
    }
    let mut faults = Vec::new();
    for entry in last.into_values() {
        match Group::new(entry.group, rules) {
            Ok(group) => read.groups.push((group, entry.offset)),
            Err(fault) => faults.push(fault),
        }
    }
    let Some(first) = faults.first() else {
        return Ok(read);
    };
    let is_of_lost_weights = |(group, _): &(Group, u64)| group.newest_version() > Some(version);
    let (lost, kept): (Vec<_>, Vec<_>) = read.groups.into_iter().partition(is_of_lost_weights);
    tracing::warn!(
        run = %run_dir.display(),
        "{} groups in the journal break rules that the version of the program that accepted them \
         did not have, the first because {first:?}; they are left out and handed out again, and \
         so are {} groups that were sampled with weights after them",
        faults.len(),
        lost.len()
    );
    metrics::groups_refused(RefusalReason::Journal, faults.len() + lost.len());
    read.groups = kept;
    Ok(read)
}

/// Returns the newest policy version that sampled in a group; none if it breaks a rule.
fn sampled_by(entry: &JournalEntry, rules: &GroupRules) -> Option<u64> {
    let group = Group::new(entry.group.clone(), rules).ok()?;
    group.newest_version()
}
