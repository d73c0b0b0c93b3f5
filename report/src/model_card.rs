//! The model card: the README.md of a model folder, in Hugging Face's format. Pure.

use std::fmt::Write as _;

use crate::{
    folder::RunRecords,
    number,
    records::{CURVE_SPLIT, Evaluation, RunInfo},
};

/// Describes the policy of `step` in a run: what it is, what it was trained from and on, its
/// results and settings. `licence` is its SPDX identifier, if it is known.
pub fn model_card(records: &RunRecords, step: u64, licence: Option<&str>) -> String {
    let mut card = String::from("---\n");
    if let Some(licence) = licence {
        card += &format!("license: {licence}\n");
    }
    card += "library_name: transformers\npipeline_tag: text-generation\n\
             tags: [sqlenv, grpo, reinforcement-learning, text-to-sql, tool-use]\n---\n\n";
    if let Some(info) = &records.info {
        card += &description(info, step, licence);
    }
    card += &results(&records.evaluations, step);
    if let Some(config) = &records.config {
        let (fence, config) = (fence(config), config.trim_end());
        let _ = write!(card, "\n## Settings\n\n{fence}toml\n{config}\n{fence}\n");
    }
    card
}

fn description(info: &RunInfo, step: u64, licence: Option<&str>) -> String {
    let questions: Vec<String> = info
        .questions
        .iter()
        .map(|(split, count)| format!("{} of `{}`", number::count(*count), plain(split)))
        .collect();
    let licence = licence.map_or_else(
        || "that of the base model; the data may restrict it further".to_owned(),
        str::to_owned,
    );
    format!(
        "# {name}\n\nA policy that explores a SQLite database by tool calls (`describe`, `sample`, \
         `query`) to answer a question, and then calls `answer`.\n\n\
         - Trained by: sqlenv {version}, {step} steps of GRPO, seed {seed}\n\
         - From: {model}\n\
         - Parameters: {parameters}\n\
         - Data: {data}; {databases} databases; questions: {questions}\n\
         - Licence: {licence}\n\n\
         The folder has Hugging Face's format, with the chat template that the policy was trained \
         with. To evaluate it: `sqlenv eval --model FOLDER --split eval`. To let it answer a \
         question on any database: `sqlenv play --policy model --model FOLDER --database FILE -q \
         QUESTION`.\n",
        name = plain(&info.name),
        version = plain(&info.version),
        seed = info.run_seed,
        model = plain(&info.model),
        parameters = number::count(info.parameters),
        data = plain(&info.dataset),
        databases = number::count(info.databases),
        questions = questions.join(", "),
    )
}

/// Tabulates what was measured before the training and of this step.
fn results(evaluations: &[Evaluation], step: u64) -> String {
    let is_shown = |it: &&Evaluation| it.policy.is_scripted() || it.step == 0 || it.step == step;
    let shown: Vec<&Evaluation> = evaluations.iter().filter(is_shown).collect();
    if shown.is_empty() {
        return String::new();
    }
    let mut table = String::from(
        "\n## Results\n\nShare of questions answered correctly, with the 95 % interval (Wilson).\n\n\
         | policy | step | questions | decoding | N | correct |\n|---|---|---|---|---|---|\n",
    );
    for it in shown {
        let success = it.metrics.success;
        let split = match it.split.as_str() {
            CURVE_SPLIT => "eval, other questions",
            split => split,
        };
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {:.1} % ({:.1}–{:.1}) |",
            it.policy,
            it.step,
            plain(split),
            it.mode,
            success.questions,
            100.0 * success.success_rate,
            100.0 * success.wilson_low,
            100.0 * success.wilson_high,
        );
    }
    table
}

/// Returns a name on one line, without what Markdown or HTML would interpret.
fn plain(text: &str) -> String {
    let special = |c: char| c.is_control() || "|<>`*[]".contains(c);
    text.replace(special, " ")
}

/// Returns a fence of a Markdown block that is longer than any in the text of the block.
fn fence(text: &str) -> String {
    let runs = text.split(|c: char| c != '`').map(str::len);
    "`".repeat(runs.max().unwrap_or(0).max(4) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_is_longer_than_any_in_the_settings() {
        let long = "a = \"\"\"\n``````\n\"\"\"";
        for (config, fence) in [("a = 1", "`````"), (long, "```````")] {
            let records = RunRecords {
                config: Some(format!("{config}\n")),
                ..RunRecords::default()
            };
            let block = format!("\n{fence}toml\n{config}\n{fence}\n");
            assert!(model_card(&records, 1, None).ends_with(&block));
        }
    }
}
