//! Chat templates: the Jinja of Hugging Face folders, rendered as Python's jinja2 renders it, byte
//! for byte.
//!
//! Invariant: the text depends on the template and its arguments alone (`strftime_now` returns a
//! fixed date). minijinja is configured like transformers' sandbox: trimmed blocks, Python's string
//! methods, Python's format of JSON and of values. A template from a stranger is an error where it
//! would take long or much memory (`bounds.rs`). Assistant masks are not supported: `{% generation
//! %}` only prints its body.

mod bounds;

use std::sync::Arc;
use std::thread;

use minijinja::machinery::{
    CompiledTemplate, TemplateConfig, Vm, WhitespaceConfig, make_string_output,
};
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use serde::Serialize;

use crate::error::{PolicyError, Result};
use crate::python;

const NAME: &str = "chat_template";
/// How Hugging Face lays out templates.
const LAYOUT: WhitespaceConfig = WhitespaceConfig {
    keep_trailing_newline: false,
    lstrip_blocks: true,
    trim_blocks: true,
};
/// The stack of a rendering. A template may nest as deep as `bounds.rs` allows.
const STACK_BYTES: usize = 128 << 20;
/// The most spaces per level of JSON.
const MOST_INDENT: usize = 16;

/// A chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`PolicyError::Text`] names the line.
    pub fn new(source: &str) -> Result<Self> {
        let mut environment = bounds::environment();
        environment.set_formatter(write_like_python);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_fixed);
        let source = without_generation_tags(source);
        with_stack(|| compiled(&source).map(drop)).and_then(|compiled| {
            compiled.map_err(|error| {
                PolicyError::Text(format!("chat template does not compile: {error}"))
            })
        })?;
        Ok(Self {
            environment,
            source,
        })
    }

    /// Renders the template with `context` (a map: messages, tools, add_generation_prompt and so
    /// on). Absent keys are undefined.
    pub fn render(&self, context: &impl Serialize) -> Result<String> {
        let context = Value::from_serialize(context);
        let rendered = with_stack(|| render(&self.environment, &self.source, context))?;
        rendered
            .map_err(|error| PolicyError::Text(format!("chat template does not render: {error}")))
    }
}

/// Runs `work` on a thread with a large stack.
fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let failed = |reason: String| PolicyError::Text(format!("chat template: {reason}"));
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat template".to_owned());
        let thread = builder.stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| failed(format!("cannot start a thread: {error}")))?;
        let ended = thread.join();
        ended.map_err(|_| failed("the template library failed on it".to_owned()))
    })
}

/// Compiles a template and bounds what it does. Returns it with its fuel.
fn compiled(source: &str) -> Result<(CompiledTemplate<'_>, u64), Error> {
    bounds::check_source(source, LAYOUT)?;
    let config = TemplateConfig {
        syntax_config: Default::default(),
        ws_config: LAYOUT,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut template = CompiledTemplate::new(NAME, source, &config)?;
    let mut fuel = bounds::bound(&mut template.instructions)?;
    for block in template.blocks.values_mut() {
        fuel = fuel.min(bounds::bound(block)?);
    }
    Ok((template, fuel))
}

fn render(environment: &Environment<'_>, source: &str, context: Value) -> Result<String, Error> {
    let (template, fuel) = compiled(source)?;
    let mut environment = environment.clone();
    environment.set_fuel(Some(fuel));
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    let (instructions, blocks) = (&template.instructions, &template.blocks);
    let vm = Vm::new(&environment);
    vm.eval(instructions, context, blocks, &mut output, AutoEscape::None)?;
    drop(output);
    Ok(text)
}

/// Rewrites transformers' `{% generation %}` blocks, which minijinja does not know, to `{% with
/// %}`: a scope that prints its body.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|length| start + length) else {
            break;
        };
        let tag = &rest[start + 2..end];
        out.push_str(&rest[..start + 2]);
        out.push_str(
            &match tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
                "generation" => tag.replace("generation", "with"),
                "endgeneration" => tag.replace("endgeneration", "endwith"),
                _ => tag.to_string(),
            },
        );
        rest = &rest[end..];
    }
    out + rest
}

fn write_like_python(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    bounds::charge_for(state, value)?;
    let mut text = String::new();
    python::write_str(&mut text, value)?;
    out.write_str(&text).map_err(Error::from)
}

/// `json.dumps(value, ensure_ascii=False)`, with transformers' optional arguments `ensure_ascii`
/// and `indent`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "filters take their arguments by value"
)]
fn tojson(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let layout = python::JsonLayout {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: kwargs.get("indent")?,
    };
    kwargs.assert_all_used()?;
    let indent = layout.indent.unwrap_or(0);
    if indent > MOST_INDENT {
        let detail = format!("tojson: indent is {indent}; supported: at most {MOST_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let size = bounds::charge_for(state, value)?;
    // Each element stands in a line of its own, behind the indents of all levels.
    bounds::charge(state, size.saturating_mul(indent * bounds::MOST_NESTING))?;
    let mut text = String::new();
    python::write_json(&mut text, value, layout)?;
    Ok(Value::from_safe_string(text))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Formats the date that templates print. A prompt must not change overnight, so the date is always
/// 26 July 2024 (the date that Llama's templates fall back to).
fn strftime_fixed(format: &str) -> Result<String, Error> {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out.push_str(match chars.next() {
            Some('Y') => "2024",
            Some('y') => "24",
            Some('m') => "07",
            Some('d') => "26",
            Some('B') => "July",
            Some('b') => "Jul",
            Some('A') => "Friday",
            Some('a') => "Fri",
            Some('H' | 'M' | 'S') => "00",
            Some('%') => "%",
            other => {
                let detail = format!(
                    "strftime_now: format {format:?}: unsupported directive %{}",
                    other.unwrap_or(' ')
                );
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
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
            "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}".to_owned()
                + &doubled("set n.x = d(n.x)"),
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
}
