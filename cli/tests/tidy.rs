//! The dependency picture of ARCHITECTURE.md, held against the manifests.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

use std::{collections::BTreeSet, fs, path::Path};

/// Crate and the crates of this workspace that it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("data", &[]),
    ("policy", &[]),
    ("env", &["data"]),
    ("env-node", &["data", "env", "proto"]),
    ("actor", &["policy", "proto"]),
    ("baselines", &["actor", "data"]),
    ("learner", &["policy", "proto"]),
    ("report", &["actor"]),
    (
        "bench",
        &[
            "actor", "data", "env", "env-node", "learner", "policy", "proto", "report",
        ],
    ),
    (
        "cli",
        &[
            "actor",
            "baselines",
            "bench",
            "data",
            "env",
            "env-node",
            "learner",
            "policy",
            "proto",
            "report",
        ],
    ),
];

/// Files that must not touch clocks, threads, sockets or the async runtime.
const PURE: &[&str] = &[
    "env/src/episode.rs",
    "env/src/progress.rs",
    "env/src/reward.rs",
    "env/src/verifier.rs",
    "actor/src/rollout.rs",
    "actor/src/tool_call.rs",
    "actor/src/batcher.rs",
    "learner/src/scheduler.rs",
    "learner/src/advantage.rs",
    "learner/src/batch.rs",
    "learner/src/batch/pack.rs",
    "learner/src/loss.rs",
    "learner/src/optimizer.rs",
    "learner/src/optimizer/pass.rs",
    "policy/src/chat.rs",
    "policy/src/gguf/mod.rs",
    "policy/src/gguf/metadata.rs",
    "policy/src/gguf/tensors.rs",
    "policy/src/gguf/text.rs",
    "policy/src/page_tables.rs",
    "policy/src/sampling.rs",
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn workspace_dependencies(name: &str) -> BTreeSet<String> {
    let path = root().join(name).join("Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap();
    dependencies
        .keys()
        .filter(|name| ALLOWED.iter().any(|(known, _)| known == name))
        .cloned()
        .collect()
}

#[test]
fn crates_depend_as_drawn() {
    for (name, allowed) in ALLOWED {
        let allowed: BTreeSet<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        let actual = workspace_dependencies(name);
        assert!(
            actual.is_subset(&allowed),
            "{name} depends on {actual:?}; the picture allows {allowed:?}"
        );
    }
}

#[test]
fn pure_files_stay_pure() {
    for file in PURE {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for banned in [
            "tokio::",
            "tonic::",
            "std::thread",
            "std::time::Instant",
            "std::env",
            "std::fs",
            "std::net",
        ] {
            assert!(!code.contains(banned), "{file} mentions {banned}");
        }
    }
}

/// Tokens are the truth: the learner has nothing to render or tokenise with.
#[test]
fn the_learner_reads_and_writes_no_text() {
    for file in fs::read_dir(root().join("learner/src")).unwrap() {
        let path = file.unwrap().path();
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for banned in ["Chat", ".chat", "tokenizer", "Template", ".render("] {
            let path = path.display();
            assert!(!text.contains(banned), "{path} mentions {banned}");
        }
    }
}
