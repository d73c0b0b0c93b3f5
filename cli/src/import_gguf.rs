//! `sqlenv import-gguf`: converts a GGUF file to a Hugging Face model folder.

use anyhow::{Context as _, Result};
use policy::{Model, gguf, regular_file};

use crate::{args::ImportGgufArgs, stdout};

/// Runs the command.
pub(crate) fn import_gguf(args: &ImportGgufArgs) -> Result<()> {
    Model::check_target(&args.out)?;
    let read = || anyhow::Ok(gguf::read(&regular_file::read(&args.file, u64::MAX)?)?);
    let model = read().with_context(|| format!("cannot import {}", args.file.display()))?;
    model.save(&args.out)?;
    stdout::print(format_args!(
        "{}: {} parameters, vocabulary {}\n",
        args.out.display(),
        model.config.parameters(),
        model.config.vocab_size
    ))?;
    Ok(())
}
