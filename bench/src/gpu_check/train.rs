//! A whole GRPO run on the device: this program's `train` on the project's own data, as a process.

use std::{env, fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    CheckTarget,
    parity::{KL, MEAN_DIFFERENCE},
    programs,
    report::Measurement,
};
use crate::policy::now;

const LIMIT: Duration = Duration::from_secs(3_600);

/// Trains in bf16 and answers with what the run says of itself. A run that is amiss stays beside the report.
pub(super) fn train(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let runs = target.args.out.join("gpu-check-train");
    // Of an earlier check.
    if runs.exists() {
        fs::remove_dir_all(&runs).with_context(|| format!("cannot remove {}", runs.display()))?;
    }
    let mut command = Command::new(env::current_exe()?);
    command.args(["train", "--seed", "0", "--set", "dtype=bf16", "--set"]);
    command.arg(format!("device={}", target.args.device));
    command
        .args(["--preset", target.preset, "--runs-dir"])
        .arg(&runs);
    let begun = now();
    let trained = programs::run(command, "", LIMIT);
    let seconds = begun.elapsed().as_secs_f64();
    let run = runs.join("run-001");
    let measurements = trained
        .and_then(|_| measurements(&run, seconds))
        .with_context(|| format!("what there is of the run lies in {}", run.display()))?;
    if measurements.iter().all(Measurement::is_fine) {
        // Weights that nobody reads.
        fs::remove_dir_all(&runs).with_context(|| format!("cannot remove {}", runs.display()))?;
    }
    Ok(measurements)
}

fn measurements(run: &Path, seconds: f64) -> Result<Vec<Measurement>> {
    let metrics = lines(&run.join("metrics.jsonl"))?;
    let evaluations = lines(&run.join("evaluations.jsonl"))?;
    let steps: Vec<&Value> = metrics
        .iter()
        .filter(|line| line["stage"] == "grpo" && line["step_time"].is_number())
        .collect();
    ensure!(!steps.is_empty(), "the run made no step of GRPO");
    let sum = |name: &str| -> f64 { steps.iter().map(|step| number(step, name)).sum() };
    let most = |name: &str| {
        let values = steps.iter().map(|step| number(step, name));
        // f64::max would lose what is no number.
        values.fold(
            f64::NEG_INFINITY,
            |a: f64, b| if a.is_nan() || a > b { a } else { b },
        )
    };
    let share = |name: &str| 100.0 * sum(name) / sum("step_time");
    let mut measurements = vec![
        Measurement::new("the whole run", seconds, "s"),
        Measurement::new("steps of GRPO", sum("step_time"), "s"),
        Measurement::new(
            "of these, the learner waits for groups",
            share("time/wait_for_batch"),
            "%",
        ),
        Measurement::new(
            "of these, the sampler waits for weights",
            share("time/train"),
            "%",
        ),
        Measurement::within(
            MEAN_DIFFERENCE,
            "sampler against learner, mean difference, worst step",
            most("sampling/sampling_logp_difference/mean"),
        ),
        Measurement::within(
            KL,
            "sampler against learner, k3, worst step",
            most("sampling/kl_k3"),
        ),
    ];
    for policy in ["warm start", "grpo"] {
        let of_policy = |line: &&Value| {
            line["policy"] == policy && line["split"] == "eval" && line["mode"] == "greedy"
        };
        let found = evaluations.iter().find(of_policy);
        let found = found.with_context(|| format!("the run did not evaluate {policy}"))?;
        let name = format!("right on new queries, {policy}");
        measurements.push(Measurement::new(
            name,
            100.0 * number(found, "success_rate"),
            "%",
        ));
    }
    Ok(measurements)
}

/// What is no number fails the check.
fn number(line: &Value, name: &str) -> f64 {
    line[name].as_f64().unwrap_or(f64::NAN)
}

fn lines(path: &Path) -> Result<Vec<Value>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let line = |line| serde_json::from_str(line).with_context(|| format!("in {}", path.display()));
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"
{"stage": "warm start", "step": 1, "loss": 2.0}
{"stage": "grpo", "step": 1, "step_time": 3.0, "time/train": 1.0, "time/wait_for_batch": 2.0,
 "sampling/sampling_logp_difference/mean": 0.0, "sampling/kl_k3": 0.0}
{"stage": "grpo", "step": 2, "step_time": 1.0, "time/train": 1.0, "time/wait_for_batch": 0.0,
 "sampling/sampling_logp_difference/mean": 2e-4, "sampling/kl_k3": 3e-6}"#;
    const EVALUATIONS: &str = r#"
{"policy": "warm start", "split": "eval", "mode": "greedy", "success_rate": 0.05}
{"policy": "grpo", "split": "eval", "mode": "sampled", "success_rate": 0.9}
{"policy": "grpo", "split": "eval", "mode": "greedy", "success_rate": 0.5}"#;

    fn run(metrics: &str) -> Result<Vec<Measurement>> {
        let folder = tempfile::tempdir().unwrap();
        let joined = |text: &str| text.replace("\n ", " ").trim().to_owned();
        fs::write(folder.path().join("metrics.jsonl"), joined(metrics)).unwrap();
        fs::write(folder.path().join("evaluations.jsonl"), joined(EVALUATIONS)).unwrap();
        measurements(folder.path(), 9.0)
    }

    #[test]
    fn a_runs_own_files_tell_its_figures() {
        let values: Vec<f64> = run(METRICS)
            .unwrap()
            .iter()
            .map(|measurement| measurement.value)
            .collect();
        assert_eq!(values, [9.0, 4.0, 50.0, 50.0, 2e-4, 3e-6, 5.0, 50.0]);
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
