//! A whole GRPO run on the device: `sqlenv train --preset smoke` on the project's own data, in a
//! process of its own. Its accuracies say nothing, because it has two steps.

use std::{env, fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use report::{RunFolder, TrainingStage};

use super::{parity::EQUAL_BITS, programs, report::Measurement, target::CheckTarget};
use crate::policy::throughput::now;

const LIMIT: Duration = Duration::from_secs(3_600);

/// Trains in bf16 and returns measurements from the run folder. A run that fails the check is kept
/// beside the report.
pub(super) fn train(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let runs = target.args.out.join("gpu-check-train");
    // An earlier check may have left its run.
    if runs.exists() {
        remove(&runs)?;
    }
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["train", "--seed", "0", "--set", "dtype=bf16", "--set"])
        .arg(format!("device={}", target.args.device))
        .args(["--preset", "smoke", "--runs-dir"])
        .arg(&runs);
    let start = now();
    let trained = programs::run(command, "", LIMIT);
    let seconds = start.elapsed().as_secs_f64();
    let run = runs.join("run-001");
    let measurements = trained
        .and_then(|_| measurements(&run, seconds))
        .with_context(|| format!("the run is kept in {}", run.display()))?;
    if measurements.iter().all(Measurement::is_fine) {
        remove(&runs)?;
    }
    Ok(measurements)
}

fn remove(runs: &Path) -> Result<()> {
    fs::remove_dir_all(runs).with_context(|| format!("cannot remove {}", runs.display()))
}

fn measurements(run: &Path, seconds: f64) -> Result<Vec<Measurement>> {
    let mut steps = RunFolder::new(run).read()?.steps;
    steps.retain(|s| s.stage == TrainingStage::Grpo && s.metrics.contains_key("step_time"));
    ensure!(!steps.is_empty(), "the run has no GRPO steps");
    // A metric that is absent or not finite is NaN, which fails the check.
    let values = |name: &str| -> Vec<f64> {
        let values = steps.iter().map(|step| step.metrics.get(name).copied());
        values.map(|value| value.unwrap_or(f64::NAN)).collect()
    };
    let sum = |name: &str| values(name).iter().sum::<f64>();
    // NaN is the largest value of the total order.
    let largest = |name: &str| {
        values(name)
            .into_iter()
            .max_by(f64::total_cmp)
            .unwrap_or(f64::NAN)
    };
    let percent = |name: &str| 100.0 * sum(name) / sum("step_time");
    let difference = largest("sampling/sampling_logp_difference/mean");
    let kl = largest("sampling/kl_k3");
    let limited = |limit, name: &str, value| {
        let name = format!("sampler against learner, {name}, worst step");
        Measurement::within(limit, name, value)
    };
    let (groups, weights) = (percent("time/wait_for_batch"), percent("time/train"));
    Ok(vec![
        Measurement::new("the whole run", seconds, "s"),
        Measurement::new("GRPO steps", sum("step_time"), "s"),
        Measurement::new("of these, the learner waits for groups", groups, "%"),
        Measurement::new("of these, the sampler waits for weights", weights, "%"),
        limited(EQUAL_BITS[0], "mean difference", difference),
        limited(EQUAL_BITS[1], "k3", kl),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"
{"stage": "sft", "step": 1, "policy_version": 0, "loss": 2.0}
{"stage": "grpo", "step": 1, "policy_version": 1, "step_time": 3.0, "time/train": 1.0,
 "time/wait_for_batch": 2.0, "sampling/sampling_logp_difference/mean": 0.0, "sampling/kl_k3": 0.0}
{"stage": "grpo", "step": 2, "policy_version": 2, "step_time": 1.0, "time/train": 1.0,
 "time/wait_for_batch": 0.0, "sampling/sampling_logp_difference/mean": 2e-4, "sampling/kl_k3": 3e-6}"#;

    fn run(metrics: &str) -> Result<Vec<Measurement>> {
        let path = tempfile::tempdir().unwrap();
        let metrics = metrics.replace("\n ", " ").trim().to_owned();
        fs::write(path.path().join("metrics.jsonl"), metrics).unwrap();
        measurements(path.path(), 9.0)
    }

    #[test]
    fn the_run_folder_gives_the_measurements() {
        let measurements = run(METRICS).unwrap();
        let values: Vec<f64> = measurements.iter().map(|found| found.value).collect();
        assert_eq!(values, [9.0, 4.0, 50.0, 50.0, 2e-4, 3e-6]);
    }

    #[test]
    fn a_run_without_steps_or_with_a_mismatch_fails() {
        assert!(run(METRICS.split("{\"stage\": \"grpo\"").next().unwrap()).is_err());
        for worse in ["2e-3", "null"] {
            let measurements = run(&METRICS.replace("2e-4", worse)).unwrap();
            let is_fine = measurements.iter().all(Measurement::is_fine);
            assert!(!is_fine, "{worse}");
        }
    }
}
