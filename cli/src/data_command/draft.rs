//! `sqlenv data draft`: drafts questions about any SQLite databases.

use std::path::PathBuf;

use anyhow::Result;
use bench::at_least_one;
use clap::Parser;
use data::{DatabaseSource, DraftSettings};

use crate::{progress::Progress, stdout};

/// Questions about each database, unless `--count` gives another number.
const COUNT: usize = 100;

#[derive(Clone, Debug, Parser)]
pub(crate) struct DraftArgs {
    /// Folder to write. An earlier draft is replaced.
    #[arg(value_name = "DIR")]
    out: PathBuf,
    /// SQLite files to draft questions about.
    #[arg(long, value_name = "[NAME=]FILE", required = true, num_args = 1..)]
    database: Vec<String>,
    /// TOML file with words for the tables and columns of one --database; default: NAME.words.toml
    /// beside NAME.sqlite, if it exists.
    #[arg(long, value_name = "FILE")]
    words: Option<PathBuf>,
    /// Seed of all draws.
    #[arg(long, default_value_t = data::DEFAULT_SEED)]
    seed: u64,
    /// Questions about each database, if it has so many.
    #[arg(long, default_value_t = COUNT, value_parser = at_least_one)]
    count: usize,
    /// SPDX name of the databases' licence, for the manifest.
    #[arg(long, value_name = "NAME", default_value = data::NO_LICENCE)]
    licence: String,
}

/// Drafts questions and prints what was found and kept.
pub(crate) fn run(args: DraftArgs, progress: &Progress) -> Result<()> {
    let sources = args.database.iter().map(|it| DatabaseSource::parse(it));
    let settings = DraftSettings {
        databases: sources.collect::<Result<_, _>>()?,
        words: args.words,
        seed: args.seed,
        count: args.count,
        licence: args.licence,
    };
    // A database may have fewer questions, so the stage ends before its total.
    let count = args.count as u64;
    let total = count.saturating_mul(settings.databases.len() as u64);
    let stage = progress.stage("drafting", total, "questions");
    let report = data::draft(&args.out, &settings, &mut |at| {
        let questions = (at.questions as u64).min(count);
        if settings.databases.len() > 1 {
            stage.note(at.name);
        }
        stage.set(count.saturating_mul(at.databases as u64) + questions);
    })?;
    let questions: usize = report.databases.iter().map(|it| it.questions()).sum();
    stage.set(questions as u64);
    stage.finish(&format!("in {}", args.out.display()));
    stdout::print(report)
}
