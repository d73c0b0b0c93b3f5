//! Checks that start other programs: this program, compute-sanitizer, Python.

use std::{
    env,
    io::{ErrorKind, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    args::Check,
    report::Measurement,
    speed::{self, FirstToken},
    target::{CheckTarget, Skipped, ordinal},
};
use crate::policy::throughput::{Throughput, now};

/// The script that runs the benchmarks of `sqlenv bench policy` in torch. The binary contains it,
/// so that no other file is needed.
const TORCH: &str = include_str!("../../../python/benchmarks/torch_policy.py");
const TORCH_LIMIT: Duration = Duration::from_secs(600);
const SANITIZER_LIMIT: Duration = Duration::from_secs(600);
const START_LIMIT: Duration = Duration::from_secs(300);

/// Exit code of compute-sanitizer if it finds errors. No check ends with this code itself.
const SANITIZER_ERRORS: i32 = 99;

/// Checks that launch every kind of kernel and are short enough for a sanitizer.
const SANITIZED: [Check; 7] = [
    Check::Forward,
    Check::Gradients,
    Check::Bf16,
    Check::Cache,
    Check::Engine,
    Check::Sampling,
    Check::Update,
];

/// Runs some checks under compute-sanitizer.
pub(super) fn sanitizer(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    if target.device.is_cpu() {
        return skip("the checks run on the CPU");
    }
    let mut version = Command::new("compute-sanitizer");
    if version.arg("--version").output().is_err() {
        return skip("there is no compute-sanitizer on the PATH");
    }
    // The report of the checks under the sanitizer is not needed.
    let folder = tempfile::tempdir()?;
    let mut command = Command::new("compute-sanitizer");
    command
        .args(["--tool", "memcheck", "--error-exitcode"])
        .arg(SANITIZER_ERRORS.to_string())
        .arg(env::current_exe()?)
        .args(["gpu-check", "--device", &target.args.device.to_string()])
        .args(["--only", &SANITIZED.map(Check::name).join(",")])
        .arg("--out")
        .arg(folder.path());
    let output = output(command, "", SANITIZER_LIMIT)?;
    if text(&output.stdout).contains("Device not supported") {
        return skip("compute-sanitizer does not support this device");
    }
    sanitizer_errors(&output)
}

/// Returns the number of errors that compute-sanitizer counts. It is valid only if the checks
/// passed.
fn sanitizer_errors(output: &Output) -> Result<Vec<Measurement>> {
    let printed = text(&output.stdout);
    let line_with = |word: &str| printed.lines().find(|line| line.contains(word));
    if !matches!(output.status.code(), Some(0 | SANITIZER_ERRORS)) {
        let end = last_lines(&format!("{printed}\n{}", text(&output.stderr)));
        let reason = line_with("FAILED").unwrap_or(&end);
        bail!("compute-sanitizer ended with {}: {reason}", output.status);
    }
    let summary = line_with("ERROR SUMMARY").with_context(|| {
        let end = last_lines(&printed);
        format!("compute-sanitizer gives no summary: {end}")
    })?;
    let errors = summary
        .split_whitespace()
        .find_map(|word| word.parse().ok());
    let errors: f64 = errors.with_context(|| format!("no number in {summary:?}"))?;
    Ok(vec![Measurement::within(0.0, "errors", errors)])
}

/// Measures the time from the start of a process to its first token.
pub(super) fn start_up(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let args = target.args;
    let mut command = Command::new(env::current_exe()?);
    command.args(["gpu-check", "--first-token"]);
    command.args(["--device", &args.device.to_string()]);
    command.args(["--shape", &target.shape.to_string()]);
    command.args(["--tokens", &args.tokens.to_string()]);
    let start = now();
    let output = run(command, "", START_LIMIT)?;
    let all = start.elapsed().as_secs_f64();
    let first: FirstToken =
        serde_json::from_str(output.trim()).with_context(|| last_lines(&output))?;
    let seconds = |name: &str, value| Measurement::new(name, value, "s");
    let modules =
        |how: &str, count: u32| Measurement::new(format!("kernel modules {how}"), count.into(), "");
    Ok(vec![
        seconds("process start to first token", all - first.weights),
        seconds("of these, device and weights", first.engine),
        seconds("of these, the first token", first.token),
        modules("loaded as machine code", first.carried_modules),
        modules("that the driver compiled", first.compiled_modules),
    ])
}

/// Measures torch and transformers by the Python script; `parts` are its benchmarks.
pub(super) fn torch(target: &CheckTarget<'_>, parts: &str) -> Result<Vec<Measurement>> {
    let device = if target.device.is_cpu() {
        "cpu"
    } else {
        "cuda"
    };
    const HAS_CUDA: &str = "import torch, transformers; print(torch.cuda.is_available())";
    let installed = Command::new("python3").args(["-c", HAS_CUDA]).output();
    let has_cuda = match installed {
        Ok(output) if output.status.success() => text(&output.stdout),
        _ => return skip("there is no python3 with torch and transformers"),
    };
    if device == "cuda" && has_cuda.trim() != "True" {
        return skip("the torch of python3 sees no CUDA device");
    }
    let args = target.args;
    let rows: Vec<String> = args.rows.iter().map(ToString::to_string).collect();
    let mut command = Command::new("python3");
    if let Some(ordinal) = ordinal(args.device) {
        let ours = env::var_os("CUDA_VISIBLE_DEVICES").and_then(|ours| ours.into_string().ok());
        command.env("CUDA_VISIBLE_DEVICES", visible(ours.as_deref(), ordinal));
    }
    command.args(["-", "--device", device]);
    command.args(["--shapes", &target.shape.to_string()]);
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
    let table = run(command, TORCH, TORCH_LIMIT)?;
    let measurements = speed::measurements(throughputs(&table), target.memory());
    ensure!(
        !measurements.is_empty(),
        "the script printed no measurement"
    );
    Ok(measurements)
}

/// Returns `CUDA_VISIBLE_DEVICES` for a child that must see only the device `ordinal` of this
/// process.
fn visible(ours: Option<&str>, ordinal: usize) -> String {
    let device = ours.and_then(|ours| ours.split(',').nth(ordinal));
    device.map_or_else(|| ordinal.to_string(), |device| device.trim().to_owned())
}

/// Reads the table of the script, whose columns are those of `sqlenv bench policy`.
fn throughputs(table: &str) -> impl Iterator<Item = Throughput> {
    table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, _, what, rows, tokens, speed, peak, ..] = cells[..] else {
            return None;
        };
        Some(Throughput {
            what: format!("torch: {what}"),
            rows: rows.parse().ok()?,
            row_tokens: tokens.parse().ok()?,
            tokens_per_second: speed.parse().ok()?,
            peak_mib: peak.parse().ok(),
            time_shares: String::new(),
        })
    })
}

fn skip(reason: &str) -> Result<Vec<Measurement>> {
    Err(Skipped(reason.to_owned()).into())
}

/// Runs a program that has to succeed and returns what it printed.
pub(super) fn run(command: Command, input: &str, limit: Duration) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = output(command, input, limit)?;
    ensure!(
        output.status.success(),
        "{name} ended with {}: {}",
        output.status,
        last_lines(&text(&output.stderr))
    );
    Ok(text(&output.stdout))
}

/// Runs a program until it and all processes that hold its pipes have ended. Kills them at the
/// limit, and when this process ends, if there is a shell.
fn output(mut command: Command, input: &str, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let group = ProcessGroup::led_by("/bin/sh")?;
    command
        .process_group(group.id())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .with_context(|| format!("{name} does not read its input"))?;
    }
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    if let Ok(output) = receiver.recv_timeout(limit) {
        group.release();
        return Ok(output?);
    }
    let is_killed = group.leader.is_some();
    drop(group);
    let end = match is_killed {
        true => last_lines(&text(&receiver.recv()??.stderr)),
        false => "it goes on, since there is no shell that could kill it".to_owned(),
    };
    bail!("{name} did not end within {} s: {end}", limit.as_secs());
}

/// A group of processes: a program with everything that it starts. It is killed when this value is
/// dropped, and when this process ends in any way, such as by a signal.
struct ProcessGroup {
    /// A shell that kills its group, itself included, at the end of its input. It has the other end
    /// of this input's pipe, which the system closes with this process. None in an image without a
    /// shell, whose processes end with its first one.
    leader: Option<Child>,
}

impl ProcessGroup {
    fn led_by(shell: &str) -> Result<Self> {
        let mut command = Command::new(shell);
        command
            .args(["-c", "read line || kill -KILL 0"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let leader = match command.spawn() {
            Ok(leader) => Some(leader),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("cannot start {shell}")),
        };
        Ok(Self { leader })
    }

    /// Returns the group to start a program in. 0 is a group of its own.
    fn id(&self) -> i32 {
        self.leader.as_ref().map_or(0, |leader| leader.id() as i32)
    }

    /// Ends the shell alone.
    fn release(mut self) {
        let input = self.leader.as_mut().and_then(|it| it.stdin.as_mut());
        if let Some(input) = input {
            // This fails if the program has killed its group.
            let _ = input.write_all(b"\n");
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = &mut self.leader {
            // This closes the shell's input first.
            let _ = leader.wait();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the last three lines of an output.
fn last_lines(text: &str) -> String {
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines.drain(..lines.len().saturating_sub(3));
    lines.join(" / ")
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_failure_and_timeout_of_a_program_are_reported() {
        let limit = Duration::from_secs(20);
        assert_eq!(run(shell("cat; echo b"), "a\n", limit).unwrap(), "a\nb\n");
        let error = run(shell("echo why >&2; exit 3"), "", limit).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
        let error = run(shell("exec sleep 60"), "", Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
    }

    /// The project's images have none.
    #[test]
    fn a_machine_without_a_shell_has_no_leader_of_a_group() {
        let group = ProcessGroup::led_by("/no/such/shell").unwrap();
        assert!(group.leader.is_none());
        assert_eq!(group.id(), 0, "a group of its own");
        group.release();
    }

    #[test]
    fn children_of_a_program_are_killed_with_it() {
        for script in ["sleep 60 & wait", "sleep 60 & exit 0"] {
            let start = now();
            let error = run(shell(script), "", Duration::from_millis(200)).unwrap_err();
            assert!(error.to_string().contains("did not end"), "{error}");
            assert!(start.elapsed() < Duration::from_secs(30), "{script}");
        }
    }

    #[test]
    fn the_error_count_is_valid_only_if_the_checks_passed() {
        let ended = |code: i32, errors: i32| Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: format!("cache      FAILED  1.0 s: why\n== ERROR SUMMARY: {errors} errors\n")
                .into_bytes(),
            stderr: Vec::new(),
        };
        let measurement = |errors| [Measurement::within(0.0, "errors", errors)];
        assert_eq!(sanitizer_errors(&ended(0, 0)).unwrap(), measurement(0.0));
        assert_eq!(sanitizer_errors(&ended(99, 2)).unwrap(), measurement(2.0));
        let error = sanitizer_errors(&ended(1, 0)).unwrap_err();
        assert!(error.to_string().contains("1.0 s: why"), "{error}");
    }

    #[test]
    fn a_child_sees_the_device_of_this_process() {
        assert_eq!(visible(None, 1), "1");
        assert_eq!(visible(Some("2, 3"), 1), "3");
    }

    #[test]
    fn the_table_of_the_script_is_read() {
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
        assert_eq!(speed::measurements(throughputs(table), "memory"), expected);
    }
}
