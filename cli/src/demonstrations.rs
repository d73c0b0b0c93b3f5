//! Demonstrations of the training questions, for the warm start, for pretraining and for GRPO, and
//! episodes of a model that the oracle corrects.

use std::sync::Arc;

use actor::{ActorError, EpisodeSettings, EpisodeSpec, Policy, run_episode};
use anyhow::{Result, anyhow, ensure};
use baselines::{
    CorrectedPolicy, Demonstrations, Demonstrator, DemonstratorMix, OraclePolicy, ScriptedPolicy,
    Solutions, corrections, demonstrate, demonstrate_correctly,
};
use learner::{LearnerError, demonstrations::Demonstrate};
use policy::{Chat, Coordinates, Model, random::derive_seed};
use proto::{
    may_pass, status_text,
    v1::{Segment, Trajectory},
};
use report::DecodingMode;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    evaluation::{Evaluator, copies, shuffled},
    progress::ProgressStage,
    setup::Setup,
    shutdown::unless_interrupted,
};

/// The policy version of a model in corrected episodes; the oracle has 0.
const MODEL_VERSION: u64 = 1;

/// The training questions that are demonstrated, in their shuffled order.
#[derive(Clone, Copy)]
pub(crate) struct QuestionRange {
    /// Questions at the beginning that are left out.
    pub(crate) skipped: usize,
    /// The most questions after them; 0: all.
    pub(crate) most: usize,
}

impl QuestionRange {
    /// All training questions.
    pub(crate) const ALL: Self = Self {
        skipped: 0,
        most: 0,
    };

    fn of(self, questions: Vec<String>) -> Vec<String> {
        let most = match self.most {
            0 => usize::MAX,
            most => most,
        };
        questions
            .into_iter()
            .skip(self.skipped)
            .take(most)
            .collect()
    }
}

/// Returns one demonstration of each training question in `range`. `name` is the label of its
/// random seed, too: another name gives other weights.
pub(crate) async fn demonstrations(
    evaluator: &Evaluator<'_>,
    name: &str,
    model: &Model,
    mix: DemonstratorMix,
    range: QuestionRange,
) -> Result<Vec<Segment>> {
    let setup = evaluator.setup;
    let chat: Arc<Chat> = Arc::new(model.chat.clone());
    let demonstrator = Demonstrator::new(Arc::clone(&setup.solutions), mix);
    let policy = ScriptedPolicy::new(Arc::clone(&chat), demonstrator);
    let question_ids = range.of(training_questions(setup));
    let other_range = match range.skipped {
        0 => "",
        _ => ", or lower warm_start.skip_questions",
    };
    ensure!(
        !question_ids.is_empty(),
        "the train split has no questions to demonstrate; choose other data or other \
         --databases{other_range}"
    );
    let title = format!("demonstrations, {name}");
    let policies: [&dyn Policy; 1] = [&policy];
    let played = play(evaluator, &title, &policies, &chat, &question_ids, name);
    let (episodes, stage) = played.await?;
    if episodes.is_empty() {
        let settings = evaluator.episode_settings(&chat);
        return Err(why_unusable(evaluator, &policy, &settings, &question_ids[0]).await?);
    }
    stage.finish(&format!("{} usable", episodes.len()));
    Ok(episodes
        .into_iter()
        .flat_map(|episode| episode.segments)
        .collect())
}

/// Returns what solves questions for a learner: the oracle, in episodes with these settings. Must
/// be called on a thread of the runtime.
pub(crate) fn demonstrate_by_oracle(
    solutions: Arc<Solutions>,
    settings: EpisodeSettings,
    concurrency: usize,
    shutdown: CancellationToken,
) -> Box<Demonstrate> {
    let runtime = Handle::current();
    let policy = ScriptedPolicy::new(Arc::clone(&settings.chat), OraclePolicy(solutions));
    Box::new(move |question_ids| {
        let wanted = Demonstrations {
            question_ids,
            seed: 0,
            concurrency,
        };
        let played = demonstrate_patiently(&policy, &settings, &wanted);
        let played = runtime.block_on(unless_interrupted(&shutdown, played));
        let shown = played.map_err(|_| LearnerError::Stopped)?;
        shown.map_err(|(question_id, error)| LearnerError::Demonstration {
            question_id,
            failure: error.to_string(),
        })
    })
}

/// How often demonstrations are tried while the env-node is away: for about half an hour, as a
/// learner waits for it at its start.
const ATTEMPTS: u32 = 30;

/// Runs the demonstrations, and repeats them while the env-node is away.
async fn demonstrate_patiently(
    policy: &dyn Policy,
    settings: &EpisodeSettings,
    wanted: &Demonstrations<'_>,
) -> Result<Vec<Option<Segment>>, (String, ActorError)> {
    let mut attempts_left = ATTEMPTS;
    loop {
        attempts_left -= 1;
        match demonstrate_correctly(policy, settings, wanted).await {
            Err((_, ActorError::Call { call, status }))
                if attempts_left > 0 && may_pass(&status) =>
            {
                let reason = status_text(&status);
                tracing::warn!(call, reason, "a step waits for its demonstrations");
            }
            ended => return ended,
        }
    }
}

/// Returns episodes of the model on the first training questions after `skipped` ones, in which the
/// oracle corrects visible failures. `name` is the label of their random seed.
pub(crate) async fn corrected_episodes(
    evaluator: &Evaluator<'_>,
    name: &str,
    model: &Model,
    skipped: usize,
    questions: usize,
) -> Result<Vec<Segment>> {
    let setup = evaluator.setup;
    let chat: Arc<Chat> = Arc::new(model.chat.clone());
    let engines = evaluator.engines(model, MODEL_VERSION)?;
    let models = evaluator.models(&engines, &chat, DecodingMode::Sampled)?;
    let corrected =
        |model| CorrectedPolicy::new(model, Arc::clone(&chat), Arc::clone(&setup.solutions));
    let policies: Vec<_> = models.into_iter().map(corrected).collect();
    let policies = copies(&policies);
    let question_ids = training_questions(setup).into_iter();
    let question_ids: Vec<String> = question_ids.skip(skipped).take(questions).collect();
    let title = format!("corrected episodes, {name}");
    let played = play(evaluator, &title, &policies, &chat, &question_ids, &title);
    let (episodes, stage) = played.await?;
    let unusable = question_ids.len() - episodes.len();
    let corrected: Vec<Segment> = episodes.into_iter().filter_map(corrections).collect();
    stage.finish(&format!(
        "{} with a correction, {unusable} failed or too long",
        corrected.len()
    ));
    Ok(corrected)
}

/// Plays questions, and returns the usable episodes and the stage that shows them. `label` is that
/// of the random seed.
async fn play(
    evaluator: &Evaluator<'_>,
    title: &str,
    policies: &[&dyn Policy],
    chat: &Arc<Chat>,
    question_ids: &[String],
    label: &str,
) -> Result<(Vec<Trajectory>, ProgressStage)> {
    let config = evaluator.config;
    let total = question_ids.len() as u64;
    let stage = evaluator.progress.stage(title, total, "episodes");
    let wanted = Demonstrations {
        question_ids,
        seed: derive_seed(config.seed, label),
        concurrency: config.evaluation.concurrency,
    };
    let settings = evaluator.episode_settings(chat);
    let played = demonstrate(policies, &settings, &wanted, |done| stage.set(done as u64));
    let episodes = unless_interrupted(evaluator.shutdown, played).await?;
    Ok((episodes, stage))
}

/// Returns the ids of the training questions, shuffled.
fn training_questions(setup: &Setup) -> Vec<String> {
    let questions = shuffled(setup, "train").into_iter();
    questions.map(|question| question.question_id).collect()
}

/// Plays a demonstration again to find out why it cannot be used.
async fn why_unusable(
    evaluator: &Evaluator<'_>,
    policy: &ScriptedPolicy<Demonstrator>,
    settings: &EpisodeSettings,
    question_id: &str,
) -> Result<anyhow::Error> {
    let spec = EpisodeSpec {
        question_id: question_id.to_owned(),
        coordinates: Coordinates::default(),
    };
    let episode = run_episode(policy, settings, &spec);
    let outcome = unless_interrupted(evaluator.shutdown, episode).await?;
    Ok(if outcome.trajectory.failure.is_empty() {
        anyhow!("no demonstration fits into one context; raise learner.rollout.max_context_tokens")
    } else {
        anyhow!(
            "every demonstration failed; {question_id}: {}",
            outcome.trajectory.failure
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_questions_do_not_count_among_the_chosen() {
        let questions = || "abcdef".chars().map(String::from).collect::<Vec<_>>();
        for (skipped, most, expected) in [
            (0, 0, "abcdef"),
            (2, 0, "cdef"),
            (2, 3, "cde"),
            (5, 3, "f"),
            (9, 3, ""),
        ] {
            let range = QuestionRange { skipped, most };
            assert_eq!(range.of(questions()).concat(), expected);
        }
    }
}
