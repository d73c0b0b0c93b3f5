//! The question of every group: new questions in the order of [`crate::curriculum`], and before
//! them those that come back, because not all episodes of an earlier group answered them. Pure.
//!
//! A good policy answers most new questions in all episodes, and such groups train nothing.
//! prime-rl sorts questions into pools by difficulty for the same reason (its `buffer`).
//!
//! Invariant: the questions of a step follow from the groups of earlier steps. A group that an
//! actor claimed, and that no step has looked at, changes nothing. An asynchronous run samples
//! groups of later steps before the earlier ones are made, so it repeats no question. Without
//! repeats group i has the i-th new question.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    bounds::count,
    curriculum::{QuestionOrder, TrainingQuestion},
    error::{LearnerError, Result},
};

/// The most times that a question comes back.
const MAX_TIMES: u64 = 1_000;
/// The most groups that steps may look at while a question waits. As many questions may wait at a
/// time, and a checkpoint holds them all.
pub(crate) const MAX_WAITING: u64 = 1 << 17;

/// In synchronous runs, questions come back until they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct RepeatSettings {
    /// How often a question comes back at most in an epoch, until all episodes of a group are
    /// correct. 0: never.
    pub times: u32,
    /// Steps after which it comes back, or later if others are due before it; at least 1.
    #[default(4)]
    pub after_steps: u64,
}

impl RepeatSettings {
    /// Checks the settings of a run whose steps look at so many groups at most.
    pub(crate) fn validate(&self, max_groups_per_step: u64, is_synchronous: bool) -> Result<()> {
        let default = Self::default();
        if self.times == 0 {
            let problem = "is set, but no question comes back; set repeat.times, or leave it out";
            return match self.after_steps == default.after_steps {
                true => Ok(()),
                false => Err(LearnerError::setting("repeat.after_steps", problem)),
            };
        }
        count("repeat.times", self.times.into(), MAX_TIMES)?;
        if !is_synchronous {
            let problem = "is set, but groups of an asynchronous run are sampled before it is known \
                           which questions come back; set max_staleness = 0, or leave it out";
            return Err(LearnerError::setting("repeat.times", problem));
        }
        if max_groups_per_step > MAX_WAITING {
            let problem = format!(
                "is set, but a step may look at {max_groups_per_step} groups; set \
                 max_groups_per_step to {MAX_WAITING} or less, or leave it out"
            );
            return Err(LearnerError::setting("repeat.times", problem));
        }
        let most = MAX_WAITING / max_groups_per_step.max(1);
        count("repeat.after_steps", self.after_steps, most)
    }
}

/// The state that determines the next step's questions. Checkpoints keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuestionsState {
    /// Groups so far that had a new question.
    pub new: u64,
    /// Questions that come back, the first one first.
    pub returning: VecDeque<Returning>,
}

impl QuestionsState {
    /// Continues behind a question that was drawn from this state.
    fn remove(&mut self, draw: Draw) {
        match draw.times {
            0 => self.new += 1,
            _ => drop(self.returning.pop_front()),
        }
    }

    /// Returns whether the questions that come back are among so many.
    pub(crate) fn fits(&self, questions: usize) -> bool {
        let mut returning = self.returning.iter();
        returning.all(|it| it.question < questions && it.times > 0)
    }
}

/// A question that comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Returning {
    /// Its position in the list of all questions.
    pub question: usize,
    /// Which time it comes back, from 1 on.
    pub times: u32,
    /// The policy version from which on groups may have it.
    pub from_version: u64,
}

/// The question of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Draw {
    question: usize,
    /// As in [`Returning`]; 0 for a new one.
    times: u32,
}

/// The question of every group.
#[derive(Clone, Debug)]
pub struct Questions {
    settings: RepeatSettings,
    questions: Vec<TrainingQuestion>,
    order: QuestionOrder,
    version: u64,
    /// The first group that the next step looks at.
    start: u64,
    /// The state before that group.
    state: QuestionsState,
    /// The questions of the groups from there on.
    draws: VecDeque<Draw>,
    /// The state behind them.
    ahead: QuestionsState,
}

impl Questions {
    /// Creates the questions of a run that has made `version` steps and continues at group `start`
    /// with `state`.
    pub fn new(
        settings: RepeatSettings,
        (questions, order): (Vec<TrainingQuestion>, QuestionOrder),
        (version, start): (u64, u64),
        state: QuestionsState,
    ) -> Self {
        Self {
            settings,
            questions,
            order,
            version,
            start,
            ahead: state.clone(),
            state,
            draws: VecDeque::new(),
        }
    }

    /// Returns the state before the next step.
    pub fn state(&self) -> &QuestionsState {
        &self.state
    }

    /// Returns the id of a group's question; none for a group of an earlier step.
    pub fn question(&mut self, group_index: u64) -> Option<&str> {
        let behind = group_index.checked_sub(self.start)? as usize;
        while self.draws.len() <= behind {
            let draw = self.draw();
            self.ahead.remove(draw);
            self.draws.push_back(draw);
        }
        Some(&self.questions[self.draws[behind].question].id)
    }

    /// Returns the question of the group behind those that have one.
    fn draw(&mut self) -> Draw {
        let first = self.ahead.returning.front();
        match first.filter(|it| it.from_version <= self.version) {
            Some(&Returning {
                question, times, ..
            }) => Draw { question, times },
            None => Draw {
                question: self.order.question(self.ahead.new),
                times: 0,
            },
        }
    }

    /// Continues with the next step, which begins at group `next_start`. `is_answered` says whether
    /// all episodes of a group were correct. Returns how many groups of the step had a question
    /// that had come back.
    pub fn advance(&mut self, next_start: u64, is_answered: impl Fn(u64) -> bool) -> usize {
        if next_start > self.start {
            // After a restart groups come from the journal, and no actor has claimed them. They
            // have this step's questions.
            self.question(next_start - 1);
        }
        self.version += 1;
        let mut repeated = 0;
        for index in self.start..next_start {
            let Some(draw) = self.draws.pop_front() else {
                break;
            };
            self.state.remove(draw);
            repeated += usize::from(draw.times > 0);
            if draw.times < self.settings.times && !is_answered(index) {
                self.state.returning.push_back(Returning {
                    question: draw.question,
                    times: draw.times + 1,
                    from_version: self.version + self.settings.after_steps - 1,
                });
            }
        }
        self.start = next_start;
        // The groups behind the step are handed out anew.
        self.draws.clear();
        self.ahead = self.state.clone();
        repeated
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUESTIONS: usize = 7;

    fn questions(settings: RepeatSettings) -> Questions {
        resumed(settings, (0, 0), QuestionsState::default())
    }

    fn resumed(settings: RepeatSettings, position: (u64, u64), state: QuestionsState) -> Questions {
        let list = (0..QUESTIONS).map(|number| TrainingQuestion::new(&number.to_string(), "easy"));
        let list: Vec<_> = list.collect();
        let order = QuestionOrder::new(&list, &[], 5).unwrap();
        Questions::new(settings, (list, order), position, state)
    }

    fn ids(questions: &mut Questions, groups: std::ops::Range<u64>) -> Vec<String> {
        let id = |index| questions.question(index).unwrap().to_owned();
        groups.map(id).collect()
    }

    fn times(times: u32, after_steps: u64) -> RepeatSettings {
        RepeatSettings { times, after_steps }
    }

    #[test]
    fn without_repeats_groups_have_new_questions_whatever_was_answered() {
        let mut found = questions(times(0, 1));
        let expected = ids(&mut found, 0..20);
        for step in 0..5 {
            assert_eq!(found.advance(4 * step + 4, |_| false), 0);
            let rest = ids(&mut found, 4 * step + 4..20);
            assert_eq!(rest, expected[4 * step as usize + 4..]);
            assert_eq!(found.question(4 * step + 3), None, "of an earlier step");
        }
    }

    #[test]
    fn a_question_comes_back_until_it_is_answered_or_was_asked_often_enough() {
        let mut found = questions(times(2, 2));
        let new = ids(&mut questions(times(0, 1)), 0..8);
        assert_eq!(ids(&mut found, 0..3), new[..3]);
        assert_eq!(found.advance(3, |index| index == 2), 0);
        assert_eq!(ids(&mut found, 3..5), new[3..5], "a step between");
        assert_eq!(found.advance(5, |_| true), 0);
        let expected = [&new[0], &new[1], &new[5]].map(String::clone);
        assert_eq!(ids(&mut found, 5..8), expected);
        // The first question is answered now, the second one is not.
        assert_eq!(found.advance(8, |index| index != 6), 2);
        assert_eq!(ids(&mut found, 8..9), new[6..7]);
        assert_eq!(found.advance(9, |_| true), 0);
        assert_eq!(ids(&mut found, 9..10), new[1..2], "the second time");
        assert_eq!(found.advance(10, |_| false), 1);
        assert!(found.state().returning.is_empty(), "no third time");
    }

    #[test]
    fn settings_that_cannot_be_used_are_refused() {
        for (settings, groups, is_synchronous, expected) in [
            (times(2, 4), 64, true, None),
            (times(0, 4), 64, false, None),
            (
                times(0, 5),
                64,
                true,
                Some("repeat.after_steps: is set, but no question"),
            ),
            (
                times(1, 0),
                64,
                true,
                Some("repeat.after_steps: is 0; give a number from 1 to 2048"),
            ),
            (
                times(1, 2049),
                64,
                true,
                Some("repeat.after_steps: is 2049"),
            ),
            (
                times(1001, 4),
                64,
                true,
                Some("repeat.times: is 1001; give a number from 1"),
            ),
            (
                times(1, 1),
                MAX_WAITING + 1,
                true,
                Some("repeat.times: is set, but a step may look at 131073 groups"),
            ),
            (
                times(1, 4),
                64,
                false,
                Some("repeat.times: is set, but groups of an asynchronous"),
            ),
        ] {
            let found = settings.validate(groups, is_synchronous).err();
            let found = found.map_or_else(String::new, |it| it.to_string());
            assert!(found.contains(expected.unwrap_or_default()), "{found}");
            assert_eq!(found.is_empty(), expected.is_none(), "{found}");
        }
    }

    /// The groups of a step, a bit for each that is answered, and how far actors claim groups.
    fn step() -> impl Strategy<Value = (u64, u64, Option<u64>)> {
        (1_u64..6, any::<u64>(), prop::option::of(0_u64..9))
    }

    #[test]
    fn a_state_must_fit_the_questions_of_the_run() {
        let state = |question, times| QuestionsState {
            new: 9,
            returning: VecDeque::from([Returning {
                question,
                times,
                from_version: 3,
            }]),
        };
        assert!(state(6, 1).fits(7));
        assert!(!state(7, 1).fits(7), "no such question");
        assert!(!state(6, 0).fits(7), "a new question does not come back");
    }

    proptest! {
        /// A run that is resumed, and replays some steps from its journal without claims, or in
        /// which actors claim groups in vain, has the same questions.
        #[test]
        fn a_synchronous_run_has_its_questions_whatever_was_claimed(
            steps in prop::collection::vec(step(), 1..20),
            (most, after_steps) in (0_u32..4, 1_u64..4),
            resumed_at in 0_usize..20,
        ) {
            let settings = times(most, after_steps);
            let (mut run, mut other) = (questions(settings), questions(settings));
            let mut start = 0;
            for (step, (groups, answered, in_vain)) in steps.into_iter().enumerate() {
                if step == resumed_at {
                    let state = other.state().clone();
                    other = resumed(settings, (step as u64, start), state);
                }
                let next = start + groups;
                let expected = ids(&mut run, start..next);
                if let Some(in_vain) = in_vain {
                    other.question(start + in_vain);
                    prop_assert_eq!(ids(&mut other, start..next), expected);
                }
                let is_answered = |index: u64| answered >> (index - start) & 1 == 1;
                let expected = run.advance(next, is_answered);
                prop_assert_eq!(other.advance(next, is_answered), expected);
                prop_assert_eq!(other.state(), run.state());
                start = next;
            }
        }
    }
}
