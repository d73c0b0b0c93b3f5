//! The reference of all settings, made from the doc comments of their types: `docs/settings.md`,
//! and the comments in what `--dry-run` prints.

use std::fmt::Write as _;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value as Json;
use toml::{Table, Value};

use super::{ActorRole, EnvNodeRole, LearnerRole, RankRole, RunConfig, layers};

/// Returns the JSON schema of a role's settings.
type SchemaOf = fn() -> Json;

/// Commands that read some sections only. All other commands with settings read every section.
const ROLES: [(&str, SchemaOf); 4] = [
    ("env-node", schema::<EnvNodeRole>),
    ("actor", schema::<ActorRole>),
    ("learner", schema::<LearnerRole>),
    ("rank", schema::<RankRole>),
];

/// Columns of a comment in TOML.
const COMMENT_COLUMNS: usize = 98;

const INTRODUCTION: &str = "# Settings

This page is made from the doc comments of the settings: `sqlenv settings > docs/settings.md`.

A setting is given in a TOML file (`--config FILE`) or on the command line (`--set NAME=VALUE`).
Lowest first, the layers are the defaults below, a preset (`--preset`), the file, `--set`, and the
flags `--seed`, `--data`, `--databases` and `--model`. The variable `SQLENV_DATA` stands for
`data.dir` where no layer gives it; the images for the CPU set it to the project's own data.
`sqlenv train --dry-run` prints the result with these comments and checks that its paths exist.
A name behind \"TRL:\" or \"transformers:\" in the column *meaning* is accepted in place of the
setting's own.

Without `--preset` a command has the preset `model` if a model folder is given, otherwise `tiny`, or
`base` for `pretrain`, so its values differ from the column *default*. The presets are files in
`cli/presets/`: `tiny` (GRPO from the base policy), `scratch`, `model`, `spider-smollm2`, `base`
(for `pretrain`) and `smoke`.

A setting of the loss that the chosen loss does not use is refused, with the reason. Before it
trains, a learner warns of others that have no effect, such as bounds of a ratio that is always 1.
An env-node also reads OpenEnv's variables, which lie over the file ([serving.md](serving.md)).

Further variables stand for flags of the roles: `SQLENV_LISTEN` for `--listen` of `env-node` and
`learner`, `SQLENV_ENV` for `--env` of `actor` and `learner`, and `SQLENV_LEARNER` for `--learner`
of `actor` and `rank`. `SQLENV_LOG` stands for `--log` of every command.

A role reads the sections that name it below; sections of other roles may be in its file, and not on
its command line. All other commands with settings read every section. A dash in the column
*default* means that the setting is absent unless it is given.
";

/// A section or a setting.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) meaning: String,
    /// The type in words; none for a section.
    kind: Option<String>,
    /// What its type defaults to. A section that is not written by default has such settings, too.
    default: Option<String>,
}

/// Returns the text of `docs/settings.md`.
pub(crate) fn markdown() -> String {
    let defaults = layers::to_table(&RunConfig::default()).unwrap_or_default();
    let mut text = INTRODUCTION.to_owned();
    let heading = |text: &mut String, name: &str, meaning: &str, section: &str| {
        let roles = ROLES.iter().filter(|(_, schema)| {
            let properties = &schema()["properties"];
            properties.get(section).is_some()
        });
        let roles: Vec<String> = roles.map(|(role, _)| format!("`{role}`")).collect();
        let roles = match roles.is_empty() {
            true => String::new(),
            false => format!(" Roles: {}.", roles.join(", ")),
        };
        let about = format!("{meaning}{roles}");
        let _ = writeln!(text, "\n## {name}\n\n{}", about.trim_start());
    };
    for entry in entries() {
        let Some(kind) = &entry.kind else {
            let section = entry.name.split('.').next().unwrap_or_default();
            heading(
                &mut text,
                &format!("`[{}]`", entry.name),
                &entry.meaning,
                section,
            );
            continue;
        };
        if !entry.name.contains('.') {
            heading(&mut text, &format!("`{}`", entry.name), "", &entry.name);
        }
        let default = lookup(&defaults, &entry.name).map(|value| format!("`{value}`"));
        let default = default.or(entry.default.map(|value| format!("`{value}`")));
        let default = default.unwrap_or_else(|| "–".to_owned());
        let row =
            [&entry.name, kind, &default, &entry.meaning].map(|cell| cell.replace('|', "\\|"));
        let [name, kind, default, meaning] = row;
        if !text.ends_with("|\n") {
            text += "\n| name | type | default | meaning |\n|---|---|---|---|\n";
        }
        let _ = writeln!(text, "| `{name}` | {kind} | {default} | {meaning} |");
    }
    text
}

/// Returns settings as TOML, each with its meaning as a comment above it.
pub(super) fn commented(table: &Table) -> String {
    let mut text = String::new();
    for Entry {
        name,
        meaning,
        kind,
        ..
    } in entries()
    {
        let (section, key) = name.rsplit_once('.').unwrap_or(("", &name));
        let value = lookup(table, &name);
        match (kind, value) {
            (None, Some(_)) => {
                let _ = write!(text, "\n{}[{name}]\n", comment(&meaning));
            }
            (Some(_), Some(value)) => {
                let _ = writeln!(text, "{}{key} = {value}", comment(&meaning));
            }
            (Some(_), None) if section.is_empty() || lookup(table, section).is_some() => {
                let _ = writeln!(text, "{}# {key} =", comment(&meaning));
            }
            _ => {}
        }
    }
    text
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    walk(&schema::<RunConfig>(), "", &mut entries);
    entries
}

/// Collects the settings of a section and then its subsections, as TOML orders them.
fn walk(schema: &Json, section: &str, entries: &mut Vec<Entry>) {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let (sections, settings): (Vec<_>, Vec<_>) =
        properties.partition(|(_, property)| present(property).get("properties").is_some());
    let name = |key: &str| match section {
        "" => key.to_owned(),
        section => format!("{section}.{key}"),
    };
    for (key, property) in settings {
        entries.push(Entry {
            name: name(key),
            meaning: meaning(property),
            kind: Some(kind(property)),
            default: default(property),
        });
    }
    for (key, property) in sections {
        entries.push(Entry {
            name: name(key),
            meaning: meaning(property),
            kind: None,
            default: None,
        });
        walk(present(property), &name(key), entries);
    }
}

/// Returns the schema of the value that is not null.
fn present(property: &Json) -> &Json {
    let options = property["anyOf"].as_array().into_iter().flatten();
    let mut present = options.filter(|option| option["type"] != "null");
    present.next().unwrap_or(property)
}

/// Returns the description in one line, without links of rustdoc.
fn meaning(property: &Json) -> String {
    let words = property["description"].as_str().unwrap_or_default();
    let words: Vec<&str> = words.split_whitespace().collect();
    words.join(" ").replace("[`", "`").replace("`]", "`")
}

fn default(property: &Json) -> Option<String> {
    let default = property.get("default").filter(|value| !value.is_null());
    default.map(Json::to_string)
}

fn kind(property: &Json) -> String {
    let property = present(property);
    let variants = property["oneOf"].as_array().into_iter().flatten();
    let variants = variants.flat_map(|variant| match variant["const"].as_str() {
        Some(name) => vec![name],
        None => names(&variant["enum"]),
    });
    let mut variants: Vec<&str> = variants.collect();
    variants.extend(names(&property["enum"]));
    if !variants.is_empty() {
        let variants: Vec<String> = variants.iter().map(|name| format!("`{name}`")).collect();
        return variants.join(", ");
    }
    let types = match &property["type"] {
        Json::Array(types) => types.iter().filter_map(Json::as_str).collect(),
        single => Vec::from_iter(single.as_str()),
    };
    let name = types.into_iter().find(|name| *name != "null");
    match name.unwrap_or("value") {
        "array" if property["items"]["type"] == "string" => "list of strings".to_owned(),
        "array" => "list of tables".to_owned(),
        name => name.to_owned(),
    }
}

fn names(list: &Json) -> Vec<&str> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Json::as_str).collect()
}

fn comment(meaning: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in meaning.split_whitespace() {
        if line.len() + word.len() >= COMMENT_COLUMNS {
            let _ = writeln!(lines, "#{line}");
            line.clear();
        }
        let _ = write!(line, " {word}");
    }
    if !line.is_empty() {
        let _ = writeln!(lines, "#{line}");
    }
    lines
}

/// Returns the value at `a.b` of a table.
pub(super) fn lookup<'a>(table: &'a Table, name: &str) -> Option<&'a Value> {
    match name.split_once('.') {
        Some((first, rest)) => lookup(table.get(first)?.as_table()?, rest),
        None => table.get(name),
    }
}

fn schema<T: JsonSchema>() -> Json {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
    });
    settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}
