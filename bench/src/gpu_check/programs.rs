//! Checks that start other programs: this one again, compute-sanitizer, Python.

use std::{
    env,
    io::{Read, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{CheckTarget, Skipped, args::Check, ordinal, report::Measurement, speed::FirstToken};
use crate::policy::now;

/// The peer of `sqlenv bench policy`, carried so that no other file is needed.
const TORCH: &str = include_str!("../../../python/benchmarks/torch_policy.py");
const TORCH_LIMIT: Duration = Duration::from_secs(600);
const SANITIZER_LIMIT: Duration = Duration::from_secs(600);
const START_LIMIT: Duration = Duration::from_secs(300);

/// What compute-sanitizer is told to end with where it finds errors; the checks themselves never do.
const SANITIZER_ERRORS: i32 = 99;

/// Checks that launch every kind of kernel, draws and AdamW's included, and no more work than a sanitizer can bear.
const SANITIZED: [Check; 5] = [
    Check::Forward,
    Check::Gradients,
    Check::Cache,
    Check::Engine,
    Check::Update,
];

pub(super) fn sanitizer(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    if target.device.is_cpu() {
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
    command.args([
        "--tool",
        "memcheck",
        "--error-exitcode",
        &SANITIZER_ERRORS.to_string(),
    ]);
    command
        .arg(env::current_exe()?)
        .args(["gpu-check", "--device"]);
    command.arg(target.args.device.to_string());
    command
        .args(["--only", &SANITIZED.map(Check::name).join(",")])
        .arg("--out")
        .arg(&folder);
    let said = listen(command, "", SANITIZER_LIMIT)?;
    // What it leaves is a report that nobody reads.
    let _ = std::fs::remove_dir_all(&folder);
    if said.printed.contains("Device not supported") {
        return skip("compute-sanitizer does not support this device");
    }
    sanitizer_errors(&said)
}

/// How many errors compute-sanitizer counts; no count stands where the checks under it did not pass.
fn sanitizer_errors(said: &Ended) -> Result<Vec<Measurement>> {
    let Ended {
        status, printed, ..
    } = said;
    let has_failed = |line: &&str| line.contains("FAILED");
    ensure!(
        matches!(status.code(), Some(0 | SANITIZER_ERRORS)),
        "compute-sanitizer ended with {status}: {}",
        printed.lines().find(has_failed).map_or_else(
            || end(&[printed.as_str(), &said.complained].join("\n")),
            str::to_owned
        )
    );
    let summary = printed.lines().find(|line| line.contains("ERROR SUMMARY"));
    let summary =
        summary.with_context(|| format!("compute-sanitizer gives no summary: {}", end(printed)))?;
    let errors = summary
        .split_whitespace()
        .find_map(|word| word.parse().ok());
    let errors: f64 = errors.with_context(|| format!("no number in {summary:?}"))?;
    Ok(vec![Measurement::within(0.0, "errors", errors)])
}

pub(super) fn start_up(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let args = target.args;
    let mut command = Command::new(env::current_exe()?);
    command.args([
        "gpu-check",
        "--first-token",
        "--device",
        &args.device.to_string(),
    ]);
    command.args([
        "--shape",
        &target.shape.to_string(),
        "--tokens",
        &args.tokens.to_string(),
    ]);
    let begun = now();
    let said = run(command, "", START_LIMIT)?;
    let all = begun.elapsed().as_secs_f64();
    let first: FirstToken = serde_json::from_str(said.trim()).with_context(|| end(&said))?;
    Ok(vec![
        Measurement::new("process start to first token", all - first.weights, "s"),
        Measurement::new("of these, device and weights", first.engine, "s"),
        Measurement::new("of these, the first token", first.token, "s"),
        Measurement::new(
            "modules of kernels loaded as machine code",
            first.carried_modules.into(),
            "",
        ),
        Measurement::new(
            "modules of kernels that the driver compiled",
            first.compiled_modules.into(),
            "",
        ),
    ])
}

/// The parts that torch and transformers are measured in.
pub(super) fn torch(target: &CheckTarget<'_>, parts: &str) -> Result<Vec<Measurement>> {
    let device = if target.device.is_cpu() {
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
    let args = target.args;
    let rows: Vec<String> = args.rows.iter().map(ToString::to_string).collect();
    let mut command = Command::new("python3");
    if let Some(ordinal) = ordinal(args.device) {
        let ours = env::var_os("CUDA_VISIBLE_DEVICES").and_then(|ours| ours.into_string().ok());
        command.env("CUDA_VISIBLE_DEVICES", visible(ours.as_deref(), ordinal));
    }
    command.args([
        "-",
        "--device",
        device,
        "--shapes",
        &target.shape.to_string(),
    ]);
    command.args(["--parts", parts, "--rows", &rows.join(",")]);
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
    let measurements = measurements(&run(command, TORCH, TORCH_LIMIT)?, target.memory());
    ensure!(
        !measurements.is_empty(),
        "the script printed no measurement"
    );
    Ok(measurements)
}

/// `CUDA_VISIBLE_DEVICES` of a child that shall see but one device: it counts among those that this process sees.
fn visible(ours: Option<&str>, ordinal: usize) -> String {
    let device = ours.and_then(|ours| ours.split(',').nth(ordinal));
    device.map_or_else(|| ordinal.to_string(), |device| device.trim().to_owned())
}

/// The rows of the script's table: shape, parameters, what, rows, tokens a row, tokens a second, peak of `memory`, ...
fn measurements(table: &str, memory: &str) -> Vec<Measurement> {
    let measurements = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, _, what, rows, tokens, speed, peak, ..] = cells[..] else {
            return None;
        };
        let name = format!("torch: {what}, {rows} rows of {tokens} tokens");
        let speed = Measurement::new(&name, speed.parse().ok()?, "tokens/s");
        let peak: Option<f64> = peak.parse().ok();
        let peak =
            peak.map(|peak| Measurement::new(format!("{name}, peak of {memory}"), peak, "MiB"));
        Some([Some(speed), peak])
    };
    let lines = table.lines().filter_map(measurements);
    lines.flatten().flatten().collect()
}

fn skip(reason: &str) -> Result<Vec<Measurement>> {
    Err(Skipped(reason.to_owned()).into())
}

/// How a program ended, and what it said.
struct Ended {
    status: ExitStatus,
    printed: String,
    complained: String,
}

/// Runs a program that has to succeed and answers with what it printed.
pub(super) fn run(command: Command, input: &str, limit: Duration) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = listen(command, input, limit)?;
    ensure!(
        ended.status.success(),
        "{name} ended with {}: {}",
        ended.status,
        end(&ended.complained)
    );
    Ok(ended.printed)
}

/// Runs a program to its end, in a group of processes of its own.
fn listen(mut command: Command, input: &str, limit: Duration) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .process_group(0)
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
    let ended = wait(&mut child, [&printed, &complained], limit);
    let (printed, complained) = (joined(printed), joined(complained));
    if !ended? {
        bail!(
            "{name} did not end within {} s: {}",
            limit.as_secs(),
            end(&complained)
        );
    }
    Ok(Ended {
        status: child.wait()?,
        printed,
        complained,
    })
}

type Reader = thread::JoinHandle<Vec<u8>>;

fn reader(pipe: Option<impl Read + Send + 'static>) -> Reader {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is worth telling.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn joined(reader: Reader) -> String {
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

/// Whether the child, and whoever else holds its pipes, ended in time; else they are killed.
fn wait(child: &mut Child, readers: [&Reader; 2], limit: Duration) -> Result<bool> {
    let begun = now();
    while begun.elapsed() < limit {
        if child.try_wait()?.is_some() && readers.iter().all(|reader| reader.is_finished()) {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(20));
    }
    kill(child)?;
    Ok(false)
}

/// Kills the child's whole group: what it started may hold its pipes.
fn kill(child: &mut Child) -> Result<()> {
    let group = format!("-{}", child.id());
    // Where there is no `kill`, the child itself at least ends.
    let _ = Command::new("kill").args(["-KILL", "--", &group]).output();
    child.kill()?;
    child.wait()?;
    Ok(())
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
    use std::os::unix::process::ExitStatusExt as _;

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
    fn what_a_program_started_is_stopped_with_it() {
        for script in ["sleep 60 & wait", "sleep 60 & exit 0"] {
            let begun = now();
            let error = run(shell(script), "", Duration::from_millis(200)).unwrap_err();
            assert!(error.to_string().contains("did not end"), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(30), "{script}");
        }
    }

    #[test]
    fn a_sanitizers_count_stands_only_where_the_checks_passed() {
        let ended = |code: i32, errors: i32| Ended {
            status: ExitStatus::from_raw(code << 8),
            printed: format!("cache      FAILED  1.0 s: why\n== ERROR SUMMARY: {errors} errors\n"),
            complained: String::new(),
        };
        let measurement = |errors| [Measurement::within(0.0, "errors", errors)];
        assert_eq!(sanitizer_errors(&ended(0, 0)).unwrap(), measurement(0.0));
        assert_eq!(sanitizer_errors(&ended(99, 2)).unwrap(), measurement(2.0));
        let error = sanitizer_errors(&ended(1, 0)).unwrap_err();
        assert!(error.to_string().contains("1.0 s: why"), "{error}");
    }

    #[test]
    fn a_child_sees_the_device_that_this_process_means() {
        assert_eq!(visible(None, 1), "1");
        assert_eq!(visible(Some("2, 3"), 1), "3");
    }

    #[test]
    fn the_peers_table_is_read() {
        let table = "| shape | parameters | what | rows | tokens a row | tokens/s | peak MiB | time goes to |\n\
                     |---|---|---|---|---|---|---|---|\n\
                     | tiny | 3.53 M | sampler | 8 | 64 | 1234 | n/a |  |\n\
                     | tiny | 3.53 M | learner | 8 | 64 | 1234 | 56 |  |\n";
        let speed = |name: &str| Measurement::new(name, 1_234.0, "tokens/s");
        let expected = [
            speed("torch: sampler, 8 rows of 64 tokens"),
            speed("torch: learner, 8 rows of 64 tokens"),
            Measurement::new(
                "torch: learner, 8 rows of 64 tokens, peak of memory",
                56.0,
                "MiB",
            ),
        ];
        assert_eq!(measurements(table, "memory"), expected);
    }
}
