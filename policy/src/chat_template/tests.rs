//! Tests of templates: what they print, and that no template does harm.

use super::*;
use serde_json::json;

fn render(source: &str, context: &serde_json::Value) -> Result<String> {
    ChatTemplate::new(source)?.render(context)
}

/// Expected texts from CPython 3.11.
#[test]
fn slices_have_the_bounds_of_python() {
    let context = json!({"s": "abcdef", "l": [0, 1, 2, 3, 4, 5], "none": null});
    for (slice, text, list) in [
        ("[:]", "abcdef", "[0, 1, 2, 3, 4, 5]"),
        ("[1:4]", "bcd", "[1, 2, 3]"),
        ("[-2:]", "ef", "[4, 5]"),
        ("[:-9]", "", "[]"),
        ("[9:]", "", "[]"),
        ("[::2]", "ace", "[0, 2, 4]"),
        ("[::-1]", "fedcba", "[5, 4, 3, 2, 1, 0]"),
        ("[4:1:-2]", "ec", "[4, 2]"),
        ("[-9::-1]", "", "[]"),
        ("[1:4:-1]", "", "[]"),
        ("[9223372036854775807::9223372036854775807]", "", "[]"),
    ] {
        for (name, expected) in [("s", text), ("l", list)] {
            let source = format!("{{{{ {name}{slice} }}}}");
            assert_eq!(render(&source, &context).unwrap(), expected, "{source}");
        }
    }
    let source = "{{ ''[::-1] }}|{{ [][::-1] }}|{{ none[1:] }}|{{ l[::-1][0] }}{{ s[-1] }}";
    assert_eq!(render(source, &context).unwrap(), "|[]|[]|5f");
    let fault = render("{{ s[::0] }}", &context).unwrap_err().to_string();
    assert!(fault.contains("step size of 0"), "{fault}");
}

#[test]
fn loops_of_all_kinds_run_to_their_end() {
    let context = json!({"l": [1, 2, 3], "m": {"a": 1, "b": [2]}, "s": "é!"});
    for (source, expected) in [
        (
            "{% for i in l %}{% for j in l %}{{ j }}{% endfor %};{% endfor %}",
            "123;123;123;",
        ),
        (
            "{% for k, v in m.items() %}{{ k }}{{ v }}{% endfor %}",
            "a1b[2]",
        ),
        (
            "{% for k, v in m|items %}{{ k }}{{ v }}{% endfor %}{% for k in m %}{{ k }}{% endfor %}",
            "a1b[2]ab",
        ),
        (
            "{% for c in s %}{{ c }}.{% endfor %}{% for x in [] %}{% else %}none{% endfor %}",
            "é.!.none",
        ),
        (
            "{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}{% endfor %}",
            "1/22/2",
        ),
        (
            "{% macro f(x) %}{% for i in x %}{{ i }}{% endfor %}{% endmacro %}{{ f(l) }}{{ f(s) }}",
            "123é!",
        ),
        (
            "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        (
            "{% for i in l %}{% if loop.last %}{{ i }}{% endif %}{% endfor %}",
            "3",
        ),
        (
            "{% for i in l | reverse %}{{ i }}{% endfor %}{{ (l | reverse)[0] }}{{ l | last }}",
            "32133",
        ),
        (
            "{% if false %}x{% for i in l %}{{ i }}{% endfor %}{% endif %}",
            "",
        ),
    ] {
        assert_eq!(render(source, &context).unwrap(), expected, "{source}");
    }
    let fault = render(
        "{% for x in l %}\n{{ x }}\n{% endfor %}{% for x in 1 %}{% endfor %}",
        &context,
    );
    let fault = fault.unwrap_err().to_string();
    assert!(fault.contains(":3)"), "the error names the line: {fault}");
}

/// `{%` and `%}` may share their `%`.
#[test]
fn tags_that_overlap_are_an_error() {
    for source in ["{%}", "{%}{% generation %}", "{% if x %}{%}", "{%"] {
        let fault = ChatTemplate::new(source).unwrap_err().to_string();
        assert!(fault.contains("does not compile"), "{fault}");
    }
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

/// Checks that a template is refused, and soon.
#[expect(
    clippy::disallowed_methods,
    reason = "a test of how long a template may take"
)]
fn assert_refused(source: &str) {
    let started = std::time::SystemTime::now();
    let refusal = render(source, &json!({})).unwrap_err().to_string();
    assert!(refusal.starts_with("chat template"), "{refusal}");
    let seconds = started.elapsed().unwrap().as_secs();
    assert!(seconds < 10, "{seconds} s: {source:.200}");
}

/// Each of these takes long where looking at items of a long value is not charged.
#[test]
fn hostile_uses_of_items_are_errors() {
    let grown = |step: &str| {
        format!(
            "{{% set n = namespace(x='aaaaaaaaaaaaaaaa', l=[1]) %}}{{% for i in range(18) %}}{{% \
             set n.x = n.x ~ n.x %}}{{% if i > 3 %}}{{% set n.l = n.l + n.l %}}{{% endif %}}{{% \
             endfor %}}{{% for i in range(30000) %}}{step}{{% endfor %}}"
        )
    };
    let cases = [
        grown("{% set n.y = n.x[1:] %}"),
        grown("{% set n.y = n.x[::-1] %}"),
        grown("{% set n.y = n.x[-1] %}"),
        grown("{% set n.y = n.l[1:] %}"),
        grown("{% set n.l = n.l | reverse %}"),
        grown("{% set n.y = (n.l | reverse)[9000] %}"),
        grown("{% for c in n.x %}{% break %}{% endfor %}"),
        grown("{% if loop.changed(n.x) %}{% endif %}"),
        grown("{% set n.y = {}[n.x] %}"),
        grown(
            "{% if i == 0 %}{% set n.k = [n.x] %}{% endif %}{% if {1: 2, 3: 4}[n.k] %}{% endif %}",
        ),
        grown("{% if strftime_now(n.x) %}{% endif %}"),
        grown("{% set n.y = n.x | list %}"),
        grown("{% set n.y = n.l | tojson %}"),
        grown("{% set n.y = n.x.split('a') %}"),
        "{% for c in 'x' recursive %}{{ loop('y') }}{% endfor %}".to_owned(),
    ];
    cases.iter().for_each(|source| assert_refused(source));
}

/// Each of these hangs, takes all memory or overflows the stack without a bound.
#[test]
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
    cases.iter().for_each(|source| assert_refused(source));
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

/// Macros that call each other, and values in each other, end long before a thread's stack does.
#[test]
fn rendering_needs_little_stack() {
    let sources = [
        "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}",
        "{% macro f() %}{% for i in [1] %}{{ f()|trim }}{% endfor %}{% endmacro %}{{ f() }}",
        "{% set n = namespace(v=[]) %}{% for i in range(9999) %}{% set n.v = [n.v] %}{% endfor %}",
        "{% set p = namespace() %}{% for i in range(9999) %}{% set n = namespace() %}\
         {% set n.v = p.v %}{% set p.v = n %}{% endfor %}",
        "{% set n = namespace() %}{% set n.v = [{'n': n}] %}",
        "{% set n = namespace() %}{% macro f() %}{{ n }}{% endmacro %}{% set n.v = f %}",
    ];
    let rendered = thread::Builder::new().stack_size(1 << 20).spawn(move || {
        sources.map(|source| render(source, &json!({})).expect_err(source).to_string())
    });
    for fault in rendered.unwrap().join().unwrap() {
        assert!(fault.contains("does not render"), "{fault}");
    }
}
