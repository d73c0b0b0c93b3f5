//! The program accepts every command line and every setting in `deploy/`.
//!
//! Needs `target/release/sqlenv`, or the program that SQLENV_PROGRAM names.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use deploy_checks::{
    documents, overlays,
    policy::{items, names_cuda, pods},
    render, root, version,
};
use serde_json::{Map, Value, json};

mod slurm;

fn program() -> PathBuf {
    let built = || root().join("target/release/sqlenv");
    let program = env::var_os("SQLENV_PROGRAM").map_or_else(built, PathBuf::from);
    assert!(
        program.exists(),
        "{program:?} is missing; build it: cargo build --release"
    );
    program
}

/// The arguments of a container. The image of env-node brings the first.
fn command_line(image: &str, arguments: &Value) -> Vec<String> {
    let arguments = items(arguments).map(|it| it.as_str().unwrap().to_owned());
    let first = image.contains("env-node").then(|| "env-node".to_owned());
    first.into_iter().chain(arguments).collect()
}

fn run(arguments: &[String]) -> Output {
    Command::new(program()).args(arguments).output().unwrap()
}

/// Checks flags by `--help`, which clap answers once it has read all arguments before it, and
/// settings by a dry run.
fn is_accepted(arguments: &[String], settings: &Path) {
    let help = run(&[arguments, &["--help".to_owned()]].concat());
    let errors = String::from_utf8_lossy(&help.stderr);
    assert!(help.status.success(), "{arguments:?}: {errors}");

    let mut dry = vec!["train".to_owned(), "--dry-run".to_owned()];
    dry.push(format!("--config={}", settings.display()));
    let set = arguments.iter().filter(|it| it.starts_with("--set="));
    // The file with a secret exists only where the role runs.
    let here = |it: &String| match it.split_once("=/run/secrets/") {
        Some((setting, _)) => format!("{setting}={}", settings.display()),
        // A program for the CPU knows the setting, and refuses to run with it.
        None => it.replace("reduce=nccl", "reduce=grpc"),
    };
    dry.extend(set.map(here));
    let dry = run(&dry);
    let errors = String::from_utf8_lossy(&dry.stderr);
    assert!(dry.status.success(), "{arguments:?}: {errors}");
    if arguments[0] != "train" {
        reads_its_settings(arguments, settings);
    }
}

/// Checks that a role reads the settings of its command line: it exits with 2 if it does not, and
/// otherwise with 1, because its secrets are missing here.
fn reads_its_settings(arguments: &[String], settings: &Path) {
    let here = |it: &String| match it.starts_with("--config=") {
        true => format!("--config={}", settings.display()),
        false => it.replace("reduce=nccl", "reduce=grpc"),
    };
    let role = Command::new("timeout")
        .arg("20")
        .arg(program())
        .args(arguments.iter().map(here))
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&role.stderr);
    assert_ne!(role.status.code(), Some(2), "{arguments:?}: {errors}");
}

fn folder() -> PathBuf {
    let folder = env::temp_dir().join(format!("sqlenv-checks-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn the_program_accepts_what_the_overlays_give_it() {
    let mut roles = BTreeSet::new();
    for overlay in overlays() {
        let documents = render(&overlay);
        let settings = folder().join("overlay.toml");
        let config = documents
            .iter()
            .find(|it| it["kind"] == "ConfigMap")
            .unwrap();
        fs::write(&settings, config["data"]["settings.toml"].as_str().unwrap()).unwrap();
        for pod in pods(&documents) {
            for container in pod.containers() {
                let image = container["image"].as_str().unwrap();
                let arguments = command_line(image, &container["args"]);
                is_accepted(&arguments, &settings);
                roles.insert(arguments[0].clone());
            }
        }
    }
    let expected = ["actor", "env-node", "learner", "rank", "train"];
    assert_eq!(roles, expected.map(str::to_owned).into());
}

/// The services of a compose file, with the default version of the images.
fn services(file: &str) -> Map<String, Value> {
    let text = fs::read_to_string(root().join("deploy").join(file)).unwrap();
    let documents = documents(
        &text
            .replace("${SQLENV_VERSION:-", "")
            .replace("0.1.0}", "0.1.0"),
    );
    documents[0]["services"].as_object().unwrap().clone()
}

#[test]
fn the_program_accepts_what_the_compose_files_give_it() {
    let settings = root().join("deploy/settings.toml");
    let mut checked = 0;
    for file in ["compose.yaml", "compose.gpu.yaml", "compose.gpus.yaml"] {
        for (name, service) in services(file) {
            let image = service["image"].as_str().unwrap();
            if image.starts_with("docker.io/") {
                continue;
            }
            assert!(image.ends_with(&version()), "{file}, {name}: {image}");
            is_accepted(&command_line(image, &service["command"]), &settings);
            checked += 1;
        }
    }
    assert_eq!(checked, 3 + 2 + 4);
}

/// Compose replaces a command as a whole, so the files with GPUs repeat those of `compose.yaml`.
#[test]
fn services_with_a_gpu_compute_on_it_and_keep_their_arguments() {
    let without_gpus = services("compose.yaml");
    for file in ["compose.gpu.yaml", "compose.gpus.yaml"] {
        for (name, service) in services(file) {
            let devices = &service["deploy"]["resources"]["reservations"]["devices"];
            assert_eq!(devices[0]["driver"], json!("nvidia"), "{file}, {name}");
            let command = &service["command"];
            assert!(names_cuda(command), "{file}, {name} names no device");
            let role = name.trim_end_matches("-2");
            let arguments = without_gpus.get(role).map(|it| &it["command"]);
            for argument in arguments.into_iter().flat_map(items) {
                let is_kept = items(command).any(|it| it == argument);
                assert!(is_kept, "{file}, {name} has no {argument}");
            }
        }
    }
}

#[test]
fn a_wrong_flag_and_a_wrong_setting_are_rejected() {
    let settings = root().join("deploy/settings.toml");
    for wrong in [
        "--learnr=http://a:1",
        "--set=learner.stepz=3",
        "--set=learner.steps=3",
    ] {
        let addresses = ["--env=http://127.0.0.1:1", "--learner=http://127.0.0.1:1"];
        let arguments = [&["actor"], &addresses[..], &[wrong]].concat();
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let accepted = std::panic::catch_unwind(|| is_accepted(&arguments, &settings));
        assert!(accepted.is_err(), "{wrong}");
    }
}

#[test]
fn copies_are_equal() {
    let read = |folder: &str| {
        let folder = root().join("deploy/kubernetes").join(folder);
        fs::read_to_string(folder.join("namespace.yaml")).unwrap()
    };
    assert_eq!(read("base"), read("overlays/one-gpu"));
}
