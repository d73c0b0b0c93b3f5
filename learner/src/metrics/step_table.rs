//! The metrics of a learner step: how each record of `metrics.jsonl` is called in Prometheus, and
//! what it means.
//!
//! With several updates in a step (`num_iterations`), `sampling/` is measured before the first one.
//! Loss, gradient norm, learning rate, entropy, KL divergence and clip ratios are those of the last
//! one. A step on demonstrations alone has no metrics of sampled tokens: they are absent from the
//! record, and NaN in Prometheus.
//!
//! Invariant: every name that a step records is in the table, once.

/// A metric of a learner step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMetric {
    /// Its name in `metrics.jsonl`, which is TRL's where TRL has the metric.
    pub record: &'static str,
    /// Its name in Prometheus.
    pub name: &'static str,
    /// What it means.
    pub description: &'static str,
    /// Its name in verl; empty where verl has none of the same meaning.
    pub verl: &'static str,
}

macro_rules! step_metrics {
    ($($record:literal $name:literal $verl:literal $description:literal;)*) => {
        /// All metrics of learner steps.
        pub const STEP_METRICS: [StepMetric; 59] = [
            $(StepMetric {
                record: $record,
                name: $name,
                description: $description,
                verl: $verl,
            }),*
        ];
    };
}

// The names in `metrics.jsonl`, in Prometheus and in verl, and below them the description.
step_metrics! {
    "reward" "learner_reward" "critic/score/mean"
    "Mean weighted reward of an episode of the step.";
    "reward_std" "learner_reward_std" ""
    "Standard deviation of the weighted reward over the episodes of the step.";
    "rewards/correct/mean" "learner_accuracy_ratio" ""
    "Share of the scored training episodes that ended with a correct answer.";
    "rewards/correct/std" "learner_accuracy_std" ""
    "Standard deviation of the correctness of training episodes.";
    "rewards/return/mean" "learner_return" ""
    "Mean return of a training episode: the sum of its rewards before weights.";
    "rewards/return/std" "learner_return_std" ""
    "Standard deviation of the return of training episodes.";
    "rewards/shaping/mean" "learner_shaping_reward" ""
    "Mean reward of a training episode for its env steps, without the one for its answer.";
    "rewards/shaping/std" "learner_shaping_reward_std" ""
    "Standard deviation of the reward for env steps.";
    "rewards/progress/mean" "learner_progress_reward" ""
    "Mean reward of a training episode for rows that come closer to the gold rows.";
    "rewards/progress/std" "learner_progress_reward_std" ""
    "Standard deviation of the reward for progress.";
    "rewards/operational/mean" "learner_operational_reward" ""
    "Mean reward of a training episode for statements that run and show something new, less costs.";
    "rewards/operational/std" "learner_operational_reward_std" ""
    "Standard deviation of the operational reward.";
    "frac_reward_zero_std" "learner_zero_variance_groups_ratio" ""
    "Share of groups whose episodes all have the same reward, among those with two scored episodes \
     or more. They give no gradient.";
    "groups/zero_variance" "learner_step_zero_variance_groups" ""
    "Groups of the step without reward variance, with two scored episodes or more.";
    "groups/kept" "learner_step_kept_groups" ""
    "Groups that the step trained on.";
    "groups/left_out" "learner_step_left_out_groups" ""
    "Groups that the step looked at and did not train on.";
    "groups/repeated" "learner_step_repeated_groups" ""
    "Groups of the step whose question had come back (`learner.repeat`).";
    "groups/unsolved" "learner_step_unsolved_groups" ""
    "Groups of the step in which no scored episode is correct.";
    "groups/kept_tokens" "learner_step_kept_tokens" "perf/total_num_tokens"
    "Tokens of the groups that the step trained on, prompts included.";
    "demonstrations/count" "learner_step_demonstrations" ""
    "Demonstrations that the step trained on (`learner.demonstration_weight`).";
    "demonstrations/tokens" "learner_step_demonstration_tokens" ""
    "Tokens of these demonstrations, prompts included.";
    "episodes/failed" "learner_step_failed_episodes" ""
    "Episodes of the step without a score, because a service failed or their prompt is too long.";
    "episodes/unanswered" "learner_unanswered_episodes_ratio" ""
    "Share of the scored episodes that ended without an answer, because their step budget ran out.";
    "episodes/segments" "learner_episode_segments_mean" ""
    "Mean number of segments of an episode: contexts that it was sampled in. Above 1, older tool \
     results or turns were left out to fit the rest.";
    "num_tokens" "learner_seen_tokens" ""
    "Tokens of all prompts and completions since the run began, also before a restart; tool \
     results are not among them.";
    "completions/mean_length" "learner_completion_tokens_mean" ""
    "Mean number of tokens sampled in an episode.";
    "completions/min_length" "learner_completion_tokens_min" ""
    "Least number of tokens sampled in an episode.";
    "completions/max_length" "learner_completion_tokens_max" ""
    "Greatest number of tokens sampled in an episode.";
    "completions/mean_terminated_length" "learner_terminated_completion_tokens_mean" ""
    "Mean number of tokens sampled in an episode whose completions no token limit cut.";
    "completions/min_terminated_length" "learner_terminated_completion_tokens_min" ""
    "Least number of tokens sampled in an episode whose completions no token limit cut.";
    "completions/max_terminated_length" "learner_terminated_completion_tokens_max" ""
    "Greatest number of tokens sampled in an episode whose completions no token limit cut.";
    "completions/clipped_ratio" "learner_cut_completions_ratio" ""
    "Share of episodes in which the token limit cut a completion. They may go on after it.";
    "tools/call_frequency" "learner_tool_calls_mean" "tool_call_counts/mean"
    "Mean number of well-formed tool calls in an episode.";
    "tools/failure_frequency" "learner_failed_tool_calls_ratio" ""
    "Share of well-formed tool calls that had an error as observation.";
    "tools/malformed_frequency" "learner_malformed_tool_calls_ratio" ""
    "Share of turns without a well-formed tool call.";
    "staleness/mean" "learner_staleness_versions_mean" ""
    "Mean staleness of the step's episodes: the learner's version minus the oldest that sampled.";
    "staleness/max" "learner_staleness_versions_max" ""
    "Greatest staleness of the step's episodes.";
    "loss" "learner_loss" ""
    "Loss of the last update of the step.";
    "policy_loss" "learner_policy_loss" ""
    "Loss of sampled tokens without the entropy bonus; absent without a bonus.";
    "grad_norm" "learner_gradient_norm" "actor/grad_norm"
    "Global norm of the gradient before clipping.";
    "learning_rate" "learner_learning_rate" "actor/lr"
    "Learning rate of the last update of the step.";
    "entropy" "learner_entropy_nats" "actor/entropy"
    "Mean entropy of sampled tokens. A fall to zero means that the policy has collapsed.";
    "kl" "learner_kl_nats" "actor/kl_loss"
    "KL divergence to the reference policy per token (estimator k3); absent without a KL term.";
    "clip_ratio/region_mean" "learner_clipped_tokens_ratio" "actor/pg_clipfrac"
    "Share of tokens (or rows) whose importance ratio the loss clipped, on either side.";
    "clip_ratio/low_mean" "learner_clipped_low_tokens_ratio" ""
    "Share of tokens whose ratio was clipped from below.";
    "clip_ratio/high_mean" "learner_clipped_high_tokens_ratio" ""
    "Share of tokens whose ratio was clipped from above.";
    "clip_ratio/low_min" "learner_clipped_low_row_min_ratio" ""
    "Least share of a row that was clipped from below.";
    "clip_ratio/high_max" "learner_clipped_high_row_max_ratio" ""
    "Greatest share of a row that was clipped from above.";
    "cispo_clip_ratio" "learner_cispo_capped_tokens_ratio" ""
    "Share of importance weights that CISPO capped; absent for other losses.";
    "vespo/phi_seq_mean" "learner_vespo_weight_mean" ""
    "Mean weight of VESPO; absent for other losses.";
    "sampling/sampling_logp_difference/mean" "learner_sampling_logprob_difference_mean"
    "training/rollout_probs_diff_mean (of probabilities)"
    "Mean difference of the log-probabilities of learner and sampler for the same tokens.";
    "sampling/sampling_logp_difference/max" "learner_sampling_logprob_difference_max"
    "training/rollout_probs_diff_max (of probabilities)"
    "Greatest difference of the log-probabilities of learner and sampler.";
    "sampling/kl_k3" "learner_sampling_kl_nats" ""
    "KL divergence between learner and sampler per token (estimator k3); prime-rl: mismatch_kl.";
    "sampling/importance_sampling_ratio/min" "learner_importance_ratio_min" ""
    "Least importance ratio between learner and sampler after the correction.";
    "sampling/importance_sampling_ratio/mean" "learner_importance_ratio_mean" ""
    "Mean importance ratio between learner and sampler after the correction.";
    "sampling/importance_sampling_ratio/max" "learner_importance_ratio_max" ""
    "Greatest importance ratio between learner and sampler after the correction.";
    "step_time" "learner_step_seconds" "timing_s/step"
    "Duration of the last step, its wait for groups included.";
    "time/wait_for_batch" "learner_step_wait_seconds" ""
    "Time that the last step waited for its groups and demonstrations.";
    "time/train" "learner_step_train_seconds" "timing_s/update_actor"
    "Time that the last step trained and published its weights.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_described() {
        let records: BTreeSet<&str> = STEP_METRICS.iter().map(|metric| metric.record).collect();
        let names: BTreeSet<&str> = STEP_METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(
            (records.len(), names.len()),
            (STEP_METRICS.len(), STEP_METRICS.len())
        );
        for metric in STEP_METRICS {
            assert!(metric.name.starts_with("learner_"), "{}", metric.name);
            assert!(metric.description.ends_with('.'), "{}", metric.name);
        }
    }
}
