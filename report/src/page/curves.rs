//! Learning curves: accuracy with its band, then the metrics that tell whether training is healthy.

use maud::{Markup, html};

use super::{
    elements::{figure, policy_class},
    evaluations::{Evaluations, UNSEEN_DOMAIN_SPLIT},
};
use crate::{
    chart::{LineChart, Point, ReferenceLevel, Series, YAxis},
    records::{
        DecodingMode, EVAL_SPLIT, Evaluation, LearnerStepRecord, MESSY_SCHEMAS_SPLIT,
        NEW_WORDS_SPLIT, PolicyName, TrainingStage,
    },
    run_records::RunRecords,
};

/// A small chart of one or two metrics of a stage: the stage, title, caption, vertical axis, and
/// the labels and names of the metrics.
type MetricPanel = (
    TrainingStage,
    &'static str,
    &'static str,
    YAxis,
    &'static [(&'static str, &'static str)],
);

const PANELS: [MetricPanel; 12] = {
    use TrainingStage::{Grpo, Sft};
    use YAxis::{Data, FromZero, Percent};
    [
        (
            Grpo,
            "Training reward",
            "Mean weighted reward of the episodes of a step; band: ± one standard deviation.",
            Data,
            &[("reward", "reward")],
        ),
        (
            Grpo,
            "Entropy",
            "Mean entropy of sampled tokens, in nats. A fall to zero means collapse.",
            FromZero,
            &[("entropy", "entropy")],
        ),
        (
            Grpo,
            "Completion length",
            "Mean number of tokens sampled per episode.",
            FromZero,
            &[("tokens", "completions/mean_length")],
        ),
        (
            Grpo,
            "Zero-variance groups",
            "Share of groups whose members all have the same weighted reward. They give no gradient.",
            Percent,
            &[("share", "frac_reward_zero_std")],
        ),
        (
            Grpo,
            "Sampler and learner",
            "Difference of their log-probabilities for the same tokens. Near zero, they agree.",
            FromZero,
            &[
                ("mean", "sampling/sampling_logp_difference/mean"),
                ("max", "sampling/sampling_logp_difference/max"),
            ],
        ),
        (
            Grpo,
            "KL to the reference",
            "k3 estimate per token, in nats.",
            FromZero,
            &[("kl", "kl")],
        ),
        (
            Grpo,
            "Loss",
            "Loss of the policy, which need not fall: its scale is that of the advantages.",
            Data,
            &[("loss", "loss")],
        ),
        (
            Grpo,
            "Gradient norm",
            "Global norm before clipping.",
            FromZero,
            &[("norm", "grad_norm")],
        ),
        (
            Grpo,
            "Learning rate",
            "",
            FromZero,
            &[("rate", "learning_rate")],
        ),
        (
            Grpo,
            "Time of a step",
            "Seconds that the learner waited for groups, and that it trained.",
            FromZero,
            &[("wait", "time/wait_for_batch"), ("train", "time/train")],
        ),
        (
            Sft,
            "Supervised training: loss",
            "Cross-entropy of demonstrations, in nats per token.",
            FromZero,
            &[("training", "loss")],
        ),
        (
            Sft,
            "Supervised training: learning rate",
            "",
            FromZero,
            &[("rate", "learning_rate")],
        ),
    ]
};

pub(crate) fn section(records: &RunRecords) -> Option<Markup> {
    let accuracy = accuracy(records);
    let panels = PANELS
        .iter()
        .filter_map(|panel| draw(panel, &records.steps));
    let panels: Vec<Markup> = panels.collect();
    if accuracy.is_none() && panels.is_empty() {
        return None;
    }
    Some(html! {
        section #curves {
            h2 { "Learning curves" }
            @if let Some(accuracy) = accuracy { (accuracy) }
            div.panels { @for panel in panels { (panel) } }
        }
    })
}

fn accuracy(records: &RunRecords) -> Option<Markup> {
    let evaluations = Evaluations(&records.evaluations);
    let is_of_pretraining = records.is_of_pretraining();
    let mut series = accuracy_series(evaluations, is_of_pretraining);
    series.retain(|s| s.points.len() > 1);
    if series.is_empty() {
        return None;
    }
    let references = [PolicyName::Random, PolicyName::OracleImitation];
    let references = references.into_iter().filter_map(|policy| {
        let split = evaluations.last(policy, EVAL_SPLIT, DecodingMode::Greedy)?;
        Some(ReferenceLevel {
            label: policy.to_string(),
            class: policy_class(policy),
            y: split.metrics.success.success_rate,
        })
    });
    let has_two_points = series.iter().any(|series| !series.joined);
    let chart = LineChart {
        description: "Share of questions with a right answer over training steps".to_owned(),
        x_label: match is_of_pretraining {
            true => "training step",
            false => "GRPO step (0 = before GRPO)",
        },
        y_axis: YAxis::Percent,
        series,
        references: references.collect(),
    };
    let two_points = match has_two_points {
        true => " What no line joins was evaluated before and after the training only.",
        false => "",
    };
    let mut caption = "Share of right answers; bands: Wilson's 95\u{a0}% interval.".to_owned();
    if !is_of_pretraining {
        caption += &format!(
            " Dashed: policies that GRPO does not change, on new queries.{two_points} If the run \
             has questions for the curve alone, they are not those of the table."
        );
    }
    let drawing = html! {
        div data-width="wide" { (chart.draw(960.0, 340.0)) }
        div data-width="narrow" { (chart.draw(400.0, 320.0)) }
    };
    Some(html! { div.main { (figure("Accuracy over training", &caption, &drawing)) } })
}

/// Returns the accuracy over the steps of GRPO, on the questions of the curve, or of a pretraining,
/// on new words; and on new databases and new domains.
fn accuracy_series(evaluations: Evaluations<'_>, is_of_pretraining: bool) -> Vec<Series> {
    use DecodingMode::{Greedy, Sampled};
    let curve = evaluations.curve_split();
    let [first, second] = match is_of_pretraining {
        true => [
            ("new words", "grpo", NEW_WORDS_SPLIT, Greedy),
            ("messy schemas", "second", MESSY_SCHEMAS_SPLIT, Greedy),
        ],
        false => [
            ("greedy", "grpo", curve, Greedy),
            ("sampled", "second", curve, Sampled),
        ],
    };
    let databases = evaluations.new_databases_split();
    let series = [
        first,
        second,
        ("new databases", "third", databases, Greedy),
        ("new domains", "fourth", UNSEEN_DOMAIN_SPLIT, Greedy),
    ];
    let series = series.map(|(label, class, split, mode)| {
        let history = evaluations.history(split, mode);
        Series {
            label: label.to_owned(),
            class,
            joined: history.len() > 2,
            points: history.into_iter().map(point).collect(),
        }
    });
    series.into()
}

fn point(evaluation: &Evaluation) -> Point {
    let success = &evaluation.metrics.success;
    Point {
        x: evaluation.step as f64,
        y: success.success_rate,
        band: Some((success.wilson_low, success.wilson_high)),
    }
}

fn draw(panel: &MetricPanel, records: &[LearnerStepRecord]) -> Option<Markup> {
    let (stage, title, caption, y_axis, metrics) = *panel;
    let point = |metric: &str, step: &LearnerStepRecord| {
        let y = *step.metrics.get(metric)?;
        let half_width = match metric {
            "reward" => step.metrics.get("reward_std"),
            _ => None,
        };
        Some(Point {
            x: step.step as f64,
            y,
            band: half_width.map(|half| (y - half, y + half)),
        })
    };
    let steps = || records.iter().filter(|step| step.stage == stage);
    let lines = metrics.iter().zip(["grpo", "second"]);
    let mut series: Vec<Series> = lines
        .map(|((label, metric), class)| Series {
            label: (*label).to_owned(),
            class,
            points: steps().filter_map(|step| point(metric, step)).collect(),
            joined: true,
        })
        .collect();
    series.retain(|s| !s.points.is_empty());
    let chart = LineChart {
        description: format!("{title} over steps"),
        x_label: match stage {
            TrainingStage::Grpo => "learner step",
            _ => "training step",
        },
        y_axis,
        series,
        references: Vec::new(),
    };
    (!chart.is_empty()).then(|| figure(title, caption, &chart.draw(330.0, 200.0)))
}
