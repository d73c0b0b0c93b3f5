//! Layers, roles and refusals of the settings.

use std::fs;

use clap::ValueEnum as _;
use toml::Table;

use super::*;
use crate::args::Preset;

fn resolve(set: &[&str]) -> Result<RunConfig> {
    RunConfig::resolve(&ConfigArgs {
        set: set.iter().map(|&text| text.to_owned()).collect(),
        ..ConfigArgs::default()
    })
}

#[test]
fn a_setting_given_under_both_of_its_names_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("twice.toml");
    fs::write(&path, "[learner]\nmax_steps = 5\nsteps = 6\n").unwrap();
    let args = ConfigArgs {
        config: Some(path),
        ..ConfigArgs::default()
    };
    let error = format!("{:#}", RunConfig::resolve(&args).unwrap_err());
    assert!(error.contains("twice.toml"), "{error}");
    assert!(error.contains("learner.steps is given twice"), "{error}");
    assert!(error.contains("learner.max_steps"), "{error}");
}

/// Earlier versions accepted a number that the loss does not use, and it is part of the settings
/// that a checkpoint was written under.
#[test]
fn an_unused_number_of_the_loss_is_refused_in_new_runs_and_read_in_old_ones() {
    let args = ConfigArgs {
        set: vec!["learner.loss.sapo_temperature_pos=2.0".to_owned()],
        ..ConfigArgs::default()
    };
    let error = format!("{:#}", RunConfig::resolve(&args).unwrap_err());
    assert!(error.contains("sapo_temperature_pos"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(&path, "[learner.loss]\nsapo_temperature_pos = 2.0\n").unwrap();
    let config = RunConfig::read(&path).unwrap();
    assert_eq!(config.learner.loss.sapo_temperature_pos, 2.0);
}

/// They would be cut to 32 bits, abort the process, or fail at the first step.
#[test]
fn numbers_that_no_machine_can_use_are_refused_with_their_limit() {
    for (setting, limit) in [
        ("learner.group_size=4294967298", "1 to 4096"),
        ("learner.groups_per_step=9000000000000000000", "1 to 65536"),
        ("learner.max_groups_per_step=9000000000000000000", "1 to"),
        ("learner.num_iterations=100000", "1 to 1000"),
        ("learner.micro_batch_tokens=9000000000000000000", "1 to"),
        ("learner.rollout.step_budget=1001", "1 to 1000"),
        ("learner.rollout.max_context_tokens=4000000000", "1 to"),
        ("threads=1000000000000", "1 to 1024"),
        ("actor.concurrent_groups=1000000000000", "1 to 4096"),
        ("actor.engine.slots=1000000000000", "1 to 65536"),
        ("actor.engine.pass_tokens=1000000000000", "1 to"),
        ("evaluation.concurrency=1000000000000", "1 to 65536"),
        ("pretrain.databases_per_shard=1000000000000", "1 to"),
        (
            "warm_start.oracle.batch_episodes=9000000000000000000",
            "1 to",
        ),
    ] {
        let error = format!("{:#}", resolve(&[setting]).unwrap_err());
        let name = setting
            .split('=')
            .next()
            .unwrap()
            .rsplit('.')
            .next()
            .unwrap();
        assert!(
            error.contains(name) && error.contains(limit),
            "{setting}: {error}"
        );
    }
    let role = ConfigArgs {
        set: vec!["threads=1000000000000".to_owned()],
        ..ConfigArgs::default()
    };
    assert!(super::resolve::<LearnerRole>(&role).is_err());
    assert!(super::resolve::<RankRole>(&role).is_err());
}

#[test]
fn presets_resolve() {
    for &preset in Preset::value_variants() {
        RunConfig::resolve(&ConfigArgs {
            preset: Some(preset),
            ..ConfigArgs::default()
        })
        .unwrap();
    }
}

/// Accuracy rises in the first steps of these runs.
#[test]
fn the_learning_curve_has_points_before_step_10() {
    for preset in [Preset::Tiny, Preset::Scratch] {
        let config = RunConfig::resolve(&ConfigArgs {
            preset: Some(preset),
            ..ConfigArgs::default()
        });
        let every = config.unwrap().evaluation.every_steps;
        assert!((1..10).contains(&every), "{every}");
    }
}

#[test]
fn a_run_from_before_the_base_policy_starts_from_random_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let starts = [("[model]\n", true), ("[model]\ndir = \"m\"\n", false)];
    for (text, random_weights) in starts {
        let old = format!("{text}[warm_start]\ncompare_oracle_only = true\n");
        fs::write(&path, old).unwrap();
        let config = RunConfig::read(&path).unwrap();
        assert_eq!(config.model.random_weights, random_weights);
        assert!(!config.imitation.enabled);
        fs::write(&path, config.to_toml().unwrap()).unwrap();
        assert_eq!(
            RunConfig::read(&path).unwrap().model.random_weights,
            random_weights
        );
    }
}

#[test]
fn a_model_on_the_command_line_wins_over_random_weights() {
    let config = RunConfig::resolve(&ConfigArgs {
        preset: Some(Preset::Smoke),
        model: Some("somewhere".into()),
        ..ConfigArgs::default()
    });
    assert!(!config.unwrap().model.random_weights);
}

/// The limits and the learning rate of the embedded policy would harm another model.
#[test]
fn a_model_folder_chooses_the_preset_of_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.toml");
    fs::write(
        &path,
        "[model]\ndir = \"somewhere\"\n[learner]\nsteps = 7\n",
    )
    .unwrap();
    let of_file = RunConfig::resolve(&ConfigArgs {
        config: Some(path),
        ..ConfigArgs::default()
    });
    for config in [of_file.unwrap(), resolve(&["model.dir=somewhere"]).unwrap()] {
        assert_eq!(config.learner.optimizer.learning_rate, 1e-6);
        assert_eq!(config.learner.rollout.max_context_tokens, 4_096);
    }
    let embedded = resolve(&["learner.steps=7"]).unwrap();
    assert_eq!(embedded.learner.rollout.max_context_tokens, 768);
    let named = RunConfig::resolve(&ConfigArgs {
        preset: Some(Preset::Tiny),
        set: vec!["model.dir=somewhere".to_owned()],
        ..ConfigArgs::default()
    });
    assert_eq!(named.unwrap().learner.rollout.max_context_tokens, 768);
}

#[test]
fn random_weights_are_for_the_embedded_policy() {
    let both = ["model.random_weights=true", "model.dir=\"somewhere\""];
    let error = resolve(&both).unwrap_err().to_string();
    assert!(error.contains("model.random_weights"), "{error}");
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
        ("evaluation.every_steps=12", "evaluation.every_steps is 12"),
    ] {
        let error = format!("{:#}", resolve(&[set]).unwrap_err());
        assert!(error.contains(part), "{set}: {error}");
    }
}

fn role<T: RoleSettings>(set: &[&str]) -> Result<T> {
    super::resolve(&ConfigArgs {
        set: set.iter().map(|&text| text.to_owned()).collect(),
        ..ConfigArgs::default()
    })
}

/// What only `train` cannot use does not concern a role, but a misspelt section or setting of its
/// own does.
#[test]
fn a_role_reads_its_own_sections_only() {
    let foreign = ["evaluation.every_steps=12", "warm_start.hasty_share=2"];
    role::<EnvNodeRole>(&foreign).unwrap();
    role::<ActorRole>(&foreign).unwrap();
    role::<RankRole>(&foreign).unwrap();
    // Its actors play the evaluations.
    assert!(role::<LearnerRole>(&foreign[..1]).is_err());
    let learner: LearnerRole = role(&[foreign[1], "env.step_budget=7"]).unwrap();
    let written = to_toml(&learner).unwrap();
    assert!(written.contains("step_budget = 7"), "{written}");
    for (set, part) in [
        ("enviroment.step_budget=3", "enviroment"),
        ("env.step_bugdet=3", "step_bugdet"),
        ("env_node.server.max_connection=3", "max_connection"),
    ] {
        let error = format!("{:#}", role::<EnvNodeRole>(&[set]).unwrap_err());
        assert!(error.contains(part), "{set}: {error}");
    }
    assert!(role::<ActorRole>(&["actor.engine.slots=0"]).is_err());
    assert!(role::<LearnerRole>(&["learner.rollout.reward_profile=nice"]).is_err());
}

#[test]
fn old_names_are_todays_settings() {
    let config = resolve(&[
        "warm_start.habits.budget_tokens=9",
        "learner.refill_zero_spread=false",
        "learner.num_generations=4",
        "env.openenv.max_sessions=3",
    ])
    .unwrap();
    assert_eq!(config.warm_start.demonstrators.budget_tokens, 9);
    assert!(!config.learner.dynamic_sampling);
    assert_eq!(config.learner.group_size, 4);
    assert_eq!(config.env_node.openenv.max_sessions, 3);
}

#[test]
fn the_reference_is_current() {
    let kept = include_str!("../../../docs/settings.md");
    assert!(
        kept == reference::markdown(),
        "docs/settings.md is not current; run `sqlenv settings > docs/settings.md`"
    );
}

#[test]
fn commented_settings_are_the_settings() {
    let config = resolve(&["learner.loss.clip_high=0.28", "data.dir=somewhere"]).unwrap();
    let text = config.commented_toml().unwrap();
    let mut table: Table = text.parse().unwrap();
    assert_eq!(table, config.to_toml().unwrap().parse::<Table>().unwrap());
    assert!(text.contains("# Seed of every random number"), "{text}");
    layers::remove(&mut table, "data.dir");
    layers::check_paths(&table, "").unwrap();
    let error = config.check_paths().unwrap_err().to_string();
    assert!(error.contains("data.dir: somewhere"), "{error}");
}
