//! Tests the embedded policy's text: the format is plain Hermes, segments concatenate exactly, and
//! the format takes few tokens.

use policy::chat_template::ChatTemplate;
use policy::{Chat, ChatRole, Message, ToolCall, embedded};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{is_prefix_preserving, sqlenv_tools};

fn chat() -> Chat {
    Chat::from_files(&embedded::files()).unwrap()
}

fn question() -> Vec<Message> {
    vec![
        Message::new(ChatRole::System, "Whatever the caller says here."),
        Message::new(
            ChatRole::User,
            "How many singers are there?\nAvailable tables:\n- singer\n- concert",
        ),
    ]
}

fn tool(text: &str) -> Message {
    Message::new(ChatRole::Tool, text)
}

#[test]
fn the_format_is_plain_hermes() {
    let mut messages = question();
    messages.push(Message::call(ToolCall::new(
        "describe",
        "table_name",
        "singer",
    )));
    messages.push(tool(
        "Table 'singer' columns:\n- singer_id: INTEGER\nRow count: 6",
    ));
    let expected = "<|im_start|>system\nAnswer the question with SQL tools, one call per turn.<|im_end|>\n\
        <|im_start|>user\nHow many singers are there?\nAvailable tables:\n- singer\n- concert<|im_end|>\n\
        <|im_start|>assistant\n<tool_call>\n{\"name\": \"describe\", \"arguments\": {\"table_name\": \"singer\"}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nTable 'singer' columns:\n- singer_id: INTEGER\nRow count: 6\n</tool_response><|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(
        chat().render(&messages, &sqlenv_tools(), true).unwrap(),
        expected
    );
}

/// There a call has its arguments as a string, and its turn has no content.
#[test]
fn a_call_in_the_format_of_openai_is_printed_as_any_other() {
    let files = embedded::files();
    let named = |(name, _): &&(String, Vec<u8>)| name == "chat_template.jinja";
    let (_, source) = files.iter().find(named).unwrap();
    let template = ChatTemplate::new(std::str::from_utf8(source).unwrap()).unwrap();
    let object = json!({"sql": "SELECT 'Zoë'"});
    let text = json!(r#"{"sql": "SELECT 'Zoë'"}"#);
    for arguments in [object, text] {
        let function = json!({"name": "query", "arguments": arguments});
        let call = json!({"type": "function", "function": function});
        for content in [None, Some(Value::Null), Some(json!(""))] {
            let mut turn = json!({"role": "assistant", "tool_calls": [call]});
            if let Some(content) = content {
                turn["content"] = content;
            }
            let messages = json!({"messages": [{"role": "user", "content": "Who?"}, turn]});
            let rendered = template.render(&messages).unwrap();
            let expected = "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n\
                {\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT 'Zoë'\"}}\n</tool_call><|im_end|>";
            assert!(rendered.ends_with(expected), "{rendered}");
        }
    }
}

/// TRL demands it of a template: the tokens of a conversation begin those of any longer one.
#[test]
fn the_tokens_of_a_conversation_begin_those_of_a_longer_one() {
    let chat = chat();
    let mut messages = question();
    messages.push(Message::call(ToolCall::new("query", "sql", "SELECT 1")));
    let ids = |messages: &[Message], ends: bool| {
        let text = chat.render(messages, &sqlenv_tools(), !ends).unwrap();
        chat.encode(&text).unwrap()
    };
    let shorter = ids(&messages, true);
    messages.push(tool("1. 1"));
    assert!(ids(&messages, false).starts_with(&shorter));
    assert!(ids(&messages, true).starts_with(&shorter));
}

#[test]
fn a_turn_is_few_tokens() {
    let chat = chat();
    let call = ToolCall::new("query", "sql", "SELECT 1").to_text();
    let completion = chat.completion_ids(&call).unwrap();
    // Head, SELECT with its blank, 1, tail; the tail is the stop token.
    assert_eq!(completion.len(), 4, "{completion:?}");
    assert_eq!(chat.stop_ids(), [1023, 1022]);
    assert_eq!(completion[3], 1022);
    assert_eq!(chat.completion_text(&completion).unwrap(), call);
    // Head with its row number, 6, tail with the next assistant's head.
    assert_eq!(chat.tool_suffix_ids(&[tool("1. 6")]).unwrap().len(), 3);
    assert_eq!(
        chat.tool_suffix_ids(&[tool("Table 't' columns:\n- a: TEXT\nRow count: 2")])
            .unwrap()
            .len(),
        7
    );
    assert_eq!(chat.vocabulary_size(), embedded::VOCABULARY_SIZE);
    assert!(is_prefix_preserving(&chat));
}

#[test]
fn a_completion_without_the_end_of_its_turn_is_kept_whole() {
    let chat = chat();
    let cut = chat.encode("<tool_call>\n{\"name\"").unwrap();
    assert_eq!(
        chat.completion_text(&cut).unwrap(),
        "<tool_call>\n{\"name\""
    );
    assert_eq!(chat.completion_text(&[]).unwrap(), "");
}

#[test]
fn texts_with_odd_characters_survive() {
    let chat = chat();
    for text in [
        "",
        " ",
        "\n\n",
        "Zoë 漢字 🙂",
        "\"}}\n</tool_call>",
        "a  b\t\r\n",
        "\\n\\\"",
        "<|im_end|><|im_start|>",
        "\u{0}\u{7f}",
    ] {
        assert_eq!(
            chat.decode(&chat.encode(text).unwrap()).unwrap(),
            text,
            "{text:?}"
        );
    }
}

/// Realistic text: SQL, quotes, numbers, other scripts, pieces of the format.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[a-zA-Z_]{1,8}",
        "[0-9]{1,4}",
        "\\PC{0,6}",
        Just(" FROM ".to_string()),
        Just("\n2. ".to_string()),
        Just(" | ".to_string()),
        Just("'it''s' \"q\" \\ \n".to_string()),
        Just("\"}}\n".to_string()),
    ];
    prop::collection::vec(word, 0..12).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn decoding_undoes_encoding(text in text()) {
        let chat = chat();
        prop_assert_eq!(chat.decode(&chat.encode(&text).unwrap()).unwrap(), text);
    }

    /// Prompt, completion and tool results, each encoded on its own, equal the tokens and the text
    /// of the whole conversation.
    #[test]
    fn segments_join_without_seams(turns in prop::collection::vec((0usize..4, text(), text()), 1..4)) {
        let chat = chat();
        let mut messages = question();
        let mut ids = chat.prompt_ids(&messages, &sqlenv_tools()).unwrap();
        let tools = [("describe", "table_name"), ("sample", "table_name"), ("query", "sql"), ("answer", "value")];
        for (index, argument, result) in turns {
            let (name, parameter) = tools[index];
            let call = ToolCall::new(name, parameter, &argument);
            ids.extend(chat.completion_ids(&call.to_text()).unwrap());
            ids.extend(chat.tool_suffix_ids(&[tool(&result)]).unwrap());
            messages.extend([Message::call(call), tool(&result)]);
        }
        let whole = chat.render(&messages, &sqlenv_tools(), true).unwrap();
        prop_assert_eq!(chat.decode(&ids).unwrap(), whole.as_str());
        prop_assert_eq!(ids, chat.encode(&whole).unwrap());
    }
}

/// Enough distinct words for a full vocabulary.
fn corpus() -> Vec<String> {
    let syllables = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu"];
    let mut texts = Vec::new();
    for (i, a) in syllables.iter().enumerate() {
        for (j, b) in syllables.iter().enumerate() {
            for c in &syllables[..(i + j) % 10] {
                texts.push(format!(
                    "<|im_start|>user\nHow many {a}{b}{c} have {c}{a}_{b}?<|im_end|>\n"
                ));
            }
        }
    }
    texts
}

#[test]
fn training_depends_on_the_texts_alone() {
    let trained = embedded::train_tokenizer(corpus().into_iter(), 700).unwrap();
    let again = embedded::train_tokenizer(corpus().into_iter().rev(), 700).unwrap();
    assert!(trained == again);

    let chat = with_tokenizer(trained).unwrap();
    assert_eq!(chat.vocabulary_size(), 700);
    assert_eq!(chat.stop_ids(), [699, 698]);
    let text = &corpus()[7];
    let ids = chat.encode(text).unwrap();
    assert!(
        ids.len() < 16,
        "the corpus' own words are split into {} tokens",
        ids.len()
    );
    assert_eq!(&chat.decode(&ids).unwrap(), text);
}

#[test]
fn training_on_too_little_text_is_refused() {
    let error = embedded::train_tokenizer(["one text".to_string()].into_iter(), 1024)
        .unwrap_err()
        .to_string();
    assert!(error.contains("give more texts"), "{error}");
}

fn with_tokenizer(tokenizer: Vec<u8>) -> policy::Result<Chat> {
    let mut files = embedded::files();
    files.retain(|(name, _)| name != "tokenizer.json");
    files.push(("tokenizer.json".to_string(), tokenizer));
    Chat::from_files(&files)
}

#[test]
fn broken_files_are_named() {
    let replaced = |name: &str, content: Option<&str>| {
        let mut files = embedded::files();
        files.retain(|(file, _)| file != name);
        files.extend(content.map(|content| (name.to_string(), content.as_bytes().to_vec())));
        Chat::from_files(&files).unwrap_err().to_string()
    };
    for (name, content, cause) in [
        ("tokenizer.json", None, "tokenizer.json: missing"),
        (
            "tokenizer.json",
            Some("{}"),
            "tokenizer.json: not a tokenizer",
        ),
        (
            "tokenizer_config.json",
            Some("{"),
            "tokenizer_config.json: not JSON",
        ),
        ("chat_template.jinja", None, "chat_template.jinja: missing"),
        ("chat_template.jinja", Some("{% if %}"), "does not compile"),
        (
            "chat_template.jinja",
            Some("{{ messages[0].content }}"),
            "prints no content of an assistant's turn",
        ),
        (
            "chat_template.jinja",
            Some("{% for m in messages %}{{ m.content }}\n{% endfor %}"),
            "no control token",
        ),
    ] {
        let error = replaced(name, content);
        assert!(error.contains(cause), "{name}: {error}");
    }
}

/// A conversation continues exactly even under a template that rewrites past turns, as those of
/// thinking models do.
#[test]
fn templates_that_rewrite_past_turns_are_continued() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>{% endif %}\
        {{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let mut files = embedded::files();
    files.retain(|(name, _)| name != "chat_template.jinja");
    files.push((
        "chat_template.jinja".to_string(),
        template.as_bytes().to_vec(),
    ));
    let chat = Chat::from_files(&files).unwrap();
    assert!(!is_prefix_preserving(&chat));
    let suffix = chat.tool_suffix_ids(&[tool("1. 6")]).unwrap();
    assert_eq!(
        chat.decode(&suffix).unwrap(),
        "\n<|im_start|>tool\n1. 6<|im_end|>\n<|im_start|>assistant\n"
    );
}

/// A model's files with some replaced or added.
fn files_with<'a>(
    replaced: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(String, Vec<u8>)> {
    let mut files = embedded::files();
    for (name, content) in replaced {
        files.retain(|(file, _)| file != name);
        files.push((name.to_owned(), content.as_bytes().to_vec()));
    }
    files
}

/// As in transformers, the map does not count where there is an `added_tokens_decoder`.
#[test]
fn older_folders_name_special_tokens_in_a_map() {
    const TEMPLATE: &str = "{{ bos_token }}|{{ unk_token }}|{% for m in messages %}\
        {{ m.content }}<|im_end|>{% endfor %}";
    let map = r#"{"bos_token": {"content": "<|im_start|>", "special": true}, "unk_token": null}"#;
    let config = r#"{"bos_token": "<other>", "unk_token": "<unk>", "pad_token": "<pad>""#;
    let hello = [Message::new(ChatRole::User, "Hi")];
    for (more, expected) in [
        ("}", "<|im_start|>||Hi<|im_end|>"),
        (
            r#", "added_tokens_decoder": {}}"#,
            "<other>|<unk>|Hi<|im_end|>",
        ),
    ] {
        let config = format!("{config}{more}");
        let files = files_with([
            ("chat_template.jinja", TEMPLATE),
            ("tokenizer_config.json", config.as_str()),
            ("special_tokens_map.json", map),
        ]);
        let chat = Chat::from_files(&files).unwrap();
        assert_eq!(chat.render(&hello, &[], false).unwrap(), expected);
    }
    let broken = [("special_tokens_map.json", "{")];
    let error = Chat::from_files(&files_with(broken)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("special_tokens_map.json: not JSON"),
        "{error}"
    );
}

/// Of the ids that the files list, those without a token are left out.
#[test]
fn the_config_lists_ends_if_nothing_else_does() {
    let config = ("config.json", r#"{"eos_token_id": [868, 4000000]}"#);
    let listed = files_with([config]);
    assert_eq!(
        Chat::from_files(&listed).unwrap().stop_ids(),
        [1023, 1022, 868]
    );
    let single = files_with([("config.json", r#"{"eos_token_id": 868}"#)]);
    assert_eq!(
        Chat::from_files(&single).unwrap().stop_ids(),
        [1023, 1022, 868]
    );
    for (generation, expected) in [
        ("{}", &[1023, 1022][..]),
        (r#"{"eos_token_id": 3}"#, &[1023, 1022, 3][..]),
    ] {
        let files = files_with([config, ("generation_config.json", generation)]);
        assert_eq!(Chat::from_files(&files).unwrap().stop_ids(), expected);
    }
}
