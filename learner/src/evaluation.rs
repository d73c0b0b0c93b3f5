//! Evaluations of a run, which actors play: the questions in parts, handed out under leases.
//!
//! Pure; `now` is an argument. The trainer waits for an evaluation before its next step, so all
//! episodes are sampled with one weights version. An episode is a function of the version, the
//! seed and its question, so neither the number of actors nor their failures change a result.

use std::{sync::Arc, time::Duration};

use policy::SamplingSettings;
use proto::v1::Trajectory;

use crate::leases::{Holders, Leases};

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
    holders: Holders,
    /// When an actor may take it.
    free_from: Duration,
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
            holders: Holders::default(),
            free_from: now,
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
        let chance = |part: &Part| match part.free_from > now {
            true => part.free_from,
            false => leases.first_chance(part.free_from, actor_id),
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
        let is_held = |part: &&Part| now < part.free_from;
        let held = self.unfinished().filter(is_held);
        let own = held.filter(|part| part.holders.last_actor() == Some(actor_id));
        if own.count() >= leases.max_per_actor() {
            return None;
        }
        let is_free = |part: &Part| {
            let chance = leases.first_chance(part.free_from, actor_id);
            part.episodes.is_none() && part.free_from <= now && chance <= now
        };
        let index = self.parts.iter().position(is_free)?;
        let lease_id = leases.next_id();
        let part = &mut self.parts[index];
        part.holders.give(lease_id, actor_id);
        part.free_from = now + leases.time_of(actor_id);
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
        for part in unfinished.filter(|part| part.free_from <= now) {
            if let Some(holder) = part.holders.note_expiry() {
                leases.distrust(holder);
            }
        }
    }

    fn unfinished(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.episodes.is_none())
    }

    /// Returns the part that an actor was given.
    fn given(&self, head: &PartHead) -> Option<usize> {
        let index = head.part_id.checked_sub(self.first_part)?;
        let index = usize::try_from(index).ok()?;
        let holders = &self.parts.get(index)?.holders;
        let was_given = holders.was_given(head.lease_id, &head.actor_id);
        was_given.then_some(index)
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
        let mut ended = 0;
        for part in self.parts.iter_mut().filter(|part| part.episodes.is_none()) {
            if now < part.free_from && part.holders.last_actor() == Some(actor_id) {
                part.free_from = now;
                ended += 1;
            }
        }
        ended
    }

    /// Hands out a part again whose episodes are refused. Other actors have the first chance to
    /// take it, and results under earlier leases still count. Returns false, and changes nothing,
    /// if the actor was not given the part.
    pub(crate) fn refuse(&mut self, now: Duration, leases: &mut Leases, head: &PartHead) -> bool {
        let Some(index) = self.needed(head) else {
            return false;
        };
        leases.distrust(&head.actor_id);
        let part = &mut self.parts[index];
        if part.holders.is_last(head.lease_id) {
            part.free_from = now.min(part.free_from);
        }
        part.holders.forget(head.lease_id);
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
mod tests {
    use proto::v1::Turn;

    use super::*;

    const LEASE: Duration = Duration::from_secs(300);
    /// The time of a lease of an actor without accepted work.
    const UNPROVEN: Duration = Duration::from_secs(30);

    fn queue(questions: usize) -> (EvaluationQueue, Leases) {
        let set = EvaluationSet {
            name: "curve".to_owned(),
            question_ids: (0..questions).map(|number| number.to_string()).collect(),
            sampling: SamplingSettings::greedy(),
            seed: 1,
        };
        let queue = EvaluationQueue::new(Duration::ZERO, set, 3, 100);
        (queue, Leases::new(LEASE, 4, 1))
    }

    fn played(part: &LeasedPart, policy_version: u64) -> Vec<Trajectory> {
        let trajectory = |question_id: &String| Trajectory {
            question_id: question_id.clone(),
            turns: vec![Turn {
                policy_version,
                ..Turn::default()
            }],
            scored: true,
            ..Trajectory::default()
        };
        part.question_ids.iter().map(trajectory).collect()
    }

    fn head(part: &LeasedPart, actor_id: &str) -> PartHead {
        PartHead {
            part_id: part.part_id,
            lease_id: part.lease_id,
            actor_id: actor_id.to_owned(),
            run_id: None,
        }
    }

    #[test]
    fn all_parts_are_handed_out_once_and_add_up_in_order() {
        let (mut queue, mut leases) = queue(40);
        let now = Duration::ZERO;
        let parts: Vec<LeasedPart> =
            std::iter::from_fn(|| queue.lease(now, &mut leases, "a")).collect();
        let sizes: Vec<usize> = parts.iter().map(|part| part.question_ids.len()).collect();
        assert_eq!(sizes, [16, 16, 8]);
        for part in parts.iter().rev() {
            assert!(queue.take().is_none());
            queue.submit(now, &mut leases, &head(part, "a"), played(part, 3));
        }
        let episodes = queue.take().unwrap();
        let ids = episodes.iter().map(|episode| episode.question_id.clone());
        assert!(ids.eq((0..40).map(|number| number.to_string())));
        assert_eq!(queue.next_part(), 103);
    }

    #[test]
    fn a_lost_part_is_handed_out_again_and_a_wrong_one_is_refused() {
        let (mut queue, mut leases) = queue(3);
        let first = queue.lease(Duration::ZERO, &mut leases, "a").unwrap();
        assert_eq!(queue.lease(UNPROVEN / 2, &mut leases, "b"), None);
        let chance = queue.next_chance(UNPROVEN / 2, &leases, "b");
        assert_eq!(chance, Some(UNPROVEN));
        let second = queue.lease(UNPROVEN, &mut leases, "b").unwrap();
        assert_eq!(second.question_ids, first.question_ids);
        assert!(second.lease_id != first.lease_id);
        let mut others = played(&second, 3);
        others.swap(0, 1);
        let mut check = |trajectories: &[Trajectory]| {
            queue.check(&mut leases, &head(&second, "b"), trajectories)
        };
        assert!(check(&others).is_err());
        assert!(check(&played(&second, 2)).is_err(), "another version");
        assert_eq!(check(&played(&second, 3)), Ok(Some(1)));
        queue.submit(
            UNPROVEN,
            &mut leases,
            &head(&second, "b"),
            played(&second, 3),
        );
        assert_eq!(queue.take().unwrap().len(), 3);
    }

    /// A slow actor must not lose its work to one that takes the part after it and is refused.
    #[test]
    fn a_refused_lease_leaves_the_earlier_ones() {
        let (mut queue, mut leases) = queue(3);
        let slow = queue.lease(Duration::ZERO, &mut leases, "slow").unwrap();
        let liar = queue.lease(UNPROVEN, &mut leases, "liar").unwrap();
        assert!(queue.refuse(UNPROVEN, &mut leases, &head(&liar, "liar")));
        let result = played(&slow, 3);
        assert_eq!(
            queue.check(&mut leases, &head(&slow, "slow"), &result),
            Ok(Some(1))
        );
        queue.submit(UNPROVEN, &mut leases, &head(&slow, "slow"), result.clone());
        assert_eq!(queue.finished(), 3);
        assert_eq!(leases.time_of("slow"), LEASE);
        // What comes second is not needed, and shows that its actor works.
        leases.distrust("slow");
        assert_eq!(
            queue.check(&mut leases, &head(&slow, "slow"), &result),
            Ok(None)
        );
        assert_eq!(leases.first_chance(LEASE, "slow"), Duration::ZERO);
    }

    #[test]
    fn episodes_that_failed_are_played_again_by_others_first() {
        let (mut queue, mut leases) = queue(3);
        let mut now = Duration::ZERO;
        for (play, actor) in ["idle", "b", "c"].into_iter().enumerate() {
            let part = queue.lease(now, &mut leases, actor).unwrap();
            let mut failed = played(&part, 3);
            failed[1].scored = false;
            (failed[1].correct, failed[1].episode_return) = (true, 1e6);
            queue.submit(now, &mut leases, &head(&part, actor), failed);
            let finished = if play == 2 { 3 } else { 0 };
            assert_eq!(queue.finished(), finished, "play {play}");
            assert_eq!(queue.lease(now, &mut leases, actor), None);
            assert_ne!(leases.time_of(actor), LEASE);
            now += Duration::from_secs(1);
        }
        let episodes = queue.take().unwrap();
        assert_eq!(
            (episodes[1].correct, episodes[1].episode_return),
            (false, 0.0)
        );
    }

    #[test]
    fn a_part_counts_only_under_a_lease_of_its_actor() {
        let (mut queue, mut leases) = queue(3);
        let now = Duration::ZERO;
        let part = queue.lease(now, &mut leases, "a").unwrap();
        let guessed = PartHead {
            lease_id: part.lease_id + 1,
            ..head(&part, "a")
        };
        let next = PartHead {
            part_id: part.part_id + 1,
            ..head(&part, "a")
        };
        for stranger in [head(&part, "b"), guessed, next, PartHead::default()] {
            assert_eq!(
                queue.check(&mut leases, &stranger, &played(&part, 3)),
                Ok(None)
            );
            assert!(!queue.refuse(now, &mut leases, &stranger));
            queue.submit(now, &mut leases, &stranger, played(&part, 3));
            assert_eq!(queue.finished(), 0, "{stranger:?}");
        }
        queue.submit(now, &mut leases, &head(&part, "a"), played(&part, 3));
        assert_eq!(queue.finished(), 3);
    }

    #[test]
    fn an_actor_that_only_claims_does_not_hold_up_the_others() {
        let (mut queue, mut leases) = queue(16 * 6);
        let mut now = Duration::ZERO;
        let mut played_parts = 0;
        while played_parts < 6 {
            while queue.lease(now, &mut leases, "idle").is_some() {}
            // An honest actor plays a part each two seconds.
            if let Some(part) = queue.lease(now, &mut leases, "honest") {
                queue.submit(now, &mut leases, &head(&part, "honest"), played(&part, 3));
                played_parts += 1;
            }
            now += Duration::from_secs(2);
            assert!(now < 4 * UNPROVEN, "{played_parts} of 6 parts");
        }
        assert!(queue.take().is_some());
    }

    #[test]
    fn a_refused_part_goes_to_another_actor_first() {
        let (mut queue, mut leases) = queue(3);
        let part = queue.lease(Duration::ZERO, &mut leases, "liar").unwrap();
        let now = Duration::from_secs(1);
        assert!(queue.refuse(now, &mut leases, &head(&part, "liar")));
        assert_eq!(queue.lease(now, &mut leases, "liar"), None);
        let chance = queue.next_chance(now, &leases, "liar");
        assert_eq!(chance, Some(now + UNPROVEN));
        assert!(queue.lease(now, &mut leases, "honest").is_some());
        assert!(queue.lease(2 * LEASE, &mut leases, "liar").is_some());
    }
}
