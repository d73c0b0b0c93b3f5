//! `sqlenv data draft`: drafts questions about any SQLite databases.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use data::{DraftSettings, DraftSource};

use crate::{progress::Progress, stdout};

/// Questions about each database, unless `--count` says otherwise.
const COUNT: usize = 100;

#[derive(Clone, Debug, Parser)]
pub(crate) struct DraftArgs {
    /// Folder to write. An earlier draft is replaced.
    #[arg(value_name = "DIR")]
    out: PathBuf,
    /// SQLite files to draft questions about.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    database: Vec<PathBuf>,
    /// TOML file with words for the tables and columns of one --database; default: NAME.words.toml
    /// beside NAME.sqlite, if it exists.
    #[arg(long, value_name = "FILE")]
    words: Option<PathBuf>,
    /// Seed of all draws.
    #[arg(long, default_value_t = data::DEFAULT_SEED)]
    seed: u64,
    /// Questions about each database, if it has so many.
    #[arg(long, default_value_t = COUNT)]
    count: usize,
    /// SPDX name of the databases' licence, for the manifest.
    #[arg(long, value_name = "NAME", default_value = "NOASSERTION")]
    licence: String,
}

/// Drafts questions and prints what was found and kept.
pub(crate) fn run(args: DraftArgs, progress: &Progress) -> Result<()> {
    if args.count == 0 {
        bail!("--count is 0; ask for at least one question");
    }
    if args.words.is_some() && args.database.len() > 1 {
        bail!(
            "--words is for one --database; put NAME.words.toml beside each NAME.sqlite, or draft \
             one database at a time"
        );
    }
    let databases = args.database.len() as u64;
    let source = |database| DraftSource {
        database,
        words: args.words.clone(),
    };
    let settings = DraftSettings {
        sources: args.database.into_iter().map(source).collect(),
        seed: args.seed,
        count: args.count,
        licence: args.licence,
    };
    let stage = progress.stage("drafting questions", databases, "databases");
    let mut done = 0;
    let report = data::draft(&args.out, &settings, &mut |_| {
        done += 1;
        stage.set(done);
    })?;
    stage.finish(&format!("in {}", args.out.display()));
    stdout::print(report)
}
