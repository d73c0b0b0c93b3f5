//! The model card: the README.md of a model folder, in Hugging Face's format. Pure.

use std::fmt::Write as _;

use crate::{
    number,
    records::{CURVE_SPLIT, EVAL_SPLIT, Evaluation, RunInfo},
    run_records::RunRecords,
};

/// The licences of what a policy was made of, by their SPDX names; none if it is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyLicences {
    /// That of the model from which the training started.
    pub base: Option<String>,
    /// That of the questions and databases.
    pub data: Option<String>,
}

impl PolicyLicences {
    /// Returns the licence of the policy, as Hugging Face spells it, if the base and the data have
    /// one licence.
    fn shared(&self) -> Option<String> {
        let base = self.base.as_ref()?.to_lowercase();
        (self.data.as_ref()?.to_lowercase() == base).then_some(base)
    }

    fn in_words(&self) -> String {
        let base = self.base.as_deref().map(plain);
        let data = self.data.as_deref().map(plain);
        format!(
            "base model: {}; data: {}",
            base.as_deref().unwrap_or("as its own folder states"),
            data.as_deref().unwrap_or("not stated")
        )
    }
}

/// Describes the policy of `step` in a run: what it is, what it was trained from and on, its
/// results and settings. `is_best`: it was chosen by its accuracy on the learning curve.
pub fn model_card(
    records: &RunRecords,
    step: u64,
    licences: &PolicyLicences,
    is_best: bool,
) -> String {
    let mut card = String::from("---\n");
    if let Some(licence) = licences.shared() {
        card += &format!("license: {licence}\n");
    }
    card += "library_name: transformers\npipeline_tag: text-generation\n\
             tags: [sqlenv, grpo, reinforcement-learning, text-to-sql, tool-use]\n---\n\n";
    if let Some(info) = &records.info {
        card += &description(info, step, licences);
    }
    card += &results(&records.evaluations, step);
    if is_best {
        card += &choice(&records.evaluations);
    }
    if let Some(config) = &records.config {
        let (fence, config) = (fence(config), config.trim_end());
        let _ = write!(card, "\n## Settings\n\n{fence}toml\n{config}\n{fence}\n");
    }
    card
}

fn description(info: &RunInfo, step: u64, licences: &PolicyLicences) -> String {
    let questions: Vec<String> = info
        .questions
        .iter()
        .map(|(split, count)| format!("{} of `{}`", number::count(*count), plain(split)))
        .collect();
    format!(
        "# {name}\n\nA policy that explores a SQLite database by tool calls (`describe`, `sample`, \
         `query`) to answer a question, and then calls `answer`.\n\n\
         - Trained by: sqlenv {version}, {step} steps of GRPO, seed {seed}\n\
         - From: {model}\n\
         - Parameters: {parameters}\n\
         - Data: {data}; {databases} databases; questions: {questions}\n\
         - Licence: {licences}\n\n\
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
        licences = licences.in_words(),
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

/// Says that the accuracy by which a policy was chosen is too high, and how to measure another.
fn choice(evaluations: &[Evaluation]) -> String {
    let mut text = String::from(
        "\nThis policy was chosen from those of all evaluated steps by its greedy accuracy on the \
         questions of the row `eval, other questions`, so that number is too high.",
    );
    if let Some(table) = evaluations.iter().find(|it| it.split == EVAL_SPLIT) {
        let _ = write!(
            text,
            " The questions of the rows `eval` had no part in the choice. To evaluate the policy \
             on them: `sqlenv eval --model FOLDER --split eval --questions {}`.",
            table.metrics.success.questions
        );
    }
    text + "\n"
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
            let card = model_card(&records, 1, &PolicyLicences::default(), false);
            assert!(card.ends_with(&block), "{card}");
        }
    }

    /// Hugging Face shows the header as the licence of the model.
    #[test]
    fn a_policy_has_a_licence_if_its_base_and_its_data_share_it() {
        let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        for (base, data, licence, words) in [
            (
                "apache-2.0",
                "Apache-2.0",
                Some("apache-2.0"),
                "base model: apache-2.0; data: Apache-2.0",
            ),
            (
                "apache-2.0",
                "CC-BY-SA-4.0",
                None,
                "base model: apache-2.0; data: CC-BY-SA-4.0",
            ),
            (
                "apache-2.0",
                "",
                None,
                "base model: apache-2.0; data: not stated",
            ),
            (
                "",
                "Apache-2.0",
                None,
                "base model: as its own folder states; data: Apache-2.0",
            ),
        ] {
            let licences = PolicyLicences {
                base: named(base),
                data: named(data),
            };
            assert_eq!(licences.in_words(), words);
            let card = model_card(&RunRecords::default(), 1, &licences, false);
            let header = card.lines().find_map(|line| line.strip_prefix("license: "));
            assert_eq!(header, licence, "{words}");
        }
    }
}
