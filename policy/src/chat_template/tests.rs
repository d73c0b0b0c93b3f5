//! Tests of templates: what they print, and that no template does harm.

use super::*;
use serde_json::json;

fn render(source: &str, context: &serde_json::Value) -> Result<String> {
    ChatTemplate::new(source)?.render(context)
}

/// What transformers' sandbox prints for the same templates.
#[test]
fn templates_print_as_in_transformers() {
    for (source, context, expected) in [
        ("{% if true %}\n  a\n{% endif %}\nb", json!({}), "  a\nb"),
        (
            "  {%- if absent is defined %}x{% endif %}{{ absent }}|",
            json!({}),
            "|",
        ),
        (
            "{{ m.startswith('a') }} {{ m.split('b')[-1].strip('\n') }}",
            json!({"m": "abc\n"}),
            "True c",
        ),
        (
            "{{ x | tojson }}",
            json!({"x": {"b": "<'é&", "a": 1.0}}),
            r#"{"b": "<'é&", "a": 1.0}"#,
        ),
        ("{{ x | tojson(indent=2) }}", json!({"x": [1]}), "[\n  1\n]"),
        (
            "{{ x }} {{ y }}",
            json!({"x": {"error": "no"}, "y": null}),
            "{'error': 'no'} None",
        ),
        (
            "{% for m in l[::-1] %}{% if m == 1 %}{% break %}{% endif %}{{ m }}{% endfor %}",
            json!({"l": [1, 2, 3]}),
            "32",
        ),
        ("{{ strftime_now('%d %b %Y') }}", json!({}), "26 Jul 2024"),
        (
            "{{ 'a' + 'b' ~ 1 ~ none ~ true ~ [1] }} {{ 1 + 2 }} {{ 1 + 0.5 }} {{ [1] + [2] }}",
            json!({}),
            "ab1NoneTrue[1] 3 1.5 [1, 2]",
        ),
        (
            "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a == 2 }} {{ 1 in [1] \
             }} {{ {'k': 2}.k }} {{ 'b' in x }}",
            json!({"x": {"a": 1}}),
            "True True 2 False",
        ),
        (
            "{{ ['a', 'b'] | join(', ') }} {{ '%s-%d' | default('') }} {{ 'x'.join(['1', '2']) \
             }} {{ '{}:{}'.format(1, 'b') }} {{ 'aXbX'.replace('X', '--') }}",
            json!({}),
            "a, b %s-%d 1x2 1:b a--b--",
        ),
        (
            "a{%- generation %} b {%- endgeneration -%} c",
            json!({}),
            "a bc",
        ),
        (
            "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
            json!({}),
            "21",
        ),
    ] {
        assert_eq!(render(source, &context).unwrap(), expected, "{source}");
    }
}

#[test]
fn errors_name_the_cause() {
    for (source, cause) in [
        ("{% if %}", "does not compile"),
        (
            "{{ raise_exception('roles must alternate') }}",
            "roles must alternate",
        ),
        ("{{ none.startswith('a') }}", "does not render"),
        ("{{ 1 | tojson(sort_keys=true) }}", "sort_keys"),
        ("{{ strftime_now('%j') }}", "%j"),
        ("{{ 'a' * 3 }}", "uses * in line 1"),
        ("{{ a < b < c }}", "more than two values"),
        ("{{ none + 1 }}", "cannot add"),
    ] {
        let error = render(source, &json!({})).unwrap_err().to_string();
        assert!(error.contains(cause), "{source}: {error}");
    }
}

/// Each of these hangs, takes all memory or overflows the stack without a bound.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test of how long a template may take"
)]
fn hostile_templates_are_errors() {
    let nested_range = "{% for a in range(100000) %}{% for b in range(100000) %}".to_owned()
        + "{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}";
    let doubled = |step: &str| {
        format!(
            "{{% set n = namespace(x='aaaaaaaa', l=[1]) %}}{{% for i in range(90) %}}{{% {step} \
             %}}{{% endfor %}}{{{{ n.x | length }}}}"
        )
    };
    let cases = [
        nested_range,
        "{{ [1] | tojson(indent=1000000000000) }}".to_owned(),
        "{{ '{:1000000000000}'.format(1) }}".to_owned(),
        "{{ '{:>99999999999999999999999}'.format(1) }}".to_owned(),
        "{{ 'a' | indent(1000000000000) }}{{ 'a\nb' | indent(1000000000000) }}".to_owned(),
        "{{ '%1000000000000d' | format(1) }}".to_owned(),
        "{{ 'aaa'.count('') }}".to_owned(),
        "{{ ('a' * 100000000) ~ ('a' * 100000000) }}".to_owned(),
        doubled("set n.x = n.x ~ n.x"),
        doubled("set n.x = n.x + n.x"),
        doubled("set n.x = n.x.replace('a', n.x)"),
        doubled("set n.x = [n.x, n.x] | join(n.x)"),
        doubled("set n.x = n.x.join([n.x, n.x])"),
        doubled("set n.x = [n.x, n.x]"),
        doubled("set n.x = {'a': n.x, 'b': n.x}"),
        doubled("set n.l = n.l + n.l"),
        doubled("set n.x = [n.x]"),
        doubled("set n.l = [n]"),
        "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}".to_owned() + &doubled("set n.x = d(n.x)"),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        format!("{{{{ {}1{} }}}}", "[".repeat(5000), "]".repeat(5000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000)),
        format!("{{{{ {} }}}}", vec!["a"; 30_000].join("~")),
        "x".repeat(1 << 17),
        "{% for i in range(100000) %}".to_owned() + &"x".repeat(60_000) + "{% endfor %}",
        "{% include 'chat_template' %}".to_owned(),
        "{{ 2 ** 100000 }}".to_owned(),
        "{{ 'x' | batch(1000000000000, 'y') }}".to_owned(),
    ];
    for source in cases {
        let started = std::time::SystemTime::now();
        let refusal = render(&source, &json!({})).unwrap_err().to_string();
        assert!(refusal.starts_with("chat template"), "{refusal}");
        let seconds = started.elapsed().unwrap().as_secs();
        assert!(seconds < 10, "{seconds} s: {source:.200}");
    }
    // A long chain that is within the bound does not overflow the stack.
    let chain = format!("{{{{ {} }}}}", vec!["a"; 9_000].join("~"));
    assert_eq!(
        render(&chain, &json!({"a": "b"})).unwrap(),
        "b".repeat(9_000)
    );
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(256))]
    #[test]
    fn any_template_renders_or_is_an_error(
        parts in proptest::collection::vec(0..PARTS.len(), 0..40),
    ) {
        let source: String = parts.iter().map(|&it| PARTS[it]).collect();
        drop(render(&source, &json!({"x": ["a", {"b": 1}], "s": "text"})));
    }
}

const PARTS: [&str; 32] = [
    "{{ ",
    " }}",
    "{% for i in x %}",
    "{% endfor %}",
    "{% if s %}",
    "{% endif %}",
    "{% set s = ",
    " %}",
    "x",
    "s",
    "i",
    " ~ ",
    " + ",
    "[",
    "]",
    "{'a': ",
    "}",
    "(",
    ")",
    " | join(",
    ".split(",
    " | tojson",
    " | length",
    "'a'",
    "1",
    ", ",
    "x[0]",
    "{% macro m(x) %}",
    "{% endmacro %}",
    "m(",
    " in ",
    "text",
];
