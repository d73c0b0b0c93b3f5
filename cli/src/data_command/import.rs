//! `sqlenv data import`: makes a data folder of a user's databases and questions.

use std::{collections::BTreeSet, fmt::Write as _, path::PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use data::{DatabaseSource, Dataset, ImportReport, ImportRequest};

use super::check::{check_left_out, refusal_of_environment, write_left_out};
use crate::{progress::Progress, stdout};

/// The number of left-out records that are shown.
const SHOWN_LEFT_OUT: usize = 5;

#[derive(Clone, Debug, Parser)]
pub(crate) struct DataImportArgs {
    /// Folder to write; an earlier import is replaced.
    out: PathBuf,
    /// Databases: SQLite files, SQL dumps of SQLite (.sql), folders of CSV files, DuckDB files (by
    /// the program duckdb), or postgresql://HOST/DATABASE (by the program psql).
    #[arg(long = "database", value_name = "[NAME=]PLACE", num_args = 1.., required = true)]
    databases: Vec<String>,
    /// Questions: CSV, JSON or JSON lines, with at least question and SQL.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    questions: Vec<PathBuf>,
    /// Seed of the splits.
    #[arg(long, default_value_t = data::DEFAULT_SEED)]
    seed: u64,
    /// Databases whose questions are all held out (eval-unseen), separated by commas, or `none`;
    /// default: one in five, from three databases on.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    held_out: Option<Vec<String>>,
    /// SPDX name of the data's licence, for the manifest.
    #[arg(long, value_name = "NAME")]
    licence: Option<String>,
    /// Write each record that is left out as one JSON line. docs/data.md lists its fields.
    #[arg(long, value_name = "FILE")]
    left_out: Option<PathBuf>,
}

/// Imports databases and questions.
pub(crate) fn import(args: &DataImportArgs, progress: &Progress) -> Result<()> {
    check_left_out(args.left_out.as_deref())?;
    let held_out = args.held_out.as_deref().map(|names| match names {
        [none] if none == "none" => BTreeSet::new(),
        names => names.iter().cloned().collect(),
    });
    let sources = args.databases.iter().map(|it| DatabaseSource::parse(it));
    let request = ImportRequest {
        databases: sources.collect::<Result<_, _>>()?,
        questions: args.questions.clone(),
        seed: args.seed,
        held_out,
        licence: args.licence.clone(),
    };
    let total = request.databases.len() as u64;
    let stage = progress.stage("importing", total, "databases");
    let mut done = 0;
    let report = data::import(&args.out, &request, &mut |_| {
        stage.set(done);
        done += 1;
    })?;
    stage.set(total);
    stage.finish(&format!("in {}", args.out.display()));
    write_left_out(args.left_out.as_deref(), &report.left_out)?;
    stdout::print(description(&report)?)?;
    let dataset = Dataset::open_with_or_without_questions(&args.out, None)?;
    if report.manifest.questions.is_empty() {
        progress.print(
            "no questions yet; import some with --questions FILE, or draft them with `sqlenv data \
             draft`",
        );
    } else {
        stdout::print(data::stats(&dataset))?;
    }
    if let Some(refusal) = refusal_of_environment(dataset)? {
        bail!(
            "{} is imported, but agents cannot use it: {refusal}",
            args.out.display()
        );
    }
    Ok(())
}

/// Describes what was imported and what was not.
fn description(report: &ImportReport) -> Result<String> {
    let mut text = String::new();
    for database in &report.databases {
        let (name, kind) = (&database.name, database.kind.name());
        let (tables, views, rows) = (database.tables, database.views, database.rows);
        writeln!(
            text,
            "{name}: {kind}, {tables} tables, {views} views, {rows} rows"
        )?;
        for note in &database.notes {
            writeln!(text, "  {note}")?;
        }
    }
    for (file, fields) in &report.unused_fields {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        writeln!(text, "{file}: fields without a use: {}", fields.join(", "))?;
    }
    let left_out = &report.left_out;
    if !left_out.is_empty() {
        writeln!(text, "{} records left out:", left_out.len())?;
    }
    for record in left_out.iter().take(SHOWN_LEFT_OUT) {
        writeln!(text, "  {record}")?;
    }
    if left_out.len() > SHOWN_LEFT_OUT {
        let others = left_out.len() - SHOWN_LEFT_OUT;
        writeln!(text, "  and {others} more; --left-out FILE writes all")?;
    }
    text.push('\n');
    Ok(text)
}
