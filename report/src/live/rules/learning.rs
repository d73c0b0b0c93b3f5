//! Rules about what a policy learns.

use std::iter;

use super::recent::{MIN_STEPS, mean, newest, percent, recent, recent_mean};
use crate::{
    live::{
        findings::{Diagnosed, Severity},
        status::LiveStatus,
    },
    number,
    records::{Evaluation, PolicyName, RunStatus},
};

/// With this share of zero-variance groups, dynamic sampling draws its default of 4 times the
/// groups and still keeps less than half a batch.
const ZERO_VARIANCE: f64 = 0.9;
/// Episodes have several turns; with this share most episodes lose one to a malformed call.
const MALFORMED: f64 = 0.3;
/// DAPO (arXiv:2503.14476) reports that cut episodes add reward noise.
const CUT: f64 = 0.25;
/// Nats per token. A policy this sure samples equal episodes.
const ENTROPY_FLOOR: f64 = 0.01;
/// A policy that was as sure at the start has not collapsed.
const ENTROPY_FALL: f64 = 0.2;
/// PPO implementations report 0.1 to 0.3 as the usual upper end of the clipped share.
const CLIPPED: f64 = 0.3;
/// Nats per token; GRPO runs with a KL term report less than 0.1.
const KL: f64 = 0.5;
/// Nats per token. Sampler and learner run the same operations, so a synchronous run has almost no
/// difference; other engines report 0.01 to 0.03 in bf16.
const MISMATCH: f64 = 0.05;
/// The same for trajectories that older weights sampled, which differ for a good reason.
const STALE_MISMATCH: f64 = 0.3;
/// Share of episodes that failed for a reason outside the agent.
const FAILED: f64 = 0.05;
/// After this many steps a run without evaluations is blind. By default there is one every 10.
const BLIND_STEPS: u64 = 20;
/// Fewer steps have too much noise for a trend.
const TREND_STEPS: usize = 40;
/// Standard errors that a trend must exceed.
const TREND_ERRORS: f64 = 2.0;
/// Little is left to learn above it.
const SOLVED: f64 = 0.9;

pub(super) fn zero_variance(status: &LiveStatus) -> Option<Diagnosed> {
    let metric = "frac_reward_zero_std";
    let is_untrained = is_untrained(status);
    let shares = match status.state {
        // There will be no more steps, however few there are.
        RunStatus::Finished => newest(status, metric),
        RunStatus::Interrupted if is_untrained => newest(status, metric),
        RunStatus::Interrupted | RunStatus::Running => recent(status, metric)?,
    };
    let share = mean(&shares);
    let has_shown = recent_mean(status, "demonstrations/count").is_some_and(|count| count > 0.0);
    let meaning = match (is_untrained, has_shown) {
        (true, _) => "No group had a gradient: the weights are those of the start.",
        (false, true) => {
            "Such a group has no gradient: the policy learns almost only from demonstrations."
        }
        (false, false) => "Such a group has no gradient: the policy learns almost nothing.",
    };
    if shares.is_empty() {
        return is_untrained.then(|| Diagnosed {
            severity: Severity::Problem,
            seen: "No group had two episodes with a score.".to_owned(),
            meaning,
            remedy: "Look at the logs of actors and env-nodes, which name the failed calls."
                .to_owned(),
        });
    }
    if share < ZERO_VARIANCE && !is_untrained {
        return None;
    }
    let correct = newest(status, "rewards/correct/mean");
    let correct = (!correct.is_empty()).then(|| mean(&correct));
    let in_words = correct.map_or_else(String::new, |it| {
        format!("; {} of the answers are correct", percent(it))
    });
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "In {} of the groups all episodes have the same reward{in_words}.",
            percent(share)
        ),
        meaning,
        remedy: format!(
            "{} A larger learner.group_size and a higher learner.rollout.sampling.temperature \
             make differences more likely.",
            other_questions_or_policy(correct, status.settings.demonstrates == Some(true))
        ),
    })
}

/// Returns what to change about equal episodes if so many of their answers are correct, in a run
/// with or without demonstrations.
fn other_questions_or_policy(correct: Option<f64>, demonstrates: bool) -> String {
    let demonstrate = match demonstrates {
        true => "",
        false => "demonstrate them (learner.demonstration_weight = 3), ",
    };
    match correct {
        Some(correct) if correct > 0.5 => {
            "The questions are too easy: let those that were not answered come back \
             (learner.repeat.times = 3, in a synchronous run), take harder or other databases \
             (data.databases), or stop here."
                .to_owned()
        }
        _ => format!(
            "The questions are too hard for this policy: start from a better one (`sqlenv sft`, \
             --model), {demonstrate}or reward partial progress (learner.rewards.shaping = 1, if it \
             is 0). Examples (learner.rollout.shots = 3) help pretrained models and those that \
             were trained with examples, and harm the embedded base policy."
        ),
    }
}

/// Returns whether the steps of the run left out all groups, and had no demonstrations.
fn is_untrained(status: &LiveStatus) -> bool {
    let kept = status.series("groups/kept");
    let is_zero = |metric| status.series(metric).iter().all(|(_, count)| *count == 0.0);
    !kept.is_empty() && is_zero("groups/kept") && is_zero("demonstrations/count")
}

pub(super) fn malformed_calls(status: &LiveStatus) -> Option<Diagnosed> {
    let share =
        recent_mean(status, "tools/malformed_frequency").filter(|share| *share >= MALFORMED)?;
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "{} of the turns have no well-formed tool call.",
            percent(share)
        ),
        meaning: "The policy does not speak the format of the tools, so the environment sees noise.",
        remedy: "Teach the format first: `sqlenv sft`, then --model with its folder. Or lower \
                 learner.rollout.sampling.temperature, or give a pretrained model examples \
                 (learner.rollout.shots = 3)."
            .to_owned(),
    })
}

pub(super) fn completions_cut(status: &LiveStatus) -> Option<Diagnosed> {
    let share = recent_mean(status, "completions/clipped_ratio").filter(|share| *share >= CUT)?;
    let length = status.metric("completions/mean_length");
    let length = length.map_or_else(String::new, |it| {
        format!("; an episode has {} tokens on average", number::value(it))
    });
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "In {} of the episodes the token limit cut a call{length}.",
            percent(share)
        ),
        meaning: "A call that is cut is malformed and costs a step.",
        remedy: "Raise learner.rollout.max_completion_tokens, and \
                 learner.rollout.max_context_tokens if it is not much larger."
            .to_owned(),
    })
}

pub(super) fn entropy_collapse(status: &LiveStatus) -> Option<Diagnosed> {
    let now = recent_mean(status, "entropy").filter(|entropy| *entropy < ENTROPY_FLOOR)?;
    let first: Vec<f64> = status
        .series("entropy")
        .iter()
        .take(MIN_STEPS)
        .map(|it| it.1)
        .collect();
    let before = mean(&first);
    if now > ENTROPY_FALL * before {
        return None;
    }
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "The entropy fell from {} to {} nats per token.",
            number::value(before),
            number::value(now)
        ),
        meaning: "The policy has collapsed: it samples the same episode again and again, and \
                  explores nothing.",
        remedy: "Start a run from an earlier policy by --model, such as model-best. Lower \
                 learner.optimizer.learning_rate, raise learner.loss.clip_high or \
                 learner.loss.entropy_coef, or add a learner.loss.kl_coef."
            .to_owned(),
    })
}

pub(super) fn policy_far(status: &LiveStatus) -> Option<Diagnosed> {
    let clipped = recent_mean(status, "clip_ratio/region_mean").filter(|share| *share > CLIPPED);
    let kl = recent_mean(status, "kl").filter(|kl| *kl > KL);
    let seen = match (clipped, kl) {
        (None, None) => return None,
        (Some(clipped), _) => format!("{} of the importance ratios are clipped.", percent(clipped)),
        (None, Some(kl)) => {
            format!(
                "The KL divergence to the reference is {} nats per token.",
                number::value(kl)
            )
        }
    };
    Some(Diagnosed {
        severity: Severity::Problem,
        seen,
        meaning: "The policy moves too far at a time: most of the gradient is cut off, or the \
                  language of the base model is being lost.",
        remedy: "Lower learner.optimizer.learning_rate, learner.num_iterations or \
                 learner.max_staleness, or raise learner.loss.kl_coef."
            .to_owned(),
    })
}

pub(super) fn sampler_mismatch(status: &LiveStatus) -> Option<Diagnosed> {
    let limit = match status.settings.max_staleness {
        Some(0) => MISMATCH,
        _ => STALE_MISMATCH,
    };
    let metric = "sampling/sampling_logp_difference/mean";
    let difference = recent_mean(status, metric).filter(|difference| *difference > limit)?;
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "The log-probabilities of sampler and learner differ by {} nats per token.",
            number::value(difference)
        ),
        meaning: "The learner corrects actions that the policy would not have taken: the gradient \
                  is biased.",
        remedy: "Give actors and learner the same program version, device kind and dtype. Lower \
                 learner.max_staleness. With learner.ratio_against = \"learner\", keep \
                 learner.loss.sampler_correction on."
            .to_owned(),
    })
}

pub(super) fn episodes_failed(status: &LiveStatus) -> Option<Diagnosed> {
    let failed = recent_mean(status, "episodes/failed").filter(|failed| *failed > 0.0)?;
    let groups =
        ["groups/kept", "groups/left_out"].map(|it| recent_mean(status, it).unwrap_or(0.0));
    let episodes = groups.iter().sum::<f64>() * status.settings.group_size.unwrap_or(1) as f64;
    if failed < FAILED * episodes {
        return None;
    }
    let mut reason = status.episodes.iter().map(|it| &it.episode.failure);
    let reason = reason.find(|it| !it.is_empty());
    let reason = reason.map_or_else(String::new, |it| format!(" The last reason: {it}"));
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "{} of {} episodes of a step failed for a reason outside the policy.{reason}",
            number::value(failed),
            number::value(episodes)
        ),
        meaning: "They have no reward and give no gradient.",
        remedy: "Look at the logs of actors and env-nodes, which name the refused calls."
            .to_owned(),
    })
}

pub(super) fn accuracy(status: &LiveStatus) -> Option<Diagnosed> {
    let curve = status.accuracy();
    let Some(last) = curve.last() else {
        let is_over = status.state == RunStatus::Finished;
        let is_blind = status.step >= BLIND_STEPS || is_over && status.step > 0;
        // Data without `eval` may have new databases, on which the end of a run is evaluated.
        let is_of_grpo = |it: &Evaluation| it.policy == PolicyName::Grpo && it.step > 0;
        let is_evaluated = status.evaluations.iter().any(is_of_grpo);
        return (is_blind && !is_evaluated).then(|| Diagnosed {
            severity: Severity::Hint,
            seen: format!("Nothing was evaluated in {} steps.", status.step),
            meaning: "Only the training reward is known, which says little of new questions.",
            remedy: "Set evaluation.every_steps to a multiple of learner.checkpoint.every_steps. \
                     If the data have no question of the split `eval`, give some questions this \
                     split."
                .to_owned(),
        });
    };
    // Of equal ones the first, which is that of model-best: `max_by` returns the last.
    let best = curve.iter().rev().max_by(|a, b| {
        let (a, b) = (
            a.metrics.success.success_rate,
            b.metrics.success.success_rate,
        );
        a.total_cmp(&b)
    })?;
    let (best_rate, last_rate) = (best.metrics.success, last.metrics.success);
    if last_rate.wilson_high >= best_rate.wilson_low {
        return None;
    }
    Some(Diagnosed {
        severity: Severity::Problem,
        seen: format!(
            "The accuracy on new questions fell from {} at step {} to {} at step {}.",
            percent(best_rate.success_rate),
            best.step,
            percent(last_rate.success_rate),
            last.step
        ),
        meaning: "The 95 % intervals do not overlap: the policy became worse while it trained.",
        remedy: format!(
            "Take the policy of {}. Lower learner.optimizer.learning_rate, or add a \
             learner.loss.kl_coef.",
            match best.step {
                0 => "the beginning of the run".to_owned(),
                step => format!("step {step}, which the run keeps in model-best"),
            }
        ),
    })
}

pub(super) fn reward_flat(status: &LiveStatus) -> Option<Diagnosed> {
    let rewards = status.series("reward");
    if rewards.len() < TREND_STEPS {
        return None;
    }
    let (begin, end) = (rewards[0].0, rewards[rewards.len() - 1].0);
    let quarter = (end - begin) / 4.0;
    let first = WeightedMean::of(&rewards, |step| step < begin + quarter);
    let last = WeightedMean::of(&rewards, |step| step > end - quarter);
    let error = (first.squared_error + last.squared_error).sqrt();
    let is_solved = recent(status, "rewards/correct/mean").is_some_and(|it| mean(&it) > SOLVED);
    if last.mean - first.mean > TREND_ERRORS * error || is_solved {
        return None;
    }
    Some(Diagnosed {
        severity: Severity::Hint,
        seen: format!(
            "The mean reward was {} in the first quarter of the steps and is {} in the last.",
            number::value(first.mean),
            number::value(last.mean)
        ),
        meaning: "The difference is within the noise of the steps: the policy does not improve on \
                  its training questions.",
        remedy: "Raise learner.optimizer.learning_rate or learner.groups_per_step. Look at the \
                 share of zero-variance groups and at transcripts."
            .to_owned(),
    })
}

/// The mean of a part of a curve. Of a long run the earlier values are means of several steps, so
/// each counts as often as it has steps. The curve has at least two values.
struct WeightedMean {
    mean: f64,
    squared_error: f64,
}

impl WeightedMean {
    /// Returns the mean of the values whose step is in the part. `values` have the step and the
    /// value.
    fn of(values: &[(f64, f64)], is_in: impl Fn(f64) -> bool) -> Self {
        // The first value counts as much as the second.
        let before = values[0].0 - (values[1].0 - values[0].0);
        let steps_before = iter::once(before).chain(values.iter().map(|it| it.0));
        let part: Vec<(f64, f64)> = values
            .iter()
            .zip(steps_before)
            .filter(|((step, _), _)| is_in(*step))
            .map(|((step, value), before)| ((step - before).max(1.0), *value))
            .collect();
        let weights: f64 = part.iter().map(|it| it.0).sum();
        let mean = part.iter().map(|it| it.0 * it.1).sum::<f64>() / weights;
        let squares = part.iter().map(|it| it.0 * (it.1 - mean).powi(2));
        Self {
            mean,
            squared_error: squares.sum::<f64>() / part.len() as f64 / weights,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::status::{
        shorten_steps,
        tests::{status, step},
    };

    #[test]
    fn quarters_are_those_of_the_steps_of_a_long_run() {
        // It learns in the last quarter alone, of which only the last steps are whole.
        let steps = (1..=1_000).map(|number| {
            let noise = if number % 2 == 0 { 0.02 } else { -0.02 };
            let reward = if number > 750 { 0.7 } else { 0.5 };
            step(number, &[("reward", reward + noise)])
        });
        let steps: Vec<_> = steps.collect();
        assert!(shorten_steps(steps.clone()).len() < 400);
        for steps in [steps.clone(), shorten_steps(steps)] {
            let rewards: Vec<(f64, f64)> = steps
                .iter()
                .map(|it| (it.step as f64, it.metrics["reward"]))
                .collect();
            let middle = WeightedMean::of(&rewards, |step| step > 500.0);
            assert!((middle.mean - 0.6).abs() < 0.01, "{}", middle.mean);
            assert!(reward_flat(&status(steps)).is_none());
        }
    }
}
