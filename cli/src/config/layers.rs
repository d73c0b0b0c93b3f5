//! Layers of settings: a preset, a TOML file, `--set` and the named flags, merged as tables. The
//! variable SQLENV_DATA names a folder of data for settings that name none.
//!
//! Invariant: every layer is brought to today's names before it is merged, so an old and a new
//! spelling of one setting never meet in one table.

use std::{env, ffi::OsString, fs, path::Path};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::RunConfig;
use crate::{
    args::{ConfigArgs, Preset},
    model_source,
};

/// Settings that earlier versions spelled differently, and TRL's names for settings that presets
/// set: old name, name.
const RENAMED: [(&str, &str); 8] = [
    ("env.openenv", "env_node.openenv"),
    ("env.server", "env_node.server"),
    ("env.web", "env_node.web"),
    ("warm_start.habits", "warm_start.demonstrators"),
    ("learner.refill_zero_spread", "learner.dynamic_sampling"),
    ("learner.max_steps", "learner.steps"),
    ("learner.num_generations", "learner.group_size"),
    (
        "learner.checkpoint.save_steps",
        "learner.checkpoint.every_steps",
    ),
];

/// Settings that no longer exist, and the remedy. They are dropped from the settings of a run
/// folder.
const REMOVED: [(&str, &str); 12] = [
    ("actors", "use threads"),
    ("actor.engine.device", "use device"),
    ("actor.engine.dtype", "use dtype"),
    ("evaluation.transcripts", "leave it out"),
    ("learner.run_seed", "use seed"),
    ("learner.seed", "use seed"),
    ("learner.threads", "use threads"),
    ("warm_start.compare_oracle_only", "use imitation.enabled"),
    ("warm_start.oracle.seed", "use seed"),
    ("warm_start.oracle.threads", "use threads"),
    ("warm_start.demonstrators.seed", "use seed"),
    ("warm_start.demonstrators.threads", "use threads"),
];

/// The variable that names a folder of data, as the images for the CPU set it.
const DATA_VARIABLE: &str = "SQLENV_DATA";

/// Merges the preset, the file, `--set` and the flags into one table.
pub(super) fn merged(args: &ConfigArgs) -> Result<Table> {
    let file = args.config.as_deref().map(read_table).transpose()?;
    let given = merged_on(file.unwrap_or_default(), args)?;
    let preset = args.preset.unwrap_or_else(|| default_preset(&given));
    let mut table = preset_table(preset);
    merge(&mut table, given);
    Ok(table)
}

/// Returns the preset of these settings if none is named. The limits and the learning rate of the
/// embedded policy would harm another model.
fn default_preset(given: &Table) -> Preset {
    match given.get("model").and_then(|model| model.get("dir")) {
        Some(_) => Preset::Model,
        None => Preset::Tiny,
    }
}

/// Merges `--set` and the flags into `table`.
pub(super) fn merged_on(mut table: Table, args: &ConfigArgs) -> Result<Table> {
    for assignment in &args.set {
        merge(&mut table, renamed(parse_assignment(assignment)?)?);
    }
    merge(&mut table, flags(args)?);
    let data = default_data(&table, env::var_os(DATA_VARIABLE))?;
    merge(&mut table, data);
    for (name, remedy) in REMOVED {
        if remove(&mut table, name).is_some() {
            bail!("setting {name} does not exist; {remedy}");
        }
    }
    Ok(table)
}

/// Reads the settings in a run's folder, which any earlier version may have written.
pub(super) fn of_run_folder(path: &Path) -> Result<Table> {
    let mut table = read_table(path)?;
    for (name, _) in REMOVED {
        remove(&mut table, name);
    }
    // Before there was a base policy, a run without a model folder started from random weights, and
    // its warm start was what the report compared.
    let model = table.get("model");
    let has = |key: &str| model.is_some_and(|model| model.get(key).is_some());
    if !has("random_weights") {
        let random_weights = Value::Boolean(!has("dir"));
        merge(&mut table, nested("model.random_weights", random_weights));
        merge(
            &mut table,
            nested("imitation.enabled", Value::Boolean(false)),
        );
    }
    Ok(table)
}

/// Deserializes a role's settings. Sections of other roles are allowed and not read.
pub(super) fn parse<T: DeserializeOwned>(table: Table) -> Result<T> {
    let known = to_table(&RunConfig::default())?;
    if let Some(unknown) = table.keys().find(|name| !known.contains_key(name.as_str())) {
        let known: Vec<&str> = known.keys().map(String::as_str).collect();
        bail!(
            "wrong setting {unknown}: it does not exist; give one of {}",
            known.join(", ")
        );
    }
    serde_path_to_error::deserialize(table).map_err(|error| {
        // The message of the TOML parser ends with a line break.
        let problem = error.inner().message().trim_end().to_owned();
        anyhow!("wrong setting {}: {problem}", error.path())
    })
}

pub(super) fn to_table(settings: &impl Serialize) -> Result<Table> {
    Table::try_from(settings).context("the settings do not fit into TOML")
}

/// Checks that settings named `dir` or `..._file` name what exists. `section` is the table's name
/// with a dot, or empty.
pub(super) fn check_paths(table: &Table, section: &str) -> Result<()> {
    for (key, value) in table {
        let name = format!("{section}{key}");
        match value {
            Value::Table(table) => check_paths(table, &format!("{name}."))?,
            Value::String(path) if key == "dir" || key.ends_with("_file") => ensure!(
                Path::new(path).exists(),
                "setting {name}: {path} does not exist; give an existing path, or leave it out"
            ),
            _ => {}
        }
    }
    Ok(())
}

fn preset_table(preset: Preset) -> Table {
    let text = match preset {
        Preset::Base => include_str!("../../presets/base.toml"),
        Preset::BaseMessy => include_str!("../../presets/base-messy.toml"),
        Preset::SpiderSmollm2 => include_str!("../../presets/spider-smollm2.toml"),
        Preset::Tiny => include_str!("../../presets/tiny.toml"),
        Preset::Model => include_str!("../../presets/model.toml"),
        Preset::Scratch => include_str!("../../presets/scratch.toml"),
        Preset::Smoke => include_str!("../../presets/smoke.toml"),
    };
    text.parse().expect("presets parse: this is a bug")
}

fn read_table(path: &Path) -> Result<Table> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the settings file {}", path.display()))?;
    let table = text
        .parse()
        .with_context(|| format!("{} is not valid TOML", path.display()))?;
    renamed(table).with_context(|| format!("in {}", path.display()))
}

/// Parses `a.b=1`; a value that is no TOML literal is taken as a string.
pub(super) fn parse_assignment(assignment: &str) -> Result<Table> {
    let (key, value) = assignment
        .split_once('=')
        .ok_or_else(|| anyhow!("--set {assignment:?} has no '='; write KEY=VALUE"))?;
    let value = format!("value = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    Ok(nested(key.trim(), value))
}

/// Returns the flags that stand for settings.
fn flags(args: &ConfigArgs) -> Result<Table> {
    let mut table = Table::new();
    if let Some(seed) = args.seed {
        ensure!(
            i64::try_from(seed).is_ok(),
            "seed is {seed}; TOML holds numbers up to {}",
            i64::MAX
        );
        merge(&mut table, nested("seed", Value::try_from(seed)?));
    }
    if let Some(names) = &args.databases {
        let names = Value::try_from(names)?;
        merge(&mut table, nested("data.databases", names));
    }
    let model = args.model.as_deref().map(model_source::find).transpose()?;
    for (name, path) in [("data.dir", &args.data), ("model.dir", &model)] {
        if let Some(path) = path {
            let value = Value::try_from(path)
                .with_context(|| format!("{name} is {}; give a path in UTF-8", path.display()))?;
            merge(&mut table, nested(name, value));
        }
    }
    if args.model.is_some() {
        merge(
            &mut table,
            nested("model.random_weights", Value::Boolean(false)),
        );
    }
    Ok(table)
}

/// Returns the setting that [`DATA_VARIABLE`] stands for, if `table` names no folder of data.
pub(super) fn default_data(table: &Table, variable: Option<OsString>) -> Result<Table> {
    let is_given = table.get("data").and_then(|data| data.get("dir")).is_some();
    let Some(dir) = variable.filter(|dir| !is_given && !dir.is_empty()) else {
        return Ok(Table::new());
    };
    let dir = dir.into_string().map_err(|dir| {
        anyhow!(
            "{DATA_VARIABLE} is {}; give a path in UTF-8",
            Path::new(&dir).display()
        )
    })?;
    Ok(nested("data.dir", Value::String(dir)))
}

/// Returns `value` in the tables that the dotted `name` stands for.
fn nested(name: &str, value: Value) -> Table {
    let mut parts = name.rsplit('.');
    let last = parts.next().unwrap_or_default();
    parts.fold(
        Table::from_iter([(last.to_owned(), value)]),
        |table, part| Table::from_iter([(part.to_owned(), Value::Table(table))]),
    )
}

fn renamed(mut table: Table) -> Result<Table> {
    for (old, name) in RENAMED {
        if let Some(value) = remove(&mut table, old) {
            let value = nested(name, value);
            if let Some(twice) = common_name(&table, &value) {
                bail!("{twice} is given twice, once under its earlier name {old}; remove one");
            }
            merge(&mut table, value);
        }
    }
    Ok(table)
}

/// Returns the name of a value that both tables have.
fn common_name(one: &Table, other: &Table) -> Option<String> {
    one.iter()
        .find_map(|(key, value)| match (value, other.get(key)?) {
            (Value::Table(one), Value::Table(other)) => {
                common_name(one, other).map(|name| format!("{key}.{name}"))
            }
            _ => Some(key.clone()),
        })
}

/// Merges `upper` into `lower`, table by table; `upper` has priority.
pub(super) fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

/// Takes the value at `a.b` out of the table.
pub(super) fn remove(table: &mut Table, name: &str) -> Option<Value> {
    match name.split_once('.') {
        Some((first, rest)) => remove(table.get_mut(first)?.as_table_mut()?, rest),
        None => table.remove(name),
    }
}
