//! `sqlenv data`.

use std::{ops::RangeInclusive, path::PathBuf};

use clap::{Subcommand, builder::RangedU64ValueParser, value_parser};

use super::{OWN_DATA_DIR, data_dir};
use crate::data_command::{DataFolderArgs, DataImportArgs, DraftArgs};

/// Commands on data.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Generate the project's own databases and questions.
    Build {
        /// Folder to write.
        #[arg(long, value_name = "DIR", default_value = OWN_DATA_DIR)]
        out: PathBuf,
        /// Seed of the generator.
        #[arg(long, default_value_t = data::DEFAULT_SEED)]
        seed: u64,
    },
    /// Make a data folder of your own databases and questions (docs/data.md).
    Import(DataImportArgs),
    /// Verify hashes, look for damage, rerun every gold query, and check that the splits are
    /// disjoint. The exit code is 1 if there is a problem.
    Check(DataFolderArgs),
    /// Count questions by split, level, answer type and database, and look for damage.
    Stats(DataFolderArgs),
    /// List the databases and the number of their questions, or the questions.
    List {
        #[command(flatten)]
        folder: DataFolderArgs,
        /// List id, split, level and text of each question instead.
        #[arg(long)]
        questions: bool,
    },
    /// Generate databases whose schemas are composed of random words.
    Procedural {
        /// Folder to write.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Seed of the generator.
        #[arg(long, default_value_t = data::DEFAULT_SEED)]
        seed: u64,
        /// Databases.
        #[arg(long, default_value_t = 100, value_parser = within(1..=1_000_000))]
        databases: usize,
        /// Questions about each database.
        #[arg(long, default_value_t = 8, value_parser = within(1..=10_000))]
        questions: usize,
        /// Use only words that the training of the base policy never uses.
        #[arg(long)]
        held_out: bool,
        /// Percentage of databases of a declared domain.
        #[arg(long, default_value_t = 0, value_parser = within(0..=100))]
        declared_percent: usize,
        /// Percentage of the other databases whose schema is messy: more tables and columns, names
        /// in several spellings, some of which need quotation marks.
        #[arg(long, default_value_t = 0, value_parser = value_parser!(u64).range(0..=100))]
        messy_percent: u64,
    },
    /// Draft questions about any SQLite databases.
    Draft(DraftArgs),
    /// Train a tokenizer for a small policy on demonstrations of the train split.
    Tokenizer {
        /// The data's folder; default: that of the variable SQLENV_DATA, or the project's own data.
        #[arg(long, value_name = "DIR", default_value_os_t = data_dir())]
        data: PathBuf,
        /// The tokenizer.json to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

fn within(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}
