//! Learning curves: accuracy with its band, then the numbers that say whether training is healthy.

use super::{
    evaluations::{EVAL, Evaluations},
    figure,
    line_chart::{Line, LineChart, Reference, Vertical},
    markup::{Element, el},
    points::Point,
    policy_class,
};
use crate::folder::RunRecords;
use crate::records::{DecodingMode, Evaluation, LearnerStepRecord, PolicyName, TrainingStage};

/// A small chart of one or two metrics of a stage.
struct Panel {
    title: &'static str,
    caption: &'static str,
    stage: TrainingStage,
    vertical: Vertical,
    /// Label, metric, and the metric that gives the half-width of the band.
    lines: &'static [(&'static str, &'static str, Option<&'static str>)],
}

const PANELS: [Panel; 10] = [
    Panel {
        title: "Training reward",
        caption: "Mean return of the step's trajectories; band: ± one standard deviation.",
        stage: TrainingStage::Grpo,
        vertical: Vertical::Data,
        lines: &[("reward", "reward", Some("reward_std"))],
    },
    Panel {
        title: "Entropy",
        caption: "Mean entropy of sampled tokens, nats. A fall to zero means collapse.",
        stage: TrainingStage::Grpo,
        vertical: Vertical::FromZero,
        lines: &[("entropy", "entropy", None)],
    },
    Panel {
        title: "Completion length",
        caption: "Mean tokens sampled per episode.",
        stage: TrainingStage::Grpo,
        vertical: Vertical::FromZero,
        lines: &[("tokens", "completions/mean_length", None)],
    },
    Panel {
        title: "Groups without spread",
        caption: "Share of groups whose members all earned the same: no signal in them.",
        stage: TrainingStage::Grpo,
        vertical: Vertical::Percent,
        lines: &[("share", "frac_reward_zero_std", None)],
    },
    Panel {
        title: "Sampler against learner",
        caption: "Difference of log-probabilities for the same tokens. Near zero: sampler and learner agree.",
        stage: TrainingStage::Grpo,
        vertical: Vertical::FromZero,
        lines: &[
            ("mean", "sampling/sampling_logp_difference/mean", None),
            ("max", "sampling/sampling_logp_difference/max", None),
        ],
    },
    Panel {
        title: "KL to the reference",
        caption: "k3 estimate per token, nats.",
        stage: TrainingStage::Grpo,
        vertical: Vertical::FromZero,
        lines: &[("kl", "kl", None)],
    },
    Panel {
        title: "Gradient norm",
        caption: "Global norm before clipping.",
        stage: TrainingStage::Grpo,
        vertical: Vertical::FromZero,
        lines: &[("norm", "grad_norm", None)],
    },
    Panel {
        title: "Learning rate",
        caption: "",
        stage: TrainingStage::Grpo,
        vertical: Vertical::FromZero,
        lines: &[("rate", "learning_rate", None)],
    },
    Panel {
        title: "Warm start: loss",
        caption: "Cross-entropy of demonstrations, nats per token.",
        stage: TrainingStage::Sft,
        vertical: Vertical::FromZero,
        lines: &[("train", "loss", None), ("held out", "eval_loss", None)],
    },
    Panel {
        title: "Warm start: learning rate",
        caption: "",
        stage: TrainingStage::Sft,
        vertical: Vertical::FromZero,
        lines: &[("rate", "learning_rate", None)],
    },
];

const SERIES_CLASSES: [&str; 2] = ["grpo", "second"];

pub(super) fn section(records: &RunRecords) -> Option<Element> {
    let accuracy = accuracy(Evaluations(&records.evaluations));
    let panels: Vec<Element> = PANELS
        .iter()
        .filter_map(|p| draw(p, &records.steps))
        .collect();
    if accuracy.is_none() && panels.is_empty() {
        return None;
    }
    Some(
        el("section")
            .attr("id", "curves")
            .child(el("h2").text("Learning curves"))
            .child(accuracy)
            .child(el("div").class("panels").children(panels)),
    )
}

fn accuracy(evaluations: Evaluations<'_>) -> Option<Element> {
    let line = |label: &str, class, split: &str, mode| Line {
        label: label.to_owned(),
        class,
        points: evaluations
            .history(split, mode)
            .into_iter()
            .map(point)
            .collect(),
    };
    let main_split = evaluations.curve_split();
    let mut lines = vec![
        line("greedy", "grpo", main_split, DecodingMode::Greedy),
        line("sampled", "second", main_split, DecodingMode::Sampled),
        line(
            "new databases",
            "third",
            "eval-unseen/database",
            DecodingMode::Greedy,
        ),
        line(
            "new domains",
            "fourth",
            "eval-unseen/domain",
            DecodingMode::Greedy,
        ),
    ];
    lines.retain(|l| l.points.len() > 1);
    if lines.is_empty() {
        return None;
    }
    let references = [PolicyName::Random, PolicyName::OracleImitation]
        .into_iter()
        .filter_map(|policy| {
            Some(Reference {
                label: policy.to_string(),
                class: policy_class(policy),
                y: evaluations
                    .last(policy, EVAL, DecodingMode::Greedy)?
                    .success_rate,
            })
        });
    let chart = LineChart {
        description: "Share of questions answered right over GRPO steps".to_owned(),
        x_label: "GRPO step (0 = warm start)",
        vertical: Vertical::Percent,
        lines,
        references: references.collect(),
    };
    Some(
        figure(
            "Accuracy over training",
            "Questions answered right; bands: Wilson's 95\u{a0}% interval. Dashed: policies that GRPO does not change, on new queries. Where a run asks the curve's questions apart, they are not those of the table.",
            [
                chart.draw(960.0, 340.0).attr("data-width", "wide"),
                chart.draw(400.0, 320.0).attr("data-width", "narrow"),
            ],
        )
        .class("main"),
    )
}

fn point(e: &Evaluation) -> Point {
    Point {
        x: e.step as f64,
        y: e.success_rate,
        band: Some((e.wilson_low, e.wilson_high)),
    }
}

fn draw(panel: &Panel, steps: &[LearnerStepRecord]) -> Option<Element> {
    let lines =
        panel
            .lines
            .iter()
            .zip(SERIES_CLASSES)
            .filter_map(|((label, metric, spread), class)| {
                let points: Vec<Point> = steps
                    .iter()
                    .filter(|s| s.stage == panel.stage)
                    .filter_map(|s| {
                        let y = *s.metrics.get(*metric)?;
                        let spread = spread.and_then(|name| s.metrics.get(name));
                        Some(Point {
                            x: s.step as f64,
                            y,
                            band: spread.map(|d| (y - d, y + d)),
                        })
                    })
                    .collect();
                (!points.is_empty()).then(|| Line {
                    label: (*label).to_owned(),
                    class,
                    points,
                })
            });
    let chart = LineChart {
        description: format!("{} over steps", panel.title),
        x_label: "learner step",
        vertical: panel.vertical,
        lines: lines.collect(),
        references: Vec::new(),
    };
    if chart.is_empty() {
        return None;
    }
    Some(figure(
        panel.title,
        panel.caption,
        [chart.draw(330.0, 200.0)],
    ))
}
