//! Compiles any text as a chat template and renders a conversation with it. It prints a text of
//! limited length, the same one twice, or is refused.

#![no_main]

use std::cell::LazyCell;

use learner_fuzz::{let_panics_be_caught, mutate};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use policy::chat_template::ChatTemplate;
use serde_json::{Value, json};

/// The most text that a rendering may print, as `policy` bounds it.
const MAX_BYTES: usize = 64 << 20;

thread_local! {
    static CONTEXTS: LazyCell<[Value; 2]> = LazyCell::new(contexts);
    static SEEDS: LazyCell<Vec<Vec<u8>>> = LazyCell::new(seeds);
}

fuzz_target!(init: let_panics_be_caught(), |data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(template) = ChatTemplate::new(source) else {
        return;
    };
    CONTEXTS.with(|contexts| {
        let render = |context| {
            let text = template.render(context).ok();
            assert!(text.as_ref().is_none_or(|text| text.len() <= MAX_BYTES));
            text
        };
        let texts = contexts.each_ref().map(render);
        assert_eq!(texts[1], render(&contexts[1]));
    });
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    SEEDS.with(|seeds| mutate(data, size, max_size, seed, seeds))
});

/// Two messages with a tool, and a conversation with a tool call.
fn contexts() -> [Value; 2] {
    let tool = json!({"type": "function", "function": {
        "name": "query", "description": "Runs SQL",
        "parameters": {"type": "object", "properties": {"sql": {"type": "string"}}},
    }});
    let call = json!({"type": "function", "function": {
        "name": "query", "arguments": {"sql": "SELECT 1"},
    }});
    let system = json!({"role": "system", "content": "Answer é <b>."});
    let user = json!({"role": "user", "content": "How many cars\nare there?"});
    let first = json!({
        "messages": [system.clone(), user.clone()], "tools": [tool.clone()],
        "add_generation_prompt": true, "enable_thinking": false, "bos_token": "<s>",
    });
    let second = json!({
        "messages": [
            system, user,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "[{\"n\": 3}]"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n3"},
        ],
        "tools": [tool], "add_generation_prompt": false, "eos_token": "</s>",
        "numbers": [0, -1, 1.5, 1e300, u64::MAX, i64::MIN, null, true],
    });
    [first, second]
}

fn seeds() -> Vec<Vec<u8>> {
    macro_rules! golden {
        ($($name:literal)*) => {
            vec![$(include_str!(concat!(
                "../../../policy/tests/golden/chat/templates/", $name, ".jinja"
            ))),*]
        };
    }
    let golden = golden!["qwen3_package" "smollm2_chatml" "trl_qwen3" "trl_qwen3_training"];
    let short = [
        "{% for m in messages %}{{ m.role }}: {{ m.content|trim }}\n{% endfor %}",
        "{{ tools|tojson(indent=2) }}{{ messages[::-1]|map(attribute='content')|join(', ') }}",
        "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% set ns.n = ns.n + i %}{% endfor %}\
         {{ ns.n }}",
        "{% macro f(x) %}{{ x.upper() if x is string else x }}{% endmacro %}{{ f('a' ~ 1) }}",
        "{{ '%s-%5d'.format('a', 3) }}{{ 'a,b'.split(',')[0:1] }}{{ {'a': [1, 2]}|dictsort }}",
        "{{ numbers|sort }}{{ numbers|first // 1 % 3 - 2 }}{{ -numbers[3] }}{{ 7 / 2 }}",
        "{{ messages|groupby('role') }}{{ numbers|select('number')|max }}{{ 1.25|round(1) }}",
    ];
    let all = golden.into_iter().chain(short);
    all.map(|text| text.as_bytes().to_vec()).collect()
}
