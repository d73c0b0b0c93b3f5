//! Layers of settings: a preset, a TOML file, `--set` and the named flags, merged as tables. The
//! variable SQLENV_DATA names a folder of data for settings that name none.
//!
//! Invariant: TRL's names of settings are replaced in every layer before it is merged, so two names
//! of one setting never meet in one table.

use std::{
    ffi::OsString,
    fs, io,
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use policy::Model;
use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::{RunConfig, reference};
use crate::{
    args::{ConfigArgs, DATA_VARIABLE, Preset, named_data},
    model_source,
    out_file::is_special,
};

/// TRL's and transformers' names of settings: the section's own name, their name, the name here.
/// Sections that several others contain, such as `schedule`, are meant wherever they stand.
pub(super) const TRL_NAMES: [(&str, &str, &str); 16] = [
    ("learner", "max_steps", "steps"),
    ("learner", "num_generations", "group_size"),
    ("advantage", "multi_objective_aggregation", "aggregation"),
    ("loss", "epsilon", "clip_low"),
    ("loss", "epsilon_high", "clip_high"),
    ("loss", "max_completion_length", "dr_grpo_length"),
    ("loss", "importance_sampling_level", "ratio_level"),
    ("loss", "beta", "kl_coef"),
    ("loss", "use_bias_correction_kl", "kl_bias_correction"),
    (
        "loss",
        "vllm_importance_sampling_mode",
        "sampler_correction",
    ),
    (
        "loss",
        "vllm_importance_sampling_clip_min",
        "sampler_clip_min",
    ),
    (
        "loss",
        "vllm_importance_sampling_clip_max",
        "sampler_clip_max",
    ),
    ("schedule", "lr_scheduler_type", "kind"),
    ("schedule", "min_lr_rate", "min_factor"),
    ("checkpoint", "save_steps", "every_steps"),
    ("checkpoint", "save_total_limit", "keep_last"),
];

/// A pipe that is not closed within this time is named.
const READ_SOON: Duration = Duration::from_secs(1);

/// The setting that a model limits.
const CONTEXT: &str = "learner.rollout.max_context_tokens";

/// Merges the preset, the file, `--set` and the flags into one table. `unnamed` is the preset of
/// the embedded policy where none is named.
pub(super) fn merged(args: &ConfigArgs, unnamed: Preset) -> Result<Table> {
    let file = args.config.as_deref().map(read_table).transpose()?;
    let given = merged_on(file.unwrap_or_default(), args)?;
    let mut table = match args.preset {
        Some(preset) => preset_table(preset),
        None => default_preset(&given, unnamed),
    };
    merge(&mut table, given);
    Ok(table)
}

/// Returns the preset below these settings if none is named. The limits and the learning rate of
/// the embedded policy would harm another model.
fn default_preset(given: &Table, unnamed: Preset) -> Table {
    let Some(dir) = given.get("model").and_then(|model| model.get("dir")) else {
        return preset_table(unnamed);
    };
    let mut preset = preset_table(Preset::Model);
    let is_given = reference::lookup(given, CONTEXT).is_some();
    if let Some(dir) = dir.as_str().filter(|_| !is_given) {
        fit_context(&mut preset, Path::new(dir));
    }
    preset
}

/// Lowers the context of the preset to that of the model in `dir`. A folder that is no model is
/// named when the model is opened.
fn fit_context(preset: &mut Table, dir: &Path) {
    let wanted = reference::lookup(preset, CONTEXT).and_then(Value::as_integer);
    let wanted = wanted.and_then(|tokens| u32::try_from(tokens).ok());
    let (Some(wanted), Ok(model)) = (wanted, Model::config_in(dir)) else {
        return;
    };
    let fitted = model_source::fitted_context(wanted, &model);
    if fitted < wanted {
        tracing::warn!(
            "{CONTEXT} is {fitted} in place of the {wanted} of the preset `model`, because the \
             model was trained for contexts of {fitted} tokens"
        );
        merge(preset, nested(CONTEXT, Value::from(fitted)));
    }
}

/// Merges `--set` and the flags into `table`.
pub(super) fn merged_on(mut table: Table, args: &ConfigArgs) -> Result<Table> {
    merge(&mut table, command_line(args)?);
    let data = default_data(&table, named_data())?;
    merge(&mut table, data);
    Ok(table)
}

/// Returns what `--set` and the flags give.
pub(super) fn command_line(args: &ConfigArgs) -> Result<Table> {
    let mut table = Table::new();
    for assignment in &args.set {
        merge(&mut table, with_names_here(parse_assignment(assignment)?)?);
    }
    merge(&mut table, flags(args)?);
    Ok(table)
}

/// Checks that a command reads what its command line gives. `read` has the sections that it reads.
/// A file may have those of all roles.
pub(super) fn check_read(args: &ConfigArgs, read: &Table) -> Result<()> {
    let exists = to_table(&RunConfig::default())?;
    let is_unread = |name: &&String| exists.contains_key(*name) && !read.contains_key(*name);
    let given = command_line(args)?;
    let Some(unread) = given.keys().find(is_unread) else {
        return Ok(());
    };
    let read: Vec<&str> = read.keys().map(String::as_str).collect();
    bail!(
        "the setting {} does not belong on this command line, since the command reads {}; give it to \
         the command that reads it, or to all of them in a file (--config)",
        first_name(unread, &given[unread]),
        read.join(", ")
    )
}

/// Returns the first full name in a setting or a section.
fn first_name(name: &str, value: &Value) -> String {
    match value.as_table().and_then(|section| section.iter().next()) {
        Some((inner, value)) => format!("{name}.{}", first_name(inner, value)),
        None => name.to_owned(),
    }
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
        let problem = in_words(error.inner().message().trim_end());
        anyhow!("wrong setting {}: {problem}", error.path())
    })
}

/// Names an expected value as people do.
fn in_words(problem: &str) -> String {
    let (seen, expected) = problem.rsplit_once(", expected ").unwrap_or((problem, ""));
    let expected = match expected {
        "" => return problem.to_owned(),
        "a sequence" => r#"a list such as ["a", "b"]"#,
        "u32" | "u64" | "usize" => "a whole number",
        "f32" | "f64" => "a number",
        struct_name if struct_name.starts_with("struct ") => "a section with settings",
        other => other,
    };
    format!("{seen}, expected {expected}")
}

pub(super) fn to_table(settings: &impl Serialize) -> Result<Table> {
    Table::try_from(settings).context("the settings do not fit into TOML")
}

/// Checks that settings for one model are not used with another that nobody named. `read` has the
/// sections that the command reads.
pub(super) fn check_model_of_preset(args: &ConfigArgs, read: &Table, table: &Table) -> Result<()> {
    let is_for_one = args.preset == Some(Preset::SpiderSmollm2) && read.contains_key("model");
    ensure!(
        !is_for_one || reference::lookup(table, "model.dir").is_some(),
        "--preset spider-smollm2 has the settings of SmolLM2-135M, and no model is given; give its \
         folder by --model, as docs/smollm2.md does, or take another preset"
    );
    Ok(())
}

/// Checks that settings named `...dir` or `..._file` name what exists. `section` is the name of the
/// table with a dot, or empty.
pub(super) fn check_paths(table: &Table, section: &str) -> Result<()> {
    for (key, value) in table {
        let name = format!("{section}{key}");
        match value {
            Value::Table(table) => check_paths(table, &format!("{name}."))?,
            Value::String(path) if key.ends_with("dir") || key.ends_with("_file") => ensure!(
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
        Preset::SpiderSmollm2 => include_str!("../../presets/spider-smollm2.toml"),
        Preset::Tiny => include_str!("../../presets/tiny.toml"),
        Preset::Model => include_str!("../../presets/model.toml"),
        Preset::Scratch => include_str!("../../presets/scratch.toml"),
        Preset::Smoke => include_str!("../../presets/smoke.toml"),
    };
    text.parse().expect("presets parse: this is a bug")
}

/// Reads a file of settings.
pub(super) fn read_table(path: &Path) -> Result<Table> {
    let text = read_text(path)
        .with_context(|| format!("cannot read the settings file {}", path.display()))?;
    let table = text
        .parse()
        .with_context(|| format!("{} is not valid TOML", path.display()))?;
    with_names_here(table).with_context(|| format!("in {}", path.display()))
}

/// Reads a file. Names a pipe that is not closed soon, for example because nothing writes to it.
fn read_text(path: &Path) -> io::Result<String> {
    if !is_special(path) {
        return fs::read_to_string(path);
    }
    let (reading, is_read) = mpsc::channel::<()>();
    let file = path.display().to_string();
    thread::spawn(move || {
        if is_read.recv_timeout(READ_SOON) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("waiting until the settings {file}, a pipe, are written and closed");
        }
    });
    let text = fs::read_to_string(path);
    drop(reading);
    text
}

/// Names the file in the error of merged settings if the file alone has it.
pub(super) fn with_file<T: DeserializeOwned>(args: &ConfigArgs, error: Error) -> Error {
    // A pipe is read once: a second read of a named one would wait for another writer.
    let Some(path) = args.config.as_deref().filter(|path| !is_special(path)) else {
        return error;
    };
    match read_table(path).and_then(parse::<T>) {
        Ok(_) => error,
        Err(fault) => fault.context(format!("in {}", path.display())),
    }
}

/// Parses `a.b=1`; a value that is no TOML literal is taken as a string.
fn parse_assignment(assignment: &str) -> Result<Table> {
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
    let Some(dir) = variable.filter(|_| !is_given) else {
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

fn with_names_here(mut table: Table) -> Result<Table> {
    rename(&mut table, "")?;
    Ok(table)
}

/// Gives the settings of a table and of the tables in it their names here. `section` is the table's
/// name with a dot, or empty.
fn rename(table: &mut Table, section: &str) -> Result<()> {
    let own_name = section.trim_end_matches('.').rsplit('.').next();
    let of_section = |(of, ..): &&(&str, &str, &str)| Some(*of) == own_name;
    for (_, trl, name) in TRL_NAMES.iter().filter(of_section) {
        if let Some(value) = table.remove(*trl) {
            let twice = table.insert((*name).to_owned(), value);
            ensure!(
                twice.is_none(),
                "{section}{name} is given twice, once under TRL's name {section}{trl}; remove one"
            );
        }
    }
    for (key, value) in table {
        if let Value::Table(table) = value {
            rename(table, &format!("{section}{key}."))?;
        }
    }
    Ok(())
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
