//! `sqlenv data check`, `stats` and `list`: what a data folder holds, and whether it is whole.
//!
//! Invariant: the exit code is 1 if a database is damaged, SQL does not compile, or the environment
//! could not serve the data.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use data::{CheckReport, Dataset, LeftOut};
use env::{EnvError, EnvSettings, Environment};

use crate::{args::data_dir, out_file, stdout};

/// The folder, and what of it is read.
#[derive(Clone, Debug, Parser)]
pub(crate) struct DataFolderArgs {
    /// The data's folder; default: that of the variable SQLENV_DATA, or the project's own data.
    #[arg(default_value_os_t = data_dir())]
    dir: PathBuf,
    /// Databases to use, by name, separated by commas; `all` for every one.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    databases: Option<Vec<String>>,
    /// Write each question that is left out as one JSON line. docs/data.md lists its fields.
    #[arg(long, value_name = "FILE")]
    left_out: Option<PathBuf>,
}

impl DataFolderArgs {
    fn open(&self) -> Result<Dataset> {
        check_left_out(self.left_out.as_deref())?;
        let names = self.databases.as_deref();
        let dataset = Dataset::open_with_or_without_questions(&self.dir, names)?;
        write_left_out(self.left_out.as_deref(), &dataset.left_out)?;
        Ok(dataset)
    }
}

/// Checks everything.
pub(crate) fn check(args: &DataFolderArgs) -> Result<()> {
    check_left_out(args.left_out.as_deref())?;
    let mut report = data::check(&args.dir, args.databases.as_deref())?;
    write_left_out(args.left_out.as_deref(), &report.dataset.left_out)?;
    // What was found is printed, also if the environment cannot be opened.
    let refusal = refusal_of_environment(undamaged(&report));
    report
        .problems
        .extend(refusal.as_ref().ok().cloned().flatten());
    stdout::print(&report)?;
    refusal?;
    fail_on(&args.dir, report.problems.len())
}

/// Returns the data without the databases that are damaged. The environment would name these again,
/// and may take long to read them.
fn undamaged(report: &CheckReport) -> Dataset {
    let mut dataset = report.dataset.clone();
    let is_whole = |name: &String| !report.damaged.contains(name);
    dataset.databases.retain(|name, _| is_whole(name));
    let questions = &mut dataset.questions;
    questions.retain(|question| is_whole(&question.database_name));
    dataset
}

/// Counts the questions, and looks for damage.
pub(crate) fn stats(args: &DataFolderArgs) -> Result<()> {
    let dataset = args.open()?;
    stdout::print(data::stats(&dataset))?;
    let faults = data::faults(&dataset)?;
    for fault in &faults {
        stdout::print(format_args!("- {fault}\n"))?;
    }
    fail_on(&args.dir, faults.len())
}

/// Lists the databases with their files and the number of their questions by split, or the
/// questions.
pub(crate) fn list(args: &DataFolderArgs, questions: bool) -> Result<()> {
    let dataset = args.open()?;
    match questions {
        true => list_questions(&dataset),
        false => list_databases(&dataset),
    }
}

/// Lists id, split, level and text of each question, separated by tabs.
fn list_questions(dataset: &Dataset) -> Result<()> {
    for question in &dataset.questions {
        let fields = [
            &question.question_id,
            &question.split,
            &question.difficulty,
            &question.question_text,
        ];
        let fields = fields.map(|field| report::safe_line(field));
        stdout::print(format_args!("{}\n", fields.join("\t")))?;
    }
    Ok(())
}

fn list_databases(dataset: &Dataset) -> Result<()> {
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for question in &dataset.questions {
        let splits = counts.entry(&question.database_name).or_default();
        *splits.entry(&question.split).or_default() += 1;
    }
    for (name, file) in &dataset.databases {
        let splits = counts.remove(name.as_str()).unwrap_or_default();
        let splits: Vec<String> = splits
            .iter()
            .map(|(split, n)| format!("{split} {n}"))
            .collect();
        let questions = match splits.is_empty() {
            true => "no questions".to_owned(),
            false => splits.join(", "),
        };
        let kibibytes = file.size_bytes.div_ceil(1024);
        let path = file.path.display();
        stdout::print(format_args!(
            "{name}: {questions}; {kibibytes} KiB in {path}\n"
        ))?;
    }
    Ok(())
}

/// Refuses to overwrite a file that is no earlier list of left-out questions.
pub(crate) fn check_left_out(file: Option<&Path>) -> Result<()> {
    let Some(file) = file else {
        return Ok(());
    };
    // A write to a pipe overwrites nothing. To read one waits for its writer, which may be this
    // process.
    if out_file::is_special(file) {
        return Ok(());
    }
    let earlier = fs::read_to_string(file).unwrap_or_default();
    let is_list = earlier.is_empty() || earlier.starts_with("{\"file\":");
    ensure!(
        !file.exists()
            || is_list
                && file
                    .metadata()
                    .is_ok_and(|it| it.len() == earlier.len() as u64),
        "--left-out {} exists and is no list of left-out questions; choose another file",
        file.display()
    );
    out_file::check(file)
}

/// Writes the questions that are left out, one JSON line each.
pub(crate) fn write_left_out(file: Option<&Path>, left_out: &[LeftOut]) -> Result<()> {
    file.map_or(Ok(()), |file| out_file::write_json_lines(file, left_out))
}

/// Returns why the environment would not serve the data, if so. It has limits of its own, such as
/// one on views whose rows take too long to count.
///
/// # Errors
/// The environment cannot be opened for another reason than the data.
pub(crate) fn refusal_of_environment(dataset: Dataset) -> Result<Option<String>> {
    let opened = Environment::open(dataset, EnvSettings::default());
    opened.err().map(refusal).transpose()
}

/// Returns what an error says of the data. A shortage of the machine says nothing of them.
fn refusal(error: EnvError) -> Result<String> {
    match error {
        EnvError::Database { .. } | EnvError::ChangedDatabase { .. } | EnvError::Dataset { .. } => {
            Ok(error.to_string())
        }
        _ => Err(error).context("cannot check whether the environment serves the data"),
    }
}

fn fail_on(dir: &Path, problems: usize) -> Result<()> {
    if problems == 0 {
        return Ok(());
    }
    let remedy = match data::Manifest::read(dir) {
        Ok(manifest) => manifest.origin.remedy(),
        Err(_) => "correct its files, or fetch them again".to_owned(),
    };
    bail!(
        "{} does not pass ({problems} problems); {remedy}",
        dir.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_the_machine_is_no_fault_of_the_data() {
        let (dataset, reason) = ("a".to_owned(), "has no database".to_owned());
        assert!(refusal(EnvError::Dataset { dataset, reason }).is_ok());
        let problem = "cannot start an SQL thread".to_owned();
        assert!(refusal(EnvError::Overloaded { problem }).is_err());
    }
}
