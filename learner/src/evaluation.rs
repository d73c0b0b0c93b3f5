//! Evaluations of a run, which actors play: the questions in parts, handed out under leases.
//!
//! Pure; `now` is an argument. The trainer waits for an evaluation before its next step, so all
//! episodes are sampled with one weights version. An episode is a function of the version, the
//! seed and its question, so neither the number of actors nor their failures change a result.

use std::{sync::Arc, time::Duration};

use policy::SamplingSettings;
use proto::v1::Trajectory;

use crate::leases::{LeasedWork, Leases};

/// The number of questions that an actor plays under one lease.
pub(crate) const PART_QUESTIONS: usize = 16;

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

/// A part of a set that an actor plays.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeasedPart {
    pub(crate) part_id: u64,
    pub(crate) lease_id: u64,
    /// How long the actor holds it.
    pub(crate) lease: Duration,
    pub(crate) question_ids: Vec<String>,
    pub(crate) sampling: SamplingSettings,
    pub(crate) seed: u64,
}

/// What an actor reports about a part that it submits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) part_id: u64,
    /// The lease under which it was played.
    pub(crate) lease_id: u64,
    pub(crate) actor_id: String,
    /// The run that the actor joined, if it names one.
    pub(crate) run_id: Option<String>,
}

/// How often a part with episodes that failed is played.
const MAX_PLAYS: u32 = 3;

/// Questions that an actor plays under one lease.
struct Part {
    work: LeasedWork,
    /// How often it came back with episodes that failed.
    failed_plays: u32,
    /// None until it is finished.
    episodes: Option<Vec<Trajectory>>,
}

/// One set in progress.
pub(crate) struct EvaluationQueue {
    set: EvaluationSet,
    version: u64,
    /// Ids begin here, so that a late result of another set is not taken for one of this.
    first_part: u64,
    parts: Vec<Part>,
}

impl EvaluationQueue {
    /// Begins the evaluation of `version`.
    pub(crate) fn new(now: Duration, set: EvaluationSet, version: u64, first_part: u64) -> Self {
        let count = set.question_ids.len().div_ceil(PART_QUESTIONS);
        let part = |_| Part {
            work: LeasedWork::new(now),
            failed_plays: 0,
            episodes: None,
        };
        Self {
            set,
            version,
            first_part,
            parts: (0..count).map(part).collect(),
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

    /// Returns when time alone may free a part for an actor that got none.
    pub(crate) fn next_chance(
        &self,
        now: Duration,
        leases: &Leases,
        actor_id: &str,
    ) -> Option<Duration> {
        let chance = |part: &Part| match part.work.is_held(now) {
            true => part.work.free_from(),
            false => leases.first_chance(part.work.free_from(), actor_id),
        };
        let chances = self.unfinished().map(chance);
        chances.filter(|chance| *chance > now).min()
    }

    /// Leases the first part that no actor holds.
    pub(crate) fn lease(
        &mut self,
        now: Duration,
        leases: &mut Leases,
        actor_id: &str,
    ) -> Option<LeasedPart> {
        self.note_expired(now, leases);
        let is_own = |part: &&Part| part.work.is_held_by(now, actor_id);
        if self.unfinished().filter(is_own).count() >= leases.max_per_actor() {
            return None;
        }
        let is_free = |part: &Part| {
            let chance = leases.first_chance(part.work.free_from(), actor_id);
            part.episodes.is_none() && !part.work.is_held(now) && chance <= now
        };
        let index = self.parts.iter().position(is_free)?;
        let lease_id = self.parts[index].work.lease(now, leases, actor_id);
        Some(LeasedPart {
            part_id: self.first_part + index as u64,
            lease_id,
            lease: leases.time_of(actor_id),
            question_ids: self.questions(index).to_vec(),
            sampling: self.set.sampling,
            seed: self.set.seed,
        })
    }

    /// Notes whose leases have expired.
    pub(crate) fn note_expired(&mut self, now: Duration, leases: &mut Leases) {
        let unfinished = self.parts.iter_mut().filter(|it| it.episodes.is_none());
        unfinished.for_each(|part| part.work.note_expiry(now, leases));
    }

    fn unfinished(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.episodes.is_none())
    }

    /// Returns the part that an actor was given.
    fn given(&self, head: &PartHead) -> Option<usize> {
        let index = head.part_id.checked_sub(self.first_part)?;
        let index = usize::try_from(index).ok()?;
        let work = &self.parts.get(index)?.work;
        work.was_given(head.lease_id, &head.actor_id)
            .then_some(index)
    }

    /// Returns the part that an actor was given, if its result is needed.
    fn needed(&self, head: &PartHead) -> Option<usize> {
        let given = self.given(head);
        given.filter(|index| self.parts[*index].episodes.is_none())
    }

    /// Checks episodes against the part that their actor was given. Returns the seed of the
    /// episodes if they are needed. Otherwise nothing is: the part is finished, or was never given
    /// to the actor.
    ///
    /// # Errors
    /// The episodes are not those of the part, or of another version.
    pub(crate) fn check(
        &self,
        leases: &mut Leases,
        head: &PartHead,
        trajectories: &[Trajectory],
    ) -> Result<Option<u64>, String> {
        let Some(index) = self.needed(head) else {
            if self.given(head).is_some() {
                // Slow, but it works.
                leases.forgive(&head.actor_id);
            }
            return Ok(None);
        };
        let mut turns = trajectories.iter().flat_map(|trajectory| &trajectory.turns);
        if let Some(other) = turns.find(|turn| turn.policy_version != self.version) {
            return Err(format!(
                "an episode of part {} has a turn of version {}, but version {} is evaluated",
                head.part_id, other.policy_version, self.version
            ));
        }
        let given = trajectories
            .iter()
            .map(|trajectory| &trajectory.question_id);
        match self.questions(index).iter().eq(given) {
            true => Ok(Some(self.set.seed)),
            false => Err(format!(
                "the episodes are not those of the questions of part {}",
                head.part_id
            )),
        }
    }

    /// Takes the checked episodes of a part. One with episodes that failed is played again, by
    /// other actors first, [`MAX_PLAYS`] times at most: nobody can check what an actor reports as
    /// failed. Then the failed episodes count as wrong.
    pub(crate) fn submit(
        &mut self,
        now: Duration,
        leases: &mut Leases,
        head: &PartHead,
        mut trajectories: Vec<Trajectory>,
    ) {
        let Some(index) = self.needed(head) else {
            return;
        };
        let failed = trajectories.iter_mut().filter(|it| !it.scored);
        let mut has_failed = false;
        for episode in failed {
            has_failed = true;
            (episode.correct, episode.episode_return) = (false, 0.0);
        }
        let part = &mut self.parts[index];
        part.failed_plays += u32::from(has_failed);
        if has_failed && part.failed_plays < MAX_PLAYS {
            self.refuse(now, leases, head);
            return;
        }
        part.episodes = Some(trajectories);
        if !has_failed {
            leases.accepted(&head.actor_id);
        }
    }

    /// Ends the leases of an actor that is gone, as [`crate::scheduler::Scheduler::left`].
    pub(crate) fn left(&mut self, now: Duration, actor_id: &str) -> usize {
        let unfinished = self.parts.iter_mut().filter(|it| it.episodes.is_none());
        unfinished
            .map(|part| usize::from(part.work.leave(now, actor_id)))
            .sum()
    }

    /// Hands out a part again whose episodes are refused. Other actors have the first chance to
    /// take it, and results under earlier leases still count. Returns false, and changes nothing,
    /// if the actor was not given the part.
    pub(crate) fn refuse(&mut self, now: Duration, leases: &mut Leases, head: &PartHead) -> bool {
        let Some(index) = self.needed(head) else {
            return false;
        };
        leases.distrust(&head.actor_id);
        self.parts[index].work.refuse(now, head.lease_id);
        true
    }

    /// Returns how many questions have their episode.
    pub(crate) fn finished(&self) -> usize {
        let episodes = self.parts.iter().filter_map(|part| part.episodes.as_ref());
        episodes.map(Vec::len).sum()
    }

    /// Returns the episodes in the order of the questions, if all are finished.
    pub(crate) fn take(&mut self) -> Option<Vec<Trajectory>> {
        if self.finished() < self.set.question_ids.len() {
            return None;
        }
        let parts = std::mem::take(&mut self.parts).into_iter();
        Some(parts.flat_map(|part| part.episodes).flatten().collect())
    }

    fn questions(&self, index: usize) -> &[String] {
        let questions = &self.set.question_ids;
        let start = index * PART_QUESTIONS;
        &questions[start..questions.len().min(start + PART_QUESTIONS)]
    }
}

#[cfg(test)]
mod tests;
