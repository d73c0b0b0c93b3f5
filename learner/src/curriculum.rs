//! The order of new questions: stages of questions by difficulty, then all of them. Pure.
//!
//! Invariant: a new question is a function of the run's seed, the curriculum and the number of
//! groups before it that had new ones. Without `learner.repeat` all have.
//! Each stage goes through its questions in epochs, and shuffles them anew for each.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    error::{LearnerError, Result},
    shuffle::{epoch_rng, shuffled},
};

/// A question to train on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingQuestion {
    /// The question's id.
    pub id: String,
    /// Its difficulty, as the dataset names it.
    pub difficulty: String,
}

impl TrainingQuestion {
    /// Names a question.
    pub fn new(id: &str, difficulty: &str) -> Self {
        Self {
            id: id.to_owned(),
            difficulty: difficulty.to_owned(),
        }
    }
}

/// One stage of the curriculum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CurriculumStage {
    /// Groups of the stage that have new questions. A step looks at `groups_per_step` of them, or
    /// more with dynamic sampling.
    pub groups: u64,
    /// Difficulties of its questions.
    pub difficulties: Vec<String>,
}

/// The question of every group.
#[derive(Clone, Debug)]
pub struct QuestionOrder {
    stages: Vec<Stage>,
    run_seed: u64,
    /// The stage and the epoch that were requested last, and their order.
    last: Option<((usize, u64), Vec<usize>)>,
}

#[derive(Clone, Debug)]
struct Stage {
    first_group: u64,
    /// Positions in the list of all questions.
    questions: Vec<usize>,
}

impl QuestionOrder {
    /// Creates the order of `questions` (at least 1). After the last stage of `curriculum` all
    /// questions are used.
    ///
    /// # Errors
    /// A stage has no groups or no difficulties, or names a difficulty that no question has.
    pub fn new(
        questions: &[TrainingQuestion],
        curriculum: &[CurriculumStage],
        run_seed: u64,
    ) -> Result<Self> {
        let mut stages = Vec::new();
        let mut first_group: u64 = 0;
        for (number, stage) in curriculum.iter().enumerate() {
            check(number, stage, questions)?;
            let is_chosen =
                |place: &usize| stage.difficulties.contains(&questions[*place].difficulty);
            stages.push(Stage {
                first_group,
                questions: (0..questions.len()).filter(is_chosen).collect(),
            });
            first_group = first_group.saturating_add(stage.groups);
        }
        stages.push(Stage {
            first_group,
            questions: (0..questions.len()).collect(),
        });
        Ok(Self {
            stages,
            run_seed,
            last: None,
        })
    }

    /// Returns the position of a new question in the list. `number` counts the new ones before it.
    pub fn question(&mut self, number: u64) -> usize {
        let later = self.stages.partition_point(|it| it.first_group <= number);
        let stage_number = later - 1;
        let stage = &self.stages[stage_number];
        let (place, count) = (number - stage.first_group, stage.questions.len() as u64);
        let epoch = (stage_number, place / count);
        let order = match self.last.take() {
            Some((last, order)) if last == epoch => order,
            _ => self.epoch(epoch),
        };
        let question = self.stages[stage_number].questions[order[(place % count) as usize]];
        self.last = Some((epoch, order));
        question
    }

    /// Returns the order of one epoch's questions (Fisher–Yates).
    fn epoch(&self, (stage, epoch): (usize, u64)) -> Vec<usize> {
        // Stages have their own random numbers. Those of the first are those of a run without a
        // curriculum.
        let mut purpose = *b"question";
        purpose[7] ^= stage as u8;
        let count = self.stages[stage].questions.len();
        shuffled(count, &mut epoch_rng(self.run_seed, epoch, &purpose))
    }
}

fn check(number: usize, stage: &CurriculumStage, questions: &[TrainingQuestion]) -> Result<()> {
    let known: BTreeSet<&str> = questions.iter().map(|it| it.difficulty.as_str()).collect();
    let named = stage.difficulties.iter().map(String::as_str);
    let unknown: Vec<&str> = named.filter(|it| !known.contains(it)).collect();
    let problem = if stage.groups == 0 {
        format!(
            "stage {} has 0 groups; give at least 1, or remove the stage",
            number + 1
        )
    } else if !unknown.is_empty() || stage.difficulties.is_empty() {
        let known: Vec<&str> = known.into_iter().collect();
        format!(
            "stage {} names the difficulties {unknown:?}, and the training questions have {}; name \
             only these",
            number + 1,
            known.join(", ")
        )
    } else {
        return Ok(());
    };
    Err(LearnerError::setting("curriculum", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six questions: two easy, three hard, one medium.
    fn questions() -> Vec<TrainingQuestion> {
        let difficulties = ["easy", "hard", "easy", "hard", "medium", "hard"];
        let named = difficulties.iter().enumerate();
        named
            .map(|(number, difficulty)| TrainingQuestion::new(&number.to_string(), difficulty))
            .collect()
    }

    fn stage(groups: u64, difficulties: &[&str]) -> CurriculumStage {
        CurriculumStage {
            groups,
            difficulties: difficulties.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    fn order(curriculum: &[CurriculumStage], groups: u64) -> Vec<usize> {
        let mut order = QuestionOrder::new(&questions(), curriculum, 5).unwrap();
        (0..groups).map(|index| order.question(index)).collect()
    }

    #[test]
    fn each_stage_has_its_questions_in_epochs_and_then_come_all() {
        let curriculum = [stage(5, &["easy"]), stage(4, &["easy", "medium"])];
        let found = order(&curriculum, 9 + 12);
        assert!(found[..5].iter().all(|it| [0, 2].contains(it)), "{found:?}");
        assert!(
            found[5..9].iter().all(|it| [0, 2, 4].contains(it)),
            "{found:?}"
        );
        for (epoch, expected) in [
            (&found[0..2], vec![0, 2]),
            (&found[5..8], vec![0, 2, 4]),
            (&found[9..15], vec![0, 1, 2, 3, 4, 5]),
            (&found[15..21], vec![0, 1, 2, 3, 4, 5]),
        ] {
            let mut epoch = epoch.to_vec();
            epoch.sort_unstable();
            assert_eq!(epoch, expected);
        }
    }

    #[test]
    fn a_group_has_its_question_whatever_was_asked_before() {
        let curriculum = [stage(5, &["easy"]), stage(4, &["hard"])];
        let expected = order(&curriculum, 20);
        let mut again = QuestionOrder::new(&questions(), &curriculum, 5).unwrap();
        for index in (0..20).rev() {
            assert_eq!(again.question(index), expected[index as usize]);
        }
        let all = ["easy", "medium", "hard"];
        assert_eq!(
            order(&[stage(3, &all)], 3),
            order(&[], 3),
            "the first stage's random numbers"
        );
    }

    #[test]
    fn stages_that_cannot_be_used_are_named() {
        for (curriculum, expected) in [
            (vec![stage(0, &["easy"])], "stage 1 has 0 groups"),
            (
                vec![stage(1, &["easy"]), stage(1, &["extra"])],
                "stage 2 names the difficulties [\"extra\"], and the training questions have \
                 easy, hard, medium",
            ),
            (
                vec![stage(1, &["easy", "extra"])],
                "stage 1 names the difficulties [\"extra\"], and",
            ),
            (
                vec![stage(1, &[])],
                "stage 1 names the difficulties [], and",
            ),
        ] {
            let fault = QuestionOrder::new(&questions(), &curriculum, 5).unwrap_err();
            assert!(fault.to_string().contains(expected), "{fault}");
        }
    }
}
