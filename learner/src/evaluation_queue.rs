//! Evaluations of a run, which actors play: the questions in parts, handed out under leases.
//!
//! Pure. `now` is an argument. The trainer waits for an evaluation before its next step, so all
//! episodes are sampled with one weights version. An episode is a function of the version, the
//! seed and its question, so neither the number of actors nor their failures change a result.

use std::{sync::Arc, time::Duration};

use policy::SamplingSettings;
use proto::v1::{EvaluationClaim, Trajectory};

use crate::{
    config::sampling_message,
    group::SubmissionHead,
    leases::{LeasedWork, Leases},
};

/// The number of questions that an actor plays under one lease.
pub(crate) const PART_QUESTIONS: usize = 16;
/// How often a part with episodes that failed is played.
const MAX_PLAYS: u32 = 3;

/// Questions that are evaluated with one weights version.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationSet {
    /// Names the set in [`TrainEvent::Evaluation`](crate::TrainEvent::Evaluation).
    pub name: String,
    /// The questions, of which each has one episode.
    pub question_ids: Arc<[String]>,
    /// How completions are sampled.
    pub sampling: SamplingSettings,
    /// The seed of all episodes.
    pub seed: u64,
}

/// The answer to an actor that may play a part of an evaluation.
#[derive(Debug, PartialEq)]
pub(crate) enum EvaluationLease {
    /// The actor plays this part.
    Part(EvaluationClaim),
    /// The actor holds other weights than those that are evaluated.
    OtherVersion,
    /// The actor gets no part. Time alone may change that at this time.
    None(Option<Duration>),
}

/// The sets of a run, one after the other, and what is known of the actors that play them.
pub(crate) struct EvaluationQueue {
    leases: Leases,
    /// The first part of the next set. Ids are not used again, so that a late result of another set
    /// is not taken for one of this.
    next_part: u64,
    /// The set in progress.
    current: Option<CurrentSet>,
}

/// The set in progress.
struct CurrentSet {
    set: EvaluationSet,
    version: u64,
    first_part: u64,
    parts: Vec<Part>,
}

/// Questions that an actor plays under one lease.
struct Part {
    work: LeasedWork,
    /// How often it came back with episodes that failed.
    failed_plays: u32,
    /// None until it is finished.
    episodes: Option<Vec<Trajectory>>,
}

impl EvaluationQueue {
    /// Creates a queue without a set, whose parts are numbered from `first_part` on.
    pub(crate) fn new(leases: Leases, first_part: u64) -> Self {
        Self {
            leases,
            next_part: first_part,
            current: None,
        }
    }

    /// Begins the evaluation of `version`.
    pub(crate) fn begin(&mut self, now: Duration, set: EvaluationSet, version: u64) {
        let count = set.question_ids.len().div_ceil(PART_QUESTIONS);
        let part = |_| Part {
            work: LeasedWork::new(now),
            failed_plays: 0,
            episodes: None,
        };
        self.current = Some(CurrentSet {
            set,
            version,
            first_part: self.next_part,
            parts: (0..count).map(part).collect(),
        });
        self.next_part += count as u64;
    }

    /// Leases the first part that no actor holds to one with the weights of `actor_version`.
    pub(crate) fn lease(
        &mut self,
        now: Duration,
        actor_id: &str,
        actor_version: u64,
    ) -> EvaluationLease {
        let (leases, Some(current)) = (&mut self.leases, &mut self.current) else {
            return EvaluationLease::None(None);
        };
        if actor_version != current.version {
            return EvaluationLease::OtherVersion;
        }
        current.note_expired(now, leases);
        let is_own = |part: &&Part| part.work.is_held_by(now, actor_id);
        let is_full = current.unfinished().filter(is_own).count() >= leases.max_per_actor();
        let is_free = |part: &Part| {
            let chance = leases.first_chance(part.work.free_from(), actor_id);
            part.episodes.is_none() && !part.work.is_held(now) && chance <= now
        };
        let free = current.parts.iter().position(is_free);
        let Some(index) = free.filter(|_| !is_full) else {
            return EvaluationLease::None(current.next_chance(now, leases, actor_id));
        };
        let lease_id = current.parts[index].work.lease(now, leases, actor_id);
        EvaluationLease::Part(EvaluationClaim {
            part_id: current.first_part + index as u64,
            lease_id,
            policy_version: current.version,
            question_ids: current.questions(index).to_vec(),
            seed: current.set.seed,
            sampling: Some(sampling_message(&current.set.sampling)),
            lease_seconds: leases.time_of(actor_id).as_secs() as u32,
        })
    }

    /// Checks episodes against the part that their actor was given. Returns the seed of the
    /// episodes if they are needed. Otherwise nothing is: the part is finished, or was never given
    /// to the actor.
    ///
    /// # Errors
    /// The episodes are not those of the part, or of another version.
    pub(crate) fn check(
        &mut self,
        head: &SubmissionHead,
        trajectories: &[Trajectory],
    ) -> Result<Option<u64>, String> {
        let Some(current) = &self.current else {
            return Ok(None);
        };
        let Some(index) = current.needed(head) else {
            if current.given(head).is_some() {
                // Slow, but it works.
                self.leases.forgive(&head.actor_id);
            }
            return Ok(None);
        };
        current.check(index, trajectories)?;
        Ok(Some(current.set.seed))
    }

    /// Takes the checked episodes of a part. One with episodes that failed is played again, by
    /// other actors first, [`MAX_PLAYS`] times at most: nobody can check what an actor reports as
    /// failed. Then the failed episodes count as wrong.
    pub(crate) fn submit(
        &mut self,
        now: Duration,
        head: &SubmissionHead,
        mut trajectories: Vec<Trajectory>,
    ) {
        let Some(part) = self.needed(head) else {
            return;
        };
        let failed = trajectories.iter_mut().filter(|it| !it.scored);
        let mut has_failed = false;
        for episode in failed {
            has_failed = true;
            (episode.correct, episode.episode_return) = (false, 0.0);
        }
        part.failed_plays += u32::from(has_failed);
        if has_failed && part.failed_plays < MAX_PLAYS {
            self.refuse(now, head);
            return;
        }
        part.episodes = Some(trajectories);
        if !has_failed {
            self.leases.accepted(&head.actor_id);
        }
    }

    /// Ends the leases of an actor that is gone, as [`crate::scheduler::Scheduler::left`].
    pub(crate) fn left(&mut self, now: Duration, actor_id: &str) -> usize {
        let current = self.current.as_mut();
        current.map_or(0, |current| current.left(now, actor_id))
    }

    /// Notes that an actor has joined, as [`crate::scheduler::Scheduler::joined`].
    pub(crate) fn joined(&mut self, now: Duration, actor_id: &str, is_alone: bool) {
        if let Some(current) = &mut self.current {
            if is_alone {
                current.left(now, actor_id);
            }
            current.note_expired(now, &mut self.leases);
        }
        self.leases.forgive(actor_id);
    }

    /// Hands out a part again whose episodes are refused. Other actors have the first chance to
    /// take it, and results under earlier leases still count. Returns false, and changes nothing,
    /// if the actor was not given the part.
    pub(crate) fn refuse(&mut self, now: Duration, head: &SubmissionHead) -> bool {
        let Some(part) = self.needed(head) else {
            return false;
        };
        part.work.refuse(now, head.lease_id);
        self.leases.distrust(&head.actor_id);
        true
    }

    /// Returns how many questions have their episode; none if no set is in progress.
    pub(crate) fn finished(&self) -> Option<usize> {
        let parts = self.current.as_ref()?.parts.iter();
        let episodes = parts.filter_map(|part| part.episodes.as_ref());
        Some(episodes.map(Vec::len).sum())
    }

    /// Ends the set in progress if all its episodes are finished, and returns them in the order of
    /// the questions.
    pub(crate) fn take(&mut self) -> Option<Vec<Trajectory>> {
        let is_finished = |it: &mut CurrentSet| it.unfinished().next().is_none();
        let finished = self.current.take_if(is_finished)?;
        let parts = finished.parts.into_iter();
        Some(parts.flat_map(|part| part.episodes).flatten().collect())
    }

    /// Returns the part that an actor was given, if its result is needed.
    fn needed(&mut self, head: &SubmissionHead) -> Option<&mut Part> {
        let current = self.current.as_mut()?;
        let index = current.needed(head)?;
        current.parts.get_mut(index)
    }
}

impl CurrentSet {
    fn unfinished(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.episodes.is_none())
    }

    /// Notes whose leases have expired.
    fn note_expired(&mut self, now: Duration, leases: &mut Leases) {
        for part in self.parts.iter_mut().filter(|it| it.episodes.is_none()) {
            part.work.note_expiry(now, leases);
        }
    }

    fn left(&mut self, now: Duration, actor_id: &str) -> usize {
        let unfinished = self.parts.iter_mut().filter(|it| it.episodes.is_none());
        unfinished
            .map(|part| usize::from(part.work.leave(now, actor_id)))
            .sum()
    }

    /// Returns when time alone may free a part for an actor that got none.
    fn next_chance(&self, now: Duration, leases: &Leases, actor_id: &str) -> Option<Duration> {
        let chance = |part: &Part| match part.work.is_held(now) {
            true => part.work.free_from(),
            false => leases.first_chance(part.work.free_from(), actor_id),
        };
        let chances = self.unfinished().map(chance);
        chances.filter(|chance| *chance > now).min()
    }

    /// Returns the part that an actor was given.
    fn given(&self, head: &SubmissionHead) -> Option<usize> {
        let index = head.number.checked_sub(self.first_part)?;
        let index = usize::try_from(index).ok()?;
        let work = &self.parts.get(index)?.work;
        work.was_given(head.lease_id, &head.actor_id)
            .then_some(index)
    }

    /// Returns the part that an actor was given, if its result is needed.
    fn needed(&self, head: &SubmissionHead) -> Option<usize> {
        let given = self.given(head);
        given.filter(|index| self.parts[*index].episodes.is_none())
    }

    /// Checks that episodes are those of a part, played with the version of this set.
    fn check(&self, index: usize, trajectories: &[Trajectory]) -> Result<(), String> {
        let part_id = self.first_part + index as u64;
        let mut turns = trajectories.iter().flat_map(|trajectory| &trajectory.turns);
        if let Some(other) = turns.find(|turn| turn.policy_version != self.version) {
            return Err(format!(
                "an episode of part {part_id} has a turn of version {}, but version {} is evaluated",
                other.policy_version, self.version
            ));
        }
        let given = trajectories.iter().map(|it| &it.question_id);
        match self.questions(index).iter().eq(given) {
            true => Ok(()),
            false => Err(format!(
                "the episodes are not those of the questions of part {part_id}"
            )),
        }
    }

    fn questions(&self, index: usize) -> &[String] {
        let questions = &self.set.question_ids;
        let start = index * PART_QUESTIONS;
        &questions[start..questions.len().min(start + PART_QUESTIONS)]
    }
}

#[cfg(test)]
mod tests;
