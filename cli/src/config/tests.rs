//! Layers, roles and refusals of the settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use clap::{CommandFactory as _, ValueEnum as _};
use toml::Table;

use super::*;
use crate::args::{Args, Preset};

fn set(set: &[&str]) -> ConfigArgs {
    ConfigArgs {
        set: set.iter().map(|&text| text.to_owned()).collect(),
        ..ConfigArgs::default()
    }
}

fn resolve(assignments: &[&str]) -> Result<RunConfig> {
    super::resolve(&set(assignments))
}

/// Returns the name of TRL or transformers that the reference gives with the meaning of a setting.
fn documented_trl_name(meaning: &str) -> Option<&str> {
    let of_trl = meaning.split_once("TRL: `");
    let (_, after) = of_trl.or_else(|| meaning.split_once("transformers: `"))?;
    after.split('`').next()
}

/// Presets and the settings of a run have the names here, below which TRL's would be a second value
/// of one setting.
#[test]
fn trl_s_names_lie_over_every_preset_and_over_the_settings_of_a_run() {
    let run = layers::to_table(&RunConfig::default()).unwrap();
    let mut tried = BTreeSet::new();
    for reference::Entry { name, meaning, .. } in reference::entries() {
        let is_of_entry = |(section, _, own_name): &(&str, &str, &str)| {
            format!(".{name}").ends_with(&format!(".{section}.{own_name}"))
        };
        let row = layers::TRL_NAMES.into_iter().find(is_of_entry);
        let trl = row.map(|(_, trl, _)| trl);
        assert_eq!(trl, documented_trl_name(&meaning), "{name}");
        let Some(trl) = trl else {
            continue;
        };
        tried.extend(row);
        let (section, _) = name.rsplit_once('.').unwrap();
        let trl = format!("{section}.{trl}");
        let args = set(&[&format!("{trl}=7")]);
        let over_preset = |&preset: &Preset| {
            let args = ConfigArgs {
                preset: Some(preset),
                ..args.clone()
            };
            layers::merged(&args, Preset::Tiny)
        };
        let over_run = layers::merged_on(run.clone(), &args);
        let over_presets = Preset::value_variants().iter().map(over_preset);
        for table in over_presets.chain([over_run]) {
            let table = table.unwrap();
            let value = reference::lookup(&table, &name);
            assert_eq!(value, Some(&toml::Value::Integer(7)), "{trl}");
            assert_eq!(reference::lookup(&table, &trl), None, "{trl}");
        }
    }
    assert_eq!(tried, BTreeSet::from(layers::TRL_NAMES));
}

/// A name of TRL in a section in which it means nothing.
#[test]
fn trl_s_names_are_of_their_section() {
    let error = resolve(&["evaluation.save_steps=5"]).unwrap_err();
    assert!(format!("{error:#}").contains("save_steps"), "{error:#}");
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
    let error = format!("{:#}", super::resolve::<RunConfig>(&args).unwrap_err());
    assert!(error.contains("twice.toml"), "{error}");
    assert!(error.contains("learner.steps is given twice"), "{error}");
    assert!(error.contains("learner.max_steps"), "{error}");
}

#[test]
fn an_unused_number_of_the_loss_is_refused() {
    let error = resolve(&["learner.loss.sapo_temperature_pos=2.0"]).unwrap_err();
    assert!(
        format!("{error:#}").contains("sapo_temperature_pos"),
        "{error:#}"
    );
}

#[test]
fn the_file_of_a_wrong_setting_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    for text in ["[learner]\nstepz = 3\n", "[learnr]\nsteps = 3\n"] {
        fs::write(&path, text).unwrap();
        let args = ConfigArgs {
            config: Some(path.clone()),
            ..ConfigArgs::default()
        };
        let error = format!("{:#}", super::resolve::<RunConfig>(&args).unwrap_err());
        assert!(
            error.contains("mine.toml") && error.contains("learn"),
            "{error}"
        );
    }
}

#[test]
fn an_expected_value_is_named_as_people_do() {
    for (setting, expected) in [
        ("data.databases=a,b", "expected a list such as"),
        ("learner.steps=1e3", "expected a whole number"),
        ("learner.optimizer.learning_rate=fast", "expected a number"),
        ("learner=1", "expected a section with settings"),
        ("learner.stepz=1", "expected one of"),
    ] {
        let error = format!("{:#}", resolve(&[setting]).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
}

/// They would be cut to 32 bits, abort the process, or fail at the first step.
#[test]
fn numbers_that_no_machine_can_use_are_refused_with_their_limit() {
    for (setting, limit) in [
        // Evaluations of all steps are planned when the run begins.
        ("learner.steps=1000000000", "1 to 1000000"),
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
        ("actor.engine.pass_tokens=1000000000000", "0 to 1048576"),
        ("evaluation.concurrency=1000000000000", "1 to 65536"),
        ("env.step_budget=1001", "1 to 1000"),
        ("env_node.server.max_call_seconds=1e6", "at most 86400"),
        ("pretrain.databases_per_shard=1000000000000", "1 to"),
        (
            "warm_start.oracle.batch_episodes=9000000000000000000",
            "in [warm_start.oracle]: setting batch_episodes: is 9",
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
    let role = set(&["threads=1000000000000"]);
    assert!(super::resolve::<LearnerRole>(&role).is_err());
    assert!(super::resolve::<RankRole>(&role).is_err());
}

#[test]
fn presets_resolve() {
    for &preset in Preset::value_variants() {
        super::resolve::<RunConfig>(&ConfigArgs {
            preset: Some(preset),
            model: Some("somewhere".into()),
            ..ConfigArgs::default()
        })
        .unwrap();
    }
}

#[test]
fn the_preset_of_smollm2_needs_a_model() {
    let alone = ConfigArgs {
        preset: Some(Preset::SpiderSmollm2),
        ..ConfigArgs::default()
    };
    for fault in [
        super::resolve::<RunConfig>(&alone).unwrap_err(),
        super::resolve::<LearnerRole>(&alone).unwrap_err(),
    ] {
        let fault = format!("{fault:#}");
        assert!(fault.contains("give its folder by --model"), "{fault}");
    }
    // The learner gives actors their model.
    super::resolve::<ActorRole>(&alone).unwrap();
}

/// Accuracy rises in the first steps of these runs.
#[test]
fn the_learning_curve_has_points_before_step_10() {
    for preset in [Preset::Tiny, Preset::Scratch] {
        let config: Result<RunConfig> = super::resolve(&ConfigArgs {
            preset: Some(preset),
            ..ConfigArgs::default()
        });
        let every = config.unwrap().evaluation.every_steps;
        assert!((1..10).contains(&every), "{every}");
    }
}

#[test]
fn a_model_on_the_command_line_wins_over_random_weights() {
    let config: Result<RunConfig> = super::resolve(&ConfigArgs {
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
    let of_file: Result<RunConfig> = super::resolve(&ConfigArgs {
        config: Some(path),
        ..ConfigArgs::default()
    });
    for config in [of_file.unwrap(), resolve(&["model.dir=somewhere"]).unwrap()] {
        assert_eq!(config.learner.optimizer.learning_rate, 1e-6);
        assert_eq!(config.learner.rollout.max_context_tokens, 4_096);
    }
    let embedded = resolve(&["learner.steps=7"]).unwrap();
    assert_eq!(embedded.learner.rollout.max_context_tokens, 768);
    let named: Result<RunConfig> = super::resolve(&ConfigArgs {
        preset: Some(Preset::Tiny),
        set: vec!["model.dir=somewhere".to_owned()],
        ..ConfigArgs::default()
    });
    assert_eq!(named.unwrap().learner.rollout.max_context_tokens, 768);
}

/// The learning rate for random weights is a hundred times that for a model.
#[test]
fn pretraining_has_its_own_preset_for_random_weights_alone() {
    let learning_rate = |assignments: &[&str]| {
        let args = set(assignments);
        let config: Result<RunConfig> = resolve_with(&args, Preset::Base);
        config.unwrap().pretrain.sft.optimizer.learning_rate
    };
    assert_eq!(learning_rate(&["pretrain.shards=2"]), 2e-3);
    let model = resolve(&["model.dir=somewhere"]).unwrap();
    let of_model = model.pretrain.sft.optimizer.learning_rate;
    assert_eq!(learning_rate(&["model.dir=somewhere"]), of_model);
    assert!(of_model < 1e-3, "{of_model}");
}

/// A model that this program exported has 2,048 positions, and the preset of models contexts of
/// 4,096 tokens.
#[test]
fn the_context_of_a_preset_that_nobody_named_fits_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model_config) = policy::embedded::files()
        .into_iter()
        .find(|(name, _)| name == "config.json")
        .unwrap();
    fs::write(dir.path().join("config.json"), model_config).unwrap();
    let file = dir.path().join("settings.toml");
    fs::write(&file, "[learner.rollout]\nmax_context_tokens = 4096\n").unwrap();
    let by_default = ConfigArgs {
        model: Some(dir.path().to_owned()),
        ..ConfigArgs::default()
    };
    let by_set = ConfigArgs {
        set: vec!["learner.rollout.max_context_tokens=4096".to_owned()],
        ..by_default.clone()
    };
    let by_file = ConfigArgs {
        config: Some(file),
        ..by_default.clone()
    };
    let by_preset = ConfigArgs {
        preset: Some(Preset::Model),
        ..by_default.clone()
    };
    for (args, context_tokens) in [
        (by_default, 2_048),
        (by_set, 4_096),
        (by_file, 4_096),
        (by_preset, 4_096),
    ] {
        let run: RunConfig = super::resolve(&args).unwrap();
        let learner: LearnerRole = super::resolve(&args).unwrap();
        for rollout in [run.learner.rollout, learner.learner.rollout] {
            assert_eq!(rollout.max_context_tokens, context_tokens, "{args:?}");
        }
    }
}

/// Returns the settings of a table by their dotted names.
fn values(table: &Table, section: &str) -> Vec<(String, toml::Value)> {
    let named = |(name, value): (&String, &toml::Value)| {
        let name = format!("{section}{name}");
        match value {
            toml::Value::Table(inner) => values(inner, &format!("{name}.")),
            value => vec![(name, value.clone())],
        }
    };
    table.iter().flat_map(named).collect()
}

/// Asserts that a recorded run has the settings of `preset` in the sections.
fn assert_recorded(recorded: &str, preset: &RunConfig, sections: &[&str]) {
    let preset = layers::to_table(preset).unwrap();
    let recorded: Table = recorded.parse().unwrap();
    let compared = values(&recorded, "")
        .into_iter()
        .filter(|(name, _)| sections.iter().any(|it| name.starts_with(it)))
        // The default since then is 0, which selects the same.
        .filter(|(name, _)| name != "actor.engine.pass_tokens");
    let mut count = 0;
    for (name, value) in compared {
        let found = reference::lookup(&preset, &name);
        assert_eq!(found, Some(&value), "{name}");
        count += 1;
    }
    assert!(count > 0, "no setting is of the sections {sections:?}");
}

/// docs/smollm2.md gives this preset for the results of that run.
#[test]
fn the_preset_of_smollm2_has_the_settings_of_the_recorded_run() {
    let recorded = include_str!("../../../docs/runs/smollm2/config.toml");
    let preset: RunConfig = super::resolve(&ConfigArgs {
        preset: Some(Preset::SpiderSmollm2),
        ..set(&[
            "model.dir=\"somewhere\"",
            "warm_start.enabled=false",
            "learner.steps=60",
        ])
    })
    .unwrap();
    assert_recorded(recorded, &preset, &["learner.", "actor.", "evaluation."]);
}

/// docs/results.md has the results of that run.
#[test]
fn the_default_has_the_settings_of_the_recorded_run() {
    let recorded = include_str!("../../../docs/runs/default/config.toml");
    let sections = ["learner.", "actor.", "evaluation.", "imitation."];
    assert_recorded(recorded, &resolve(&[]).unwrap(), &sections);
}

/// docs/pretraining.md gives this preset for the results of these trainings.
#[test]
fn the_preset_of_the_base_policy_has_the_settings_of_the_recorded_trainings() {
    let preset: RunConfig = super::resolve(&ConfigArgs {
        preset: Some(Preset::Base),
        ..ConfigArgs::default()
    })
    .unwrap();
    for recorded in [
        include_str!("../../../docs/runs/base/seed-0/config.toml"),
        include_str!("../../../docs/runs/base/seed-2/config.toml"),
    ] {
        assert_recorded(recorded, &preset, &["pretrain."]);
    }
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
    assert!(to_toml(&config).unwrap().contains("device = \"cuda:1\""));
    let error = resolve(&["device=gpu"]).unwrap_err().to_string();
    assert!(
        error.contains("wrong setting device") && error.contains("cuda:N"),
        "{error}"
    );
}

#[test]
fn later_sources_win() {
    let config = resolve(&["evaluation.questions=7", "evaluation.questions=9"]).unwrap();
    assert_eq!(config.evaluation.questions, 9);
}

#[test]
fn what_is_written_reads_back() {
    let config = resolve(&["seed=5"]).unwrap();
    let text = to_toml(&config).unwrap();
    assert_eq!(text.matches("seed").count(), 1, "{text}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(&path, &text).unwrap();
    assert_eq!(to_toml(&RunConfig::read(&path).unwrap()).unwrap(), text);
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
        ("seed=\"x\"", "wrong setting seed: "),
        ("seed", "KEY=VALUE"),
        ("learner.threads=2", "unknown field `threads`"),
        ("actors.count=2", "actors"),
        ("warm_start.hasty_share=2", "hasty_share"),
        ("evaluation.every_steps=12", "evaluation.every_steps is 12"),
    ] {
        let error = format!("{:#}", resolve(&[set]).unwrap_err());
        assert!(error.contains(part), "{set}: {error}");
    }
}

fn role<T: RoleSettings>(assignments: &[&str]) -> Result<T> {
    super::resolve(&set(assignments))
}

/// Resolves the settings of a role from a file.
fn role_of_file<T: RoleSettings>(settings: &str) -> Result<T> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.toml");
    fs::write(&path, settings).unwrap();
    super::resolve(&ConfigArgs {
        config: Some(path),
        ..ConfigArgs::default()
    })
}

/// On its command line, a setting of another role would have no effect.
#[test]
fn the_command_line_of_a_role_has_its_own_settings_only() {
    let refusal = |refused: anyhow::Error| format!("{refused:#}");
    let set = ["learner.optimizer.learning_rate=1"];
    let error = refusal(role::<EnvNodeRole>(&set).unwrap_err());
    let expected = "setting learner.optimizer.learning_rate does not belong on this command line, \
                    since the command reads data, env, env_node";
    assert!(error.contains(expected), "{error}");
    let flags = |flags: ConfigArgs| refusal(super::resolve::<ActorRole>(&flags).unwrap_err());
    let databases = ConfigArgs {
        databases: Some(vec!["zoo_2".to_owned()]),
        ..ConfigArgs::default()
    };
    assert!(flags(databases).contains("data.databases"));
    let seed = ConfigArgs {
        seed: Some(3),
        ..ConfigArgs::default()
    };
    assert!(flags(seed.clone()).contains("seed"));
    super::resolve::<LearnerRole>(&seed).unwrap();
}

/// What only `train` cannot use does not concern a role, but a misspelt section or setting of its
/// own does.
#[test]
fn a_role_reads_its_own_sections_only() {
    let evaluation = "[evaluation]\nevery_steps = 12\n";
    let foreign = format!("{evaluation}[warm_start]\nhasty_share = 2\n");
    role_of_file::<EnvNodeRole>(&foreign).unwrap();
    role_of_file::<ActorRole>(&foreign).unwrap();
    role_of_file::<RankRole>(&foreign).unwrap();
    // Its actors play the evaluations.
    assert!(role_of_file::<LearnerRole>(evaluation).is_err());
    let key = "0123456789abcdef0123456789abcdef";
    let env = format!("[env]\nsigning_key = \"{key}\"\nstep_budget = 7\n");
    let others = format!("[warm_start]\nhasty_share = 2\n{env}");
    let learner: LearnerRole = role_of_file(&others).unwrap();
    let written = to_toml(&learner).unwrap();
    assert!(written.contains("step_budget = 7"), "{written}");
    // The run's folder has what is written.
    assert!(!written.contains(key), "{written}");
    let env_node: EnvNodeRole = role_of_file(&others).unwrap();
    assert!(env_node.env.signing_key.is_some());
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
fn the_reference_names_the_flags_for_which_variables_stand() {
    let text = reference::markdown();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let all = Args::command();
    let mut commands_of = BTreeMap::<_, Vec<_>>::new();
    for command in all.get_subcommands() {
        for flag in command.get_arguments() {
            if let (Some(variable), Some(name)) = (flag.get_env(), flag.get_long()) {
                let commands = commands_of.entry((variable, name)).or_default();
                commands.push(format!("`{}`", command.get_name()));
            }
        }
    }
    assert_eq!(commands_of.len(), 3);
    for ((variable, name), commands) in commands_of {
        let commands = commands.join(" and ");
        let phrase = format!("`{}` for `--{name}` of {commands}", variable.display());
        assert!(text.contains(&phrase), "{phrase}");
    }
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
    assert_eq!(table, to_toml(&config).unwrap().parse::<Table>().unwrap());
    assert!(text.contains("# Seed of every random number"), "{text}");
    table["data"].as_table_mut().unwrap().remove("dir");
    layers::check_paths(&table, "").unwrap();
    let error = config.check_paths().unwrap_err().to_string();
    assert!(error.contains("data.dir: somewhere"), "{error}");
}

#[test]
fn the_ends_of_a_run_and_the_steps_that_are_due_are_evaluated() {
    for (every_steps, last) in [(0, 1), (0, 7), (1, 4), (3, 7), (3, 9), (10, 7)] {
        let settings = EvaluationConfig {
            every_steps,
            ..EvaluationConfig::default()
        };
        let is_evaluated = |step: &u64| [0, last].contains(step) || settings.is_due(*step, last);
        let expected: Vec<u64> = (0..=last).filter(is_evaluated).collect();
        let steps: Vec<u64> = settings.evaluated_steps(last).collect();
        assert_eq!(steps, expected, "every {every_steps} of {last}");
    }
}
