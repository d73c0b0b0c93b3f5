//! Checks that start other programs: this one again, compute-sanitizer, Python.

use std::{
    env,
    io::{Read, Write as _},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Skipped, Subject, args::Check, report::Figure, speed::FirstToken};
use crate::bench::policy::now;

/// The peer of `sqlenv bench policy`, carried so that no other file is needed.
const TORCH: &str = include_str!("../../../python/benchmarks/torch_policy.py");
const TORCH_LIMIT: Duration = Duration::from_secs(600);
const SANITIZER_LIMIT: Duration = Duration::from_secs(600);
const START_LIMIT: Duration = Duration::from_secs(300);

/// Checks that launch every kind of kernel, and no more work than a sanitizer can bear.
const SANITIZED: [Check; 3] = [Check::Forward, Check::Gradients, Check::Cache];

pub(super) fn sanitizer(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    if subject.device.is_cpu() {
        return skip("the checks run on the CPU");
    }
    if Command::new("compute-sanitizer")
        .arg("--version")
        .output()
        .is_err()
    {
        return skip("there is no compute-sanitizer on the PATH");
    }
    let folder = env::temp_dir().join(format!("sqlenv-sanitizer-{}", std::process::id()));
    let mut command = Command::new("compute-sanitizer");
    command.args(["--tool", "memcheck", "--error-exitcode", "99"]);
    command
        .arg(env::current_exe()?)
        .args(["gpu-check", "--device"]);
    command.arg(subject.args.device.to_string());
    command
        .args(["--only", &SANITIZED.map(Check::name).join(",")])
        .arg("--out")
        .arg(&folder);
    let said = run(command, "", SANITIZER_LIMIT)?;
    // What it leaves is a report that nobody reads.
    let _ = std::fs::remove_dir_all(&folder);
    if said.contains("Device not supported") {
        return skip("compute-sanitizer does not support this device");
    }
    let summary = said.lines().find(|line| line.contains("ERROR SUMMARY"));
    let summary =
        summary.with_context(|| format!("compute-sanitizer gives no summary: {}", end(&said)))?;
    let errors = summary
        .split_whitespace()
        .find_map(|word| word.parse().ok());
    let errors: f64 = errors.with_context(|| format!("no number in {summary:?}"))?;
    Ok(vec![Figure::within(0.0, "errors", errors)])
}

pub(super) fn start_up(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    let args = subject.args;
    let mut command = Command::new(env::current_exe()?);
    command.args([
        "gpu-check",
        "--first-token",
        "--device",
        &args.device.to_string(),
    ]);
    command.args([
        "--shape",
        &subject.shape.to_string(),
        "--tokens",
        &args.tokens.to_string(),
    ]);
    let begun = now();
    let said = run(command, "", START_LIMIT)?;
    let all = begun.elapsed().as_secs_f64();
    let first: FirstToken = serde_json::from_str(said.trim()).with_context(|| end(&said))?;
    Ok(vec![
        Figure::of("process start to first token", all - first.weights, "s"),
        Figure::of("of these, device and weights", first.engine, "s"),
        Figure::of("of these, the first token", first.token, "s"),
    ])
}

pub(super) fn torch(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    let device = if subject.device.is_cpu() {
        "cpu"
    } else {
        "cuda"
    };
    let mut probe = Command::new("python3");
    probe.args([
        "-c",
        "import torch, transformers; print(torch.cuda.is_available())",
    ]);
    let can = match probe.output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        _ => return skip("there is no python3 with torch and transformers"),
    };
    if device == "cuda" && can.trim() != "True" {
        return skip("python3's torch sees no CUDA device");
    }
    let args = subject.args;
    let rows: Vec<String> = args.rows.iter().map(ToString::to_string).collect();
    let mut command = Command::new("python3");
    command.args([
        "-",
        "--device",
        device,
        "--shapes",
        &subject.shape.to_string(),
    ]);
    command.args(["--parts", "sampler,learner", "--rows", &rows.join(",")]);
    for (flag, value) in [
        ("--prompt-tokens", args.tokens),
        ("--new-tokens", args.tokens),
        ("--learner-rows", args.learner_rows),
        ("--learner-tokens", args.learner_tokens),
        ("--micro-batch-tokens", args.micro_batch_tokens),
        ("--repeats", args.repeats),
    ] {
        command.args([flag, &value.to_string()]);
    }
    let figures = figures(&run(command, TORCH, TORCH_LIMIT)?);
    ensure!(!figures.is_empty(), "the script printed no figure");
    Ok(figures)
}

/// The rows of the script's table: shape, parameters, what, rows, tokens a row, tokens a second, ...
fn figures(table: &str) -> Vec<Figure> {
    let figure = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, _, what, rows, tokens, speed, ..] = cells[..] else {
            return None;
        };
        let name = format!("torch: {what}, {rows} rows of {tokens} tokens");
        Some(Figure::of(name, speed.parse().ok()?, "tokens/s"))
    };
    table.lines().filter_map(figure).collect()
}

fn skip(reason: &str) -> Result<Vec<Figure>> {
    Err(Skipped(reason.to_owned()).into())
}

/// Runs a program to its end and answers with what it printed.
fn run(mut command: Command, input: &str, limit: Duration) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .with_context(|| format!("{name} does not read"))?;
    }
    let (printed, complained) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let ended = wait(&mut child, limit);
    let (printed, complained) = (joined(printed), joined(complained));
    if !ended? {
        bail!(
            "{name} did not end within {} s: {}",
            limit.as_secs(),
            end(&complained)
        );
    }
    let status = child.wait()?;
    ensure!(
        status.success() || printed.contains("ERROR SUMMARY"),
        "{name} ended with {status}: {}",
        end(&complained)
    );
    Ok(printed)
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is worth telling.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn joined(reader: thread::JoinHandle<Vec<u8>>) -> String {
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

/// Whether the child ended in time; else it is killed.
fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    let begun = now();
    while begun.elapsed() < limit {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    Ok(false)
}

/// The last words of an output.
fn end(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_is_heard_refused_and_stopped() {
        let limit = Duration::from_secs(20);
        assert_eq!(run(shell("cat; echo b"), "a\n", limit).unwrap(), "a\nb\n");
        let error = run(shell("echo why >&2; exit 3"), "", limit).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
        let error = run(shell("exec sleep 60"), "", Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
    }

    #[test]
    fn the_peers_table_is_read() {
        let table = "| shape | parameters | what | rows | tokens a row | tokens/s | peak MiB | time goes to |\n\
                     |---|---|---|---|---|---|---|---|\n\
                     | tiny | 3.53 M | sampler | 8 | 64 | 1234 | n/a |  |\n";
        let expected = Figure::of("torch: sampler, 8 rows of 64 tokens", 1_234.0, "tokens/s");
        assert_eq!(figures(table), [expected]);
    }
}
