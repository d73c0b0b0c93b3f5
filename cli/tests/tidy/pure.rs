//! Checks that pure files are deterministic functions of their arguments.

use crate::{SourceFile, imports, sources};

/// The pure modules. A module is its file or its folder.
const PURE: [&str; 54] = [
    "actor/src/batcher",
    "actor/src/context",
    "actor/src/rollout",
    "actor/src/slots",
    "actor/src/tool_call",
    "baselines/src/transcripts",
    "data/src/draft/columns",
    "data/src/draft/counts",
    "data/src/draft/dictionary",
    "data/src/draft/kind",
    "data/src/draft/labels",
    "data/src/draft/names",
    "data/src/draft/questions",
    "data/src/draft/schema",
    "data/src/draft/statistics",
    "data/src/draft/table_nouns",
    "data/src/draft/word_file",
    "data/src/generator/binding",
    "data/src/generator/domain",
    "data/src/generator/filter",
    "data/src/generator/render",
    "data/src/generator/rng",
    "data/src/generator/rows",
    "data/src/generator/schema",
    "data/src/generator/template",
    "data/src/import/column_type",
    "data/src/import/question_fields",
    "data/src/import/splits",
    "env/src/episode",
    "env/src/progress",
    "env/src/reward",
    "env/src/verifier",
    "learner/src/actors",
    "learner/src/advantage",
    "learner/src/batch",
    "learner/src/curriculum",
    "learner/src/evaluation",
    "learner/src/group/check",
    "learner/src/group/mod",
    "learner/src/group/outline",
    "learner/src/identity",
    "learner/src/leases",
    "learner/src/loss",
    "learner/src/optimizer",
    "learner/src/refusals",
    "learner/src/schedule",
    "learner/src/scheduler",
    "policy/src/chat",
    "policy/src/chat_template",
    "policy/src/gguf",
    "policy/src/page_tables",
    "policy/src/random",
    "policy/src/sampling",
    "report/src/policy_comparison",
];

/// What a pure file must not use.
const BANNED: [&str; 15] = [
    "getrandom",
    "rand::rng",
    "std::env",
    "std::fs",
    "std::io::stderr",
    "std::io::stdin",
    "std::io::stdout",
    "std::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
    "tonic",
    "uuid",
];

fn is_of(file: &SourceFile, module: &str) -> bool {
    let rest = file.path.strip_prefix(module);
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Returns the paths in the code of a file that begin with a banned one.
fn impurities(file: &SourceFile) -> Vec<String> {
    let roots: Vec<&str> = BANNED
        .iter()
        .map(|path| path.split("::").next().unwrap())
        .collect();
    let paths = imports::paths(&file.code(), &roots);
    let paths = paths.into_iter().map(|path| path.join("::"));
    let is_banned = |path: &String| {
        let path = format!("{path}::");
        BANNED
            .iter()
            .any(|banned| path.starts_with(&format!("{banned}::")))
    };
    paths.filter(is_banned).collect()
}

#[test]
fn pure_files_stay_pure() {
    let mut impure = Vec::new();
    for module in PURE {
        let mut sources = sources(module.split('/').next().unwrap());
        sources.retain(|file| is_of(file, module));
        assert!(
            !sources.is_empty(),
            "{module} does not exist; correct the list in this test"
        );
        for file in sources {
            let paths = impurities(&file).into_iter();
            impure.extend(paths.map(|path| format!("{}: {path}", file.path)));
        }
    }
    assert!(impure.is_empty(), "pure files use {impure:#?}");
}

#[test]
fn an_impure_file_is_found() {
    let text = "use std::{fmt, time::{Duration, Instant}};\nfn f() { std::env::var(\"A\"); }";
    let file = SourceFile {
        path: String::new(),
        text: text.to_owned(),
    };
    assert_eq!(impurities(&file), ["std::time::Instant", "std::env::var"]);
}
