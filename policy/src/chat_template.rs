//! Chat templates: the Jinja of Hugging Face folders, rendered as Python's jinja2 renders it, byte
//! for byte.
//!
//! Invariant: the text depends on the template and its arguments alone (`strftime_now` returns a
//! fixed date). minijinja is configured like transformers' sandbox: trimmed blocks, Python's string
//! methods, Python's format of JSON and of values. Assistant masks are not supported: `{%
//! generation %}` only prints its body.

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use serde::Serialize;

use crate::error::{PolicyError, Result};
use crate::python;

const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`PolicyError::Text`] names the line.
    pub fn new(source: &str) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(write_like_python);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_fixed);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| {
                PolicyError::Text(format!("chat template does not compile: {error:#}"))
            })?;
        Ok(Self { environment })
    }

    /// Renders the template with `context` (a map: messages, tools, add_generation_prompt and so
    /// on). Absent keys are undefined.
    pub fn render(&self, context: &impl Serialize) -> Result<String> {
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| PolicyError::Text(format!("chat template does not render: {error:#}")))
    }
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
    _state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
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
fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let layout = python::JsonLayout {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: kwargs.get("indent")?,
    };
    kwargs.assert_all_used()?;
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
        ] {
            let error = render(source, &json!({})).unwrap_err().to_string();
            assert!(error.contains(cause), "{source}: {error}");
        }
    }
}
