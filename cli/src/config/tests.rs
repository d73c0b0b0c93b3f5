//! Layers, roles and refusals of the settings.

use std::fs;

use toml::Table;

use super::*;

fn resolve(set: &[&str]) -> Result<RunConfig> {
    RunConfig::resolve(&ConfigArgs {
        set: set.iter().map(|&text| text.to_owned()).collect(),
        ..ConfigArgs::default()
    })
}

#[test]
fn presets_resolve() {
    for preset in [Preset::Tiny, Preset::Model, Preset::Smoke] {
        RunConfig::resolve(&ConfigArgs {
            preset: Some(preset),
            ..ConfigArgs::default()
        })
        .unwrap();
    }
}

#[test]
fn one_device_serves_all_parts() {
    let config = resolve(&["device=cuda:1", "dtype=bf16"]).unwrap();
    let Placement { device, dtype } = config.placement();
    assert_eq!((device, dtype), (DeviceChoice::Cuda(1), DTypeChoice::Bf16));
    assert!(config.to_toml().unwrap().contains("device = \"cuda:1\""));
    let error = resolve(&["device=gpu"]).unwrap_err().to_string();
    assert!(
        error.contains("wrong setting device") && error.contains("cuda:N"),
        "{error}"
    );
    let error = resolve(&["actor.engine.device=cpu"])
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("use device"), "{error}");
}

#[test]
fn later_sources_win() {
    let config = resolve(&["evaluation.questions=7", "evaluation.questions=9"]).unwrap();
    assert_eq!(config.evaluation.questions, 9);
}

#[test]
fn what_is_written_reads_back() {
    let config = resolve(&["seed=5"]).unwrap();
    let text = config.to_toml().unwrap();
    assert_eq!(text.matches("seed").count(), 1, "{text}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(&path, &text).unwrap();
    assert_eq!(RunConfig::read(&path).unwrap().to_toml().unwrap(), text);

    // As earlier versions wrote it.
    let mut table: Table = text.parse().unwrap();
    let old = [
        "learner.run_seed=42",
        "learner.threads=2",
        "actors.count=2",
        "evaluation.transcripts=12",
    ];
    for assignment in old {
        layers::merge(&mut table, layers::parse_assignment(assignment).unwrap());
    }
    fs::write(&path, table.to_string()).unwrap();
    assert_eq!(RunConfig::read(&path).unwrap().to_toml().unwrap(), text);
}

#[test]
fn moved_settings_are_read_by_either_path() {
    for set in [
        "env.openenv.max_sessions=7",
        "env_node.openenv.max_sessions=7",
    ] {
        let config = resolve(&[set]).unwrap();
        assert_eq!(config.env_node.openenv.max_sessions, 7, "{set}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let text = "[env]\nstep_budget = 9\n[env.web]\nenabled = false\n";
    fs::write(&path, text).unwrap();
    let config = RunConfig::read(&path).unwrap();
    assert!(!config.env_node.web.enabled);
    assert_eq!(config.env.step_budget, 9);
}

#[test]
fn flags_lie_over_the_settings_of_a_run() {
    let run = resolve(&["learner.steps=7", "evaluation.questions=3"]).unwrap();
    let config = RunConfig::resolve_on(
        &run,
        &ConfigArgs {
            set: vec!["evaluation.questions=5".to_owned()],
            seed: Some(9),
            ..ConfigArgs::default()
        },
    )
    .unwrap();
    assert_eq!((config.learner.steps, config.seed), (7, 9));
    assert_eq!(config.evaluation.questions, 5);
}

#[test]
fn errors_name_the_setting() {
    for (set, part) in [
        ("learner.learning_rat=1", "learning_rat"),
        ("learner.steps=abc", "learner.steps: invalid type"),
        ("learner.rollout.shots=true", "learner.rollout.shots: "),
        ("learner.rollout.reward_profile=nice", "reward_profile"),
        ("learner.run_seed=1", "use seed"),
        ("warm_start.oracle.seed=1", "use seed"),
        ("seed=\"x\"", "wrong setting seed: "),
        ("seed", "KEY=VALUE"),
        ("learner.threads=2", "use threads"),
        ("actors.count=2", "actors"),
        ("warm_start.hasty_share=2", "hasty_share"),
        ("evaluation.every_steps=15", "evaluation.every_steps is 15"),
    ] {
        let error = format!("{:#}", resolve(&[set]).unwrap_err());
        assert!(error.contains(part), "{set}: {error}");
    }
}
