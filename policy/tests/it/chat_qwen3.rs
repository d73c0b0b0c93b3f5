//! Compares Qwen3's own tokenizer and templates with transformers 5.23.0 and TRL 1.16.0
//! (`golden/chat`): ids, assistant masks, tool suffixes, whole episodes. The tokenizer is
//! downloaded from npm; without it these tests print that they are skipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use policy::chat_template::ChatTemplate;
use policy::tokenizer::Tokenizer;
use policy::{Chat, ChatRole, Message, ToolCall};
use serde_json::Value;

use crate::common::{golden, golden_text, is_prefix_preserving, render_context, sqlenv_tools};
use crate::qwen3_package::folder;

const TEMPLATES: [&str; 3] = ["qwen3_package", "trl_qwen3", "trl_qwen3_training"];

fn ids(list: &Value) -> Vec<u32> {
    serde_json::from_value(list.clone()).unwrap()
}

fn tokenizer(folder: &Path) -> Tokenizer {
    Tokenizer::from_bytes(&fs::read(folder.join("tokenizer.json")).unwrap()).unwrap()
}

fn template(name: &str) -> String {
    golden_text(&format!("chat/templates/{name}.jinja"))
}

/// The package with one of the golden templates.
fn chat(folder: &Path, name: &str) -> Chat {
    let read = |path: PathBuf| fs::read(path).unwrap();
    Chat::from_files(&[
        ("tokenizer.json".into(), read(folder.join("tokenizer.json"))),
        (
            "tokenizer_config.json".into(),
            read(folder.join("tokenizer_config.json")),
        ),
        ("chat_template.jinja".into(), template(name).into_bytes()),
    ])
    .unwrap()
}

/// Without thinking and with it.
fn by_thinking(folder: &Path, name: &str) -> [Chat; 2] {
    let chat = chat(folder, name);
    [chat.clone(), chat.with_thinking(true)]
}

#[test]
fn ids_agree_with_transformers() {
    let Some(folder) = folder() else { return };
    let tokenizer = tokenizer(folder);
    assert_eq!(tokenizer.vocabulary_size(), 151_669);
    let mut checked = 0;
    for case in golden("chat/render.json")["cases"].as_array().unwrap() {
        let expected = &case["expected"];
        if expected["token_ids"].is_array() {
            let text = expected["text"].as_str().unwrap();
            let encoded = tokenizer.encode(text).unwrap();
            assert_eq!(encoded, ids(&expected["token_ids"]), "{}", case["id"]);
            assert_eq!(tokenizer.decode(&encoded).unwrap(), text, "{}", case["id"]);
            checked += 1;
        }
    }
    assert_eq!(checked, 360);
}

/// A conversation that is split where its assistant's turns begin and end and encoded piece by
/// piece, as episodes are, gives transformers' ids and mask.
#[test]
fn assistant_masks_agree_with_transformers() {
    const OPEN: &str = "\u{e000}";
    const CLOSE: &str = "\u{e001}";
    let Some(folder) = folder() else { return };
    let tokenizer = tokenizer(folder);
    let source = template("trl_qwen3_training")
        .replace("{%- generation %}", &format!("{{{{- '{OPEN}' }}}}"))
        .replace("{%- endgeneration %}", &format!("{{{{- '{CLOSE}' }}}}"));
    let template = ChatTemplate::new(&source).unwrap();
    let tools = golden("chat/tools.json");
    let mut checked = 0;
    for case in golden("chat/render.json")["cases"].as_array().unwrap() {
        let expected = &case["expected"];
        if !expected["assistant_mask"].is_array() {
            continue;
        }
        let text = template.render(&render_context(case, &tools)).unwrap();
        let (mut found, mut mask) = (Vec::new(), Vec::new());
        for (number, piece) in text.split([OPEN, CLOSE].map(first_char)).enumerate() {
            found.extend(tokenizer.encode(piece).unwrap());
            mask.resize(found.len(), number as u32 % 2);
        }
        assert_eq!(found, ids(&expected["token_ids"]), "{}", case["id"]);
        assert_eq!(mask, ids(&expected["assistant_mask"]), "{}", case["id"]);
        checked += 1;
    }
    assert_eq!(checked, 121);
}

fn first_char(text: &str) -> char {
    text.chars().next().unwrap()
}

#[test]
fn tool_suffixes_agree_with_trl() {
    let Some(folder) = folder() else { return };
    let cases = golden("chat/tool_suffix.json");
    let cases = cases["cases"].as_array().unwrap();
    let chats = BTreeMap::from(TEMPLATES.map(|name| (name, by_thinking(folder, name))));
    for case in cases {
        let thinking = case["chat_template_kwargs"]["enable_thinking"] != false;
        let chat = &chats[case["template"].as_str().unwrap()][usize::from(thinking)];
        let messages: Vec<Message> = serde_json::from_value(case["tool_messages"].clone()).unwrap();
        let suffix = chat.tool_suffix_ids(&messages).unwrap();
        match case["expected"].get("suffix_ids") {
            Some(expected) => assert_eq!(suffix, ids(expected), "{}", case["id"]),
            // TRL refuses templates that print past turns differently and swaps in its training
            // template. Ours continues from the turn itself, which gives the tokens of the training
            // template.
            None => {
                assert!(!is_prefix_preserving(chat), "{}", case["id"]);
                let training = &chats["trl_qwen3_training"][usize::from(thinking)];
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

/// The prompt, the sampled turns and the tool results, concatenated, equal the tokens and the mask
/// of TRL's tool loop.
#[test]
fn episodes_agree_with_trl_s_tool_loop() {
    let Some(folder) = folder() else { return };
    let golden = golden("chat/tool_loop.json");
    let training = by_thinking(folder, "trl_qwen3_training");
    let mut rows = 0;
    for case in golden["cases"].as_array().unwrap() {
        let thinking = case["chat_template_kwargs"]["enable_thinking"] != false;
        for row in 0..case["prompts"].as_array().unwrap().len() {
            check_episode(&training[usize::from(thinking)], case, row);
            rows += 1;
        }
    }
    assert_eq!(rows, 13);
}

fn check_episode(chat: &Chat, case: &Value, row: usize) {
    let (id, expected) = (format!("{} row {row}", case["id"]), &case["expected"]);
    let messages: Vec<Message> = serde_json::from_value(case["prompts"][row].clone()).unwrap();
    let prompt = chat.prompt_ids(&messages, &sqlenv_tools()).unwrap();
    assert_eq!(prompt, ids(&expected["prompt_ids"][row]), "{id}");

    let mut turns = case["scripts"][row].as_array().unwrap().iter();
    let (mut tokens, mut mask) = (Vec::new(), Vec::new());
    let messages = expected["completions"][row].as_array().unwrap();
    for messages in messages.chunk_by(|a, b| (a["role"] == "tool") == (b["role"] == "tool")) {
        let is_tool = messages[0]["role"] == "tool";
        if is_tool {
            let results: Vec<Message> = messages.iter().map(tool_message).collect();
            tokens.extend(chat.tool_suffix_ids(&results).unwrap());
        } else {
            let turn = turns.next().unwrap().as_str().unwrap();
            tokens.extend(chat.encode(turn).unwrap());
        }
        mask.resize(tokens.len(), u32::from(!is_tool));
    }
    // TRL cuts the last turn where `max_completion_length` ends.
    let most = case["max_completion_length"].as_u64().unwrap() as usize;
    tokens.truncate(most);
    mask.truncate(most);
    assert_eq!(tokens, ids(&expected["completion_ids"][row]), "{id}");
    assert_eq!(mask, ids(&expected["tool_mask"][row]), "{id}");
}

fn tool_message(message: &Value) -> Message {
    Message::new(ChatRole::Tool, message["content"].as_str().unwrap())
}

#[test]
fn the_package_is_a_chat() {
    let Some(folder) = folder() else { return };
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
        .render(&[Message::new(ChatRole::User, "Hi")], &sqlenv_tools(), true)
        .unwrap();
    assert!(prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
}
