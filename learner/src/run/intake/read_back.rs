//! The groups of the journal whose step is still to be made, when a run is opened.
//!
//! Invariant: what is read back can be trained on, as it could when it was accepted. The rules of
//! groups follow from settings that a run keeps.

use std::{collections::BTreeMap, path::Path};

use crate::{
    error::{LearnerError, Result},
    group::{Group, GroupRules, SubmissionHead},
    journal::JournalEntry,
};

/// A group in memory, and how often it was accepted.
#[derive(Debug)]
pub(super) struct ReadBack {
    pub(super) group: Group,
    /// Where its last record begins in the journal.
    pub(super) offset: u64,
    /// The number of its records at its last version. An earlier one was taken back by a step.
    pub(super) records: u32,
}

/// Reads the records of groups from `start` on, by group.
///
/// # Errors
/// A record is no group of the run.
pub(super) fn read_back(
    entries: Vec<JournalEntry>,
    rules: &GroupRules,
    start: u64,
    is_synchronous: bool,
    run_dir: &Path,
) -> Result<BTreeMap<u64, ReadBack>> {
    let mut read: BTreeMap<u64, ReadBack> = BTreeMap::new();
    for JournalEntry { offset, group } in entries {
        let broken = |fault: &str| {
            let reason = format!(
                "the journal's record at byte {offset} is no group of this run: {fault}; restore \
                 the whole folder"
            );
            LearnerError::broken(run_dir, reason)
        };
        let head = SubmissionHead::of_group(&group);
        let head = head.ok_or_else(|| broken("it cannot be decoded"))?;
        if head.number < start {
            continue;
        }
        let group = Group::new(group, rules).map_err(|fault| broken(&fault))?;
        // Only a synchronous run drops groups, which its next step samples with its own weights.
        let is_repeated = |earlier: &&ReadBack| {
            !is_synchronous || earlier.group.newest_version() == group.newest_version()
        };
        let earlier = read.get(&group.head.number).filter(is_repeated);
        let records = 1 + earlier.map_or(0, |earlier| earlier.records);
        let of_group = ReadBack {
            group,
            offset,
            records,
        };
        read.insert(of_group.group.head.number, of_group);
    }
    Ok(read)
}
