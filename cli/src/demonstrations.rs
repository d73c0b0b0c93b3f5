//! Demonstrations of the training questions, for the warm start and for pretraining, and episodes
//! of a model that the oracle corrects.

use std::sync::Arc;

use actor::{EpisodeSettings, EpisodeSpec, Policy, run_episode};
use anyhow::{Result, anyhow, ensure};
use baselines::{
    CorrectedPolicy, Demonstrations, Demonstrator, DemonstratorMix, ScriptedPolicy, corrections,
    demonstrate,
};
use policy::{Chat, Coordinates, Model, random::derive_seed};
use proto::v1::{Segment, Trajectory};
use report::DecodingMode;

use crate::{
    evaluation::{Evaluator, shuffled},
    progress::ProgressStage,
    setup::Setup,
    shutdown::unless_interrupted,
};

/// The policy version of a model in corrected episodes; the oracle has 0.
const MODEL_VERSION: u64 = 1;

/// Returns one demonstration of each training question. `name` is the label of its random seed,
/// too: another name gives other weights.
pub(crate) async fn demonstrations(
    evaluator: &Evaluator<'_>,
    name: &str,
    model: &Model,
    mix: DemonstratorMix,
) -> Result<Vec<Segment>> {
    let setup = evaluator.setup;
    let config = &evaluator.config.warm_start;
    let chat: Arc<Chat> = Arc::new(model.chat.clone());
    let demonstrator = Demonstrator::new(Arc::clone(&setup.solutions), mix);
    let policy = ScriptedPolicy::new(Arc::clone(&chat), demonstrator);
    let (skipped, most) = (config.skip_questions, config.demonstrations);
    let question_ids = chosen(training_questions(setup), skipped, most);
    ensure!(
        !question_ids.is_empty(),
        "the train split has no questions to demonstrate; choose other data or other --databases, \
         or lower warm_start.skip_questions"
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

/// Returns episodes of the model on the first training questions in which the oracle corrects
/// visible failures. `name` is the label of their random seed.
pub(crate) async fn corrected_episodes(
    evaluator: &Evaluator<'_>,
    name: &str,
    model: &Model,
    questions: usize,
) -> Result<Vec<Segment>> {
    let setup = evaluator.setup;
    let chat: Arc<Chat> = Arc::new(model.chat.clone());
    let engines = evaluator.engines(model, MODEL_VERSION)?;
    let models = evaluator.models(&engines, &chat, DecodingMode::Sampled)?;
    let corrected =
        |model| CorrectedPolicy::new(model, Arc::clone(&chat), Arc::clone(&setup.solutions));
    let policies: Vec<_> = models.into_iter().map(corrected).collect();
    let policies: Vec<&dyn Policy> = policies
        .iter()
        .map(|policy| policy as &dyn Policy)
        .collect();
    let mut question_ids = training_questions(setup);
    question_ids.truncate(questions);
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

/// Leaves out the first `skipped` questions, and keeps `most` of the others; 0: all.
fn chosen(questions: Vec<String>, skipped: usize, most: usize) -> Vec<String> {
    let most = match most {
        0 => usize::MAX,
        most => most,
    };
    questions.into_iter().skip(skipped).take(most).collect()
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
            assert_eq!(chosen(questions(), skipped, most).concat(), expected);
        }
    }
}
