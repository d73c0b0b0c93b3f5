//! Tests models whose chat template prints no tool calls, such as SmolLM2's, or prints them in
//! another format than is read, such as Llama 3's. The expected text was made by jinja2 3.1.6 with
//! the settings of transformers, from the same prelude and SmolLM2's template.

use policy::{Chat, ChatRole, Message, Model, ToolCall, embedded};
use serde_json::{Value, json};

const CHATML: &str = include_str!("../golden/chat/templates/smollm2_chatml.jinja");
/// A template of the structure of Llama 3.2's: the arguments of a call are `parameters`, and
/// results are JSON.
const LLAMA: &str = r#"
{%- if tools is not defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set instructions = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set instructions = '' %}
{%- endif %}
{{- '<|im_start|>system\n' }}
{%- if tools is not none %}
    {{- 'Respond with {"name": function name, "parameters": dictionary of arguments}.\n\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\n\n' }}
    {%- endfor %}
{%- endif %}
{{- instructions + '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>ipython\n' }}
        {{- message.content | tojson }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|im_start|>' + message.role + '\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {{- message.content | trim }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;
const WITH_TOOLS: &str = r#"<|im_start|>system
Use tools.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "query", "description": "Run."}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
<|im_start|>user
How many?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "query", "arguments": {"sql": "SELECT 'é'"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
1. 3
</tool_response><|im_end|>
<|im_start|>assistant
"#;

fn model() -> Model {
    with_template(CHATML)
}

fn with_template(template: &str) -> Model {
    let mut files = embedded::files();
    for (name, content) in &mut files {
        if name == "chat_template.jinja" {
            *content = template.into();
        }
        if name == "tokenizer_config.json" {
            let mut config: Value = serde_json::from_slice(content).unwrap();
            config["chat_template"] = template.into();
            *content = config.to_string().into_bytes();
        }
    }
    Model::from_files(files, embedded::model(7).unwrap().weights).unwrap()
}

fn tools() -> Vec<Value> {
    let query = json!({"name": "query", "description": "Run."});
    vec![json!({"type": "function", "function": query})]
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new(ChatRole::System, "Use tools."),
        Message::new(ChatRole::User, "How many?"),
        Message::call(ToolCall::new("query", "sql", "SELECT 'é'")),
        Message::new(ChatRole::Tool, "1. 3"),
    ]
}

/// What TRL reads turns by.
fn response_template(model: &Model) -> Value {
    let mut files = model.files.iter();
    let (_, config) = files
        .find(|(name, _)| name == "tokenizer_config.json")
        .unwrap();
    let config: Value = serde_json::from_slice(config).unwrap();
    config["response_template"].clone()
}

fn render(chat: &Chat, messages: &[Message], tools: &[Value]) -> String {
    chat.render(messages, tools, true).unwrap()
}

#[test]
fn a_template_without_tools_gets_them_in_hermes_format() {
    let before = model();
    assert!(!before.chat.prints_tool_calls());
    let after = before.with_tools_in_template().unwrap();
    assert!(after.chat.prints_tool_calls());
    assert_eq!(render(&after.chat, &conversation(), &tools()), WITH_TOOLS);
    assert!(
        response_template(&after)["fields"]["tool_calls"].is_object(),
        "TRL asks for it"
    );

    // Without a system message of the caller, the tools are the system message.
    let text = render(&after.chat, &conversation()[1..], &tools());
    assert!(text.starts_with("<|im_start|>system\n# Tools\n"), "{text}");
}

/// What a model writes in such a format would be read as no call.
#[test]
fn a_template_with_another_format_of_calls_gets_that_of_hermes() {
    let before = with_template(LLAMA);
    let text = render(&before.chat, &conversation(), &tools());
    let call = r#"{"name": "query", "parameters": {"sql": "SELECT 'é'"}}<|im_end|>"#;
    assert!(
        text.contains(call) && text.contains("ipython\n\"1. 3\"<|im_end|>"),
        "{text}"
    );
    assert!(!before.chat.prints_tool_calls());
    let after = before.with_tools_in_template().unwrap();
    assert!(after.chat.prints_tool_calls());
    assert_eq!(render(&after.chat, &conversation(), &tools()), WITH_TOOLS);
}

/// The tags alone are not the format, and neither is the JSON without them.
#[test]
fn calls_are_printed_as_they_are_read_or_not_at_all() {
    for (call, is_read) in [
        (
            r#"<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>"#,
            true,
        ),
        (
            r#"<tool_call>{"arguments": ARGUMENTS, "name": "NAME"}"#,
            true,
        ),
        (
            r#"<tool_call> such as </tool_call><tool_call>{"name": "NAME", "arguments": {}}"#,
            true,
        ),
        (
            r#"<tool_call>{"name": "NAME", "parameters": ARGUMENTS}</tool_call>"#,
            false,
        ),
        (
            r#"<tool_call>NAME ARGUMENTS "arguments"</tool_call>"#,
            false,
        ),
        (
            r#"<tool_call>{"name": "other", "arguments": ARGUMENTS}</tool_call>"#,
            false,
        ),
        (r#"{"name": "NAME", "arguments": ARGUMENTS}"#, false),
    ] {
        let call = call
            .replace("NAME", "' + call.function.name + '")
            .replace("ARGUMENTS", "' + (call.function.arguments | tojson) + '");
        let template = format!(
            "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}\
             {{% for call in m.tool_calls or [] %}}{{{{ '{call}' }}}}{{% endfor %}}<|im_end|>\n\
             {{% endfor %}}"
        );
        let chat = with_template(&template).chat;
        assert_eq!(chat.prints_tool_calls(), is_read, "{template}");
    }
}

#[test]
fn conversations_without_tools_are_rendered_as_before() {
    for (template, shortest) in [(CHATML, 0), (LLAMA, 1)] {
        let before = with_template(template);
        let after = before.clone().with_tools_in_template().unwrap();
        for count in shortest..=2 {
            let messages = &conversation()[..count];
            let text = render(&before.chat, messages, &[]);
            assert_eq!(render(&after.chat, messages, &[]), text);
        }
        assert_eq!(after.chat.stop_ids(), before.chat.stop_ids());
    }
}

#[test]
fn a_saved_model_has_the_template() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("model");
    let model = model().with_tools_in_template().unwrap();
    model.save(&dir).unwrap();
    let opened = Model::open(&dir, &candle_core::Device::Cpu, candle_core::DType::F32).unwrap();
    let text = render(&opened.chat, &conversation(), &tools());
    assert_eq!(text, WITH_TOOLS);
    // Readers that prefer the tokenizer's configuration find the same template there.
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let config: Value = serde_json::from_str(&read("tokenizer_config.json")).unwrap();
    assert_eq!(config["chat_template"], read("chat_template.jinja"));
}

#[test]
fn a_result_of_a_tool_follows_a_sampled_call_as_in_a_rendered_conversation() {
    let chat = model().with_tools_in_template().unwrap().chat;
    let messages = conversation();
    let call = &messages[2].tool_calls[0];
    let mut ids = chat.prompt_ids(&messages[..2], &tools()).unwrap();
    ids.extend(chat.completion_ids(&call.to_text()).unwrap());
    ids.extend(chat.tool_suffix_ids(&messages[3..]).unwrap());
    assert_eq!(chat.decode(&ids).unwrap(), WITH_TOOLS);
}

#[test]
fn the_embedded_template_prints_tool_calls() {
    assert!(embedded::base().unwrap().chat.prints_tool_calls());
}
