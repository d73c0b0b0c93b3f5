//! Evaluations of a run, which actors play: the questions in parts, handed out under leases.
//!
//! Pure; `now` is an argument. The trainer waits for an evaluation before its next step, so all
//! episodes are sampled with one weights version. An episode is a function of the version, the
//! seed and its question, so neither the number of actors nor their failures change a result.

use std::time::Duration;

use policy::SamplingSettings;
use proto::v1::Trajectory;

/// The number of questions that an actor plays under one lease.
pub(crate) const PART_QUESTIONS: usize = 16;

/// Questions that are evaluated with one weights version.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationSet {
    /// Names the set in [`TrainEvent::Evaluation`](crate::TrainEvent::Evaluation).
    pub name: String,
    /// The questions, of which each has one episode.
    pub question_ids: Vec<String>,
    /// How completions are sampled.
    pub sampling: SamplingSettings,
    /// The seed of all episodes.
    pub seed: u64,
}

/// A part of a set that an actor plays.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeasedPart {
    pub(crate) part_id: u64,
    pub(crate) lease_id: u64,
    pub(crate) question_ids: Vec<String>,
    pub(crate) sampling: SamplingSettings,
    pub(crate) seed: u64,
}

enum PartState {
    Open,
    Leased { expires: Duration },
    Finished(Vec<Trajectory>),
}

/// One set in progress.
pub(crate) struct EvaluationQueue {
    set: EvaluationSet,
    version: u64,
    /// Ids begin here, so that a late result of another set is not taken for one of this.
    first_part: u64,
    parts: Vec<PartState>,
    leases: u64,
}

impl EvaluationQueue {
    /// Begins the evaluation of `version`.
    pub(crate) fn new(set: EvaluationSet, version: u64, first_part: u64) -> Self {
        let count = set.question_ids.len().div_ceil(PART_QUESTIONS);
        Self {
            set,
            version,
            first_part,
            parts: (0..count).map(|_| PartState::Open).collect(),
            leases: 0,
        }
    }

    /// Returns the first id of the set that follows.
    pub(crate) fn next_part(&self) -> u64 {
        let parts = self.set.question_ids.len().div_ceil(PART_QUESTIONS);
        self.first_part + parts as u64
    }

    /// Returns the version that is evaluated.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns when the first lease expires.
    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        let expiries = self.parts.iter().filter_map(|part| match part {
            PartState::Leased { expires } => Some(*expires),
            PartState::Open | PartState::Finished(_) => None,
        });
        expiries.min()
    }

    /// Leases the first part that no actor holds.
    pub(crate) fn lease(&mut self, now: Duration, lease: Duration) -> Option<LeasedPart> {
        let is_open = |part: &PartState| match part {
            PartState::Open => true,
            PartState::Leased { expires } => now >= *expires,
            PartState::Finished(_) => false,
        };
        let index = self.parts.iter().position(is_open)?;
        self.leases += 1;
        self.parts[index] = PartState::Leased {
            expires: now + lease,
        };
        Some(LeasedPart {
            part_id: self.first_part + index as u64,
            lease_id: self.leases,
            question_ids: self.questions(index).to_vec(),
            sampling: self.set.sampling,
            seed: self.set.seed,
        })
    }

    /// Takes the episodes of a part, unless they were sampled with another version: then the part
    /// is handed out again. Episodes of a set that is complete are not needed any more.
    ///
    /// # Errors
    /// The episodes are not those of the part.
    pub(crate) fn submit(
        &mut self,
        part_id: u64,
        trajectories: Vec<Trajectory>,
    ) -> Result<(), String> {
        let index = part_id
            .checked_sub(self.first_part)
            .map(|index| index as usize);
        let Some(index) = index.filter(|index| *index < self.parts.len()) else {
            return Ok(());
        };
        let wanted = self.questions(index).iter();
        let given = trajectories
            .iter()
            .map(|trajectory| &trajectory.question_id);
        if !wanted.eq(given) {
            return Err(format!(
                "the episodes are not those of the questions of part {part_id}"
            ));
        }
        let mut turns = trajectories.iter().flat_map(|trajectory| &trajectory.turns);
        let is_of_version = turns.all(|turn| turn.policy_version == self.version);
        match (&self.parts[index], is_of_version) {
            (PartState::Finished(_), _) => {}
            (_, true) => self.parts[index] = PartState::Finished(trajectories),
            (_, false) => self.parts[index] = PartState::Open,
        }
        Ok(())
    }

    /// Returns how many questions have their episode.
    pub(crate) fn finished(&self) -> usize {
        let episodes = |part: &PartState| match part {
            PartState::Finished(trajectories) => trajectories.len(),
            _ => 0,
        };
        self.parts.iter().map(episodes).sum()
    }

    /// Returns the episodes in the order of the questions, if all are finished.
    pub(crate) fn take(&mut self) -> Option<Vec<Trajectory>> {
        if self.finished() < self.set.question_ids.len() {
            return None;
        }
        let parts = std::mem::take(&mut self.parts).into_iter();
        let episodes = parts.flat_map(|part| match part {
            PartState::Finished(trajectories) => trajectories,
            _ => Vec::new(),
        });
        Some(episodes.collect())
    }

    fn questions(&self, index: usize) -> &[String] {
        let questions = &self.set.question_ids;
        let start = index * PART_QUESTIONS;
        &questions[start..questions.len().min(start + PART_QUESTIONS)]
    }
}

#[cfg(test)]
mod tests {
    use proto::v1::Turn;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn queue(questions: usize) -> EvaluationQueue {
        let set = EvaluationSet {
            name: "curve".to_owned(),
            question_ids: (0..questions).map(|number| number.to_string()).collect(),
            sampling: SamplingSettings::greedy(),
            seed: 1,
        };
        EvaluationQueue::new(set, 3, 100)
    }

    fn played(part: &LeasedPart, policy_version: u64) -> Vec<Trajectory> {
        let trajectory = |question_id: &String| Trajectory {
            question_id: question_id.clone(),
            turns: vec![Turn {
                policy_version,
                ..Turn::default()
            }],
            ..Trajectory::default()
        };
        part.question_ids.iter().map(trajectory).collect()
    }

    #[test]
    fn all_parts_are_handed_out_once_and_add_up_in_order() {
        let mut queue = queue(40);
        let now = Duration::ZERO;
        let parts: Vec<LeasedPart> = std::iter::from_fn(|| queue.lease(now, LEASE)).collect();
        let sizes: Vec<usize> = parts.iter().map(|part| part.question_ids.len()).collect();
        assert_eq!(sizes, [16, 16, 8]);
        for part in parts.iter().rev() {
            assert!(queue.take().is_none());
            queue.submit(part.part_id, played(part, 3)).unwrap();
        }
        let episodes = queue.take().unwrap();
        let ids = episodes.iter().map(|episode| episode.question_id.clone());
        assert!(ids.eq((0..40).map(|number| number.to_string())));
        assert_eq!(queue.next_part(), 103);
    }

    #[test]
    fn a_lost_part_is_handed_out_again_and_a_wrong_one_is_refused() {
        let mut queue = queue(3);
        let first = queue.lease(Duration::ZERO, LEASE).unwrap();
        assert_eq!(queue.lease(LEASE / 2, LEASE), None);
        let second = queue.lease(LEASE, LEASE).unwrap();
        assert_eq!(second.question_ids, first.question_ids);
        assert!(second.lease_id != first.lease_id);
        let mut others = played(&second, 3);
        others.swap(0, 1);
        assert!(queue.submit(second.part_id, others).is_err());
        queue.submit(second.part_id, played(&second, 2)).unwrap();
        assert_eq!(queue.finished(), 0);
        // Its version was wrong, so it is free at once.
        let third = queue.lease(LEASE, LEASE).unwrap();
        queue.submit(third.part_id, played(&third, 3)).unwrap();
        queue.submit(99, Vec::new()).unwrap();
        assert_eq!(queue.take().unwrap().len(), 3);
    }
}
